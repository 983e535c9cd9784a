"""GroupMemory: the buffer of a trainer's main rank, which keeps what was generated and gives older groups in place of some.

It follows the trainer's steps and checkpoints as a callback, and knows neither tensors nor ranks.
"""

import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from transformers import TrainerCallback

from reroll.buffer.blocking import BlockingReplayBuffer
from reroll.config import ReplayBufferConfig
from reroll.engine.selectors.specs import Prioritized
from reroll.errors import InvalidConfig
from reroll.rollout import Rollout

Config = ReplayBufferConfig | Mapping[str, Any]
"""What a buffer is made from; a mapping is completed by defaults."""
TASK: Final = "train"
FOLDER: Final = "replay_buffer"
"""Where a checkpoint of the trainer has a buffer that is in memory."""
MADE_HERE: Final = {"made_here": True}
DEFAULTS: Final = ReplayBufferConfig(
    capacity=256, remover="fifo", sampler=Prioritized(half_life=8), max_times_sampled=4, max_staleness=16
)


def completed(config: Config, defaults: ReplayBufferConfig, args: Any) -> ReplayBufferConfig:
    """Return a mapping with the defaults that it leaves out, and any configuration able to go back to a checkpoint."""
    if isinstance(config, Mapping):
        config = type(defaults)(**{"seed": args.seed, **defaults.model_dump(exclude_unset=True), **config})
    own: dict[str, Any] = {"on_stale": "drop"}  # TRL rolls no group again
    if config.store is not None and config.max_uncommitted_steps is None:
        own["max_uncommitted_steps"] = max(64, 2 * int(args.save_steps))
    return config.model_copy(update=own)


class GroupMemory(TrainerCallback):
    """Keeps generated groups that teach something, and gives them again.

    Args:
        trainer: whose groups these are.
        config: of the buffer; a mapping is completed by defaults.
        share: which part of a batch is replaced, the least telling groups first; None: those that teach nothing.

    """

    def __init__(self, trainer: Any, config: Config, share: float | None = None) -> None:
        if share is not None and not 0 < share <= 1:
            raise InvalidConfig(f"replay_share is a part of a batch, above 0 and at most 1, not {share}")
        config = completed(config, DEFAULTS, trainer.args)
        if config.capacity is not None and config.remover is None:
            raise InvalidConfig("the trainer would wait for itself at a full buffer: give remover='fifo'")
        self._trainer, self._config, self._share = trainer, config, share
        # What was drawn, and after which of the trainer's micro-batches it is trained.
        self._lent: deque[tuple[int, Any]] = deque()
        self.buffer: BlockingReplayBuffer = config.build_blocking()

    def exchange(self, groups: Sequence[list[Rollout]], signals: Sequence[float]) -> dict[int, list[Rollout]]:
        """Keep these groups, which the policy has just made, and return older ones by the numbers of those they replace.

        A signal says how much a group teaches; those of 0 are not kept.
        """
        step, least = self._trainer.state.global_step, sorted(range(len(groups)), key=signals.__getitem__)
        tied = signals.count(0.0)
        wanted = least[: tied if self._share is None else round(self._share * len(groups))]
        given = self._drawn(len(wanted), step + 1) if wanted else []
        for group, signal in zip(groups, signals, strict=True):
            if signal:
                priority = None if self._config.priority_signal else signal
                self.buffer.put(group, TASK, model_step=step, priority=priority, tags=MADE_HERE, timeout=0)
        metrics = {"groups": len(given), "without_signal": tied, "size": len(self.buffer)}
        if given:
            metrics["staleness"] = sum(sample.info.staleness for sample in given) / len(given)
        for name, value in metrics.items():
            self._trainer._metrics["train"][f"replay/{name}"].append(float(value))
        return {number: sample.group for number, sample in zip(wanted, given, strict=False)}

    def save(self, checkpoint: Path) -> None:
        """Save a buffer in memory inside of the trainer's checkpoint; a durable one is on disk already."""
        if self._config.store is None:
            self.buffer.save(checkpoint / FOLDER)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Become what belongs to the step that the trainer goes on after. Raises CannotRewind as `rewind` does."""
        checkpoint = self._trainer._resumed_from
        if self._config.store is not None:
            self.buffer.rewind(state.global_step)
            # The trainer makes these again, of the same prompts.
            self.buffer.delete({"version": {"$gte": state.global_step}, "tags.made_here": True})
        elif checkpoint is not None:
            self.buffer.close()
            self.buffer = self._config.build_blocking()
            if (Path(checkpoint) / FOLDER).exists():
                self.buffer.resume(Path(checkpoint) / FOLDER)
            else:
                warnings.warn(f"{checkpoint} has no {FOLDER}: replay begins with nothing", stacklevel=2)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count the uses of what this step was the last to train."""
        while self._lent and self._lent[0][0] <= self._trainer._step:
            self._lent.popleft()[1].ack(train_step=state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell that the trainer's checkpoint is on disk."""
        self.buffer.commit(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Give back what was not trained to its end."""
        while self._lent:
            self._lent.pop()[1].nack()

    def _drawn(self, number: int, step: int) -> list[Any]:
        batch = self.buffer.lease({TASK: number}, train_step=step).take()
        spans = self._trainer.args.steps_per_generation * self._trainer.num_iterations
        self._lent.append((self._trainer._step + spans, batch))
        return list(batch.samples[TASK])
