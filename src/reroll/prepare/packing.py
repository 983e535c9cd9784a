"""Packing: which sequences share a row, and the arrays of those rows.

A row holds whole sequences, in the order of the table, at most `pack_length` tokens. Best fit, longest first, needs at most
11/9 of the fewest possible rows, and one more. Then each column is joined once from the arrays of the rollouts; a rollout
without a value contributes a slice of a constant.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.prepare.array_pool import ArrayPool, Column, allocate
from reroll.prepare.batches import (
    FILLER,
    NO_VERSION,
    STORED,
    PackedBatch,
    PaddedBatch,
    check_column_name,
    pad_rows,
)
from reroll.prepare.sequences import Sequences
from reroll.rollout import VersionRuns

Overlong = Literal["error", "truncate", "drop"]
"""What happens to a sequence that is longer than a row."""
_LARGEST: Final = np.iinfo(np.int32).max


class Fitted(NamedTuple):
    """A table in which every sequence fits into a row."""

    sequences: Sequences
    numbers: list[int]
    """Numbers of the sequences that were not dropped."""
    truncated: int
    dropped: int

    @property
    def kept(self) -> Sequences:
        """The sequences that were not dropped."""
        return self.sequences.select(self.numbers) if self.dropped else self.sequences


def fit(sequences: Sequences, pack_length: int, overlong: Overlong = "error") -> Fitted:
    """Truncate, drop or refuse sequences that are longer than a row. Raises InvalidArgument, which names the prompt."""
    if pack_length < 1:
        raise InvalidArgument(f"pack_length must be at least 1, not {pack_length}")
    if overlong not in ("error", "truncate", "drop"):
        raise InvalidArgument(f"overlong must be error, truncate or drop, not {overlong!r}")
    length = sequences.length
    long = np.flatnonzero(length > pack_length).tolist()
    numbers = list(range(len(sequences)))
    if not long:
        return Fitted(sequences, numbers, 0, 0)
    if overlong == "error":
        check_length(sequences.prompt_ids[long[0]], int(length[long[0]]), pack_length)
    if overlong == "drop":
        return Fitted(sequences, sorted(set(numbers) - set(long)), 0, len(long))
    return Fitted(sequences.truncate(long, pack_length), numbers, len(long), 0)


def check_length(prompt_id: Any, length: int, pack_length: int) -> None:
    """Raise InvalidArgument, which names the prompt, if a sequence is longer than a row."""
    if length > pack_length:
        raise InvalidArgument(
            f"prompt {prompt_id!r}: a sequence of {length} tokens does not fit into rows of {pack_length}; raise"
            " pack_length, or set overlong to truncate or drop"
        )


def best_fit(lengths: Sequence[int], numbers: Sequence[int], pack_length: int) -> list[list[int]]:
    """Return rows of at most `pack_length` tokens, each a sorted list of sequence numbers; O(n log n) comparisons."""
    rows: list[list[int]] = []
    # Sorted. One number holds the free tokens of a row and the row's number, because numbers compare fastest.
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
    """Return sequence numbers by falling length; equal lengths keep their order."""
    return sorted(numbers, key=lengths.__getitem__, reverse=True)


def pack(
    sequences: Sequences, pack_length: int, *, overlong: Overlong = "error", pool: ArrayPool | None = None
) -> PackedBatch:
    """Return all sequences in as few rows as best fit finds.

    Args:
        sequences: The table to pack.
        pack_length: Largest number of tokens in a row.
        overlong: Whether a longer sequence is an error, is truncated at its end, or is dropped.
        pool: Memory that is reused between batches.

    Raises:
        InvalidArgument: A sequence does not fit; the message names the prompt.

    """
    fitted = fit(sequences, pack_length, overlong)
    rows = best_fit(fitted.sequences.length.tolist(), fitted.numbers, pack_length)
    return build_rows(fitted.sequences, rows, pack_length=pack_length, pool=pool)


def pad(
    batch: PackedBatch | Sequences, *, length: int | None = None, multiple_of: int = 1, pad_token_id: int = 0
) -> PaddedBatch:
    """Return the rows of a packed batch, or each sequence of a table, padded on the right.

    Args:
        batch: What is padded.
        length: Tokens of a padded row; None: those of the longest row.
        multiple_of: Rounds the length up.
        pad_token_id: The token in padding.

    Raises:
        InvalidArgument: A row is longer than `length`.

    """
    if isinstance(batch, Sequences):
        longest = int(batch.length.max(initial=1))
        batch = build_rows(batch, [[number] for number in range(len(batch))], pack_length=longest)
    return pad_rows(batch, length=length, multiple_of=multiple_of, pad_token_id=pad_token_id)


def micro_batches(packed: PackedBatch, max_tokens: int) -> list[PackedBatch]:
    """Return runs of rows of at most `max_tokens` tokens, in order, as views.

    Args:
        packed: rows of one rank.
        max_tokens: largest number of tokens of a micro-batch.

    Raises:
        InvalidArgument: a single row has more tokens.

    """
    offsets: list[int] = packed.row_offsets.tolist()
    parts: list[PackedBatch] = []
    first = 0
    for row in range(packed.num_rows):
        if offsets[row + 1] - offsets[row] > max_tokens:
            raise InvalidArgument(
                f"a row of {offsets[row + 1] - offsets[row]} tokens is above the budget of {max_tokens}; pack to at most"
                f" {max_tokens}"
            )
        if offsets[row + 1] - offsets[first] > max_tokens:
            parts.append(packed.rows(first, row))
            first = row
    return [*parts, packed.rows(first, packed.num_rows)] if packed.num_rows else parts


def build_rows(
    sequences: Sequences,
    rows: Sequence[Sequence[int]],
    *,
    pack_length: int,
    filler_length: int = 0,
    pad_token_id: int = 0,
    weight_scale: float = 1.0,
    pool: ArrayPool | None = None,
) -> PackedBatch:
    """Return the batch with these rows of sequence numbers; a row without tokens gets a filler of `filler_length`."""
    lengths = sequences.length
    filled = [row if lengths[row].any() else (*row, FILLER) for row in rows] if filler_length else rows
    order = [number for row in filled for number in row]
    index = np.array(order, np.int64)
    is_real = index != FILLER
    filler = np.full(filler_length, pad_token_id, np.int32)

    def pick(column: list[Any], of_filler: Any) -> list[Any]:
        return list(map([*column, of_filler].__getitem__, order))  # FILLER, -1, is the last entry

    def pick_numbers(column: Column) -> Column:
        picked = np.zeros(len(index), column.dtype)
        picked[is_real] = column[index[is_real]]
        return picked

    # The tokens of a filler take the place of a prompt.
    prompts, responses = pick(sequences.prompts, filler), pick(sequences.responses, filler[:0])
    heads, tails = [len(prompt) for prompt in prompts], [len(response) for response in responses]
    prompt_lengths = np.array(heads, np.int64)
    bounds = np.concatenate(([0], np.cumsum(prompt_lengths + np.array(tails, np.int64))))
    size = int(bounds[-1])
    if size > _LARGEST:
        raise InvalidArgument(
            f"one packed batch cannot have {size:,} tokens: offsets are int32; pack fewer sequences at once"
        )
    stored = allocate(STORED, size, pool)
    _join(prompts, responses, stored["input_ids"])
    given, masks = pick(sequences.logprobs, None), pick(sequences.masks, None)
    _join_or_zeros(heads, tails, given, stored["logprobs"])
    trainable = pick_numbers(sequences.trainable)
    return PackedBatch(
        **stored,
        **_version_runs(heads, tails, pick(sequences.versions, VersionRuns())),
        prompt_lengths=prompt_lengths,
        is_trainable=trainable > 0,
        token_is_masked=_masked_tokens(tails, masks, trainable, bounds),
        has_logprobs=np.array([values is not None for values in given], np.bool_),
        token_lacks_logprob=_clear_not_finite(stored["logprobs"]),
        cu_seqlens=bounds.astype(np.int32),
        cu_rows=np.cumsum([0, *map(len, filled)], dtype=np.int32),
        sequence=index,
        group=np.where(is_real, pick_numbers(sequences.group), FILLER),
        sequence_advantages=pick_numbers(sequences.advantage).astype(np.float32),
        sequence_weights=pick_numbers(sequences.weight * weight_scale).astype(np.float32),
        pack_length=pack_length,
        columns=_further_columns(heads, tails, pick(sequences.columns, {}), size),
    )


def _join(heads: Sequence[Column], tails: Sequence[Column], out: Column) -> None:
    """Write head, tail, head, tail, ... into `out`."""
    if heads:  # numpy refuses to join nothing
        np.concatenate([part for pair in zip(heads, tails, strict=True) for part in pair], out=out)


def _join_or_zeros(
    heads: Sequence[int], tails: Sequence[int], values: Sequence[Column | None], out: Column
) -> None:
    """Write the values of each sequence; zeros where it has none, or none of its prompt."""
    longest = max((*heads, *tails), default=0)
    zeros = np.zeros((longest, *out.shape[1:]), out.dtype)
    slices = {length: zeros[:length] for length in {*heads, *tails}}
    parts: list[Column] = []
    for head, tail, given in zip(heads, tails, values, strict=True):
        if given is not None and len(given) > tail:  # of all tokens
            parts.append(given)
        else:
            parts += (slices[head], slices[tail] if given is None else given)
    if parts:
        np.concatenate(parts, out=out)


def _clear_not_finite(logprobs: Column) -> npt.NDArray[np.bool_] | None:
    """Set NaN and infinite values to 0; return where they were, None if all values were finite."""
    with np.errstate(all="ignore"):
        if np.isfinite(np.dot(logprobs, logprobs)):  # only if all are; 5 times as fast as a test of each
            return None
    lacking: npt.NDArray[np.bool_] = ~np.isfinite(logprobs)
    logprobs[lacking] = 0.0
    return lacking


def _masked_tokens(
    tails: Sequence[int], masks: Sequence[Any], trainable: Column, bounds: Column
) -> npt.NDArray[np.bool_] | None:
    """Return the tokens that a mask leaves out of a response that it keeps in part; None if there are none."""
    places = np.flatnonzero((trainable > 0) & (trainable < np.array(tails, np.int64)))
    if not len(places):
        return None
    found = np.zeros(int(bounds[-1]), np.bool_)
    for place in places.tolist():
        end = int(bounds[place + 1])
        found[end - tails[place] : end] = masks[place] == 0
    return found


def _version_runs(
    heads: Sequence[int], tails: Sequence[int], versions: Sequence[VersionRuns]
) -> dict[str, Any]:
    """Return the versions of all tokens as runs; most responses have one version."""
    values: list[int] = []
    lengths: list[int] = []
    ends = [0]
    for head, tail, runs in zip(heads, tails, versions, strict=True):
        numbers, stops = runs.parts
        values.append(NO_VERSION)
        if len(numbers) == 1:
            values.append(numbers[0])
            lengths += (head, tail)
        elif numbers:
            values += numbers
            lengths += (head, *(stop - start for start, stop in pairwise((0, *stops))))
        else:
            lengths.append(head + tail)
        ends.append(len(values))
    try:
        run_versions = np.array(values, np.int32)
    except OverflowError:
        raise InvalidArgument("a version does not fit into int32; count versions in training steps") from None
    return {
        "run_versions": run_versions,
        "run_lengths": np.array(lengths, np.int64),
        "cu_runs": np.array(ends, np.int32),
    }


def _further_columns(
    heads: Sequence[int], tails: Sequence[int], columns: Sequence[Any], size: int
) -> dict[str, Column]:
    """Return the columns of the rollouts with an entry for each token; 0 where a rollout has none."""
    kinds = {name: array for given in columns for name, array in given.items()}
    found: dict[str, Column] = {}
    for name, kind in kinds.items():
        check_column_name(name)
        found[name] = np.empty((size, *kind.shape[1:]), kind.dtype)
        _join_or_zeros(heads, tails, [given.get(name) for given in columns], found[name])
    return found
