"""Documentation is true: its code runs, its commands exist, its links lead somewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from meta.markdown import ROOT, Block, blocks_of, documents, is_broken, links_of, spans_of

PATH = os.pathsep.join(filter(None, [str(ROOT / "examples"), os.environ.get("PYTHONPATH")]))
"""Guides import the demo."""
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# The blocks of one file share a namespace, in order, as a reader would type them. Warnings are errors: a reader should
# not meet one. A failure shows the line of the markdown file.
RUN = """
import json, linecache, pathlib, sys
name, blocks = json.load(sys.stdin)
linecache.cache[name] = (0, None, pathlib.Path(name).read_text().splitlines(keepends=True), name)
namespace = {"__name__": "__main__"}
for code, line in blocks:
    exec(compile("\\n" * (line - 1) + code, name, "exec"), namespace)
"""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def python_blocks(text: str) -> list[Block]:
    return [block for block in blocks_of(text) if block.language == "python"]


def run_blocks(path: Path, where: Path) -> subprocess.CompletedProcess[str]:
    """Run the python blocks of a file in a fresh interpreter, in an empty directory."""
    blocks = [(block.code, block.line) for block in python_blocks(path.read_text()) if block.is_run]
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN],
        input=json.dumps([str(path), blocks]),
        cwd=where,
        env={**os.environ, "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def commands_of(text: str) -> set[str]:
    """Return the make targets that the text names as commands, in code spans and shell blocks."""
    shell = [block.code for block in blocks_of(text) if block.language != "python"]
    lines = [line for code in (*spans_of(text), *shell) for line in code.splitlines()]
    found: set[str] = set()
    for line in lines:
        for call in re.findall(r"(?:^|[$;&|]\s*)make((?:\s+[\w=.-]+)+)", line.strip()):
            found.update(word for word in call.split() if "=" not in word and not word.startswith("-"))
    return found


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", GUIDES, ids=named)
def test_python_blocks_compile(path):
    for block in python_blocks(path.read_text()):
        compile("\n" * (block.line - 1) + block.code, str(path), "exec")


@pytest.mark.parametrize("path", GUIDES, ids=named)
def test_python_blocks_run(path, tmp_path):
    done = run_blocks(path, tmp_path)
    assert done.returncode == 0, f"the code in {named(path)} fails:\n{done.stderr}"


@pytest.mark.parametrize("path", GUIDES, ids=named)
def test_commands_exist(path):
    unknown = sorted(commands_of(path.read_text()) - make_targets())
    assert not unknown, f"{named(path)} names make targets that the Makefile does not have: {unknown}"


@pytest.mark.parametrize("path", documents(), ids=named)
def test_links_lead_somewhere(path):
    broken = [target for target in links_of(path.read_text()) if is_broken(target, path)]
    assert not broken, f"{named(path)} links to files or headings that do not exist: {broken}"


def run_suites(path: Path, where: Path) -> subprocess.CompletedProcess[str]:
    """Run the test classes that a guide shows, by pytest, on a module of all its blocks."""
    blocks = [block.code for block in python_blocks(path.read_text()) if block.is_run]
    (where / "test_guide.py").write_text("\n\n".join(blocks))
    (where / "pytest.ini").write_text("[pytest]\n")  # no settings of ours: the reader's project has its own
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider"],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize("path", [path for path in GUIDES if "\nclass Test" in path.read_text()], ids=named)
def test_suites_in_guides_pass(path, tmp_path):
    done = run_suites(path, tmp_path)
    assert done.returncode == 0, f"the test classes in {named(path)} fail:\n{done.stdout}\n{done.stderr}"


# --- the checks can fail

MADE_UP = """
Run `make test` or `make shine`; to make sure, see [the guide](guide.md#start), [us](https://example.org), [up](#up).

```bash
cd somewhere && make polish
make PYTHON=python3.12 lint -j4
```
```python
x = 1  # make nothing
```
<!-- not run -->
```python
start_a_cluster()
```
1. In a list:
   ```python
   assert x == 1
   assert x == 2
   ```
"""


def test_failing_blocks_are_found(tmp_path):
    guide = tmp_path / "guide.md"
    guide.write_text(MADE_UP)
    done = run_blocks(guide, tmp_path)
    assert done.returncode != 0
    assert f'{guide}", line 18' in done.stderr
    assert "assert x == 2" in done.stderr
    guide.write_text(MADE_UP.replace("x == 2", "x < 2"))
    assert run_blocks(guide, tmp_path).returncode == 0


def test_failing_suites_are_found(tmp_path):
    guide = tmp_path / "guide.md"
    guide.write_text("```python\nclass TestIt:\n    def test_sums(self):\n        assert 1 + 1 == 3\n```\n")
    done = run_suites(guide, tmp_path)
    assert done.returncode == 1
    assert "1 failed" in done.stdout


def test_blocks_that_are_not_run_are_told_apart():
    assert [block.is_run for block in python_blocks(MADE_UP)] == [True, False, True]


def test_commands_are_found():
    assert commands_of(MADE_UP) == {"test", "shine", "polish", "lint"}
    assert {"test", "lint", "bench"} <= make_targets()


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    assert links_of(MADE_UP) == ["guide.md#start", "#up"]
    page.write_text("# Up, and away!\n")
    assert is_broken("guide.md#start", page)
    (tmp_path / "guide.md").write_text("# Begin\n")
    assert is_broken("guide.md#start", page)
    assert is_broken("#up", page)
    assert not is_broken("#up-and-away", page)
    assert not is_broken("guide.md", page)


def test_a_block_that_is_never_closed_is_found():
    with pytest.raises(ValueError, match="never closed"):
        list(blocks_of("```python\nx = 1\n"))
