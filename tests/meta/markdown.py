"""What the tests read out of markdown: code blocks, code spans, links."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
NOT_RUN = "<!-- not run -->"
"""Stands on the line before a python block that is only compiled."""


class Block(NamedTuple):
    """A fenced block of code."""

    language: str
    code: str
    line: int
    """Where its code starts in the file, from 1."""
    is_run: bool


def documents() -> list[Path]:
    """Return every markdown file of the project that a reader may meet."""
    folders = ("docs", "benchmarks", "examples", "src", "tests")
    return sorted(ROOT.glob("*.md")) + sorted(
        path for folder in folders for path in (ROOT / folder).rglob("*.md")
    )


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the fenced blocks in order. An indented fence (in a list) counts as well."""
    fence, language, code, start, is_run = "", "", [], 0, True
    before = ""  # the last line that was not blank
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if fence:
            if stripped == fence:
                yield Block(language, _dedented(code), start, is_run)
                fence = ""
            else:
                code.append(line)
        elif found := re.match(r"(`{3,}|~{3,})\s*(\w*)", stripped):
            fence, language = found[1], found[2]
            code, start, is_run = [], number + 1, before != NOT_RUN
        if stripped:
            before = stripped
    if fence:
        raise ValueError(f"the block from line {start} on is never closed")


def _dedented(lines: list[str]) -> str:
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "".join(f"{line[indent:]}\n" for line in lines)


def prose_of(text: str) -> str:
    """Return the text without its fenced blocks."""
    lines, fence = [], ""
    for line in text.splitlines():
        found = re.match(r"`{3,}|~{3,}", line.strip())
        if fence:
            fence = "" if line.strip() == fence else fence
        elif found:
            fence = found[0]
        else:
            lines.append(line)
    return "\n".join(lines)


def spans_of(text: str) -> list[str]:
    """Return the code spans outside of fenced blocks."""
    return re.findall(r"`([^`\n]+)`", prose_of(text))


def code_text(text: str) -> str:
    """Return all that is written as code, in spans and in python blocks."""
    return "\n".join(
        [*spans_of(text), *(block.code for block in blocks_of(text) if block.language == "python")]
    )


def links_of(text: str) -> list[str]:
    """Return the targets of links and images inside the project: files, and anchors in them; no addresses."""
    prose = re.sub(r"`[^`\n]+`", "", prose_of(text))
    targets = re.findall(r"\]\(<?([^)\s>]+)", prose) + re.findall(
        r"^\[[^\]]+\]:\s+(\S+)", prose, re.MULTILINE
    )
    return [target for target in targets if not re.match(r"[a-z][a-z+.-]*:", target)]


def anchors_of(text: str) -> set[str]:
    """Return what links can name in a page: its headings in lower case, words joined by hyphens."""
    headings = re.findall(r"^#+\s+(.+?)\s*$", prose_of(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_broken(target: str, page: Path) -> bool:
    """Return whether a link on a page leads nowhere."""
    name, _, anchor = target.partition("#")
    path = page.parent / name if name else page
    if not path.exists():
        return True
    return bool(anchor) and path.suffix == ".md" and anchor not in anchors_of(path.read_text())
