"""RerollRolloutWorker: a buffer between a rollout worker of TRL and its asynchronous trainer.

A thread makes whole groups of the worker's samples and puts them; the trainer gets them through the queue that it knows.
It counts how many samples a step has trained, and gets them in order: that tells which groups are consumed.
"""

import queue
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from transformers import TrainerCallback

from reroll.buffer.blocking import BlockingReplayBuffer
from reroll.codec import register
from reroll.config import AsyncReplayBufferConfig
from reroll.errors import InvalidArgument, WaitTimeout
from reroll.integrations.trl.memory import TASK, Config, completed
from reroll.integrations.trl.rows import score_of
from reroll.rollout import Rollout, Status

_NOTE: Final = "reroll"
"""Where the trainer's state, and so its checkpoint, has what became of the groups."""
_NOTHING: Final = {"trained": 0, "end": 0, "open": (), "begun": (), "version": 0}
_LOOK_S: Final = 0.25
"""How often a wait looks whether it is still wanted: TRL's queues cannot be woken."""
_LATEST: Final = 1 << 16
"""Among so many positions, the last ones, a group that did not come may still come."""


class RerollRolloutWorker(TrainerCallback):
    """Takes the place of the worker of an AsyncGRPOTrainer, and gets samples from it. Make it before `train()`.

    Args:
        trainer: with TRL's own worker, or with yours.
        replay_buffer: what the buffer is made from; a mapping is completed by defaults. With a `store`, nothing is lost by
            a crash.
        group_size: how many samples each group has, for a worker that mixes those of several groups; None: a group is
            whole when the next one begins, as with TRL's own.

    """

    replay_buffer: BlockingReplayBuffer
    """On the main rank; the others have none, and get their samples from it."""

    def __init__(
        self, trainer: Any, replay_buffer: Config | None = None, group_size: int | None = None
    ) -> None:
        if not hasattr(trainer, "_step_samples"):
            raise InvalidArgument("RerollRolloutWorker needs an AsyncGRPOTrainer of TRL 1.16 or newer")
        if not trainer.accelerator.is_main_process:
            return
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample  # noqa: PLC0415  (it warns)

        register(RolloutSample)
        # In steps, where TRL counts versions, which come every so many steps.
        oldest = (trainer.args.max_staleness + 1) * trainer.args.weight_sync_steps - 1
        config = completed(replay_buffer or {}, AsyncReplayBufferConfig(capacity=256), trainer.args)
        bound = oldest if config.max_staleness is None else min(oldest, config.max_staleness)
        self.replay_buffer = config.model_copy(update={"max_staleness": bound}).build_blocking()
        self._trainer, self._worker, self._group_size = trainer, trainer.rollout_worker, group_size
        self._is_durable = config.store is not None
        # The last training step, the first position, and how many samples of the first group that is lent are trained.
        self._step = self._first = self._surplus = 0
        self._pool, self._stopping = ThreadPoolExecutor(1, "reroll-feed"), threading.Event()
        # By TRL's version, of those that were told and are not too old: the training step, which is the version of reroll.
        self._told: dict[int, int] = {}
        # What is left of the group that was handed out last; and the position, size and lease of those not trained yet.
        self._left: deque[Any] = deque()
        self._lent: deque[tuple[int, int, Any]] = deque()
        self.metrics_queue = self._worker.metrics_queue
        self.rollout_buffer = trainer.rollout_worker = trainer.rollout_queue = self
        # Before TRL's own: the buffer goes back before the worker starts, and is told of uses before versions.
        trainer.callback_handler.callbacks.insert(0, self)

    # --- what the trainer calls of a worker, and of its queue

    def get(self, timeout: float | None = None) -> Any:
        """Return the next sample. Raises queue.Empty after the timeout."""
        while not self._left:
            lease = self.replay_buffer.lease({TASK: 1}, wait=True, timeout=timeout, train_step=self._step + 1)
            try:
                batch = lease.take()
            except WaitTimeout:
                raise queue.Empty from None
            (group,) = batch.groups[TASK]
            position = group[0].group_id
            group = group[self._begun.pop(position, 0) :]
            self._lent.append((position, len(group), batch))
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
        """Advance the buffer."""
        known = [*self._told.items(), (model_version, self._step)]
        self._told = dict(known[-self._trainer.args.max_staleness - 2 :])
        self._worker.update_model_version(model_version)
        self.replay_buffer.advance(self._step)

    def start(self) -> None:
        """Start the worker, and what reads from it."""
        self._feeding = self._pool.submit(self._feed)
        self._worker.start()

    def stop(self) -> None:
        """Stop both; what was handed out and not trained is given back."""
        self._worker.stop()
        self._stopping.set()
        self._pool.shutdown()
        while self._lent:
            self._lent.pop()[-1].nack()

    def check_health(self, stale_after_s: float) -> None:
        """Raise what went wrong here, or in the worker."""
        if self._feeding.done():
            self._feeding.result()
        self._worker.check_health(stale_after_s)

    # --- what it calls of a callback

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go back to the checkpoint that the trainer starts from, and ask only for what is neither here nor done with."""
        note = state.stateful_callbacks.get(_NOTE, _NOTHING)
        self._step, self._trained = state.global_step, note["trained"]
        # By position: how many samples are in the checkpoint of a group that was trained in part.
        self._begun = dict(note["begun"]) if self._is_durable else {}
        if self._is_durable:
            self.replay_buffer.rewind(state.global_step)
        self._known = _Positions(note["end"], *note["open"])
        self._known.add(*(row.group_id for row in self.replay_buffer.query({})))
        self._trainer._groups_before_resume, self._trainer.model_version = self._trained, note["version"]
        if (options := getattr(self._worker, "_loop_kwargs", None)) is not None:
            options["dataset_start_index"] = self._first = min(self._known.gaps | {self._known.end})

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Acknowledge the groups whose last sample this step has trained, and note for a checkpoint what is not."""
        self._step = state.global_step
        self._surplus += round(self._trainer._step_samples)
        while self._lent and self._lent[0][1] <= self._surplus:
            size, batch = self._lent.popleft()[1:]
            self._surplus -= size
            self._trained += _is_new(batch)
            batch.ack(train_step=state.global_step)
        end, left = self._known.end, set(self._known.gaps)  # before the buffer is asked: more come meanwhile
        unused = self.replay_buffer.query({"status": "completed", "times_sampled": 0})
        left |= {row.group_id for row in unused} | {at for at, _, batch in self._lent if _is_new(batch)}
        state.stateful_callbacks[_NOTE] = {
            "trained": self._trained,
            "end": end,
            "open": sorted(left),  # of those below the end; all others are trained, or were given up
            "begun": [(self._lent[0][0], self._surplus)] if self._surplus else [],
            "version": self._trainer.model_version + 1,  # of the weights that this step has made
        }

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell that the trainer's checkpoint is on disk."""
        self.replay_buffer.commit(state.global_step)

    # ---

    def _feed(self) -> None:
        groups: dict[int, list[Any]] = {}
        ended = _Positions()
        while not self._stopping.is_set():
            with suppress(queue.Empty):
                sample = self._worker.rollout_buffer.get(timeout=_LOOK_S)
                now, size = sample.group_id, self._group_size
                if now in ended:
                    raise InvalidArgument(
                        f"group {now} goes on after it was whole: number groups in order, and give group_size if they mix"
                    )
                groups.setdefault(now, []).append(sample)
                whole = [n for n in groups if (len(groups[n]) == size if size else n != now)]
                for number in whole:
                    self._put(self._first + number, groups.pop(number))
                ended.add(*whole)

    def _put(self, position: int, samples: list[Any]) -> None:
        buffer, budget = self.replay_buffer, self._trainer.args.token_budget or 0
        fits = budget <= 0 or all(len(sample.input_ids) <= budget for sample in samples)
        status = Status.COMPLETED if fits else Status.FILTERED  # else TRL drops the long sample alone
        group = [_rollout_of(sample, position, status) for sample in samples]
        version = self._told.get(samples[0].model_version, min(self._told.values(), default=self._step))
        while position not in self._known and not self._stopping.is_set():
            with suppress(WaitTimeout):
                buffer.release(buffer.reserve(1, TASK, timeout=_LOOK_S))  # as soon as one more may come
                buffer.put(group, TASK, model_step=version, timeout=_LOOK_S)
                self._known.add(position)


def _rollout_of(sample: Any, at: int, status: Status) -> Rollout:
    """Return a sample of the group at this position of the data, whatever it holds: lists or arrays."""
    score, told = score_of(sample.metrics.get("reward")), {"sample": sample}
    return Rollout(group_id=at, response_ids=sample.input_ids, reward=score, status=status, extra_fields=told)


def _is_new(batch: Any) -> bool:
    """Return whether this is the first use of its group."""
    return bool(batch.samples[TASK][0].info.times_sampled == 1)


class _Positions:
    """All positions below an end but for some gaps: few, since groups come nearly in order, and old ones are closed."""

    def __init__(self, end: int = 0, *gaps: int) -> None:
        self.end, self.gaps = end, set(gaps)

    def __contains__(self, position: int) -> bool:
        return position < self.end and position not in self.gaps

    def add(self, *positions: int) -> None:
        for position in positions:
            self.gaps.update(range(max(self.end, position - _LATEST), position))
            self.gaps.discard(position)
            self.end = max(self.end, position + 1)
        self.gaps = {gap for gap in self.gaps if gap >= self.end - _LATEST}
