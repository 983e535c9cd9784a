"""One training step: from its groups to the batch of each rank, with metrics. Pure functions, no waiting."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reroll.display import html_table
from reroll.prepare.array_pool import ArrayPool
from reroll.prepare.batches import PackedBatch
from reroll.prepare.config import PrepareConfig
from reroll.prepare.generation import Generated
from reroll.prepare.metrics import outcome_metrics, packing_metrics, training_metrics
from reroll.prepare.packing import fit
from reroll.prepare.ranks import RankBatch, split
from reroll.prepare.sequences import sequences_of
from reroll.sample import Sample


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer update of a rank; iterating over it yields its micro-batches."""

    iteration: int
    """From 0 to `num_iterations` - 1: how often the step was trained before."""
    batch: RankBatch
    """The mini-batch: the micro-batches of this rank, and the totals over all ranks."""

    def __iter__(self) -> Iterator[PackedBatch]:
        return iter(self.batch)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepData:
    """The data that one rank trains in one step."""

    step: int
    batch: RankBatch
    """All micro-batches of this rank, and the totals of the step over all ranks."""
    uids: list[Any]
    """Uids of the groups of the step: `uids[micro_batch.group[i]]` is that of sequence i of a micro-batch."""
    metrics: Mapping[str, float]
    """Metrics of the whole step: `gen/*`, `train/*`, `pack/*`, `time/*`."""
    num_iterations: int = 1
    """How often the step is trained, as configured."""

    @property
    def rank(self) -> int:
        return self.batch.rank

    def __len__(self) -> int:
        return len(self.batch)

    def __iter__(self) -> Iterator[PackedBatch]:
        """Yield all micro-batches once."""
        return iter(self.batch)

    def __repr__(self) -> str:
        return f"StepData(step={self.step}, rank={self.rank}, {len(self)} micro-batches, {len(self.uids)} groups)"

    def _repr_html_(self) -> str:
        rows = (
            (place, part.num_sequences, part.num_tokens, part.num_filler_tokens)
            for place, part in enumerate(self)
        )
        return html_table(repr(self), ("micro-batch", "sequences", "tokens", "fillers"), rows, len(self))

    def updates(self) -> Iterator[Update]:
        """Yield the optimizer updates of the step: each mini-batch in turn, `num_iterations` times over.

        Every iteration yields the same micro-batch objects. So a trainer stores the log-probabilities of the first iteration
        by `micro_batch.set_column("old_logprobs", ...)` and reads them from `micro_batch.columns` in the later ones.
        All ranks have the same number of updates.
        """
        mini_batches = self.batch.mini_batches
        for iteration in range(self.num_iterations):
            for mini_batch in mini_batches:
                yield Update(iteration, mini_batch)


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A prepared step for all ranks."""

    step: int
    parts: list[RankBatch]
    uids: list[Any]
    metrics: dict[str, float]
    num_iterations: int

    def part(self, rank: int) -> StepData:
        """Return the data of one rank."""
        return StepData(
            step=self.step,
            batch=self.parts[rank],
            uids=self.uids,
            metrics=self.metrics,
            num_iterations=self.num_iterations,
        )


def prepare_step(
    step: int,
    samples: Mapping[str, Sequence[Sample]],
    generated: Generated,
    config: PrepareConfig,
    pool: ArrayPool | None = None,
) -> PreparedStep:
    """Return the step made of these groups, by task. Raises InvalidArgument, which names the prompt."""
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
        groups_per_micro_batch=config.groups_per_micro_batch,
        mini_batch_size=config.mini_batch_size,
        pad_token_id=config.pad_token_id,
        pool=pool,
    )
    trained = fitted.kept
    metrics = {
        **_generation_metrics(generated, config),
        **{f"gen/{name}": float(count) for name, count in sorted(generated.others.items())},
        **training_metrics(trained),
        **packing_metrics(parts),
        "train/updates": float(config.num_iterations * len(parts[0].mini_batch_counts)),
    }
    if len(config.sizes) > 1:
        first = 0
        for task, given in samples.items():
            last = first + len(given)
            of_task = trained.where((trained.group >= first) & (trained.group < last))
            found = _generation_metrics(generated, config, task) | training_metrics(of_task)
            metrics |= {name.replace("/", f"/{task}/", 1): value for name, value in found.items()}
            first = last
    uids = [sample.info.uid for sample in drawn]
    return PreparedStep(step, parts, uids, metrics, config.num_iterations)


def _generation_metrics(
    generated: Generated, config: PrepareConfig, task: str | None = None
) -> dict[str, float]:
    return outcome_metrics(
        generated.outcomes(task),
        max_possible_score=config.max_possible_score,
        filter_zero_std=config.filter_zero_std,
    )
