"""The part of each data-parallel rank: the same number of micro-batches on all, tokens balanced, nothing lost.

Best fit says how many rows are needed. Their number is rounded up to a multiple of the ranks, and the sequences are spread
over all of them, longest first to the shortest row; where that would overfill a row, those of best fit stay as they are.
Rows are sorted, each rank gets one of every block of as many rows as there are ranks, and the blocks are combined by the
largest difference (Karmarkar-Karp, with equal numbers). So the rows that ranks compute at the same time are alike, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Literal, NamedTuple

import numpy as np

from reroll.errors import InvalidArgument
from reroll.prepare.building import build_rows
from reroll.prepare.columns import Memory
from reroll.prepare.packed import PackedBatch
from reroll.prepare.packing import Fitted, Overlong, best_fit, fit, longest_first
from reroll.prepare.sequences import Sequences

WeightNorm = Literal["max", "mean", "none"]


class GlobalCounts(NamedTuple):
    """What the whole batch amounts to, over all ranks: what a loss is normalised by."""

    tokens: int
    trainable_tokens: int
    sequences: int
    trainable_sequences: int
    """Those with a trainable token."""
    groups: int
    trainable_groups: int
    weight: float
    """The sum of the weights of trainable sequences."""
    weighted_tokens: float
    """The sum of the weights of trainable tokens."""
    rows: int
    """Without fillers."""
    truncated: int
    """Sequences that were cut to fit into a row."""
    dropped: int
    """Sequences that were left out, since they fit into no row."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankBatch:
    """The part of one rank, and what the whole batch amounts to."""

    rank: int
    micro_batches: list[PackedBatch]
    counts: GlobalCounts

    def __len__(self) -> int:
        return len(self.micro_batches)

    def __iter__(self) -> Iterator[PackedBatch]:
        return iter(self.micro_batches)

    @property
    def num_tokens(self) -> int:
        """Tokens on this rank, without fillers."""
        return sum(part.num_tokens - part.num_filler_tokens for part in self.micro_batches)


def split(
    sequences: Sequences | Fitted,
    num_ranks: int,
    *,
    pack_length: int,
    overlong: Overlong = "error",
    rows_per_micro_batch: int = 1,
    weight_norm: WeightNorm = "max",
    filler_length: int = 1,
    pad_token_id: int = 0,
    memory: Memory | None = None,
) -> list[RankBatch]:
    """Return the part of each rank; a micro-batch has `rows_per_micro_batch` rows of at most `pack_length` tokens.

    Every rank gets the same number of micro-batches, none if there are no sequences. A row that there is no sequence for
    holds `filler_length` tokens of weight 0 that are not trained on, so that it can be computed like any other. Weights are
    divided by the largest (`mean`: by their mean) of all sequences. Whoever splits step after step gives a `memory`, which
    is used again when a step is let go. Raises InvalidArgument as `fit`.
    """
    if num_ranks < 1 or rows_per_micro_batch < 1 or filler_length < 0:
        raise InvalidArgument(
            f"num_ranks={num_ranks} and rows_per_micro_batch={rows_per_micro_batch} must be at least 1,"
            f" filler_length={filler_length} at least 0"
        )
    fitted = sequences if isinstance(sequences, Fitted) else fit(sequences, pack_length, overlong)
    table = fitted.sequences
    lengths: list[int] = table.length.tolist()
    rows = _rows_for(lengths, fitted.numbers, num_ranks, pack_length)
    scale = _weight_scale(table, fitted.numbers, weight_norm)
    counts = _count(fitted, scale, sum(map(bool, rows)))
    dealt = deal([sum(lengths[i] for i in row) for row in rows], num_ranks)
    # One batch of all ranks, which then get views of it: memory is fetched once.
    built = build_rows(
        table,
        [rows[row] for chosen in dealt for row in chosen],
        pack_length=pack_length,
        filler_length=filler_length,
        pad_token_id=pad_token_id,
        weight_scale=scale,
        memory=memory,
    )
    each = len(dealt[0])
    parts = []
    for rank in range(num_ranks):
        end = (rank + 1) * each
        starts = range(rank * each, end, rows_per_micro_batch)
        cut = [built.rows(start, min(start + rows_per_micro_batch, end)) for start in starts]
        parts.append(RankBatch(rank=rank, micro_batches=cut, counts=counts))
    return parts


def _rows_for(
    lengths: Sequence[int], numbers: Sequence[int], num_ranks: int, pack_length: int
) -> list[list[int]]:
    """Return rows, a multiple of the ranks of them, as few as best fit finds."""
    packed = best_fit(lengths, numbers, pack_length)
    count = -(-len(packed) // num_ranks) * num_ranks
    return spread(lengths, numbers, count, pack_length) or packed + [[] for _ in range(count - len(packed))]


def spread(
    lengths: Sequence[int], numbers: Sequence[int], count: int, pack_length: int
) -> list[list[int]] | None:
    """Return the sequences in `count` rows, longest first, each in the row that has the least; None if one overflows."""
    rows: list[list[int]] = [[] for _ in range(count)]
    heap = list(range(count))  # the size of each row, and which it is, in one number
    for number in longest_first(lengths, numbers):
        size, row = divmod(heap[0], count)
        if size + lengths[number] > pack_length:
            return None
        rows[row].append(number)
        heapreplace(heap, heap[0] + lengths[number] * count)
    for members in rows:
        members.sort()
    return rows


def deal(sizes: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Return the rows of each rank, equally many, with sums as equal as largest differencing makes them."""
    order = sorted(range(len(sizes)), key=lambda row: -sizes[row])
    # A partial deal: the sum of each rank, largest first, and its rows. The heap has the widest first.
    heap = []
    for start in range(0, len(order), num_ranks):
        block = order[start : start + num_ranks]
        heap.append((sizes[block[-1]] - sizes[block[0]], start, [(sizes[row], [row]) for row in block]))
    if not heap:
        return [[] for _ in range(num_ranks)]
    heapify(heap)
    while len(heap) > 1:
        _, number, wide = heappop(heap)
        _, _, narrow = heappop(heap)
        pairs = zip(wide, reversed(narrow), strict=True)
        merged = sorted(((a + b, left + right) for (a, left), (b, right) in pairs), key=lambda part: -part[0])
        heappush(heap, (merged[-1][0] - merged[0][0], number, merged))
    places = {row: place for place, row in enumerate(order)}
    return [sorted(rows, key=places.__getitem__) for _, rows in heap[0][2]]


def _weight_scale(table: Sequences, numbers: Sequence[int], norm: WeightNorm) -> float:
    if norm not in ("max", "mean", "none"):
        raise InvalidArgument(f"weight_norm must be max, mean or none, not {norm!r}")
    weights = table.weight[np.asarray(numbers, np.int64)]
    if norm == "none" or not weights.any():
        return 1.0
    return 1.0 / float(weights.max() if norm == "max" else weights.mean())


def _count(fitted: Fitted, scale: float, rows: int) -> GlobalCounts:
    table = fitted.sequences
    kept = np.asarray(fitted.numbers, np.int64)
    trainable, weight = table.trainable[kept], table.weight[kept] * scale
    is_trainable = trainable > 0
    return GlobalCounts(
        tokens=int(table.length[kept].sum()),
        trainable_tokens=int(trainable.sum()),
        sequences=len(kept),
        trainable_sequences=int(np.count_nonzero(is_trainable)),
        groups=len(np.unique(table.group[kept])),
        trainable_groups=len(np.unique(table.group[kept][is_trainable])),
        weight=float(weight[is_trainable].sum()),
        weighted_tokens=float((weight * trainable).sum()),
        rows=rows,
        truncated=fitted.truncated,
        dropped=fitted.dropped,
    )
