"""`PackedBatch`: rows of sequences as flat arrays, without padding. It holds arrays only, and can be sent as it is.

What differs from token to token is stored; what is the same for a whole sequence is stored once, and repeated when it is
asked for. So a batch is 8 bytes a token while it waits or travels, and its micro-batches are written out one by one.
The numbers of a token stand at the token itself, never shifted: `logprobs[i]` is that of `input_ids[i]`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.prepare.columns import STRETCH, block_of, repeat_into

NO_VERSION: Final = -1
FILLER: Final = -1
"""In place of a sequence's number: a token of weight 0 that makes an empty row computable."""

STORED: Final = {
    "input_ids": np.int32,
    "logprobs": np.float32,
}
"""The columns that have an entry for each token in memory."""
REPEATED: Final = {
    "response_mask": np.bool_,
    "position_ids": np.int32,
    "document_ids": np.int32,
    "advantages": np.float32,
    "weights": np.float32,
    "versions": np.int32,
    "logprob_mask": np.bool_,
}
"""The columns that are written out when they are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """Sequences one after another in flat arrays; rows are runs of them. Its parts are views, not copies.

    With an entry for each token, computed at each access: `response_mask`, `position_ids`, `document_ids`, `advantages`,
    `weights`, `versions`, `logprob_mask`. `arrays()` gives all columns at once.
    """

    input_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    """Of the policy that generated the token; 0 where there is none, never NaN or infinite."""
    cu_seqlens: npt.NDArray[np.int32]
    """Where sequences begin, and the end of the last."""
    cu_rows: npt.NDArray[np.int32]
    """Where rows begin, counted in sequences, and the end of the last."""
    sequence: npt.NDArray[np.int64]
    """The number of each sequence in its table; FILLER (-1) for a filler."""
    group: npt.NDArray[np.int64]
    """The number of its group in the batch; -1 for a filler."""
    advantage: npt.NDArray[np.float32]
    """Of each sequence; 0 for a filler."""
    weight: npt.NDArray[np.float32]
    """Of each sequence in the loss; 0 for a filler."""
    prompt_length: npt.NDArray[np.int64]
    """Of each sequence."""
    is_trainable: npt.NDArray[np.bool_]
    """Whether the response of each sequence is trained on."""
    is_left_out: npt.NDArray[np.bool_] | None
    """Tokens that are not all the same; None: there are none of these."""
    has_logprobs: npt.NDArray[np.bool_]
    """Whether the response of each sequence has log-probabilities."""
    no_logprob: npt.NDArray[np.bool_] | None
    """Tokens that have none all the same; None: there are none of these."""
    run_versions: npt.NDArray[np.int32]
    """The versions, as runs of tokens that the same one generated."""
    run_lengths: npt.NDArray[np.int64]
    cu_runs: npt.NDArray[np.int32]
    """Where the runs of each sequence begin, and the end of the last."""
    pack_length: int
    """The most tokens that a row could hold."""

    @property
    def response_mask(self) -> npt.NDArray[np.bool_]:
        """Whether a token is trained on: a token of a response that its mask keeps."""
        return self._written("response_mask")

    @property
    def position_ids(self) -> npt.NDArray[np.int32]:
        """From 0 in each sequence."""
        return self._written("position_ids")

    @property
    def document_ids(self) -> npt.NDArray[np.int32]:
        """The place of each token's sequence in this batch, from 0."""
        return self._written("document_ids")

    @property
    def advantages(self) -> npt.NDArray[np.float32]:
        """That of the sequence, at each of its tokens."""
        return self._written("advantages")

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """That of the sequence, at each of its tokens."""
        return self._written("weights")

    @property
    def versions(self) -> npt.NDArray[np.int32]:
        """Of the weights that generated the token; NO_VERSION (-1) for prompts and where it is unknown."""
        return self._written("versions")

    @property
    def logprob_mask(self) -> npt.NDArray[np.bool_]:
        """Where there is a log-probability."""
        return self._written("logprob_mask")

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def num_rows(self) -> int:
        return len(self.cu_rows) - 1

    @property
    def num_sequences(self) -> int:
        """Without fillers."""
        return int(np.count_nonzero(self.sequence != FILLER))

    @property
    def num_trainable_tokens(self) -> int:
        return int(np.count_nonzero(self.response_mask))

    @property
    def num_filler_tokens(self) -> int:
        return int(np.diff(self.cu_seqlens)[self.sequence == FILLER].sum())

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing but fillers."""
        return not self.num_sequences

    @property
    def row_offsets(self) -> npt.NDArray[np.int32]:
        """Where rows begin, counted in tokens, and the end of the last."""
        return self.cu_seqlens[self.cu_rows]

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest sequence, 0 without one."""
        return int(np.diff(self.cu_seqlens).max(initial=0))

    def rows(self, start: int, stop: int) -> Self:
        """Return the rows from `start` to before `stop`; a view."""
        if not 0 <= start <= stop <= self.num_rows:
            raise InvalidArgument(
                f"there are {self.num_rows} rows, but those from {start} to {stop} were asked for"
            )
        first, last = int(self.cu_rows[start]), int(self.cu_rows[stop])
        begin, end = int(self.cu_seqlens[first]), int(self.cu_seqlens[last])
        run, last_run = int(self.cu_runs[first]), int(self.cu_runs[last])
        return type(self)(
            input_ids=self.input_ids[begin:end],
            logprobs=self.logprobs[begin:end],
            cu_seqlens=self.cu_seqlens[first : last + 1] - begin,
            cu_rows=self.cu_rows[start : stop + 1] - first,
            sequence=self.sequence[first:last],
            group=self.group[first:last],
            advantage=self.advantage[first:last],
            weight=self.weight[first:last],
            prompt_length=self.prompt_length[first:last],
            is_trainable=self.is_trainable[first:last],
            is_left_out=None if self.is_left_out is None else self.is_left_out[begin:end],
            has_logprobs=self.has_logprobs[first:last],
            no_logprob=None if self.no_logprob is None else self.no_logprob[begin:end],
            run_versions=self.run_versions[run:last_run],
            run_lengths=self.run_lengths[run:last_run],
            cu_runs=self.cu_runs[first : last + 1] - run,
            pack_length=self.pack_length,
        )

    def __iter__(self) -> Iterator[Self]:
        """Yield the rows, one by one."""
        return (self.rows(row, row + 1) for row in range(self.num_rows))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all arrays by name: those with an entry for each token, and the bounds of sequences and rows."""
        names = (*STORED, "cu_seqlens", "cu_rows", "sequence", "group")
        found = {name: getattr(self, name) for name in names}
        if self.num_tokens <= STRETCH:
            return found | {name: self._written(name) for name in REPEATED}
        written = block_of(REPEATED, self.num_tokens)
        for name, column in written.items():
            repeat_into(column, *self._runs(name))
            self._finish(name, column)
        return found | written

    def to_torch(self) -> dict[str, Any]:
        """Return `arrays()` as tensors that share their memory, unless it is read-only; needs the extra `torch`."""
        return to_tensors(self.arrays())

    def _written(self, name: str) -> npt.NDArray[Any]:
        column: npt.NDArray[Any] = np.repeat(*self._runs(name))
        self._finish(name, column)
        return column

    def _runs(self, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the values of a column that is repeated, and how often each comes."""
        lengths = np.diff(self.cu_seqlens)
        match name:
            case "position_ids":
                return self.cu_seqlens[:-1], lengths
            case "document_ids":
                return np.arange(len(lengths), dtype=np.int32), lengths
            case "advantages":
                return self.advantage, lengths
            case "weights":
                return self.weight, lengths
            case "versions":
                return self.run_versions, self.run_lengths
            case _:  # response_mask, logprob_mask: never in prompts
                flags = self.is_trainable if name == "response_mask" else self.has_logprobs
                halves = np.column_stack((self.prompt_length, lengths - self.prompt_length))
                return np.column_stack((np.zeros_like(flags), flags)).ravel(), halves.ravel()

    def _finish(self, name: str, out: npt.NDArray[Any]) -> None:
        """Let what was repeated differ from token to token, where it does."""
        if name == "position_ids":
            np.subtract(np.arange(len(out), dtype=out.dtype), out, out=out)
        elif name == "logprob_mask" and self.no_logprob is not None:
            out &= ~self.no_logprob
        elif name == "response_mask" and self.is_left_out is not None:
            out &= ~self.is_left_out


def to_tensors(arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Return tensors over the memory of the arrays, if it can be written to; raises ImportError without torch."""
    try:
        import torch  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("to_torch needs torch: pip install 'reroll[torch]'") from error
    # What came from elsewhere may lie in bytes, which nobody may write to; tensors know no such thing.
    writable = {name: array if array.flags.writeable else array.copy() for name, array in arrays.items()}
    return {name: torch.from_numpy(array) for name, array in writable.items()}
