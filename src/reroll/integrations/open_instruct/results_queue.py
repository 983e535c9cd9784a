"""`ResultsQueue`: a queue of inference results that filters, bounds staleness, and delivers in the order of a sampler."""

import contextlib
import queue
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from reroll.codec import register
from reroll.config import ReplayBufferConfig, SyncReplayBufferConfig
from reroll.errors import Closed, InvalidArgument, InvalidConfig, WaitTimeout, shown
from reroll.integrations.open_instruct.results import generated, rewards_of, versions_of
from reroll.prepare import screen
from reroll.prepare.filters import Predicate
from reroll.rollout import Status, VersionRuns, group_status, status_from_finish_reason

_TASK: Final = "train"


@register
@dataclass(slots=True, eq=False)
class Response:
    """One response of a result as a rollout, for the buffer and for predicates."""

    result: Any
    """The item that was put; all its responses share it."""
    group_id: Any
    response_ids: Any
    response_model_steps: VersionRuns
    reward: Any
    finish_reason: Any
    status: Status
    seq_staleness: int = 0


class ResultsQueue:
    """A queue of inference results over a buffer. Thread-safe.

    `queue.buffer` is the blocking buffer: `queue.buffer.stats()`, `ledger()`, `query(...)`.
    """

    def __init__(
        self,
        maxsize: int = 0,
        *,
        replay_buffer: ReplayBufferConfig | Mapping[str, Any] | None = None,
        filter_zero_std: bool = False,
        max_possible_score: float = 1.0,
        predicates: Iterable[Predicate] = (),
        sentinel: Any = None,
    ) -> None:
        """Make a queue.

        Args:
            maxsize: the capacity in results; 0: that of `replay_buffer`.
            replay_buffer: the order (`sampler`, `priority_signal`), the bound on staleness (`max_staleness`; staler results
                are dropped), the eviction when full (`remover`). None: the oldest first; a put into a full queue waits.
            filter_zero_std: whether results with equal rewards are filtered.
            max_possible_score: the reward of a response that solves its prompt.
            predicates: functions of the responses of a result; False filters it.
            sentinel: returned by `get` after `shutdown`; putting it is a shutdown.

        Raises:
            InvalidConfig: the options can never proceed.
            pydantic.ValidationError: an option is invalid (a ValueError).

        """
        if not isinstance(replay_buffer, ReplayBufferConfig):
            replay_buffer = SyncReplayBufferConfig.model_validate(replay_buffer or {})
        if maxsize > 0 and replay_buffer.capacity is not None:
            raise InvalidConfig("give maxsize or replay_buffer.capacity, not both")
        options: dict[str, Any] = {"capacity": maxsize} if maxsize > 0 else {}
        options["on_stale"] = "drop"  # results of a queue are not generated again
        replay_buffer = replay_buffer.model_copy(update=options)
        self.buffer: Any = replay_buffer.build_blocking()
        self._rejected_capacity = replay_buffer.for_task(_TASK).rejected_capacity
        self._screening: dict[str, Any] = {
            "filter_zero_std": filter_zero_std,
            "max_possible_score": max_possible_score,
            "predicates": tuple(predicates),
        }
        self._sentinel = sentinel
        self._has_ended = False

    def put(
        self,
        item: Any,
        block: bool = True,
        timeout: float | None = None,
        *,
        model_step: int | None = None,
        priority: float | None = None,
    ) -> bool:
        """Put a result: a ProcessedResult, a Group, or any object with `responses` and `finish_reasons`.

        Results that are not queued stay in `buffer` with their status, for inspection.

        Args:
            item: the result; its rewards are in `reward_scores` or `rewards`.
            block: whether to wait for room.
            timeout: seconds to wait at most.
            model_step: the version that generated it; None: the result's own.
            priority: its weight for a prioritized sampler.

        Returns:
            Whether the result is in the queue: False if it was filtered, unfinished, too stale or evicted.

        Raises:
            queue.Full: there was no room in time.
            InvalidArgument: the item is no result, or a value is invalid.
            Closed: the queue was shut down.

        """
        if item is self._sentinel:
            self.shutdown()
            return False
        if self._has_ended:
            raise Closed("the queue was shut down; this result was not put")
        group = _responses(item, model_step)
        if group_status(group) is Status.COMPLETED and not screen([group], **self._screening).kept:
            for response in group:
                response.status = Status.FILTERED
        try:
            uid = self.buffer.put(group, _TASK, priority=priority, timeout=timeout if block else 0)
        except WaitTimeout as error:
            raise queue.Full from error
        status = group_status(group)
        if status is Status.ABORTED:
            self._delete_old_aborted()
        return uid is not None and status is Status.COMPLETED

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the next result.

        Args:
            block: whether to wait for a result.
            timeout: largest number of seconds to wait; None: no limit.

        Returns:
            The result; the sentinel if the queue was shut down and is empty.

        Raises:
            queue.Empty: there was no result in time.
            Closed: the buffer was closed.

        """
        try:
            groups, _ = self.buffer.take_batch(
                {_TASK: 1}, wait=not self._has_ended and block, timeout=timeout
            )
        except WaitTimeout as error:
            raise queue.Empty from error
        except Closed:
            if not self._has_ended:
                raise
            return self._sentinel
        if self._has_ended:
            self._close_if_empty()
        elif not groups[_TASK]:
            raise queue.Empty
        return groups[_TASK][0][0].result if groups[_TASK] else self._sentinel

    def qsize(self) -> int:
        """Return the number of queued results."""
        try:
            count: int = self.buffer.count(_TASK, Status.COMPLETED)
        except Closed:
            return 0
        return count

    def empty(self) -> bool:
        """Return whether no result is queued."""
        return self.qsize() == 0

    def advance(self, step: int) -> None:
        """Set the training step that is prepared now; drop results staler than `max_staleness`.

        Args:
            step: the training step.

        """
        self.buffer.advance(step)

    def shutdown(self) -> None:
        """Refuse further results; `get` returns the queued ones, then the sentinel.

        With a `min_size`, a remainder below it is not delivered: waiting callers get the sentinel.
        """
        self._has_ended = True
        self._close_if_empty()

    def _delete_old_aborted(self) -> None:
        """Keep the newest aborted results only, as the buffer does with failed ones."""
        over = self.buffer.count(_TASK, Status.ABORTED) - self._rejected_capacity
        if over > 0:
            oldest = self.buffer.query({"status": Status.ABORTED}, order_by="uid", limit=over)
            self.buffer.delete([row.uid for row in oldest])

    def _close_if_empty(self) -> None:
        """Close the buffer if nothing can be delivered any more; this wakes waiting callers."""
        with contextlib.suppress(Closed):
            if not self.buffer.is_ready({_TASK: 1}):
                self.buffer.close()


def _responses(item: Any, model_step: int | None) -> list[Response]:
    result = generated(item)
    if not result.responses:
        raise InvalidArgument(f"a result needs at least one response: {shown(item)}")
    return [
        Response(
            result=item,
            group_id=getattr(result, "prompt_id", None),
            response_ids=tokens,
            response_model_steps=versions,
            reward=reward,
            finish_reason=reason,
            status=status_from_finish_reason(reason),
        )
        for tokens, reason, reward, versions in zip(
            result.responses,
            result.finish_reasons,
            rewards_of(item),
            versions_of(result, model_step),
            strict=True,
        )
    ]
