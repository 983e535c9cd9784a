"""The public surface is exact: what `reroll.__all__` names is there, documented, and nothing else is."""

import pickle
import re
from pathlib import Path
from types import ModuleType

import pytest

import reroll
from meta.markdown import code_text
from reroll import errors

ROOT = Path(__file__).parents[2]
EXCEPTIONS = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)
]


def public_names(module: ModuleType) -> set[str]:
    """Return what a user sees of a module: all names without an underscore that are no modules."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }


def undocumented(names: list[str], documents: str) -> list[str]:
    """Return the names that no code span or code block of the documents mentions."""
    code = code_text(documents)
    return [name for name in names if not re.search(rf"\b{re.escape(name)}\b", code)]


def test_all_is_sorted_without_repetition():
    assert reroll.__all__ == sorted(set(reroll.__all__))


def test_all_names_exist():
    missing = [name for name in reroll.__all__ if not hasattr(reroll, name)]
    assert not missing, f"in reroll.__all__, but not importable from reroll: {missing}"


def test_nothing_else_is_public():
    stray = sorted(public_names(reroll) - set(reroll.__all__))
    assert not stray, (
        f"importable from reroll, but not in reroll.__all__: {stray}; add them or import them privately"
    )


def test_every_public_name_is_documented():
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [name for name in reroll.__all__ if not name.startswith("_")]
    missing = undocumented(names, "\n\n".join(path.read_text() for path in documents))
    assert not missing, (
        f"public, but in no code of README.md or docs/*.md: {missing}; document what each is for"
    )


def test_the_search_for_undocumented_names_looks_at_code_only():
    assert undocumented(["Queue", "Stack"], "A Queue is a queue. `Stack(3)` too.") == ["Queue"]


@pytest.mark.parametrize("exception", EXCEPTIONS)
def test_every_exception_is_exported(exception):
    assert exception.__name__ in reroll.__all__
    assert getattr(reroll, exception.__name__) is exception


@pytest.mark.parametrize("exception", EXCEPTIONS)
def test_every_exception_crosses_processes(exception):
    there = exception("what happened; what to do next")
    back = pickle.loads(pickle.dumps(there))  # noqa: S301  (our own bytes)
    assert type(back) is exception
    assert str(back) == str(there) == "what happened; what to do next"
    assert back.args == there.args


def test_every_exception_has_a_standard_parent_or_none():
    bare = {
        exception.__name__
        for exception in EXCEPTIONS
        if not any(parent.__module__ == "builtins" for parent in exception.__mro__[1:-3])
    }
    assert bare == {"RerollError", "WouldBlock"}, "other exceptions subclass a standard type, too"


def drawn_tree(docstring: str) -> dict[str, tuple[str | None, str | None]]:
    """Return {name: (parent, standard type in parentheses)} as the docstring draws it."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    ancestors: list[str] = []
    for line in docstring.splitlines():
        found = re.match(r"((?:[│ ] {3})*)(?:[├└]── )?([A-Z]\w*)(?:\s+\((\w+)\))?(?:\s{2,}|$)", line)
        if found is None or (not ancestors and line != "RerollError"):
            continue
        depth = (found.start(2)) // 4
        del ancestors[depth:]
        tree[found[2]] = (ancestors[-1] if ancestors else None, found[3])
        ancestors.append(found[2])
    return tree


def real_tree() -> dict[str, tuple[str | None, str | None]]:
    """Return the same from the classes."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    for exception in EXCEPTIONS:
        parents = [parent.__name__ for parent in exception.__bases__ if parent.__module__ == errors.__name__]
        standard = [parent.__name__ for parent in exception.__bases__ if parent.__module__ == "builtins"]
        tree[exception.__name__] = (
            parents[0] if parents else None,
            standard[0] if standard and parents else None,
        )
    return tree


def test_the_tree_of_exceptions_is_drawn_as_it_is():
    assert drawn_tree(errors.__doc__ or "") == real_tree(), (
        "the docstring of reroll.errors draws another tree"
    )


def test_the_drawing_is_read():
    drawing = (
        "RerollError\n├── A (ValueError)    text\n│   └── B             text\n└── C                 text\n"
    )
    assert drawn_tree(drawing) == {
        "RerollError": (None, None),
        "A": ("RerollError", "ValueError"),
        "B": ("A", None),
        "C": ("RerollError", None),
    }
