"""Rows of sequences written into flat arrays: each token is copied once, and numpy is called a few times per sequence.

Columns that come from rollouts are joined by one call over all their parts; those that are the same for a whole sequence
are filled slice by slice. What a rollout does not have is a slice of a constant.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.prepare.packed import FILLER, NO_VERSION, PackedBatch
from reroll.prepare.sequences import Sequences

_VERSIONS = np.iinfo(np.int32)


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
    parts = _Parts(sequences, order, filler_length, pad_token_id)
    index = np.array(order, np.int64)
    is_real = index != FILLER
    return PackedBatch(
        input_ids=parts.input_ids(),
        position_ids=parts.position_ids(),
        response_mask=parts.response_mask(),
        **parts.logprobs(),
        advantages=parts.constant(_picked(sequences.advantage, index, is_real)),
        weights=parts.constant(_picked(sequences.weight * weight_scale, index, is_real)),
        versions=parts.versions(),
        cu_seqlens=parts.cu_seqlens,
        cu_rows=np.cumsum([0, *counts], dtype=np.int32),
        sequence=index,
        group=np.where(is_real, _picked(sequences.group, index, is_real), FILLER),
        pack_length=pack_length,
    )


def _picked(
    column: npt.NDArray[Any], index: npt.NDArray[np.int64], is_real: npt.NDArray[np.bool_]
) -> npt.NDArray[Any]:
    """Return the column's values of these sequences, 0 for fillers."""
    picked = np.zeros(len(index), column.dtype)
    picked[is_real] = column[index[is_real]]
    return picked


class _Parts:
    """Where each sequence goes, and the columns one after another."""

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
        lengths = np.array(self._heads, np.int64) + np.array(self._tails, np.int64)
        bounds = np.zeros(len(order) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        self._size = int(bounds[-1])
        if self._size > np.iinfo(np.int32).max:
            raise InvalidArgument(
                f"{self._size:,} tokens do not fit into one packed batch; pack fewer sequences at once"
            )
        self.cu_seqlens = bounds.astype(np.int32)
        self._bounds: list[int] = bounds.tolist()
        longest = int(lengths.max(initial=0))
        self._zeros = np.zeros(longest, np.float32)
        self._nones = np.zeros(longest, np.uint8)
        self._ones = np.ones(longest, np.uint8)
        self._counting = np.arange(longest, dtype=np.int32)

    def _joined(self, heads: Sequence[Any], tails: Sequence[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        out = np.empty(self._size, dtype)
        parts = [part for pair in zip(heads, tails, strict=True) for part in pair]
        if parts:
            np.concatenate(parts, out=out)
        return out

    def input_ids(self) -> npt.NDArray[np.int32]:
        return self._joined(self._prompts, self._responses, np.int32)

    def position_ids(self) -> npt.NDArray[np.int32]:
        counting, out = self._counting, np.empty(self._size, np.int32)
        parts = [counting[: head + tail] for head, tail in zip(self._heads, self._tails, strict=True)]
        if parts:
            np.concatenate(parts, out=out)
        return out

    def response_mask(self) -> npt.NDArray[np.bool_]:
        none, ones = self._nones, self._ones
        tails = [
            ones[:tail] if mask is None else mask for mask, tail in zip(self._masks, self._tails, strict=True)
        ]
        return self._joined([none[:head] for head in self._heads], tails, np.uint8).view(np.bool_)

    def logprobs(self) -> dict[str, Any]:
        """Return the log-probabilities and where there is one; what is no finite number is none."""
        zeros, none, ones = self._zeros, self._nones, self._ones
        pairs = list(zip(self._logprobs, self._tails, strict=True))
        tails = [zeros[:tail] if given is None else given for given, tail in pairs]
        logprobs = self._joined([zeros[:head] for head in self._heads], tails, np.float32)
        exists = self._joined(
            [none[:head] for head in self._heads],
            [(none if given is None else ones)[:tail] for given, tail in pairs],
            np.uint8,
        ).view(np.bool_)
        is_finite = np.isfinite(logprobs)
        if not is_finite.all():
            exists &= is_finite
            logprobs[~is_finite] = 0.0
        return {"logprobs": logprobs, "logprob_mask": exists}

    def constant(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return each sequence's value at each of its tokens."""
        out = np.empty(self._size, np.float32)
        start = 0
        for value, end in zip(values.tolist(), self._bounds[1:], strict=True):
            out[start:end] = value
            start = end
        return out

    def versions(self) -> npt.NDArray[np.int32]:
        out = np.empty(self._size, np.int32)
        try:
            for start, end, head, (values, ends) in zip(
                self._bounds, self._bounds[1:], self._heads, self._versions, strict=False
            ):
                first = start + head
                out[start : first if values else end] = NO_VERSION
                run = first
                for value, stop in zip(values, ends, strict=True):
                    out[run : first + stop] = value
                    run = first + stop
        except OverflowError:
            raise InvalidArgument(
                "a version does not fit into int32; count versions in training steps"
            ) from None
        return out
