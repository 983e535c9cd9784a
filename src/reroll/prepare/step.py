"""One training step: from the groups that were drawn for it to the batch of each rank and its metrics. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reroll.prepare.arrivals import Generated
from reroll.prepare.columns import Memory
from reroll.prepare.config import PrepareConfig
from reroll.prepare.metrics import generation_metrics, packing_metrics, training_metrics
from reroll.prepare.packed import PackedBatch
from reroll.prepare.ranks import RankBatch, split
from reroll.prepare.sequences import sequences_of
from reroll.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepData:
    """What one rank trains in one step."""

    step: int
    batch: RankBatch
    """The micro-batches of this rank, and the counts of the whole batch, over all ranks."""
    uids: list[Any]
    """Of the groups of the whole batch: `uids[micro_batch.group[i]]` has the sequence i of a micro-batch."""
    metrics: Mapping[str, float]
    """Of the whole step: `gen/*`, `train/*`, `pack/*`, `time/*`."""

    @property
    def rank(self) -> int:
        return self.batch.rank

    def __len__(self) -> int:
        return len(self.batch)

    def __iter__(self) -> Iterator[PackedBatch]:
        """Yield the micro-batches."""
        return iter(self.batch)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step, for all ranks."""

    step: int
    parts: list[RankBatch]
    uids: list[Any]
    metrics: dict[str, float]

    def part(self, rank: int) -> StepData:
        return StepData(step=self.step, batch=self.parts[rank], uids=self.uids, metrics=self.metrics)


def prepare_step(
    step: int,
    samples: Sequence[Sample],
    generated: Generated,
    config: PrepareConfig,
    memory: Memory | None = None,
) -> Prepared:
    """Return a step that is made of these groups, in memory that is used again. Raises InvalidArgument, which names the prompt."""
    sequences = sequences_of(
        samples,
        advantage=config.advantage,
        mask_truncated=config.mask_truncated,
        use_importance_weights=config.importance_weights,
        train_step=step,
    )
    parts = split(
        sequences,
        config.num_ranks,
        pack_length=config.pack_length,
        overlong=config.overlong,
        rows_per_micro_batch=config.rows_per_micro_batch,
        pad_token_id=config.pad_token_id,
        memory=memory,
    )
    metrics = {
        **_generation_metrics(generated, config),
        **training_metrics(sequences),
        **packing_metrics(parts),
    }
    return Prepared(step, parts, [sample.info.uid for sample in samples], metrics)


def _generation_metrics(generated: Generated, config: PrepareConfig) -> dict[str, float]:
    metrics = generation_metrics(
        [arrival.group for arrival in generated.arrivals],
        [arrival.verdict for arrival in generated.arrivals],
        max_possible_score=config.max_possible_score,
        filter_zero_std=config.filter_zero_std,
    )
    return metrics | {f"gen/{name}": float(count) for name, count in sorted(generated.others.items())}
