"""`PackedBatch`: rows of sequences as flat arrays, without padding. It holds arrays only, and can be sent as it is.

The numbers of a token stand at the token itself, never shifted: `logprobs[i]` is that of `input_ids[i]`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument

NO_VERSION: Final = -1
FILLER: Final = -1
"""In place of a sequence's number: a token of weight 0 that makes an empty row computable."""

TOKEN_DTYPES: Final[dict[str, type[np.generic]]] = {
    "input_ids": np.int32,
    "position_ids": np.int32,
    "logprobs": np.float32,
    "advantages": np.float32,
    "weights": np.float32,
    "versions": np.int32,
    "response_mask": np.bool_,
    "logprob_mask": np.bool_,
}
"""The columns with an entry for each token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """Sequences one after another in flat arrays; rows are runs of them. Its parts are views, not copies."""

    input_ids: npt.NDArray[np.int32]
    position_ids: npt.NDArray[np.int32]
    """From 0 in each sequence."""
    response_mask: npt.NDArray[np.bool_]
    """Whether a token is trained on: a token of a response that its mask keeps."""
    logprobs: npt.NDArray[np.float32]
    """Of the policy that generated the token; 0 where there is none, never NaN or infinite."""
    logprob_mask: npt.NDArray[np.bool_]
    """Where there is a log-probability."""
    advantages: npt.NDArray[np.float32]
    """That of the sequence, at each of its tokens."""
    weights: npt.NDArray[np.float32]
    """That of the sequence, at each of its tokens."""
    versions: npt.NDArray[np.int32]
    """Of the weights that generated the token; NO_VERSION (-1) for prompts and where it is unknown."""
    cu_seqlens: npt.NDArray[np.int32]
    """Where sequences begin, and the end of the last."""
    cu_rows: npt.NDArray[np.int32]
    """Where rows begin, counted in sequences, and the end of the last."""
    sequence: npt.NDArray[np.int64]
    """The number of each sequence in its table; FILLER (-1) for a filler."""
    group: npt.NDArray[np.int64]
    """The number of its group in the batch; -1 for a filler."""
    pack_length: int
    """The most tokens that a row could hold."""

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

    @property
    def document_ids(self) -> npt.NDArray[np.int32]:
        """The place of each token's sequence in this batch, from 0; computed at each access."""
        lengths = np.diff(self.cu_seqlens)
        return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)

    def rows(self, start: int, stop: int) -> Self:
        """Return the rows from `start` to before `stop`; a view."""
        if not 0 <= start <= stop <= self.num_rows:
            raise InvalidArgument(
                f"there are {self.num_rows} rows, but those from {start} to {stop} were asked for"
            )
        first, last = int(self.cu_rows[start]), int(self.cu_rows[stop])
        begin, end = int(self.cu_seqlens[first]), int(self.cu_seqlens[last])
        tokens: dict[str, Any] = {name: getattr(self, name)[begin:end] for name in TOKEN_DTYPES}
        return type(self)(
            **tokens,
            cu_seqlens=self.cu_seqlens[first : last + 1] - begin,
            cu_rows=self.cu_rows[start : stop + 1] - first,
            sequence=self.sequence[first:last],
            group=self.group[first:last],
            pack_length=self.pack_length,
        )

    def __iter__(self) -> Iterator[Self]:
        """Yield the rows, one by one."""
        return (self.rows(row, row + 1) for row in range(self.num_rows))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all arrays by name, `document_ids` among them."""
        names = (*TOKEN_DTYPES, "document_ids", "cu_seqlens", "cu_rows", "sequence", "group")
        return {name: getattr(self, name) for name in names}

    def to_torch(self) -> dict[str, Any]:
        """Return all arrays as tensors that share their memory; needs the extra `torch`."""
        return to_tensors(self.arrays())


def to_tensors(arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Return tensors over the memory of the arrays; raises ImportError without torch."""
    try:
        import torch  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("to_torch needs torch: pip install 'reroll[torch]'") from error
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
