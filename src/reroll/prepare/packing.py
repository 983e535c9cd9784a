"""Which sequences share a row, and batches made of rows: packed, padded, cut into micro-batches.

A row holds whole sequences, at most `pack_length` tokens. They are placed longest first, each where it leaves the least
room (best fit), so that there are at most 11/9 of the fewest possible rows, and one more. In a row they stand in the order
of the table.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from reroll.errors import InvalidArgument
from reroll.prepare.building import build_rows
from reroll.prepare.columns import Memory
from reroll.prepare.packed import PackedBatch
from reroll.prepare.sequences import IntColumn, Sequences

Overlong = Literal["error", "truncate", "drop"]
"""What becomes of a sequence that is longer than a row; what is cut or dropped is counted."""


class Fitted(NamedTuple):
    """The table with every sequence short enough, which of them there still are, and what that took."""

    sequences: Sequences
    numbers: list[int]
    """Of the sequences that were not dropped."""
    truncated: int
    dropped: int

    @property
    def trained(self) -> Sequences:
        """The sequences that there still are."""
        return self.sequences.select(self.numbers) if self.dropped else self.sequences


def fit(sequences: Sequences, pack_length: int, overlong: Overlong = "error") -> Fitted:
    """Cut, drop or refuse sequences that are longer than a row. Raises InvalidArgument, which names the prompt."""
    if pack_length < 1:
        raise InvalidArgument(f"pack_length must be at least 1, not {pack_length}")
    if overlong not in ("error", "truncate", "drop"):
        raise InvalidArgument(f"overlong must be error, truncate or drop, not {overlong!r}")
    length = sequences.length
    long = np.flatnonzero(length > pack_length).tolist()
    everything = range(len(sequences))
    if not long:
        return Fitted(sequences, list(everything), 0, 0)
    if overlong == "error":
        check_length(sequences.prompt_ids[long[0]], int(length[long[0]]), pack_length)
    if overlong == "drop":
        gone = set(long)
        return Fitted(sequences, [number for number in everything if number not in gone], 0, len(long))
    return Fitted(sequences.shortened(long, pack_length), list(everything), len(long), 0)


def check_length(prompt_id: Any, length: int, pack_length: int) -> None:
    """Raise InvalidArgument, which names the prompt, for a sequence that is longer than a row."""
    if length > pack_length:
        raise InvalidArgument(
            f"prompt {prompt_id!r}: a sequence of {length} tokens does not fit into rows of {pack_length}; raise"
            " pack_length, or set overlong to truncate or drop"
        )


def best_fit(lengths: Sequence[int], numbers: Sequence[int], pack_length: int) -> list[list[int]]:
    """Return rows of at most `pack_length` tokens; O(n log n) comparisons."""
    rows: list[list[int]] = []
    # Sorted: how much room a row has, and which it is, in one number, since those are compared quickest.
    room: list[int] = []
    most = len(numbers) + 1
    for number in longest_first(lengths, numbers):
        place = bisect_left(room, lengths[number] * most)
        if place == len(room):
            left, row = pack_length, len(rows)
            rows.append([])
        else:
            left, row = divmod(room.pop(place), most)
        rows[row].append(number)
        insort(room, (left - lengths[number]) * most + row)
    for members in rows:
        members.sort()
    return rows


def longest_first(lengths: Sequence[int], numbers: Sequence[int]) -> list[int]:
    """Return the numbers of sequences, the longest first, equal ones in order."""
    return sorted(numbers, key=lengths.__getitem__, reverse=True)


def pack(
    sequences: Sequences, pack_length: int, *, overlong: Overlong = "error", memory: Memory | None = None
) -> PackedBatch:
    """Return all sequences in as few rows as best fit finds. Raises InvalidArgument for what does not fit, see `fit`."""
    fitted = fit(sequences, pack_length, overlong)
    rows = best_fit(fitted.sequences.length.tolist(), fitted.numbers, pack_length)
    return build_rows(fitted.sequences, rows, pack_length=pack_length, memory=memory)


def micro_batches(packed: PackedBatch, max_tokens: int) -> list[PackedBatch]:
    """Return runs of rows of at most `max_tokens` tokens, in order; views, not copies.

    Raises InvalidArgument if one row alone has more.
    """
    offsets: list[int] = packed.row_offsets.tolist()
    parts: list[PackedBatch] = []
    first = 0
    for row in range(packed.num_rows):
        if offsets[row + 1] - offsets[row] > max_tokens:
            raise InvalidArgument(
                f"a row of {offsets[row + 1] - offsets[row]} tokens is above the budget of {max_tokens};"
                f" pack to at most {max_tokens}"
            )
        if offsets[row + 1] - offsets[first] > max_tokens:
            parts.append(packed.rows(first, row))
            first = row
    return [*parts, packed.rows(first, packed.num_rows)] if packed.num_rows else parts


def row_of_each(sequences: Sequences) -> PackedBatch:
    """Return every sequence in a row of its own, in order."""
    longest: IntColumn = sequences.length
    rows = [[number] for number in range(len(sequences))]
    return build_rows(sequences, rows, pack_length=int(longest.max(initial=1)))
