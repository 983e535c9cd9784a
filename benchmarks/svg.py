"""SVG by hand. The background is part of the picture, so that it reads the same on a dark page."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

INK, FAINT, GRID, PAPER = "#24292f", "#57606a", "#d8dee4", "#ffffff"
BLUE, ORANGE = "#3b76c4", "#d9722e"
FONT = "font-family: system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def text(
    x: float, y: float, words: str, *, size: int = 11, color: str = INK, at: str = "start", bold: bool = False
):
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{number(x)}" y="{number(y)}" font-size="{size}" fill="{color}" text-anchor="{at}"{weight}>'
        f"{escape(words)}</text>"
    )


def picture(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    edge = f'x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" style="{FONT}">',
            f"<title>{escape(title)}</title>",
            f'<rect {edge} fill="{PAPER}" stroke="{GRID}"/>',
            *parts,
            "</svg>\n",
        ]
    )
