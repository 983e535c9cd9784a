"""ResultsQueue: a queue of inference results that is a replay buffer: filtered, fresh enough, in the sampler's order."""

import contextlib
import queue
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from reroll.codec import register
from reroll.config import ReplayBufferConfig, SyncReplayBufferConfig
from reroll.errors import Closed, InvalidArgument, InvalidConfig, WaitTimeout
from reroll.integrations.open_instruct.results import generated, rewards_of
from reroll.prepare import screen
from reroll.prepare.filters import Predicate
from reroll.rollout import Status, VersionRuns, group_status, status_from_finish_reason

_TASK: Final = "train"


@register
@dataclass(slots=True, eq=False)
class Response:
    """One response of a result, as a rollout: what the buffer and predicates look at."""

    result: Any
    """What was put, the same for all its responses."""
    group_id: Any
    response_ids: Any
    response_model_steps: VersionRuns
    reward: Any
    finish_reason: Any
    status: Status
    seq_staleness: int = 0


class ResultsQueue:
    """Stands where a queue of inference results stood. Engines put results, whoever prepares batches gets them. Thread-safe.

    `buffer` has the verbs of the buffer behind it: `queue.buffer.stats()`, `ledger()`, `query(...)`.
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
            maxsize: how many results fit; 0: as `replay_buffer` says.
            replay_buffer: who comes next (`sampler`, `priority_signal`), how stale a result may be (`max_staleness`; staler ones
                are dropped), who goes when it is full (`remover`). Without it: the oldest first, and a put into a full queue waits.
            filter_zero_std: whether results whose rewards do not differ are left out.
            max_possible_score: the reward of a response that solves its prompt.
            predicates: functions of the responses of a result; one that returns False has it left out.
            sentinel: what `get` returns when nothing will come any more; putting it is `shutdown`.

        Raises InvalidConfig, pydantic.ValidationError (both ValueErrors).

        """
        if not isinstance(replay_buffer, ReplayBufferConfig):
            replay_buffer = SyncReplayBufferConfig.model_validate(replay_buffer or {})
        if maxsize > 0 and replay_buffer.capacity is not None:
            raise InvalidConfig("give maxsize or replay_buffer.capacity, not both")
        if maxsize > 0:
            replay_buffer = replay_buffer.model_copy(update={"capacity": maxsize})
        replay_buffer = replay_buffer.model_copy(update={"on_stale": "drop"})  # a queue rolls nothing again
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
        """Put a result, and return whether it is in the queue: not if it is filtered, unfinished, too stale or evicted.

        A result has `responses` and `finish_reasons`, and its rewards in `reward_scores` or `rewards`; a ProcessedResult
        will do. `model_step`, or the result's own, is the version that generated it. What is left out can be looked at in
        `buffer`, with its status. Raises queue.Full if there is no room (in time), InvalidArgument, Closed.
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
            self._forget_old_aborted()
        return uid is not None and status is Status.COMPLETED

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the next result; the sentinel when the queue was shut down and is empty.

        Raises queue.Empty if there is none (in time), Closed if the buffer was closed.
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
            self._close_if_over()
        elif not groups[_TASK]:
            raise queue.Empty
        return groups[_TASK][0][0].result if groups[_TASK] else self._sentinel

    def qsize(self) -> int:
        """Return how many results wait."""
        try:
            count: int = self.buffer.count(_TASK, Status.COMPLETED)
        except Closed:
            return 0
        return count

    def empty(self) -> bool:
        """Return whether none waits."""
        return self.qsize() == 0

    def advance(self, step: int) -> None:
        """Tell which training step is prepared now: results staler than `max_staleness` are dropped."""
        self.buffer.advance(step)

    def shutdown(self) -> None:
        """Take no more results; those that are here can still be taken, then `get` returns the sentinel.

        With a `min_size`, so few at the end are not taken: whoever waits for more gets the sentinel.
        """
        self._has_ended = True
        self._close_if_over()

    def _forget_old_aborted(self) -> None:
        """Let the oldest go, as the buffer does with failed ones: nobody takes them from a queue to continue them."""
        over = self.buffer.count(_TASK, Status.ABORTED) - self._rejected_capacity
        if over > 0:
            oldest = self.buffer.query({"status": Status.ABORTED}, order_by="uid", limit=over)
            self.buffer.delete([row.uid for row in oldest])

    def _close_if_over(self) -> None:
        """Let those who still wait know that nothing is left for them."""
        with contextlib.suppress(Closed):
            if not self.buffer.is_ready({_TASK: 1}):
                self.buffer.close()


def _responses(item: Any, model_step: int | None) -> list[Response]:
    result = generated(item)
    step = getattr(result, "model_step", None) if model_step is None else model_step
    rewards = rewards_of(item)
    if not result.responses:
        raise InvalidArgument(f"{item!r} has no responses; a group needs at least one")
    return [
        Response(
            result=item,
            group_id=getattr(result, "prompt_id", None),
            response_ids=tokens,
            response_model_steps=VersionRuns(() if step is None else ((step, len(tokens)),)),
            reward=reward,
            finish_reason=reason,
            status=status_from_finish_reason(reason),
        )
        for tokens, reason, reward in zip(result.responses, result.finish_reasons, rewards, strict=True)
    ]
