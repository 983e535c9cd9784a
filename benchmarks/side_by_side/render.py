"""docs/benchmarks.md, its pictures, and the five lines of the README, from the results that are there; measures nothing."""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import results
from chart import chart
from comparison import Table, number
from environments import ROOT
from headlines import headlines
from matrix import FOOTPRINT, SECTIONS, Section
from reasons import reason

PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "images"
README = ROOT / "README.md"
MARKED = re.compile(r"(<!-- side by side: begin -->\n).*(<!-- side by side: end -->)", re.DOTALL)
INTRODUCTION = """# Side by side

reroll and its alternatives on the same work, in one run. `make bench-peers` installs each peer into an environment of its own, measures, and
writes this page (`ARGS="--quick"`: a few minutes; `ARGS="--only a,e"`: some sections).

Each cell is the median of rounds in which all contenders take turns (A B C, C B A, ...), warm; behind it, the distance of the quartiles
as a share of the median. `2.1x` beside a peer means that reroll is 2.1 times as fast; below 1, reroll is slower. Every peer runs in the
fastest way that we know, described below each table. All contenders get the same numbers: peers as a few packed arrays, reroll as
rollouts.
"""
CAUTION = """
**These figures are from quick runs, or from a machine with other work: sizes are smaller, and times are not to be believed.**
"""


def write() -> str:
    """Write all that the results allow, and return what was written."""
    tables = [Table(section, found) for section in _sections() if (found := results.read(section))]
    if not tables:
        raise SystemExit(f"nothing was measured yet: {results.FOLDER} is empty")
    PICTURES.mkdir(parents=True, exist_ok=True)
    parts = [
        INTRODUCTION,
        *_caution(tables),
        *(part for table in tables for part in _section(table)),
        *_behind(tables),
    ]
    PAGE.write_text("\n".join(parts).rstrip() + "\n")
    lines = headlines({table.section.id: table for table in tables if not table.is_quick})
    if lines is None:
        return f"{PAGE.name}; the lines of the README need the whole run"
    README.write_text(MARKED.sub(lambda found: found[1] + lines + found[2], README.read_text()))
    return f"{PAGE.name} and {README.name}"


def _sections() -> list[Section]:
    return sorted((*SECTIONS, FOOTPRINT), key=lambda section: section.id)


def _caution(tables: Sequence[Table]) -> list[str]:
    return [CAUTION] if any(table.is_quick or table.is_busy for table in tables) else []


def _section(table: Table) -> Iterator[str]:
    section = table.section
    title = f"{section.id[0]}. {section.title}"
    yield f"## {title}\n\n{section.about}\n"
    header = ["", *table.names]
    yield _row(header)
    yield _row(["---"] * len(header))
    for row in table.rows:
        yield _row([row.title, *(table.cell(row, contender) for contender in table.contenders)])
    name = f"side_by_side_{section.id.replace('-', '_')}.svg"
    ahead = table.ahead()
    if ahead:
        (PICTURES / name).write_text(chart(title, [row.title for row in table.rows], ahead), newline="\n")
        yield f"\n![How many times reroll is ahead](images/{name})\n"
    yield from (f"- **{name}**{about}" for name, about in table.told())
    yield f"\n{table.machine}\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _behind(tables: Sequence[Table]) -> Iterator[str]:
    yield "## Where reroll is behind\n"
    found = [(table, *behind) for table in tables for behind in table.behind()]
    if not found:
        yield "Nowhere in these runs.\n"
        return
    yield "Every cell with a ratio below 1, and why.\n"
    said: dict[str, list[str]] = {}
    for table, row, peer, ratio in found:
        where = f"{table.section.id[0]}, {row.title}: {number(ratio)}x against {table.name(peer)}"
        said.setdefault(reason(table.section.id, row.metric.key, peer), []).append(where)
    for why, cells in said.items():
        yield f"- {why}"
        yield from (f"  - {where}" for where in cells)


def main() -> None:
    print(write())


if __name__ == "__main__":
    main()
