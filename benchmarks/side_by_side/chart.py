"""A picture of a section: how many times reroll is ahead of each peer, row by row, on a logarithmic axis."""

import math
from collections.abc import Mapping, Sequence

from svg import FAINT, GRID, number, picture, text

COLORS = ("#d9722e", "#2a8f6a", "#7b4fb5", "#b8860b", "#c2447f", "#3b76c4", "#57606a", "#24292f")
LEFT, RIGHT, ROW, TOP = 330, 800, 22, 92
MOST = 1e4
"""What is further away is drawn at the edge."""


def chart(title: str, rows: Sequence[str], ahead: Mapping[str, Sequence[float | None]]) -> str:
    """Draw a dot for each peer in each row: to the right of 1 where reroll is ahead."""
    known = [_kept(ratio) for ratios in ahead.values() for ratio in ratios if ratio is not None]
    first = math.floor(math.log10(min([*known, 0.5])))
    last = math.ceil(math.log10(max([*known, 2.0])))

    def x(ratio: float) -> float:
        return LEFT + (math.log10(_kept(ratio)) - first) / (last - first) * (RIGHT - LEFT)

    bottom = TOP + ROW * len(rows)
    parts = [text(20, 30, title, size=15, bold=True)]
    parts += [text(20, 48, "Times reroll is ahead, by medians; left of 1 it is behind.", color=FAINT)]
    for power in range(first, last + 1):
        place = number(x(10.0**power))
        color = FAINT if power == 0 else GRID
        parts.append(f'<line x1="{place}" x2="{place}" y1="{TOP - 8}" y2="{bottom}" stroke="{color}"/>')
        parts.append(text(x(10.0**power), bottom + 14, f"{10.0**power:g}", size=10, color=FAINT, at="middle"))
    for place, words in enumerate(rows):
        parts.append(text(LEFT - 12, TOP + ROW * place + ROW / 2 + 4, words, at="end"))
    across = 20.0
    for color, (name, ratios) in zip(COLORS, ahead.items(), strict=False):
        parts.append(_dot(across, 66, color))
        parts.append(text(across + 9, 70, name))
        across += 30 + 6.2 * len(name)
        parts += [
            _dot(x(ratio), TOP + ROW * place + ROW / 2, color)
            for place, ratio in enumerate(ratios)
            if ratio is not None
        ]
    return picture(RIGHT + 30, bottom + 30, title, parts)


def _kept(ratio: float) -> float:
    return min(max(ratio, 1 / MOST), MOST)


def _dot(x: float, y: float, color: str) -> str:
    return f'<circle cx="{number(x)}" cy="{number(y)}" r="5" fill="{color}" fill-opacity="0.85"/>'
