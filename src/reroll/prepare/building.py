"""Rows of sequences written into flat arrays: each token is copied once, and numpy is called a few times per column.

A column is joined from parts that lie in the arrays of the rollouts; what a rollout does not have is a slice of a constant.
Of masks, only those are read that keep some tokens of a response and not others.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.prepare.columns import Column, Memory, block_of
from reroll.prepare.packed import FILLER, NO_VERSION, STORED, PackedBatch
from reroll.prepare.sequences import Sequences
from reroll.rollout import VersionRuns

_LARGEST: Final = np.iinfo(np.int32).max
_PIECE: Final = 1 << 16
"""Tokens that are joined and looked at together."""

Runs = tuple[list[int], list[int]]
"""Versions, and how many tokens each has."""


def build_rows(
    sequences: Sequences,
    rows: Sequence[Sequence[int]],
    *,
    pack_length: int,
    filler_length: int = 0,
    pad_token_id: int = 0,
    weight_scale: float = 1.0,
    memory: Memory | None = None,
) -> PackedBatch:
    """Return the batch with these rows of these sequences; one without tokens gets a filler of so many."""
    lengths = sequences.length
    filled = [row if lengths[row].any() else (*row, FILLER) for row in rows] if filler_length else rows
    order = [number for row in filled for number in row]
    index = np.array(order, np.int64)
    trainable = _picked(sequences.trainable, index)
    parts = _Parts(sequences, order, filler_length, pad_token_id)
    columns = block_of(STORED, parts.size, memory)
    parts.write_ids(columns["input_ids"])
    no_logprob = parts.write_logprobs(columns["logprobs"])
    return PackedBatch(
        **columns,
        **parts.version_runs(),
        prompt_length=parts.prompt_length,
        is_trainable=trainable > 0,
        is_left_out=parts.left_out(trainable),
        has_logprobs=parts.has_logprobs,
        no_logprob=no_logprob,
        cu_seqlens=parts.bounds.astype(np.int32),
        cu_rows=np.cumsum([0, *map(len, filled)], dtype=np.int32),
        sequence=index,
        group=np.where(index == FILLER, FILLER, _picked(sequences.group, index)),
        advantage=_picked(sequences.advantage, index).astype(np.float32),
        weight=_picked(sequences.weight * weight_scale, index).astype(np.float32),
        pack_length=pack_length,
    )


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

        def picked(column: list[Any], of_filler: Any) -> list[Any]:
            return list(map([*column, of_filler].__getitem__, order))  # FILLER is the last of a list

        self._prompts = picked(table.prompts, filler)
        self._responses = picked(table.responses, filler[:0])
        self._logprobs = picked(table.logprobs, None)
        self._masks = picked(table.masks, None)
        self._versions = [versions.parts for versions in picked(table.versions, VersionRuns())]
        self._heads = [len(prompt) for prompt in self._prompts]
        self._tails = [len(response) for response in self._responses]
        self.has_logprobs = np.array([values is not None for values in self._logprobs], np.bool_)
        # The tokens of a filler stand where those of a prompt would.
        self.prompt_length = np.array(self._heads, np.int64)
        lengths = self.prompt_length + np.array(self._tails, np.int64)
        self.bounds = np.concatenate(([0], np.cumsum(lengths)))
        self.size = int(self.bounds[-1])
        if self.size > _LARGEST:
            raise InvalidArgument(
                f"{self.size:,} tokens are too many for one packed batch; pack fewer sequences at once"
            )
        self._longest = int(lengths.max(initial=0))

    def write_ids(self, ids: Column) -> None:
        _join(self._prompts, self._responses, ids)

    def left_out(self, trainable: Column) -> npt.NDArray[np.bool_] | None:
        """Return the tokens that masks leave out of responses which they keep in part; None if there are none."""
        places = np.flatnonzero((trainable > 0) & (trainable < np.array(self._tails, np.int64)))
        if not len(places):
            return None
        found = np.zeros(self.size, np.bool_)
        for place in places.tolist():
            end = int(self.bounds[place + 1])
            found[end - self._tails[place] : end] = self._masks[place] == 0
        return found

    def write_logprobs(self, logprobs: Column) -> npt.NDArray[np.bool_] | None:
        """Write the log-probabilities; return where one is no finite number, and becomes 0, None if all are."""
        zeros = np.zeros(self._longest, np.float32)
        slices = {length: zeros[:length] for length in {*self._heads, *self._tails}}
        given = zip(self._logprobs, self._tails, strict=True)
        tails = [slices[tail] if values is None else values for values, tail in given]
        heads = [slices[head] for head in self._heads]
        total = np.float32(0)
        # Looked at piece by piece, while each is in the cache. A sum of squares is finite only if all of them are;
        # looking at each one takes longer.
        for first in range(0, len(tails), step := max(1, _PIECE * len(tails) // max(1, self.size))):
            last = min(first + step, len(tails))
            piece = logprobs[self.bounds[first] : self.bounds[last]]
            _join(heads[first:last], tails[first:last], piece)
            with np.errstate(all="ignore"):
                total += np.dot(piece, piece)
        if np.isfinite(total):
            return None
        is_none = ~np.isfinite(logprobs)
        logprobs[is_none] = 0.0
        return is_none

    def version_runs(self) -> dict[str, Any]:
        """Return the versions of all tokens as runs; nearly always one version made a whole response."""
        values: list[int] = []
        lengths: list[int] = []
        ends = [0]
        for head, tail, (versions, stops) in zip(self._heads, self._tails, self._versions, strict=True):
            values.append(NO_VERSION)
            if len(versions) == 1:
                values.append(versions[0])
                lengths += (head, tail)
            elif versions:
                values += versions
                lengths += (head, *(stop - start for start, stop in pairwise((0, *stops))))
            else:
                lengths.append(head + tail)
            ends.append(len(values))
        try:
            runs = np.array(values, np.int32)
        except OverflowError:
            raise InvalidArgument(
                "a version does not fit into int32; count versions in training steps"
            ) from None
        return {
            "run_versions": runs,
            "run_lengths": np.array(lengths, np.int64),
            "cu_runs": np.array(ends, np.int32),
        }


def _join(heads: Sequence[Any], tails: Sequence[Any], out: Column) -> None:
    parts = [part for pair in zip(heads, tails, strict=True) for part in pair]
    if parts:  # numpy refuses to join nothing
        np.concatenate(parts, out=out)
