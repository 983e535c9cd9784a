"""GroupMemory: the buffer of a trainer's main rank, which keeps what was generated and gives older groups in place of some.

It knows groups, steps and checkpoints, and neither tensors nor ranks.
"""

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

from reroll.buffer.blocking import BlockingReplayBuffer
from reroll.buffer.plain_calls import BlockingBatch
from reroll.config import ReplayBufferConfig
from reroll.engine.selectors.specs import Prioritized
from reroll.errors import InvalidConfig
from reroll.rollout import Rollout

TASK: Final = "train"
FOLDER: Final = "replay_buffer"
"""Where a checkpoint of the trainer has the buffer."""
DEFAULTS: Final[Mapping[str, Any]] = {
    "capacity": 256,
    "sampler": Prioritized(half_life=8),
    "remover": "fifo",
    "max_times_sampled": 4,
    "max_age": 16,
}
Group = list[Rollout]


class Exchange(NamedTuple):
    """What is trained in place of generated groups."""

    given: dict[int, Group]
    """By the number of the group that it replaces."""
    metrics: dict[str, float]


class GroupMemory:
    """Keeps generated groups that teach something, and gives them again.

    Args:
        config: of the buffer; a mapping is completed by defaults.
        share: which part of a batch is replaced, the least telling groups first; None: those that teach nothing.
        seed: of the sampler, unless configured.
        kept_steps: for how many training steps a durable buffer can be rewound at least, unless configured.

    """

    def __init__(
        self,
        config: ReplayBufferConfig | Mapping[str, Any],
        *,
        share: float | None = None,
        seed: int | None = None,
        kept_steps: int = 64,
    ) -> None:
        if share is not None and not 0 < share <= 1:
            raise InvalidConfig(f"replay_share is a part of a batch, above 0 and at most 1, not {share}")
        if isinstance(config, Mapping):
            config = ReplayBufferConfig(**{**DEFAULTS, **config})
        if config.capacity is not None and config.remover is None:
            raise InvalidConfig(
                "a full buffer without a remover would let the trainer wait for itself: give it remover='fifo'"
            )
        told = {} if config.seed is not None else {"seed": seed}
        if config.store is not None and config.max_uncommitted_steps is None:
            told["max_uncommitted_steps"] = max(kept_steps, 64)
        self._config = config.model_copy(update=told)
        self._share = share
        self._lent: list[tuple[int, BlockingBatch]] = []
        self._puts = (-1, 0)
        self.buffer: BlockingReplayBuffer = self._config.build_blocking()

    def exchange(
        self, groups: Sequence[Group], signals: Sequence[float], *, step: int, done_at: int
    ) -> Exchange:
        """Give older groups in place of some of these, which version `step` made; and keep these.

        A signal says how much a group teaches; those of 0 are not kept. What is given is trained when `settle` is told
        of `done_at`.
        """
        least = sorted(range(len(groups)), key=signals.__getitem__)
        wanted = [number for number in least if not signals[number]]
        if self._share is not None:
            wanted = least[: round(self._share * len(groups))]
        given = self._drawn(wanted, step + 1, done_at)
        self._puts = (step, self._puts[1] + 1 if self._puts[0] == step else 0)
        for number, group in enumerate(groups):
            if signals[number]:
                self.buffer.put(
                    group,
                    TASK,
                    model_step=step,
                    priority=signals[number] if self._config.priority_signal is None else None,
                    # A durable buffer has what was put after the last checkpoint, and gets it again after a crash.
                    put_id=None if self._config.store is None else f"{step}.{self._puts[1]}.{number}",
                    timeout=0,
                )
        return Exchange(
            {number: sample.group for number, sample in zip(wanted, given, strict=False)},
            {
                "replay/groups": float(len(given)),
                "replay/without_signal": float(sum(not signal for signal in signals)),
                "replay/size": float(len(self.buffer)),
                **({"replay/staleness": sum(s.info.staleness for s in given) / len(given)} if given else {}),
            },
        )

    def settle(self, moment: int, step: int) -> None:
        """Count the uses of what was to be trained until this moment; training step `step` was the last for it."""
        done = [batch for done_at, batch in self._lent if done_at <= moment]
        self._lent = [(done_at, batch) for done_at, batch in self._lent if done_at > moment]
        for batch in done:
            batch.ack(train_step=step)

    def give_back(self) -> None:
        """Give back what was not trained to its end."""
        for _, batch in self._lent:
            batch.nack()
        self._lent.clear()

    def save(self, checkpoint: str | PathLike[str]) -> None:
        """Save a buffer in memory inside of the trainer's checkpoint; a durable one is on disk already."""
        if self._config.store is None:
            self.buffer.save(Path(checkpoint) / FOLDER)

    def commit(self, step: int) -> None:
        """Tell that the trainer's checkpoint of this step is on disk."""
        self.buffer.commit(step)

    def restore(self, step: int, checkpoint: str | PathLike[str] | None) -> None:
        """Become what belongs to the step that the trainer goes on after. Raises CannotRewind as `rewind` does."""
        self.give_back()
        if self._config.store is not None:
            self.buffer.rewind(step)
        elif checkpoint is not None:
            self.buffer.close()
            self.buffer = self._config.build_blocking()
            saved = Path(checkpoint) / FOLDER
            if saved.exists():
                self.buffer.resume(saved)
            else:
                warnings.warn(f"{checkpoint} has no {FOLDER}: replay begins with nothing", stacklevel=2)

    def _drawn(self, wanted: Sequence[int], step: int, done_at: int) -> list[Any]:
        if not wanted:
            return []
        lease: Any = self.buffer.lease
        batch: BlockingBatch = lease({TASK: len(wanted)}, train_step=step).take()
        self._lent.append((done_at, batch))
        return batch.samples[TASK]
