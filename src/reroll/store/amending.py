"""Rows that changed, kept together: one fact for each commit, until they go or are written in place.

A batch that is taken changes many rows at once, which cost far more one by one than as one fact; and most of them go soon,
when the trainer has its checkpoint, and need never be written in place. What a row is: the last fact that has it, if it is
still in its table, else what the table says.
"""

from collections.abc import Iterable
from types import GenericAlias
from typing import Final

import msgspec

from reroll.store.change import Row
from reroll.store.schema import COLUMNS, TYPES

AMENDED: Final = "amended rows"
"""The kind of these facts, which nobody else may use."""
FEW = 8
"""Changed rows that are quicker written in place."""
MAX_ROWS = 8192
"""When facts hold more, the oldest is written in place."""

_KINDS = {"TEXT": str | None, "BLOB": bytes | None, "REAL": float}
_ROW = GenericAlias(tuple, tuple(_KINDS.get(TYPES[name], int) for name in COLUMNS))
_read = msgspec.msgpack.Decoder(GenericAlias(list, _ROW)).decode


def write_amended(rows: Iterable[Row]) -> bytes:
    """Return rows as the value of a fact."""
    return msgspec.msgpack.encode(list(rows))


def read_amended(value: bytes) -> list[Row]:
    """Return the rows of a fact; raises `ValueError` for what is none."""
    try:
        rows: list[Row] = _read(value)
    except msgspec.DecodeError as error:
        raise ValueError(f"amended rows that are none: {error}") from error
    return rows


class Amended:
    """Knows which fact has the last of a row."""

    def __init__(self) -> None:
        self._fact_of: dict[int, int] = {}  # by uid
        self._left: dict[int, int] = {}  # by fact, the oldest first: how many rows are the last of theirs
        self._rows: dict[int, int] = {}  # by fact: how many it holds
        self._total = 0
        self._last = 0

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __contains__(self, uid: int) -> bool:
        return uid in self._fact_of

    def add(self, uids: list[int], number: int | None = None) -> int:
        """Learn that a new fact has these rows, and return its number."""
        self._last = self._last + 1 if number is None else number
        self.forget(uids)
        self._fact_of.update(dict.fromkeys(uids, self._last))
        self._left[self._last] = self._rows[self._last] = len(uids)
        self._total += len(uids)
        return self._last

    def forget(self, uids: Iterable[int]) -> None:
        """Learn that what facts say of these is not the last any more."""
        for uid in uids:
            number = self._fact_of.pop(uid, None)
            if number is not None:
                self._left[number] -= 1

    def unneeded(self) -> list[int]:
        """Return, and forget, the facts that say nothing any more."""
        empty = [number for number, left in self._left.items() if not left]
        for number in empty:
            del self._left[number]
            self._total -= self._rows.pop(number)
        return empty

    def oldest(self, *, but: int) -> int | None:
        """Return the oldest fact if all hold more rows than this."""
        return next(iter(self._left)) if self._total > but else None

    def last_of(self, number: int, rows: Iterable[Row]) -> list[Row]:
        """Return those of a fact's rows that are the last of theirs."""
        return [row for row in rows if self._fact_of.get(row[0]) == number]
