"""`RerollRolloutWorker`: a buffer between a rollout worker of TRL and its asynchronous trainer.

A thread collects the worker's samples to whole groups and puts them; the trainer reads them through the queue interface that
it knows. The trainer consumes samples in order and counts them, which tells which groups are trained.
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
from reroll.integrations.trl.batches import score_of
from reroll.integrations.trl.replay import TASK, Config, complete_config
from reroll.rollout import Rollout, Status

_NOTE: Final = "reroll"
"""Key of the worker's progress in the trainer's state, and so in its checkpoint."""
_NEW_RUN: Final = {"trained": 0, "end": 0, "open": (), "begun": (), "version": 0}
_POLL_S: Final = 0.25
"""Interval at which a wait checks whether the worker stops: TRL's queues cannot be woken."""
_WINDOW: Final = 1 << 16
"""Among this many last positions, a missing group may still arrive."""


class RerollRolloutWorker(TrainerCallback):
    """Replaces the worker of an AsyncGRPOTrainer, and reads samples from it. Make it before `train()`.

    Args:
        trainer: a trainer with TRL's own worker, or with yours.
        replay_buffer: configuration of the buffer; defaults fill in what a mapping does not set. With a `store`, a crash
            loses nothing.
        group_size: the number of samples per group, for a worker that mixes samples of several groups; None: a group is
            complete when the next one begins, as with TRL's own worker.

    """

    replay_buffer: BlockingReplayBuffer
    """The buffer of the main rank; other ranks have none, and get their samples from the main rank."""

    def __init__(
        self, trainer: Any, replay_buffer: Config | None = None, group_size: int | None = None
    ) -> None:
        if not hasattr(trainer, "_step_samples"):
            raise InvalidArgument("RerollRolloutWorker needs an AsyncGRPOTrainer of TRL 1.16 or newer")
        if not trainer.accelerator.is_main_process:
            return
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample  # noqa: PLC0415  (it warns)

        register(RolloutSample)
        # TRL counts staleness in versions, which are `weight_sync_steps` apart; the buffer counts it in steps.
        oldest = (trainer.args.max_staleness + 1) * trainer.args.weight_sync_steps - 1
        config = complete_config(replay_buffer or {}, AsyncReplayBufferConfig(capacity=256), trainer.args)
        bound = oldest if config.max_staleness is None else min(oldest, config.max_staleness)
        self.replay_buffer = config.model_copy(update={"max_staleness": bound}).build_blocking()
        self._trainer, self._worker, self._group_size = trainer, trainer.rollout_worker, group_size
        self._is_durable = config.store is not None
        # Last training step; first position of this run; trained samples of the first leased group.
        self._step = self._first = self._surplus = 0
        self._pool, self._stopping = ThreadPoolExecutor(1, "reroll-feed"), threading.Event()
        # Training step, which is reroll's version, by TRL's version; only versions that are not too old.
        self._step_of: dict[int, int] = {}
        # Samples of the last delivered group; position, size and lease of groups that are not trained yet.
        self._samples: deque[Any] = deque()
        self._leased: deque[tuple[int, int, Any]] = deque()
        self.metrics_queue = self._worker.metrics_queue
        self.rollout_buffer = trainer.rollout_worker = trainer.rollout_queue = self
        # Before TRL's callbacks: the buffer rewinds before the worker starts, and counts uses before versions change.
        trainer.callback_handler.callbacks.insert(0, self)

    # --- methods of a worker and of its queue, which the trainer calls

    def get(self, timeout: float | None = None) -> Any:
        """Return the next sample.

        Args:
            timeout: largest number of seconds to wait; None: no limit.

        Raises:
            queue.Empty: there was no sample in time.

        """
        while not self._samples:
            lease = self.replay_buffer.lease({TASK: 1}, wait=True, timeout=timeout, train_step=self._step + 1)
            try:
                batch = lease.take()
            except WaitTimeout:
                raise queue.Empty from None
            (group,) = batch.groups[TASK]
            position = group[0].group_id
            members = group[self._begun.pop(position, 0) :]
            self._leased.append((position, len(members), batch))
            self._samples.extend(members)
        one, args = self._samples.popleft(), self._trainer.args
        # TRL checks each sample alone, also the rest of a group in whose middle the version changed.
        behind = max(self._step - one.response_model_steps[0], 0) // args.weight_sync_steps
        version = self._trainer.model_version - min(behind, args.max_staleness)
        return replace(one.extra_fields["sample"], model_version=version, group_id=one.group_id)

    def qsize(self) -> int:
        """Return the number of groups in the buffer."""
        return self.replay_buffer.count(TASK, Status.COMPLETED)

    def update_model_version(self, model_version: int) -> None:
        """Advance the worker and the buffer.

        Args:
            model_version: version of the weights that generate now.

        """
        known = [*self._step_of.items(), (model_version, self._step)]
        self._step_of = dict(known[-self._trainer.args.max_staleness - 2 :])
        self._worker.update_model_version(model_version)
        self.replay_buffer.advance(self._step)

    def start(self) -> None:
        """Start the worker and the thread that reads from it."""
        self._feeding = self._pool.submit(self._feed)
        self._worker.start()

    def stop(self) -> None:
        """Stop both; return groups that were delivered and not trained."""
        self._worker.stop()
        self._stopping.set()
        self._pool.shutdown()
        while self._leased:
            self._leased.pop()[-1].nack()

    def check_health(self, stale_after_s: float) -> None:
        """Raise the error of the reading thread or of the worker, if one failed.

        Args:
            stale_after_s: passed on to the worker.

        """
        if self._feeding.done():
            self._feeding.result()
        self._worker.check_health(stale_after_s)

    # --- methods of a callback

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Rewind to the trainer's checkpoint; start the data at the first group neither stored nor trained.

        Args:
            args: arguments of the trainer.
            state: state of the trainer.
            control: control of the trainer.

        """
        note = state.stateful_callbacks.get(_NOTE, _NEW_RUN)
        self._step, self._trained = state.global_step, note["trained"]
        # By position: number of samples of a partly trained group that are in the checkpoint.
        self._begun = dict(note["begun"]) if self._is_durable else {}
        if self._is_durable:
            self.replay_buffer.rewind(state.global_step)
        self._known = _Positions(note["end"], *note["open"])
        self._known.add(*(row.group_id for row in self.replay_buffer.query({})))
        self._trainer._groups_before_resume, self._trainer.model_version = self._trained, note["version"]
        if (options := getattr(self._worker, "_loop_kwargs", None)) is not None:
            options["dataset_start_index"] = self._first = min(self._known.gaps | {self._known.end})

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Acknowledge groups whose last sample this step has trained; record the progress for a checkpoint.

        Args:
            args: arguments of the trainer.
            state: state of the trainer.
            control: control of the trainer.

        """
        self._step = state.global_step
        self._surplus += round(self._trainer._step_samples)
        while self._leased and self._leased[0][1] <= self._surplus:
            size, batch = self._leased.popleft()[1:]
            self._surplus -= size
            self._trained += _is_first_use(batch)
            batch.ack(train_step=state.global_step)
        end, open_ = self._known.end, set(self._known.gaps)  # before the query: more groups arrive meanwhile
        unused = self.replay_buffer.query({"status": "completed", "times_sampled": 0})
        open_ |= {row.group_id for row in unused}
        open_ |= {position for position, _, batch in self._leased if _is_first_use(batch)}
        state.stateful_callbacks[_NOTE] = {
            "trained": self._trained,
            "end": end,
            "open": sorted(open_),  # all other groups before the end are trained, or were dropped
            "begun": [(self._leased[0][0], self._surplus)] if self._surplus else [],
            "version": self._trainer.model_version + 1,  # of the weights that this step produced
        }

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Commit the step whose checkpoint is on disk.

        Args:
            args: arguments of the trainer.
            state: state of the trainer.
            control: control of the trainer.

        """
        self.replay_buffer.commit(state.global_step)

    # --- the reading thread

    def _feed(self) -> None:
        groups: dict[int, list[Any]] = {}
        ended = _Positions()
        while not self._stopping.is_set():
            with suppress(queue.Empty):
                sample = self._worker.rollout_buffer.get(timeout=_POLL_S)
                now, size = sample.group_id, self._group_size
                if now in ended:
                    remedy = "number groups in order, and give group_size if they mix"
                    raise InvalidArgument(f"group {now} continues after it was complete; {remedy}")
                groups.setdefault(now, []).append(sample)
                complete = [n for n in groups if (len(groups[n]) == size if size else n != now)]
                for number in complete:
                    self._put(self._first + number, groups.pop(number))
                ended.add(*complete)

    def _put(self, position: int, samples: list[Any]) -> None:
        buffer, budget = self.replay_buffer, self._trainer.args.token_budget or 0
        fits = budget <= 0 or all(len(sample.input_ids) <= budget for sample in samples)
        status = Status.COMPLETED if fits else Status.FILTERED  # otherwise TRL drops single samples
        group = [_rollout_of(sample, position, status) for sample in samples]
        oldest = min(self._step_of.values(), default=self._step)
        version = self._step_of.get(samples[0].model_version, oldest)
        while position not in self._known and not self._stopping.is_set():
            with suppress(WaitTimeout):
                buffer.release(buffer.reserve(1, TASK, timeout=_POLL_S))  # waits for the limiter
                buffer.put(group, TASK, model_step=version, timeout=_POLL_S)
                self._known.add(position)


def _rollout_of(sample: Any, position: int, status: Status) -> Rollout:
    reward, extra = score_of(sample.metrics.get("reward")), {"sample": sample}
    return Rollout(
        group_id=position, response_ids=sample.input_ids, reward=reward, status=status, extra_fields=extra
    )


def _is_first_use(batch: Any) -> bool:
    return bool(batch.samples[TASK][0].info.times_sampled == 1)


class _Positions:
    """All positions before an end except gaps: few, because groups arrive nearly in order and old gaps are closed."""

    def __init__(self, end: int = 0, *gaps: int) -> None:
        self.end, self.gaps = end, set(gaps)

    def __contains__(self, position: int) -> bool:
        return position < self.end and position not in self.gaps

    def add(self, *positions: int) -> None:
        for position in positions:
            self.gaps.update(range(max(self.end, position - _WINDOW), position))
            self.gaps.discard(position)
            self.end = max(self.end, position + 1)
        self.gaps = {gap for gap in self.gaps if gap >= self.end - _WINDOW}
