"""A change of the public API is seen in review: the API is compared with a recorded file."""

import ast
import difflib
import re

from meta import api


def test_the_public_api_is_as_recorded():
    recorded, found = api.RECORD.read_text().splitlines(), "\n".join(api.lines()).splitlines()
    changes = "\n".join(difflib.unified_diff(recorded, found, "recorded", "source", lineterm="", n=0))
    assert not changes, (
        f"the public API differs from {api.RECORD.name}; if you meant it, run `{api.COMMAND}`, commit the file, and "
        f"describe the change in CHANGELOG.md:\n{changes}"
    )


def test_the_document_lists_the_public_modules():
    document = (api.ROOT / "docs/stability.md").read_text()
    listed = re.findall(r"^\| `(reroll[\w.]*)`", document, re.MULTILINE)
    assert listed == list(api.MODULES), "the table of docs/stability.md and MODULES of meta/api.py differ"


def test_every_exported_name_is_found():
    missing = [
        f"{module}.{name}"
        for module in api.MODULES
        for name in api.exported(module)
        if api.find(module, name) is None
    ]
    assert not missing, f"in __all__, but defined nowhere in the package: {missing}"


def test_a_signature_is_read_as_it_is_written():
    text = "class A(B, metaclass=C):\n    @property\n    def x(self) -> int: ...\n    async def y(self, a: int = 1, *, b=None): ..."
    node = ast.parse(text).body[0]
    assert api.signature(node) == "class A(B, metaclass=C)"
    assert [api.signature(member) for member in node.body] == [
        "@property def x(self) -> int",
        "async def y(self, a: int=1, *, b=None)",
    ]


def test_inherited_members_are_found():
    definition = api.find("reroll", "AsyncReplayBufferConfig")
    found = api.members(definition.module, definition.node)
    assert found["capacity"].owner != "AsyncReplayBufferConfig"
    assert not any(name.startswith("_") and name != "__init__" for name in found)
