"""`PackedBatch` and `PaddedBatch`: sequences as flat or as two-dimensional arrays. They hold arrays only.

Values that differ between tokens are stored; values that are the same for a whole sequence are stored once and repeated on
access. So a batch takes 8 bytes a token while it waits or travels. Nothing is shifted: `logprobs[i]` belongs to
`input_ids[i]`. Names tell the arrays apart: `advantages` has an entry for each token, `sequence_advantages` for each sequence.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument, missing_extra
from reroll.prepare.array_pool import STRETCH, Column, allocate, repeat_into

NO_VERSION: Final = -1
FILLER: Final = -1
"""Sequence number of a filler: tokens of weight 0 in a row without sequences."""

STORED: Final = {"input_ids": np.int32, "logprobs": np.float32}
"""Columns that are stored with an entry for each token."""
REPEATED: Final = {
    "response_mask": np.bool_,
    "position_ids": np.int32,
    "document_ids": np.int32,
    "advantages": np.float32,
    "weights": np.float32,
    "versions": np.int32,
    "logprob_mask": np.bool_,
}
"""Columns that are computed on access, with an entry for each token."""
_BY_TOKEN: Final = (*STORED, "token_is_masked", "token_lacks_logprob")
_BY_SEQUENCE: Final = (
    *("sequence", "group", "sequence_advantages", "sequence_weights"),
    *("prompt_lengths", "is_trainable", "has_logprobs"),
)
_PADDING: Final[dict[str, int]] = {"versions": NO_VERSION, "document_ids": -1}
"""Padding values other than 0."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """Sequences one after another in flat arrays; a row is a run of sequences. Parts of a batch are views.

    Properties with an entry for each token are computed at each access; `arrays()` returns all columns at once.
    """

    input_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    """Of the policy that generated the token; 0 where there is none, never NaN or infinite."""
    cu_seqlens: npt.NDArray[np.int32]
    """Token offset of each sequence, and the end of the last."""
    cu_rows: npt.NDArray[np.int32]
    """Sequence offset of each row, and the end of the last."""
    sequence: npt.NDArray[np.int64]
    """Number of each sequence in its table; FILLER (-1) for a filler."""
    group: npt.NDArray[np.int64]
    """Number of each sequence's group in the step; -1 for a filler."""
    sequence_advantages: npt.NDArray[np.float32]
    """Advantage of each sequence; 0 for a filler."""
    sequence_weights: npt.NDArray[np.float32]
    """Weight of each sequence in the loss; 0 for a filler."""
    prompt_lengths: npt.NDArray[np.int64]
    """Prompt tokens of each sequence."""
    is_trainable: npt.NDArray[np.bool_]
    """Whether each sequence has response tokens to train on."""
    token_is_masked: npt.NDArray[np.bool_] | None
    """Tokens of trainable responses that their mask leaves out; None: no token."""
    has_logprobs: npt.NDArray[np.bool_]
    """Whether the response of each sequence has log-probabilities."""
    token_lacks_logprob: npt.NDArray[np.bool_] | None
    """Tokens without a finite log-probability in responses that have them; None: no token."""
    run_versions: npt.NDArray[np.int32]
    """Version of each run of tokens that one version generated."""
    run_lengths: npt.NDArray[np.int64]
    cu_runs: npt.NDArray[np.int32]
    """Run offset of each sequence, and the end of the last."""
    pack_length: int
    """Largest number of tokens in a row."""
    columns: dict[str, Column] = field(default_factory=dict)
    """Further columns with an entry for each token: those of the rollouts, and those that `set_column` added."""

    @property
    def response_mask(self) -> npt.NDArray[np.bool_]:
        """Whether each token is trained on: a response token that its mask keeps."""
        return self._repeat("response_mask")

    @property
    def position_ids(self) -> npt.NDArray[np.int32]:
        """Position of each token in its sequence, from 0."""
        return self._repeat("position_ids")

    @property
    def document_ids(self) -> npt.NDArray[np.int32]:
        """Position of each token's sequence in this batch, from 0."""
        return self._repeat("document_ids")

    @property
    def advantages(self) -> npt.NDArray[np.float32]:
        """Advantage of each token's sequence."""
        return self._repeat("advantages")

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """Loss weight of each token's sequence."""
        return self._repeat("weights")

    @property
    def versions(self) -> npt.NDArray[np.int32]:
        """Policy version that generated each token; NO_VERSION (-1) for prompts and unknown versions."""
        return self._repeat("versions")

    @property
    def logprob_mask(self) -> npt.NDArray[np.bool_]:
        """Whether each token has a log-probability."""
        return self._repeat("logprob_mask")

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def num_rows(self) -> int:
        return len(self.cu_rows) - 1

    @property
    def num_sequences(self) -> int:
        """Number of sequences without fillers."""
        return int(np.count_nonzero(self.sequence != FILLER))

    @property
    def num_trainable_tokens(self) -> int:
        return int(np.count_nonzero(self.response_mask))

    @property
    def num_filler_tokens(self) -> int:
        return int(np.diff(self.cu_seqlens)[self.sequence == FILLER].sum())

    @property
    def is_empty(self) -> bool:
        """Whether there is no sequence besides fillers."""
        return not self.num_sequences

    @property
    def row_offsets(self) -> npt.NDArray[np.int32]:
        """Token offset of each row, and the end of the last."""
        return self.cu_seqlens[self.cu_rows]

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest sequence; 0 without sequences."""
        return int(np.diff(self.cu_seqlens).max(initial=0))

    def __repr__(self) -> str:
        return f"PackedBatch({self.num_rows} rows, {self.num_sequences} sequences, {self.num_tokens} tokens)"

    def rows(self, start: int, stop: int) -> Self:
        """Return the rows from `start` to before `stop` as views.

        Args:
            start: first row.
            stop: row after the last.

        Raises:
            InvalidArgument: the batch has fewer rows.

        """
        if not 0 <= start <= stop <= self.num_rows:
            raise InvalidArgument(
                f"rows {start} to {stop} do not exist: there are {self.num_rows} rows; stay between 0 and that"
            )
        first, last = int(self.cu_rows[start]), int(self.cu_rows[stop])
        begin, end = int(self.cu_seqlens[first]), int(self.cu_seqlens[last])
        run, last_run = int(self.cu_runs[first]), int(self.cu_runs[last])
        tokens: dict[str, Any] = {name: getattr(self, name) for name in _BY_TOKEN}
        for name, column in tokens.items():
            tokens[name] = None if column is None else column[begin:end]
        return type(self)(
            **tokens,
            **{name: getattr(self, name)[first:last] for name in _BY_SEQUENCE},
            cu_seqlens=self.cu_seqlens[first : last + 1] - begin,
            cu_rows=self.cu_rows[start : stop + 1] - first,
            run_versions=self.run_versions[run:last_run],
            run_lengths=self.run_lengths[run:last_run],
            cu_runs=self.cu_runs[first : last + 1] - run,
            pack_length=self.pack_length,
            columns={name: column[begin:end] for name, column in self.columns.items()},
        )

    def __iter__(self) -> Iterator[Self]:
        """Yield the rows one by one."""
        return (self.rows(row, row + 1) for row in range(self.num_rows))

    def set_column(self, name: str, values: Any) -> None:
        """Add a column, such as the log-probabilities before the first update of a step.

        Args:
            name: A name that is no field of a batch; a column of that name is replaced.
            values: One entry for each token, as an array or a tensor.

        Raises:
            InvalidArgument: The name is taken, or the number of entries is wrong.

        """
        check_column_name(name)
        detached = values.detach().cpu() if hasattr(values, "detach") else values
        column = np.asarray(detached)
        if column.shape[:1] != (self.num_tokens,):
            raise InvalidArgument(
                f"column {name!r} has the shape {column.shape}: the batch has {self.num_tokens} tokens; give one entry for each"
            )
        self.columns[name] = column

    def arrays(self) -> dict[str, Column]:
        """Return by name all columns with an entry for each token, and `cu_seqlens`, `cu_rows`, `sequence`, `group`."""
        names = (*STORED, "cu_seqlens", "cu_rows", "sequence", "group")
        found = {name: getattr(self, name) for name in names} | self.columns
        if self.num_tokens <= STRETCH:
            return found | {name: self._repeat(name) for name in REPEATED}
        columns = allocate(REPEATED, self.num_tokens)
        for name, column in columns.items():
            repeat_into(column, *self._runs(name))
            self._refine(name, column)
        return found | columns

    def to_torch(self) -> dict[str, Any]:
        """Return `arrays()` as tensors over the same memory, copied if it is read-only. Needs the extra `torch`."""
        return to_tensors(self.arrays())

    def _repeat(self, name: str) -> Column:
        column: Column = np.repeat(*self._runs(name))
        self._refine(name, column)
        return column

    def _runs(self, name: str) -> tuple[Column, Column]:
        """Return the values of a computed column, and how often each is repeated."""
        lengths = np.diff(self.cu_seqlens)
        match name:
            case "position_ids":
                return self.cu_seqlens[:-1], lengths
            case "document_ids":
                return np.arange(len(lengths), dtype=np.int32), lengths
            case "advantages":
                return self.sequence_advantages, lengths
            case "weights":
                return self.sequence_weights, lengths
            case "versions":
                return self.run_versions, self.run_lengths
            case _:  # response_mask, logprob_mask: False in prompts
                flags = self.is_trainable if name == "response_mask" else self.has_logprobs
                halves = np.column_stack((self.prompt_lengths, lengths - self.prompt_lengths))
                return np.column_stack((np.zeros_like(flags), flags)).ravel(), halves.ravel()

    def _refine(self, name: str, column: Column) -> None:
        """Apply the differences between the tokens of a sequence to a repeated column."""
        if name == "position_ids":
            np.subtract(np.arange(len(column), dtype=column.dtype), column, out=column)
        elif name == "logprob_mask" and self.token_lacks_logprob is not None:
            column &= ~self.token_lacks_logprob
        elif name == "response_mask" and self.token_is_masked is not None:
            column &= ~self.token_is_masked


def check_column_name(name: str) -> None:
    """Raise InvalidArgument if a further column would hide a field of a batch."""
    if name in REPEATED or name in {item.name for item in fields(PackedBatch)}:
        raise InvalidArgument(
            f"column {name!r} cannot be set: every batch has a field of this name; choose another one"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedBatch:
    """The per-token columns of a PackedBatch with two dimensions, rows and tokens; padding stands on the right."""

    input_ids: npt.NDArray[np.int32]
    position_ids: npt.NDArray[np.int32]
    response_mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    logprob_mask: npt.NDArray[np.bool_]
    advantages: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    document_ids: npt.NDArray[np.int32]
    """Position of each token's sequence in the batch; -1 in padding."""
    attention_mask: npt.NDArray[np.bool_]
    """False in padding."""
    columns: dict[str, Column] = field(default_factory=dict)
    """Further columns, 0 in padding."""

    def to_torch(self) -> dict[str, Any]:
        """Return all columns as tensors over the same memory. Needs the extra `torch`."""
        found = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "columns"}
        return to_tensors(found | self.columns)


def pad_rows(
    packed: PackedBatch, *, length: int | None = None, multiple_of: int = 1, pad_token_id: int = 0
) -> PaddedBatch:
    """Return the rows of a packed batch padded to `length`, see `pad`."""
    sizes = np.diff(packed.row_offsets)
    longest = int(sizes.max(initial=0))
    if length is not None and longest > length:
        raise InvalidArgument(
            f"a row has {longest} tokens, more than length={length}; raise it or pack shorter rows"
        )
    width = -(-(longest if length is None else length) // multiple_of) * multiple_of
    exists = np.arange(width) < sizes[:, None]

    def padded(flat: Column, padding: int = 0) -> Column:
        column = np.full((*exists.shape, *flat.shape[1:]), padding, flat.dtype)
        column[exists] = flat
        return column

    padding = _PADDING | {"input_ids": pad_token_id}
    names = (*STORED, *REPEATED)
    return PaddedBatch(
        **{name: padded(getattr(packed, name), padding.get(name, 0)) for name in names},
        attention_mask=exists,
        columns={name: padded(column) for name, column in packed.columns.items()},
    )


def to_tensors(arrays: dict[str, Column]) -> dict[str, Any]:
    """Return tensors over the memory of the arrays; read-only arrays are copied. Raises ImportError without torch."""
    try:
        import torch  # noqa: PLC0415
    except ImportError as error:
        raise missing_extra("to_torch", "torch", "torch") from error
    # Arrays that were decoded from bytes are read-only, and a tensor cannot be.
    writable = {name: array if array.flags.writeable else array.copy() for name, array in arrays.items()}
    return {name: torch.from_numpy(array) for name, array in writable.items()}
