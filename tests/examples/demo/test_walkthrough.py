"""docs/demo.md walks through the code that is there."""

from pathlib import Path
from textwrap import indent

import pytest

import demo
from meta.markdown import ROOT, blocks_of

SHOWN = [
    block
    for block in blocks_of((ROOT / "docs/demo.md").read_text())
    if block.language == "python" and not block.is_run
]


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: f"line {block.line}")
def test_what_is_shown_is_in_the_code(block):
    sources = [path.read_text() for path in Path(demo.__file__).parent.glob("*.py")]
    assert any(indent(block.code, " " * depth) in source for source in sources for depth in (0, 4, 8, 12))


def test_something_is_shown():
    assert len(SHOWN) == 4
