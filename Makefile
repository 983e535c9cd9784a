# The commands of the README and of CI. Each sets up what it needs in .venv; a second run is quick.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/.installed-demo
TRL    := .venv-trl
VERL   := .venv-verl
DOCS   := .venv-docs
DIST   := .venv-dist

.PHONY: help demo browser test test-slow test-trl test-verl coverage lint format api docs docs-serve dist bench bench-peers soak clean
.DEFAULT_GOAL := help

help:  ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-11s %s\n", $$1, $$2}'

# Sets up what the extras in $(1) need.
define install
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "reroll needs Python 3.11 or newer, but $(PYTHON) is " + sys.version.split()[0] + "; try: make PYTHON=python3.12 ...")'
	@echo "Setting up $(VENV) (once; a minute or so) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --progress-bar on --disable-pip-version-check -e '.[$(1)]'
	@touch $@
endef

$(STAMP): pyproject.toml
	$(call install,dev)

$(DEMO): pyproject.toml
	$(call install,demo)

demo: $(DEMO)  ## Train a small language model through reroll, and write a report.
	@PYTHONPATH=examples $(BIN)/python -m demo $(ARGS)

browser: $(STAMP)  ## Install a browser for the tests of pages, if there is none.
	PYTHON=$(BIN)/python scripts/install_browser

# Without a browser, and where none can be installed, the tests of pages are skipped, and say so.
test: $(STAMP)  ## Run the test suite.
	@PYTHON=$(BIN)/python scripts/install_browser || test -z "$$REROLL_MUST_BROWSE"
	$(BIN)/python -m pytest -m 'not slow' -n auto --dist loadfile

test-slow: $(STAMP)  ## Run the whole suite, with the long runs.
	HYPOTHESIS_PROFILE=ci $(BIN)/python -m pytest

# TRL brings its own torch and transformers, hence an environment of its own. What the older version needs is
# in it too: of that one only its own package is kept, to be put before the newer one.
$(TRL)/1.16.0/.installed: pyproject.toml tests/trl/requirements.txt
	@echo "Setting up $(@D) (once; a minute or so) ..."
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -e . trl==1.16.0 -r tests/trl/requirements.txt
	@touch $@

$(TRL)/1.13.0/.installed: $(TRL)/1.16.0/.installed
	@rm -rf $(@D)
	@$(TRL)/1.16.0/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(@D) trl==1.13.0
	@touch $@

test-trl: $(TRL)/1.16.0/.installed $(TRL)/1.13.0/.installed  ## Run the tests against TRL, in an environment of their own.
	REROLL_TRL=1.16.0 $(TRL)/1.16.0/bin/python -m pytest -c tests/trl/pytest.ini tests/trl
	REROLL_TRL=1.13.0 PYTHONPATH=$(CURDIR)/$(TRL)/1.13.0 $(TRL)/1.16.0/bin/python -m pytest -c tests/trl/pytest.ini tests/trl/test_replay.py

# About 2 GB; torch comes first, so that what needs it finds it.
$(VERL)/.installed: pyproject.toml tests/verl/requirements.txt
	@echo "Setting up $(VERL) (once; a few minutes) ..."
	@$(PYTHON) -m venv $(VERL)
	@$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check -e . -r tests/verl/requirements.txt
	@touch $@

test-verl: $(VERL)/.installed  ## Run the tests against verl and TransferQueue, in an environment of their own.
	$(VERL)/bin/python -m pytest -c tests/verl/pytest.ini tests/verl

lint: $(STAMP)  ## Check style, formatting and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## Format the code.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

coverage: $(STAMP)  ## Run the test suite with branch coverage, and report it by package.
	@$(BIN)/python -c 'import coverage' 2> /dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check 'coverage>=7.10'
	scripts/coverage $(BIN)/python

api: $(STAMP)  ## Record the public API anew, in tests/meta/public_api.txt.
	PYTHONPATH=tests $(BIN)/python -m meta.api

# The site has an environment of its own: its packages are none of the product's.
$(DOCS)/.installed: docs/requirements.txt
	@echo "Setting up $(DOCS) (once; a minute or so) ..."
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

docs: $(DOCS)/.installed  ## Build the site in site/; a broken link or an undocumented name fails.
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	$(DOCS)/bin/python scripts/check_site.py site

docs-serve: $(DOCS)/.installed  ## Serve the site, and build it again when a file changes.
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs serve $(ARGS)

$(DIST)/.installed: Makefile
	@$(PYTHON) -m venv $(DIST)
	@$(DIST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=24' build 'twine>=6.1'
	@touch $@

dist: $(DIST)/.installed  ## Build sdist and wheel, and install them with each extra alone, on Python 3.11 to 3.13.
	rm -rf dist
	$(DIST)/bin/python -m build --quiet
	$(DIST)/bin/twine check --strict dist/*
	$(DIST)/bin/python scripts/check_dist.py dist $(ARGS)

bench: $(STAMP)  ## Measure every operation, its growth, and a scanning design beside it.
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/buffer.py
	$(BIN)/python benchmarks/codec.py
	$(BIN)/python benchmarks/durability.py
	$(BIN)/python benchmarks/prepare.py
	$(BIN)/python benchmarks/integrations.py
	$(BIN)/python benchmarks/server.py
	$(BIN)/python benchmarks/ray.py
	$(BIN)/python benchmarks/dashboard.py

bench-peers:  ## Measure reroll beside its peers, each in an environment of its own, and write docs/benchmarks.md.
	$(PYTHON) benchmarks/side_by_side/run.py $(ARGS)

soak: $(STAMP)  ## Let a durable buffer live through minutes of traffic and kills.
	$(BIN)/python benchmarks/soak.py $(ARGS)

clean:  ## Remove the environment and all caches.
	rm -rf $(VENV) $(TRL) $(DOCS) $(DIST) .venv-peers site .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
