"""RerollRolloutWorker: a buffer between a rollout worker of TRL and its asynchronous trainer.

A thread makes whole groups of the worker's samples and puts them; the trainer gets them through the queue that it knows.
What a training step has used is told by the trainer's own collator, which the loader runs ahead of the steps.
"""

import queue
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, Final, Self

from transformers import TrainerCallback
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from reroll.buffer.blocking import BlockingReplayBuffer
from reroll.codec import register
from reroll.config import AsyncReplayBufferConfig, ReplayBufferConfig
from reroll.errors import InvalidArgument, WaitTimeout
from reroll.integrations.trl.memory import TASK, kept_steps
from reroll.rollout import Rollout, Status

_NOTE: Final = "reroll"
"""Where the trainer's state, and so its checkpoint, has what was trained."""
_LOOK_S: Final = 0.25
"""How often a wait looks whether it is still wanted: TRL's queues cannot be woken."""

_NOT_BEGUN: Final = (-1, 0)
"""In place of a group that a checkpoint has trained in part, and of how many of its samples."""
register(RolloutSample)


class RerollRolloutWorker(TrainerCallback):
    """Give it to AsyncGRPOTrainer in place of `worker`, and call `attach(trainer)` before `train()`.

    Args:
        worker: what makes samples: TRL's AsyncRolloutWorker, or your own of its protocol.
        replay_buffer: what the buffer is made from. With a `store`, nothing is lost by a crash.
        group_size: how many samples each group has, if that is known; None: a group is whole when the next one begins.

    """

    replay_buffer: BlockingReplayBuffer
    """On the main rank, from `attach` on."""

    def __init__(
        self,
        worker: Any,
        replay_buffer: ReplayBufferConfig | Mapping[str, Any] | None = None,
        group_size: int | None = None,
    ) -> None:
        if not isinstance(replay_buffer, ReplayBufferConfig):
            replay_buffer = AsyncReplayBufferConfig(**{"capacity": 256, **(replay_buffer or {})})
        self._worker, self._config, self._group_size = worker, replay_buffer, group_size
        self.rollout_buffer, self.metrics_queue = self, worker.metrics_queue
        self._trainer: Any = None
        self._failure: Exception | None = None
        self._stopping, self._thread = threading.Event(), threading.Thread()
        # By TRL's number: the last training step, which is the version of reroll.
        self._versions: dict[int, int] = {}
        # What is left of the group that was handed out last; and the position, size and lease of those not trained yet.
        self._left: deque[Any] = deque()
        self._lent: deque[tuple[int, int, Any]] = deque()
        # How many samples the micro-batches have that are not trained yet, and how many of the first group are.
        self._collated: deque[int] = deque()
        self._surplus, self._begun = 0, _NOT_BEGUN

    def attach(self, trainer: Any) -> Self:
        """Follow this trainer's steps and checkpoints."""
        self._trainer = trainer
        if trainer.accelerator.is_main_process:
            # In steps, where TRL counts versions, which come every so many steps.
            age = (trainer.args.max_staleness + 1) * trainer.args.weight_sync_steps - 1
            told = {"max_age": age if self._config.max_age is None else min(age, self._config.max_age)}
            if self._config.store and self._config.max_uncommitted_steps is None:
                told["max_uncommitted_steps"] = kept_steps(trainer.args)
            self.replay_buffer = self._config.model_copy(update=told).build_blocking()
            trainer._trained_groups = _Collated(self._collated)
            # Before TRL's own: the buffer goes back before the worker starts, and is told of uses before versions.
            trainer.callback_handler.callbacks.insert(0, self)
        return self

    # --- what the trainer calls of a worker, and of its queue

    def get(self, timeout: float | None = None) -> Any:
        """Return the next sample. Raises queue.Empty after the timeout."""
        while not self._left:
            lease: Any = self.replay_buffer.lease
            try:
                batch = lease({TASK: 1}, wait=True, timeout=timeout, train_step=self._step + 1).take()
            except WaitTimeout:
                raise queue.Empty from None
            (group,) = batch.groups[TASK]
            if self._begun[0] == group[0].group_id:  # its first samples are in the checkpoint
                group, self._begun = group[self._begun[1] :], _NOT_BEGUN
            self._lent.append((group[0].group_id, len(group), batch))
            self._left.extend(group)
        one, args = self._left.popleft(), self._trainer.args
        # TRL looks at each sample alone, also at those that follow when the version has changed in the middle of a group.
        behind = max(self._step - one.response_model_steps[0], 0) // args.weight_sync_steps
        version = self._trainer.model_version - min(behind, args.max_staleness)
        return replace(one.extra_fields["sample"], model_version=version, group_id=one.group_id)

    def qsize(self) -> int:
        """Return how many groups wait."""
        return self.replay_buffer.count(TASK, Status.COMPLETED)

    def update_model_version(self, model_version: int) -> None:
        """Advance the buffer. Raises InvalidArgument if it follows no trainer."""
        if self._trainer is None:
            raise InvalidArgument("call attach(trainer) before train(): the buffer follows its steps")
        self._versions[model_version] = self._step
        self._worker.update_model_version(model_version)
        self.replay_buffer.advance(self._step)

    def start(self) -> None:
        """Start the worker, and what reads from it."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._feed, name="reroll-feed", daemon=True)
        self._thread.start()
        self._worker.start()

    def stop(self) -> None:
        """Stop both; what was handed out and not trained is given back."""
        self._stopping.set()
        self._worker.stop()
        if self._thread.is_alive():
            self._thread.join()
        for _, _, batch in self._lent:
            batch.nack()
        for rest in (self._lent, self._left, self._collated):
            rest.clear()

    def check_health(self, stale_after_s: float) -> None:
        """Raise what went wrong here, or in the worker."""
        if self._failure is not None:
            raise self._failure
        self._worker.check_health(stale_after_s)

    # --- what it calls of a callback

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go back to the checkpoint that the trainer starts from, and ask only for what is neither trained nor here."""
        fresh = {"first": 0, "others": (), "begun": _NOT_BEGUN, "version": 0}
        note = state.stateful_callbacks.get(_NOTE, fresh)
        self._step, self._surplus, self._failure, self._begun = state.global_step, 0, None, _NOT_BEGUN
        self._trained = {*range(note["first"]), *note["others"]}
        if self._config.store is not None:
            self.replay_buffer.rewind(state.global_step)
            self._begun = tuple(note["begun"])
        self._known = self._trained | {row.group_id for row in self.replay_buffer.query({})}
        self._trainer._groups_before_resume, self._trainer.model_version = len(self._trained), note["version"]
        self._first = 0
        if (options := getattr(self._worker, "_loop_kwargs", None)) is not None:
            options["dataset_start_index"] = self._first = _gap(self._known)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Acknowledge the groups whose last sample this step has trained, and note for a checkpoint what is trained."""
        self._step = state.global_step
        every = self._trainer.current_gradient_accumulation_steps
        self._surplus += sum(self._collated.popleft() for _ in range(every))
        while self._lent and self._lent[0][1] <= self._surplus:
            position, size, batch = self._lent.popleft()
            self._surplus -= size
            batch.ack(train_step=state.global_step)
            self._trained.add(position)
        first = _gap(self._trained)
        state.stateful_callbacks[_NOTE] = {
            "first": first,
            "others": sorted(position for position in self._trained if position > first),
            "begun": (self._lent[0][0], self._surplus) if self._surplus else _NOT_BEGUN,
            "version": self._trainer.model_version + 1,  # of the weights that this step has made
        }

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell that the trainer's checkpoint is on disk."""
        self.replay_buffer.commit(state.global_step)

    # ---

    def _feed(self) -> None:
        groups: dict[int, list[Any]] = {}
        while not self._stopping.is_set() and self._failure is None:
            try:
                sample = self._worker.rollout_buffer.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            groups.setdefault(sample.group_id, []).append(sample)
            size = self._group_size
            whole = [n for n in groups if (len(groups[n]) >= size if size else n != sample.group_id)]
            try:
                for number in whole:
                    self._put(self._first + number, groups.pop(number))
            except Exception as error:  # noqa: BLE001  (told by check_health)
                self._failure = error

    def _put(self, position: int, samples: list[Any]) -> None:
        buffer, budget = self.replay_buffer, self._trainer.args.token_budget or 0
        fits = budget <= 0 or all(len(sample.input_ids) <= budget for sample in samples)
        status = Status.COMPLETED if fits else Status.FILTERED  # else TRL drops the long sample alone
        group = [_rollout_of(sample, position, status) for sample in samples]
        version = self._versions.get(samples[0].model_version, self._step)
        while position not in self._known and not self._stopping.is_set():
            try:
                buffer.release(buffer.reserve(1, TASK, timeout=_LOOK_S))  # as soon as one more may come
                buffer.put(group, TASK, model_step=version, timeout=_LOOK_S)
                self._known.add(position)
            except WaitTimeout:
                continue


def _rollout_of(sample: Any, position: int, status: Status) -> Rollout:
    """Return a sample of the group at this position of the data, whatever it holds: lists or arrays."""
    reward = sample.metrics.get("reward")
    known = None if reward != reward else reward  # noqa: PLR0124  (NaN: nobody could score it)
    told = {"sample": sample}
    return Rollout(
        group_id=position, response_ids=sample.input_ids, reward=known, status=status, extra_fields=told
    )


def _gap(positions: set[int]) -> int:
    """Return the first position that is not among these."""
    return next(position for position in count() if position not in positions)


class _Collated(set[int]):
    """The groups that TRL's collator has seen; notes how many samples each micro-batch has."""

    def __init__(self, sizes: deque[int]) -> None:
        super().__init__()
        self._sizes = sizes

    def update(self, *groups: Iterable[int]) -> None:
        ids = [number for part in groups for number in part]
        self._sizes.append(len(ids))
        super().update(ids)
