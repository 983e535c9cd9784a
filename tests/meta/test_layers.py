"""Imports go down the layers only, the core stays light, the engine stays pure, and modules have names that say something.

The rules are functions from sources to complaints, so that the tests below can show them sources that break each rule.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from meta.markdown import blocks_of

SRC = Path(__file__).parents[2] / "src"

# From the bottom up. A module imports from its own layer or from one below; "" is `reroll/__init__.py`, the public
# surface of the core. A new top-level module or package is added here, in the lowest layer where it can live.
LAYERS: tuple[tuple[str, frozenset[str]], ...] = (
    ("errors", frozenset({"errors", "_version", "forking", "display"})),
    ("what a rollout and a query are", frozenset({"rollout", "query"})),
    ("engine and store", frozenset({"engine", "codec", "store"})),
    ("groups and telemetry", frozenset({"group", "sample", "telemetry"})),
    ("shells", frozenset({"interrupts", "waiting", "table", "buffer", "config", "checkpoint"})),
    ("public names of the core", frozenset({""})),
    ("prepare", frozenset({"prepare"})),
    ("reach", frozenset({"remote", "ray", "server"})),
    ("integrations", frozenset({"integrations"})),
    ("observe", frozenset({"observe"})),
    ("tools", frozenset({"cli", "dashboard", "simulate", "testing", "__main__"})),
)
# Public names that are loaded from above when somebody asks for them, with what their extra installs.
LOADED_WHEN_ASKED_FOR = frozenset({"server"})
HEIGHT = {name: height for height, (_, names) in enumerate(LAYERS) for name in names}
CORE_HEIGHT = HEIGHT[""]

# What the core may load when it is imported, besides the standard library; all else lazily, inside functions.
CORE_NEEDS = frozenset({"numpy", "msgspec", "pydantic", "zlib_ng"})

# No clock, no lock, no thread, no I/O, no randomness but the seeded generator: not even lazily.
PURE = frozenset({"errors", "rollout", "query", "engine"})
IMPURE = frozenset(
    (
        *("time", "datetime", "sched", "random", "secrets"),
        *("threading", "asyncio", "concurrent", "multiprocessing", "subprocess", "queue", "signal"),
        *("socket", "select", "selectors", "ssl", "http", "urllib", "sqlite3", "shutil", "tempfile"),
    )
)

# A helper lives beside its one user, or earns a name.
EMPTY_WORDS = frozenset(
    ("util", "utils", "common", "helper", "helpers", "misc", "manager", "managers", "impl", "base")
)


class Import(NamedTuple):
    """One imported module: its full name, the line, and whether it is loaded only when a function runs."""

    target: str
    line: int
    is_lazy: bool


def package_sources() -> dict[str, str]:
    """Return the source of every module of the package by its full name."""
    return {_module_name(path): path.read_text() for path in sorted((SRC / "reroll").rglob("*.py"))}


def _module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    # A package keeps its last dot, so that relative imports in it resolve like those of a module in it.
    return ".".join(parts[:-1]) + "." if parts[-1] == "__init__" else ".".join(parts)


def imports_of(module: str, source: str, known: frozenset[str] = frozenset()) -> Iterator[Import]:
    """Yield every import of a module; `from reroll import errors` imports `reroll.errors` if that is known."""

    def visit(node: ast.AST, is_lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, is_lazy)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{origin}.{alias.name}"
                yield Import(full if full in known else origin, node.lineno, is_lazy)
        inside = is_lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    return visit(ast.parse(source), is_lazy=False)


def known_modules(sources: Mapping[str, str]) -> frozenset[str]:
    return frozenset(module.removesuffix(".") for module in sources)


def top_name(module: str) -> str:
    """Return what LAYERS knows a module of ours by: `engine` for `reroll.engine.rows`, "" for `reroll`."""
    return f"{module}.".split(".")[1]


def root_name(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def is_ours(module: str) -> bool:
    return root_name(module) == "reroll"


def is_core(module: str) -> bool:
    return HEIGHT.get(top_name(module), 0) <= CORE_HEIGHT


def place_problems(sources: Mapping[str, str]) -> list[str]:
    """Every top-level module or package has its place in LAYERS."""
    unknown = sorted({top_name(module) for module in sources} - set(HEIGHT))
    return [
        f"reroll.{name} has no layer: add {name!r} to LAYERS in tests/meta/test_layers.py, in the lowest layer where it "
        "can live, and to the picture in docs/architecture.md"
        for name in unknown
    ]


def picture_problems(sources: Mapping[str, str], picture: str) -> list[str]:
    """Every top-level module or package is in the picture of the layers."""
    names = {top_name(module) for module in sources} - {"", "_version", "__main__"}
    drawn = set(re.findall(r"\w+", picture))
    return [f"reroll.{name} is not in the picture in docs/architecture.md" for name in sorted(names - drawn)]


def layer_problems(sources: Mapping[str, str]) -> list[str]:
    """No import goes up."""
    known, problems = known_modules(sources), []
    for module, source in sources.items():
        here = top_name(module)
        for target, line, _ in imports_of(module, source, known):
            there = top_name(target)
            if not is_ours(target) or here not in HEIGHT or there not in HEIGHT:
                continue
            if here == "" and there in LOADED_WHEN_ASKED_FOR:
                continue
            if HEIGHT[there] > HEIGHT[here]:
                low, high = LAYERS[HEIGHT[here]][0], LAYERS[HEIGHT[there]][0]
                problems.append(f"{module}, line {line}: imports {target}, up from {low!r} to {high!r}")
    return problems


def circle_problems(sources: Mapping[str, str]) -> list[str]:
    """No modules, and no top-level packages, import each other in a circle."""
    known = known_modules(sources)
    modules: dict[str, set[str]] = {}
    packages: dict[str, set[str]] = {}
    for module, source in sources.items():
        here = module.removesuffix(".")
        for target, _, is_lazy in imports_of(module, source, known):
            if not is_ours(target) or target == here:
                continue
            if not is_lazy:
                modules.setdefault(here, set()).add(target)
            if top_name(target) != top_name(here):
                packages.setdefault(top_name(here), set()).add(top_name(target))
    problems = []
    for graph in (modules, packages):
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            problems.append("a circle of imports: " + " <- ".join(error.args[1]))
    return problems


def weight_problems(sources: Mapping[str, str]) -> list[str]:
    """The core loads nothing heavy or optional when it is imported."""
    problems = []
    for module, source in sources.items():
        if not is_core(module):
            continue
        allowed = CORE_NEEDS | sys.stdlib_module_names | {"reroll"}
        for target, line, is_lazy in imports_of(module, source, known_modules(sources)):
            if not is_lazy and root_name(target) not in allowed:
                problems.append(f"{module}, line {line}: the core imports {target} only inside functions")
    return problems


def purity_problems(sources: Mapping[str, str]) -> list[str]:
    """What decides reads no clock, takes no lock, starts no thread and does no I/O."""
    return [
        f"{module}, line {line}: {top_name(module)} is pure and never imports {target}; hand its values in"
        for module, source in sources.items()
        if top_name(module) in PURE
        for target, line, _ in imports_of(module, source)
        if root_name(target) in IMPURE
    ]


def column_problems(sources: Mapping[str, str]) -> list[str]:
    """Only the engine writes columns of its rows; `testing` has columns of its own."""
    problems = []
    for module, source in sources.items():
        if top_name(module) in ("engine", "testing"):
            continue
        for node in ast.walk(ast.parse(source)):
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            for target in targets if isinstance(node, ast.Assign | ast.AugAssign) else ():
                column = target.value if isinstance(target, ast.Subscript) else None
                if isinstance(column, ast.Attribute) and re.search(r"\bcolumns$", ast.unparse(column.value)):
                    problems.append(
                        f"{module}, line {node.lineno}: writes {column.attr}; add a verb to the engine"
                    )
    return problems


def name_problems(sources: Mapping[str, str]) -> list[str]:
    """Every module is named after what it is."""
    return [
        f"{module}: {word!r} says nothing about what is in it; put it beside its one user, or name the idea"
        for module in sources
        for word in module.replace(".", "_").split("_")
        if word in EMPTY_WORDS
    ]


# --- the package keeps the rules


def test_every_module_has_a_layer():
    assert place_problems(package_sources()) == []


def test_every_module_is_in_the_picture():
    document = (SRC.parent / "docs/architecture.md").read_text()
    assert picture_problems(package_sources(), next(blocks_of(document)).code) == []


def test_imports_go_down():
    assert layer_problems(package_sources()) == []


def test_no_circles():
    assert circle_problems(package_sources()) == []


def test_the_core_is_light():
    assert weight_problems(package_sources()) == []


def test_what_decides_is_pure():
    assert purity_problems(package_sources()) == []


def test_only_the_engine_writes_columns():
    assert column_problems(package_sources()) == []


def test_modules_are_named_after_what_they_are():
    assert name_problems(package_sources()) == []


def test_the_package_was_found():
    assert {"reroll.", "reroll.errors", "reroll.engine.engine", "reroll.table"} <= set(package_sources())


# --- the rules can be broken


def test_a_module_without_a_layer_is_told_where_to_go():
    (problem,) = place_problems({"reroll.sprockets": "", "reroll.errors": ""})
    assert "sprockets" in problem
    assert "LAYERS in tests/meta/test_layers.py" in problem


def test_a_module_that_is_not_in_the_picture_is_found():
    assert (
        len(picture_problems({"reroll.": "", "reroll.sprockets": "", "reroll.errors": ""}, "errors · table"))
        == 1
    )


def test_an_import_that_goes_up_is_found():
    sources = {
        "reroll.": "",
        "reroll.errors": "",
        "reroll.table": "",
        "reroll.engine.rows": "from reroll.errors import Closed\nfrom reroll.table import Table",
        "reroll.query.": "from reroll import Table",
        "reroll.rollout.model": "from .. import table",
        "reroll.store.memory": "def load():\n    import reroll.server.wire",
        "reroll.server.wire": "from reroll import Table\nfrom reroll.engine import rows",
    }
    assert [problem.split(":")[0] for problem in layer_problems(sources)] == [
        "reroll.engine.rows, line 2",
        "reroll.query., line 1",
        "reroll.rollout.model, line 1",
        "reroll.store.memory, line 2",
    ]


def test_a_circle_is_found():
    modules = {"reroll.query.a": "import reroll.query.b", "reroll.query.b": "from reroll.query import a"}
    assert len(circle_problems(modules)) == 1
    packages = {
        "reroll.query.a": "import reroll.rollout.b",
        "reroll.rollout.a": "def later():\n    import reroll.query.c",
    }
    assert len(circle_problems(packages)) == 1


def test_a_heavy_import_is_found_unless_lazy():
    heavy = "import torch\nfrom ray.util import queue\ntry:\n    import yaml\nexcept ImportError:\n    yaml = None"
    lazy = "def to_tensor(x):\n    import torch\n    return torch.tensor(x)\n\nclass A:\n    def f(self):\n        import zmq"
    light = "import numpy.typing as npt\nimport pydantic, msgspec, json\nfrom reroll.errors import Closed"
    assert len(weight_problems({"reroll.table": heavy})) == 3
    assert weight_problems({"reroll.table": lazy, "reroll.config": light, "reroll.errors": ""}) == []
    assert weight_problems({"reroll.ray.actor": "import ray"}) == []


def test_a_clock_or_a_lock_in_the_engine_is_found():
    source = "from time import monotonic\ndef later():\n    import threading\nimport math"
    assert len(purity_problems({"reroll.engine.engine": source, "reroll.table": source})) == 2


def test_a_column_that_is_written_elsewhere_is_found():
    source = "columns.uses[slots] += 1\nself.engine.columns.tags[slot] = {}\nuses = columns.uses[slots]\ncolumns['a'] = 1"
    found = column_problems({"reroll.buffer.puts": source, "reroll.engine.engine": source})
    assert [problem.split(":")[0] for problem in found] == [
        "reroll.buffer.puts, line 1",
        "reroll.buffer.puts, line 2",
    ]


def test_an_empty_name_is_found():
    names = [
        "reroll.utils.",
        "reroll.engine.rows_common",
        "reroll.manager",
        "reroll.codec",
        "reroll.basement",
    ]
    assert [problem.split(":")[0] for problem in name_problems(dict.fromkeys(names, ""))] == names[:3]
