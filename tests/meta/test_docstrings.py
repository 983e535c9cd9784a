"""Public functions and methods say what they take, return and raise, in Google style: the API reference is made of it."""

import ast
from collections.abc import Iterator

from meta import api

# Called by the engine or by a framework, whose interface says what they take.
OVERRIDES = frozenset(("build", "can_insert", "can_sample", "window"))

# Packages whose docstrings are still to be completed; a package leaves the list when they are, and none is added.
TO_COMPLETE = (
    "reroll.group.",
    "reroll.integrations.transfer_queue.",
    "reroll.integrations.verl.",
    "reroll.ray.",
    "reroll.remote.",
    "reroll.server.",
    "reroll.simulate.",
)


def public_functions() -> Iterator[tuple[str, api.Function]]:
    """Yield every public function and method with its full name, each once."""
    for module in api.MODULES:
        for name in api.exported(module):
            definition = api.find(module, name)
            if definition is None or module == "reroll.testing":
                continue
            if isinstance(definition.node, api.Function):
                yield f"{definition.module}.{name}", definition.node
            elif isinstance(definition.node, ast.ClassDef):
                for member in api.members(definition.module, definition.node).values():
                    is_function = isinstance(member.node, api.Function)
                    if is_function and member.name not in ("__init__", *OVERRIDES) and not _inherits(member):
                        yield f"{member.module}.{member.owner}.{member.name}", member.node


def _inherits(member: api.Member) -> bool:
    """Return whether a method without a docstring has the documentation of `Prompts` or `ReplayBuffer`."""
    documented = api.find("reroll.prepare", "Prompts"), api.find("reroll", "ReplayBuffer")
    return not ast.get_docstring(member.node) and any(
        member.name in api.members(other.module, other.node) for other in documented
    )


def missing_sections(node: api.Function) -> list[str]:
    """Return the sections that a docstring lacks. A summary that begins with "Return" needs no Returns."""
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    if any("property" in mark or mark.endswith((".setter", "overload")) for mark in marks):
        return []
    text = ast.get_docstring(node) or ""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    names = [argument.arg for argument in arguments if argument.arg not in ("self", "cls")]
    returns = ast.unparse(node.returns) if node.returns else "None"
    raises = any(isinstance(part, ast.Raise) and isinstance(part.exc, ast.Call) for part in ast.walk(node))
    missing = [] if text else ["a docstring"]
    if names and "Args:" not in text:
        missing.append("Args")
    undescribed = [name for name in names if "Args:" in text and f"{name}:" not in text]
    if undescribed:
        missing.append(f"Args of {', '.join(undescribed)}")
    if (
        returns not in ("None", "Self", "NoReturn")
        and not any(f"{section}:" in text for section in ("Returns", "Yields"))
        and not text.startswith(("Return", "Yield"))
    ):
        missing.append("Returns")
    if raises and "Raises:" not in text:
        missing.append("Raises")
    return missing


def problems() -> dict[str, list[str]]:
    """Return the missing sections of each public function that lacks some."""
    return {name: missing for name, node in public_functions() if (missing := missing_sections(node))}


def test_docstrings_of_public_functions_are_complete():
    found = {name: missing for name, missing in problems().items() if not name.startswith(TO_COMPLETE)}
    assert not found, f"add these sections to the docstrings, in Google style: {found}"


def test_missing_sections_are_found():
    def missing(text: str) -> list[str]:
        return missing_sections(ast.parse(text).body[0])

    body = "\n    raise ValueError('no')"
    assert missing(f"def f(a, b) -> int:{body}") == ["a docstring", "Args", "Returns", "Raises"]
    documented = '"""Do.\n\n    Args:\n        a: one.\n\n    Returns:\n        Two.\n\n    Raises:\n        ValueError: no.\n\n    """'
    assert missing(f"def f(a) -> int:\n    {documented}{body}") == []
    assert missing(f"def f(a, c) -> int:\n    {documented}{body}") == ["Args of c"]
    assert missing('def f(self) -> int:\n    """Return one."""') == []
    assert missing("@property\ndef f(self) -> int: ...") == []
