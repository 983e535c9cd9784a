"""One training step: from the groups that were drawn for it to the batch of each rank and its metrics. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reroll.prepare.arrivals import Generated
from reroll.prepare.columns import Memory
from reroll.prepare.config import PrepareConfig
from reroll.prepare.metrics import outcome_metrics, packing_metrics, training_metrics
from reroll.prepare.outcomes import Outcome
from reroll.prepare.packed import PackedBatch
from reroll.prepare.packing import fit
from reroll.prepare.ranks import RankBatch, split
from reroll.prepare.sequences import Sequences, sequences_of
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
    samples: Mapping[str, Sequence[Sample]],
    generated: Generated,
    config: PrepareConfig,
    memory: Memory | None = None,
) -> Prepared:
    """Return a step that is made of these groups, by task. Raises InvalidArgument, which names the prompt.

    It lies in memory that is used again.
    """
    drawn = [sample for given in samples.values() for sample in given]
    sequences = sequences_of(
        drawn,
        advantage=config.advantage,
        mask_truncated=config.mask_truncated,
        use_importance_weights=config.importance_weights,
        train_step=step,
    )
    fitted = fit(sequences, config.pack_length, config.overlong)
    parts = split(
        fitted,
        config.num_ranks,
        pack_length=config.pack_length,
        rows_per_micro_batch=config.rows_per_micro_batch,
        pad_token_id=config.pad_token_id,
        memory=memory,
    )
    metrics = {
        **_generation_metrics(generated.outcomes(), config),
        **{f"gen/{name}": float(count) for name, count in sorted(generated.others.items())},
        **training_metrics(fitted.trained),
        **packing_metrics(parts),
    }
    if len(config.sizes) > 1:
        metrics |= _metrics_by_task(samples, generated, fitted.trained, config)
    return Prepared(step, parts, [sample.info.uid for sample in drawn], metrics)


def _generation_metrics(outcomes: Sequence[Outcome], config: PrepareConfig) -> dict[str, float]:
    return outcome_metrics(
        outcomes, max_possible_score=config.max_possible_score, filter_zero_std=config.filter_zero_std
    )


def _metrics_by_task(
    samples: Mapping[str, Sequence[Sample]], generated: Generated, trained: Sequences, config: PrepareConfig
) -> dict[str, float]:
    """Return the metrics of each task by itself: `gen/score_mean` of the task math is `gen/math/score_mean`."""
    found: dict[str, float] = {}
    first = 0
    for task, given in samples.items():
        last = first + len(given)
        of_task = trained.where((trained.group >= first) & (trained.group < last))
        of_all = _generation_metrics(generated.outcomes(task), config) | training_metrics(of_task)
        found |= {name.replace("/", f"/{task}/", 1): value for name, value in of_all.items()}
        first = last
    return found
