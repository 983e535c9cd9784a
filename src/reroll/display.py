"""Tables of public objects in HTML, which notebooks show in place of `repr`."""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from typing import Final

MAX_ROWS: Final = 20
"""Rows of a table; a last line says how many are left out."""


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], count: int) -> str:
    """Return a title and a table of the first rows; `count` is the number of all rows. O(MAX_ROWS)."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(_text(value))}</td>' for value in row)}</tr>"
        for row in islice(rows, MAX_ROWS)
    )
    more = f"<div>and {count - MAX_ROWS:,} more</div>" if count > MAX_ROWS else ""
    return f"<div>{escape(title)}</div><table><tr>{head}</tr>{body}</table>{more}"


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
