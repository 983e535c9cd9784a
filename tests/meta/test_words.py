"""The language of prose.md, as far as a machine can see it: phrases that force a second reading do not come back."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PHRASES = {
    r"whoever|whomever": "name the component: the caller, the producer, the lease holder",
    r"somebody|someone": "name the component: another producer, another process",
    r"nobody|no one": "name the component: no producer, no waiter",
    r"those who": "name them: waiters, groups that expired",
    r"(?:is|are|was|were) told": "say what acts: the shard sends, the caller passes",
    r"what lacks|what is lacking": "say what is missing",
    r"so many": "say the number, or 'n groups'",
    r"let(?:s|ting)? go of|let go": "evict, release, drop or finalize",
    r"comes? home|came home|bring home": "return to the pool",
}
# Words that the vocabulary of CONTRIBUTING replaced.
REPLACED = {
    r"AsyncPreparer": "Preparer",
    r"UnstorableWarning": "NotStorable",
    r"max_age": "max_staleness",
}
FORBIDDEN = {
    re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): remedy
    for pattern, remedy in {**PHRASES, **REPLACED}.items()
}

# Files that still have such phrases. A file leaves the list when it is rewritten; none is added.
TO_REWRITE: frozenset[str] = frozenset()


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file that a person reads, each with its line: prose, docstrings, messages and comments."""
    source = path.read_text()
    if path.suffix == ".md":
        yield from enumerate(re.sub(r"`[^`\n]*`", "", _without_blocks(source)).splitlines(), start=1)
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _without_blocks(text: str) -> str:
    """Return prose with the lines of code blocks blank, so that lines keep their numbers."""
    fence, lines = "", []
    for line in text.splitlines():
        found = re.match(r"`{3,}|~{3,}", line.strip())
        lines.append("" if fence or found else line)
        if fence:
            fence = "" if line.strip() == fence else fence
        elif found:
            fence = found[0]
    return "\n".join(lines)


def problems_of(path: Path) -> list[str]:
    """Return each forbidden phrase of a file with its line and a remedy. Line breaks inside of a phrase count as spaces."""
    found: dict[tuple[int, str], str] = {}
    for line, text in texts_of(path):
        for pattern, remedy in FORBIDDEN.items():
            for match in pattern.finditer(re.sub(r"\s+", " ", text)):
                found[line, match[0].lower()] = f"line {line}: {match[0]!r}; {remedy}"
    return list(found.values())


def checked_files() -> list[Path]:
    documents = [
        ROOT / "README.md",
        ROOT / "SECURITY.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
    return sorted([*documents, *(ROOT / "src").rglob("*.py")])


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize(
    "path", [path for path in checked_files() if named(path) not in TO_REWRITE], ids=named
)
def test_the_language_is_plain(path):
    assert problems_of(path) == []


def test_phrases_are_found(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        '"""Wakes those\nwho wait."""\n\nx = "text"  # nobody reads it\nraise KeyError(f"{x} is told")\n'
    )
    assert [problem.split(";")[0] for problem in problems_of(module)] == [
        "line 1: 'those who'",
        "line 5: 'is told'",
        "line 4: 'nobody'",
    ]
    page = tmp_path / "page.md"
    page.write_text("Fine.\n```\nwhoever\n```\n`so many`, and so many\n")
    assert [problem.split(";")[0] for problem in problems_of(page)] == ["line 5: 'so many'"]
