"""Rows of sequences written into flat arrays: each token is copied once, and numpy is called a few times per sequence.

All columns lie in one block of memory: an allocator returns many blocks of some megabytes to the system at once, and then
every page of the next batch costs more than what is written to it. Columns that come from rollouts are joined by one call
over all their parts; those that are the same for a whole sequence are repeated, a stretch at a time, while it is still in
the processor's cache. What a rollout does not have is a slice of a constant.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.prepare.packed import FILLER, NO_VERSION, TOKEN_DTYPES, PackedBatch
from reroll.prepare.sequences import Sequences

_ALIGNMENT: Final = 64
_STRETCH: Final = 1 << 14
"""Tokens that are repeated at a time: too few bytes for an allocator to fetch, and return, pages of their own."""
_MOST: Final = np.iinfo(np.int32).max
_BYTE: Final = np.uint8

Column = npt.NDArray[Any]


def build_rows(
    sequences: Sequences,
    rows: Sequence[Sequence[int]],
    *,
    pack_length: int,
    filler_length: int = 0,
    pad_token_id: int = 0,
    weight_scale: float = 1.0,
) -> PackedBatch:
    """Return the batch with these rows of these sequences; an empty row becomes a filler of so many tokens."""
    order = [number for row in rows for number in (row or ((FILLER,) if filler_length else ()))]
    counts = [len(row) or bool(filler_length) for row in rows]
    index = np.array(order, np.int64)
    parts = _Parts(sequences, order, filler_length, pad_token_id)
    columns = _columns(parts.size)
    parts.write_ids(columns["input_ids"], columns["position_ids"])
    parts.write_mask(columns["response_mask"])
    parts.write_logprobs(columns["logprobs"], columns["logprob_mask"])
    parts.write_versions(columns["versions"])
    parts.write_repeated(columns["advantages"], _picked(sequences.advantage, index))
    parts.write_repeated(columns["weights"], _picked(sequences.weight * weight_scale, index))
    return PackedBatch(
        **columns,
        cu_seqlens=parts.bounds.astype(np.int32),
        cu_rows=np.cumsum([0, *counts], dtype=np.int32),
        sequence=index,
        group=np.where(index == FILLER, FILLER, _picked(sequences.group, index)),
        pack_length=pack_length,
    )


def _columns(size: int) -> dict[str, Any]:
    """Return the columns of so many tokens, one after another in one block."""
    dtypes = {name: np.dtype(dtype) for name, dtype in TOKEN_DTYPES.items()}
    strides = {name: -(-size * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for name, dtype in dtypes.items()}
    block = np.empty(sum(strides.values()), _BYTE)
    columns: dict[str, Any] = {}
    start = 0
    for name, dtype in dtypes.items():
        columns[name] = block[start : start + size * dtype.itemsize].view(dtype)
        start += strides[name]
    return columns


def _picked(column: Column, index: npt.NDArray[np.int64]) -> Column:
    """Return the column's values of these sequences, 0 for fillers."""
    is_real = index != FILLER
    picked = np.zeros(len(index), column.dtype)
    picked[is_real] = column[index[is_real]]
    return picked


class _Parts:
    """The parts that are joined, in the order in which they are joined."""

    def __init__(self, table: Sequences, order: list[int], filler_length: int, pad_token_id: int) -> None:
        filler = np.full(filler_length, pad_token_id, np.int32)
        none = filler[:0]
        self._prompts = [table.prompts[i] if i >= 0 else filler for i in order]
        self._responses = [table.responses[i] if i >= 0 else none for i in order]
        self._logprobs = [table.logprobs[i] if i >= 0 else None for i in order]
        self._masks = [table.masks[i] if i >= 0 else None for i in order]
        self._versions = [table.versions[i].parts if i >= 0 else ((), ()) for i in order]
        self._heads = [len(prompt) for prompt in self._prompts]
        self._tails = [len(response) for response in self._responses]
        self._halves = np.array([self._heads, self._tails], np.int64).T.ravel()
        self._lengths = self._halves[::2] + self._halves[1::2]
        self.bounds = np.concatenate(([0], np.cumsum(self._lengths)))
        self.size = int(self.bounds[-1])
        if self.size > _MOST:
            raise InvalidArgument(
                f"{self.size:,} tokens are too many for one packed batch; pack fewer sequences at once"
            )
        self._longest = int(self._lengths.max(initial=0))

    def write_ids(self, ids: Column, positions: Column) -> None:
        _join(_pairs(self._prompts, self._responses), ids)
        counting = np.arange(self._longest, dtype=np.int32)
        _join([counting[:length] for length in self._lengths.tolist()], positions)

    def write_mask(self, mask: Column) -> None:
        ones, zeros = np.ones(self._longest, _BYTE), np.zeros(self._longest, _BYTE)
        tails = [
            ones[:n] if given is None else given for given, n in zip(self._masks, self._tails, strict=True)
        ]
        _join(_pairs([zeros[:head] for head in self._heads], tails), mask.view(_BYTE))

    def write_logprobs(self, logprobs: Column, exists: Column) -> None:
        """Write the log-probabilities and where there is one; what is no finite number is none."""
        zeros = np.zeros(self._longest, np.float32)
        tails = [
            zeros[:n] if given is None else given
            for given, n in zip(self._logprobs, self._tails, strict=True)
        ]
        _join(_pairs([zeros[:head] for head in self._heads], tails), logprobs)
        self._write_halves(exists, [given is not None for given in self._logprobs], False)
        # A sum of squares is finite only if all of them are; looking at each one takes longer.
        with np.errstate(all="ignore"):
            total = np.dot(logprobs, logprobs)
        if not np.isfinite(total):
            is_finite = np.isfinite(logprobs)
            exists &= is_finite
            logprobs[~is_finite] = 0.0

    def write_versions(self, versions: Column) -> None:
        """Write the version of each token; nearly always one version made the whole response."""
        try:
            first_runs = [values[0] if values else NO_VERSION for values, _ in self._versions]
            self._write_halves(versions, first_runs, NO_VERSION)
            for place, (values, ends) in enumerate(self._versions):
                if len(values) > 1:
                    response = versions[self.bounds[place] + self._heads[place] : self.bounds[place + 1]]
                    for value, start, end in zip(values[1:], ends[:-1], ends[1:], strict=True):
                        response[start:end] = value
        except OverflowError:
            raise InvalidArgument(
                "a version does not fit into int32; count versions in training steps"
            ) from None

    def write_repeated(self, out: Column, values: Column) -> None:
        """Write each sequence's value to each of its tokens."""
        _repeat(values.astype(out.dtype), self._lengths, out)

    def _write_halves(self, out: Column, of_responses: Sequence[Any], of_prompts: Any) -> None:
        """Write one value to each token of a response, another to each of a prompt."""
        values = np.full((len(of_responses), 2), of_prompts, out.dtype)
        values[:, 1] = of_responses
        _repeat(values.ravel(), self._halves, out)


def _pairs(heads: Sequence[Any], tails: Sequence[Any]) -> list[Any]:
    return [part for pair in zip(heads, tails, strict=True) for part in pair]


def _join(parts: list[Any], out: Column) -> None:
    if parts:  # numpy joins no parts only if it must not
        np.concatenate(parts, out=out)


def _repeat(values: Column, counts: npt.NDArray[np.int64], out: Column) -> None:
    """Do what `np.repeat` does, into memory that is there."""
    if not len(out):
        return
    step = max(1, _STRETCH * len(counts) // len(out))
    start = 0
    for first in range(0, len(counts), step):
        stretch = np.repeat(values[first : first + step], counts[first : first + step])
        out[start : start + len(stretch)] = stretch
        start += len(stretch)
