"""Padded batches: a row of the same length for each packed row, or for each sequence."""

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.prepare.packed import NO_VERSION, REPEATED, STORED, PackedBatch, to_tensors
from reroll.prepare.packing import row_of_each
from reroll.prepare.sequences import Sequences

_PADDING: Final[dict[str, int]] = {"versions": NO_VERSION, "document_ids": -1}
"""What stands in padding where it is not 0."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedBatch:
    """The columns of a PackedBatch with two dimensions, rows and tokens; padding stands on the right."""

    input_ids: npt.NDArray[np.int32]
    position_ids: npt.NDArray[np.int32]
    response_mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    logprob_mask: npt.NDArray[np.bool_]
    advantages: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    document_ids: npt.NDArray[np.int32]
    """The place of the token's sequence in the batch; -1 in padding."""
    attention_mask: npt.NDArray[np.bool_]
    """Whether there is a token."""

    def to_torch(self) -> dict[str, Any]:
        """Return all columns as tensors that share their memory; needs the extra `torch`."""
        return to_tensors({column.name: getattr(self, column.name) for column in fields(self)})


def pad(
    batch: PackedBatch | Sequences, *, length: int | None = None, multiple_of: int = 1, pad_token_id: int = 0
) -> PaddedBatch:
    """Return the rows of a packed batch, or each sequence, padded to `length`: by default the longest.

    `multiple_of` rounds the length up. Raises InvalidArgument if a row is longer.
    """
    packed = row_of_each(batch) if isinstance(batch, Sequences) else batch
    sizes = np.diff(packed.row_offsets)
    longest = int(sizes.max(initial=0))
    if length is not None and longest > length:
        raise InvalidArgument(f"a row has {longest} tokens, which is more than length={length}")
    width = -(-(longest if length is None else length) // multiple_of) * multiple_of
    exists = np.arange(width) < sizes[:, None]
    columns: dict[str, Any] = {}
    for name in (*STORED, *REPEATED):
        flat = getattr(packed, name)
        padding = pad_token_id if name == "input_ids" else _PADDING.get(name, 0)
        columns[name] = np.full(exists.shape, padding, flat.dtype)
        columns[name][exists] = flat
    return PaddedBatch(**columns, attention_mask=exists)
