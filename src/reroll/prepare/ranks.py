"""The part of each data-parallel rank: the same number of micro-batches on all ranks, with balanced tokens.

Best fit decides how many rows are needed. Their number is rounded up to a multiple of the ranks, and the sequences are spread
over all rows, longest first to the shortest row; if that overfills a row, the rows of best fit stay. Rows are sorted, each
rank gets one of every block of `num_ranks` rows, and the blocks are combined by largest difference (Karmarkar-Karp with equal
numbers). So rows that ranks compute at the same time have similar lengths.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise
from typing import Literal, NamedTuple, Self

import numpy as np

from reroll.errors import InvalidArgument
from reroll.prepare.array_pool import ArrayPool
from reroll.prepare.batches import PackedBatch
from reroll.prepare.packing import Fitted, Overlong, best_fit, build_rows, fit, longest_first
from reroll.prepare.sequences import Sequences

WeightNorm = Literal["max", "mean", "none"]
_Plan = list[list[list[list[int]]]]
"""For each rank, for each of its micro-batches: rows of sequence numbers."""


class GlobalCounts(NamedTuple):
    """Totals of a batch over all ranks; a loss is normalised by them."""

    tokens: int
    trainable_tokens: int
    sequences: int
    trainable_sequences: int
    """Sequences with a trainable token."""
    groups: int
    trainable_groups: int
    weight: float
    """Sum of the weights of trainable sequences."""
    weighted_tokens: float
    """Sum of the weights of trainable tokens."""
    rows: int
    """Rows without fillers."""
    truncated: int
    """Sequences of the step that were truncated to fit into a row."""
    dropped: int
    """Sequences of the step that were dropped because they fit into no row."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankBatch:
    """The micro-batches of one rank, and the totals over all ranks."""

    rank: int
    micro_batches: list[PackedBatch]
    counts: GlobalCounts
    mini_batch_bounds: list[int]
    """Micro-batch offset of each mini-batch, and the end of the last."""
    mini_batch_counts: list[GlobalCounts]
    """Totals of each mini-batch over all ranks."""

    def __len__(self) -> int:
        return len(self.micro_batches)

    def __iter__(self) -> Iterator[PackedBatch]:
        return iter(self.micro_batches)

    def __repr__(self) -> str:
        return f"RankBatch(rank={self.rank}, {len(self)} micro-batches, {self.num_tokens} tokens)"

    @property
    def num_tokens(self) -> int:
        """Tokens on this rank without fillers."""
        return sum(part.num_tokens - part.num_filler_tokens for part in self.micro_batches)

    @property
    def mini_batches(self) -> list[Self]:
        """One batch for each optimizer update, with the same micro-batches and with its own totals."""
        return [
            type(self)(
                rank=self.rank,
                micro_batches=self.micro_batches[start:stop],
                counts=counts,
                mini_batch_bounds=[0, stop - start],
                mini_batch_counts=[counts],
            )
            for (start, stop), counts in zip(
                pairwise(self.mini_batch_bounds), self.mini_batch_counts, strict=True
            )
        ]


def split(
    sequences: Sequences | Fitted,
    num_ranks: int,
    *,
    pack_length: int,
    overlong: Overlong = "error",
    rows_per_micro_batch: int = 1,
    groups_per_micro_batch: int | None = None,
    mini_batch_size: int | None = None,
    weight_norm: WeightNorm = "max",
    filler_length: int = 1,
    pad_token_id: int = 0,
    pool: ArrayPool | None = None,
) -> list[RankBatch]:
    """Return the part of each rank, with the same number of micro-batches for all ranks.

    Args:
        sequences: The table to split, or the result of `fit`.
        num_ranks: Number of data-parallel ranks.
        pack_length: Largest number of tokens in a row.
        overlong: See `fit`.
        rows_per_micro_batch: Rows in a micro-batch.
        groups_per_micro_batch: With this, a micro-batch has all sequences of this number of groups instead, in as many rows as
            they need: a group is never split between micro-batches or ranks.
        mini_batch_size: Groups of one optimizer update; a group is never split between mini-batches, and their sizes
            differ by at most one. None: all groups.
        weight_norm: Weights are divided by the `"max"` or the `"mean"` of all sequences, or by 1.
        filler_length: Tokens in a row without sequences: they have weight 0, and make it computable.
        pad_token_id: The token of fillers.
        pool: Memory that is reused between batches.

    Raises:
        InvalidArgument: An argument is out of range, or as `fit`.

    """
    sizes = {
        "num_ranks": num_ranks,
        "rows_per_micro_batch": rows_per_micro_batch,
        "groups_per_micro_batch": groups_per_micro_batch,
        "mini_batch_size": mini_batch_size,
    }
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise InvalidArgument(f"{name} must be at least 1, not {value}")
    if filler_length < 0:
        raise InvalidArgument(f"filler_length must be at least 0, not {filler_length}")
    fitted = sequences if isinstance(sequences, Fitted) else fit(sequences, pack_length, overlong)
    table = fitted.sequences
    scale = _weight_scale(table, fitted.numbers, weight_norm)
    plans: list[_Plan] = []
    mini_counts: list[GlobalCounts] = []
    for numbers in _mini_batches(table, fitted.numbers, mini_batch_size):
        plan = (
            _by_rows(table, numbers, num_ranks, pack_length, rows_per_micro_batch)
            if groups_per_micro_batch is None
            else _by_groups(table, numbers, num_ranks, pack_length, groups_per_micro_batch)
        )
        plans.append(plan)
        num_rows = sum(bool(row) for rank in plan for rows in rank for row in rows)
        mini_counts.append(_count(fitted, numbers, scale, num_rows))
    ordered = [rows for rank in range(num_ranks) for plan in plans for rows in plan[rank]]
    # One batch for all ranks, which get views of it: its memory is allocated once.
    built = build_rows(
        table,
        [row for rows in ordered for row in rows],
        pack_length=pack_length,
        filler_length=filler_length,
        pad_token_id=pad_token_id,
        weight_scale=scale,
        pool=pool,
    )
    ends = np.cumsum([0, *map(len, ordered)]).tolist()
    parts = [built.rows(start, stop) for start, stop in pairwise(ends)]
    each = len(parts) // num_ranks
    return [
        RankBatch(
            rank=rank,
            micro_batches=parts[rank * each : (rank + 1) * each],
            counts=_count(fitted, fitted.numbers, scale, sum(counts.rows for counts in mini_counts)),
            mini_batch_bounds=np.cumsum([0, *(len(plan[0]) for plan in plans)]).tolist(),
            mini_batch_counts=mini_counts,
        )
        for rank in range(num_ranks)
    ]


def _mini_batches(table: Sequences, numbers: list[int], size: int | None) -> list[list[int]]:
    """Return the sequence numbers of each mini-batch: group after group in turn, so that tasks are mixed in each."""
    groups, place = np.unique(table.group[numbers], return_inverse=True)
    count = 1 if size is None else max(1, -(-len(groups) // size))
    chosen = place % count
    return [np.asarray(numbers, np.int64)[chosen == mini].tolist() for mini in range(count)]


def _by_rows(table: Sequences, numbers: list[int], num_ranks: int, pack_length: int, rows_each: int) -> _Plan:
    """Return micro-batches of `rows_each` rows; as many rows as best fit needs, rounded up to the ranks."""
    lengths: list[int] = table.length.tolist()
    rows = best_fit(lengths, numbers, pack_length)
    count = -(-len(rows) // num_ranks) * num_ranks
    rows = spread(lengths, numbers, count, pack_length) or rows + [[] for _ in range(count - len(rows))]
    dealt = deal([sum(lengths[number] for number in row) for row in rows], num_ranks)
    starts = range(0, len(dealt[0]), rows_each)
    return [
        [[rows[row] for row in chosen[start : start + rows_each]] for start in starts] for chosen in dealt
    ]


def _by_groups(
    table: Sequences, numbers: list[int], num_ranks: int, pack_length: int, groups_each: int
) -> _Plan:
    """Return micro-batches of at most `groups_each` whole groups, with balanced tokens."""
    lengths: list[int] = table.length.tolist()
    members: dict[int, list[int]] = {}
    for number in numbers:
        members.setdefault(int(table.group[number]), []).append(number)
    groups = list(members.values())
    count = -(-len(groups) // (groups_each * num_ranks)) * num_ranks
    if not count:
        return [[] for _ in range(num_ranks)]
    groups += [[] for _ in range(-len(groups) % count)]
    dealt = deal([sum(lengths[number] for number in group) for group in groups], count)
    micros = [sorted(number for group in chosen for number in groups[group]) for chosen in dealt]
    by_rank = deal([sum(lengths[number] for number in micro) for micro in micros], num_ranks)
    return [[best_fit(lengths, micros[micro], pack_length) or [[]] for micro in chosen] for chosen in by_rank]


def spread(
    lengths: Sequence[int], numbers: Sequence[int], count: int, pack_length: int
) -> list[list[int]] | None:
    """Return the sequences in `count` rows, longest first to the shortest row; None if a row overflows."""
    rows: list[list[int]] = [[] for _ in range(count)]
    heap = list(range(count))  # one number holds the tokens of a row and the row's number
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
    """Return the row numbers of each rank: equally many, with sums balanced by largest differencing.

    The number of rows must be a multiple of the ranks.
    """
    order = sorted(range(len(sizes)), key=lambda row: -sizes[row])
    # An entry is a partial deal: the sum and the rows of each rank, largest sum first. The widest deal comes first.
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


def _count(fitted: Fitted, numbers: Sequence[int], scale: float, rows: int) -> GlobalCounts:
    table = fitted.sequences
    kept = np.asarray(numbers, np.int64)
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
