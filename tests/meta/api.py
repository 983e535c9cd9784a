"""The public API, read from the source: exported names, their signatures, and the members of exported classes.

Reading the source needs no optional package, and gives the same text with every version of Python.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
RECORD = Path(__file__).with_name("public_api.txt")
COMMAND = "make api"

# Public are the names in `__all__` of these modules. docs/stability.md lists the same modules.
MODULES = (
    "reroll",
    "reroll.codec",
    "reroll.dashboard",
    "reroll.integrations.open_instruct",
    "reroll.integrations.transfer_queue",
    "reroll.integrations.trl",
    "reroll.integrations.verl",
    "reroll.integrations.xtuner",
    "reroll.observe",
    "reroll.prepare",
    "reroll.ray",
    "reroll.server",
    "reroll.simulate",
    "reroll.testing",
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Definition(NamedTuple):
    """Where a name is defined: the module, and the statement there; None for a module."""

    module: str
    node: ast.AST | None


class Member(NamedTuple):
    """A member of a class, with the class that defines it and its module."""

    name: str
    module: str
    owner: str
    node: ast.AST


@cache
def tree(module: str) -> ast.Module:
    """Return the syntax tree of a module of the package."""
    return ast.parse(_path(module).read_text())


def _path(module: str) -> Path:
    path = SRC.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def exported(module: str) -> list[str]:
    """Return the names in `__all__`."""
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return sorted(str(name) for name in ast.literal_eval(node.value))
    raise LookupError(f"{module} has no __all__")


@cache
def find(module: str, name: str) -> Definition | None:
    """Return the definition of a name that a module defines or imports; None for one from elsewhere."""
    nodes = [*tree(module).body]
    for node in nodes:
        if isinstance(node, ast.If | ast.Try):
            nodes.extend(node.body)  # imports for type checkers, and of extras
    for node in nodes:
        if isinstance(node, ast.ClassDef | Function) and node.name == name:
            return Definition(module, node)
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
            return Definition(module, node)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "reroll":
            for alias in node.names:
                if (alias.asname or alias.name) != name:
                    continue
                if _path(f"{node.module}.{alias.name}").exists():
                    return Definition(f"{node.module}.{alias.name}", None)
                return find(node.module, alias.name)
    return None


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def members(module: str, node: ast.ClassDef) -> dict[str, Member]:
    """Return the public members of a class by name, those of its bases in the package included."""
    found: dict[str, Member] = {}
    for base in reversed(node.bases):
        name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        origin = find(module, name) if name.isidentifier() else None
        if origin is not None and isinstance(origin.node, ast.ClassDef):
            found.update(members(origin.module, origin.node))
    for statement in node.body:
        if isinstance(statement, Function):
            names = [statement.name]
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            names = _targets(statement)
        else:
            names = []
        for name in names:
            overloaded = name in found and found[name].node in node.body
            if (name == "__init__" or not name.startswith("_")) and not overloaded:
                found[name] = Member(name, module, node.name, statement)
    return found


def signature(node: ast.AST) -> str:
    """Return a definition as one line: a function with its signature, another statement as it is."""
    if isinstance(node, Function):
        marks = [ast.unparse(mark) for mark in node.decorator_list]
        kinds = ("property", "cached_property", "classmethod", "staticmethod", "overload")
        shown = "".join(f"@{mark} " for mark in marks if mark.rsplit(".")[-1] in kinds)
        keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"{shown}{keyword} {node.name}({ast.unparse(node.args)}){returns}"
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in [*node.bases, *node.keywords])
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    return " ".join(ast.unparse(node).split())


def lines() -> Iterator[str]:
    """Yield the record of the public API: one line for each name and each member of a class.

    A member that is inherited from another public class is recorded there only.
    """
    public = {
        (found.module, name)
        for module in MODULES
        for name in exported(module)
        if (found := find(module, name))
    }
    for module in MODULES:
        yield f"# {module}"
        for name in exported(module):
            definition = find(module, name)
            if definition is None or definition.node is None:
                yield name
                continue
            yield f"{name}: {signature(definition.node)}"
            if not isinstance(definition.node, ast.ClassDef):
                continue
            for _, member in sorted(members(definition.module, definition.node).items()):
                is_inherited = member.owner != definition.node.name
                is_test = member.name.startswith("test_")  # of a conformance suite
                if not is_test and not (is_inherited and (member.module, member.owner) in public):
                    yield f"    {name}.{member.name}: {signature(member.node)}"
        yield ""


if __name__ == "__main__":
    RECORD.write_text("\n".join(lines()))
    print(f"wrote {RECORD.relative_to(ROOT)}")  # noqa: T201
