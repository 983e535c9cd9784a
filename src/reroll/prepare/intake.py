"""From results to groups in the buffer: filtered, counted, and told to whoever has the prompts."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from reroll.errors import InvalidArgument, WaitTimeout
from reroll.prepare.advantages import advantages_of, priority_of
from reroll.prepare.arrivals import Arrivals
from reroll.prepare.config import PrepareConfig
from reroll.prepare.filters import Screened, scores_of, screen
from reroll.prepare.outcomes import Outcome
from reroll.prepare.packing import check_length
from reroll.prepare.prompts import Prompts
from reroll.prepare.results import GenerationResult, to_group
from reroll.rollout import Rollout, Status, group_status
from reroll.waiting import deadline_of

_REMEMBERED: Final = 65_536
"""How many prompt ids are remembered, to tell what comes twice."""
_HOLDING: Final = ("resident", "out", "leased")
"""Where groups are that take room."""
_NAMED: Final = 8
"""How many prompts a message names."""


_REASONS_KEPT = 100
"""Different reasons of failed results."""


@dataclass(slots=True)
class _Told:
    """What the prompts are to learn of results that were taken together."""

    settled: list[GenerationResult] = field(default_factory=list)
    excluded: list[GenerationResult] = field(default_factory=list)
    missing: int = 0


class _Fate(Enum):
    """What becomes of a result."""

    NEW = auto()
    """It is a group to train on."""
    KNOWN = auto()
    """It came before, and was one."""
    LEFT_OUT = auto()
    """Nobody trains on it, and another is wanted in its place."""


class Intake:
    """Puts results into a buffer, one after the other."""

    def __init__(
        self, config: PrepareConfig, buffer: Any, prompts: Prompts, *, next_step: Callable[[], int]
    ) -> None:
        """Put results; `next_step` tells which step is prepared next."""
        self._config = config
        self._buffer = buffer
        self._prompts = prompts
        self._next_step = next_step
        self._seen: OrderedDict[Hashable, bool] = OrderedDict()  # whether each is there to be trained, or was
        self._last_uid = self._newest_uid = 0  # of what was there before, and of what is there now
        self._expired_at = 0  # the last step that groups were expired for
        self.arrivals = Arrivals()
        self.looked_at = self.failed = 0
        self.failures: Counter[str] = Counter()
        self.repeated = 0
        """Results that came a second time."""

    async def begin(self) -> None:
        """Learn what is in the buffer already."""
        rows = await self._buffer.query({}, order_by="-uid", limit=1)
        self._last_uid = max((self._last_uid, *(row.uid for row in rows)))
        self.arrivals.carry(
            {task: await self._buffer.count(task, Status.COMPLETED) for task in self._config.sizes}
        )

    def state(self) -> dict[str, Any]:
        """Return what a restart needs, as plain values."""
        return {"last_uid": max(self._last_uid, self._newest_uid), **self.arrivals.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._last_uid = state["last_uid"]
        self.arrivals.restore(state)

    async def take(self, results: Sequence[GenerationResult], timeout: float | None = None) -> int:
        """Put results; return how many of them are groups to train on, now or since they first came.

        Raises InvalidArgument for what cannot be used, WaitTimeout, Closed. What came before it is in the buffer then.
        """
        told, deadline = _Told(), deadline_of(timeout)
        stored = 0
        try:
            for place, result in enumerate(results):
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    stored += await self._take(result, left, told) is not _Fate.LEFT_OUT
                except WaitTimeout:
                    raise WaitTimeout(await self._no_room(results, place)) from None
        finally:
            self._tell(told)
        return stored

    async def expire(self, step: int) -> int:
        """Expire groups that are too stale for a step; count them, have them replaced, and return how many there were."""
        limits = {task: self._config.staleness_limit(task) for task in self._config.sizes}
        thresholds = {task: limit + 1 for task, limit in limits.items() if limit is not None}
        if not thresholds:
            return 0
        expired = await self._buffer.refresh_staleness(
            task_stale_thresholds=thresholds,
            current_train_step=step,
            expired_groups_retryable_by_task=dict.fromkeys(thresholds, self._config.retry_expired),
        )
        self._expired_at = max(self._expired_at, step)
        count: int = sum(expired.values())
        if count:
            self.arrivals.count("expired", count)
            if self._config.when_filtered == "wait":  # else its step has one less
                self._tell(_Told(missing=count))
        return count

    async def _take(self, result: GenerationResult, timeout: float | None, told: _Told) -> _Fate:
        if (is_stored := await self._known(result)) is not None:
            self._repeats()
            told.settled.append(result)
            return _Fate.KNOWN if is_stored else _Fate.LEFT_OUT  # another was wanted when it first came
        try:
            task, group = self._task_of(result), self._group_of(result)
            status = group_status(group)
            self._note(group)
            found = self._screened(result, group) if status is Status.COMPLETED else None
        except InvalidArgument:
            if self._config.on_invalid == "raise":
                raise
            self.arrivals.count("invalid")
            fate, found = _Fate.LEFT_OUT, None
        else:
            fate = await self._store(result, task, group, found, timeout)
        self.arrivals.results += 1
        told.settled.append(result)
        # A step that yields has one less for what was filtered; what failed counts for no step.
        is_missing = self._config.when_filtered == "wait" or found is None
        told.missing += is_missing and fate is _Fate.LEFT_OUT
        if found is not None and found.excluded:
            told.excluded.append(result)
        return fate

    def _note(self, group: Sequence[Rollout]) -> None:
        """Count a result, and why it failed."""
        reasons = {str(member.error_msg) for member in group if member.status is Status.FAILED}
        self.looked_at += 1
        self.failed += bool(reasons)
        if len(self.failures) < _REASONS_KEPT:
            self.failures.update(reasons)

    def explain_failures(self) -> str:
        """Return how many results failed, and why most of them did; nothing if none has."""
        if not self.failed:
            return ""
        why = ", ".join(reason for reason, _ in self.failures.most_common(3))
        return f"; {self.failed} of {self.looked_at} results failed: {why}"

    async def _known(self, result: GenerationResult) -> bool | None:
        """Return whether a result that came before is there to be trained, or was; None if it is new.

        New is also what goes on with a group that became too stale since, and was taken out to be rolled again.
        """
        is_stored = self._seen.get(self._put_id(result))
        if is_stored is None or result.group_uid is None:
            return is_stored
        return is_stored if await self._buffer.query({"uid": result.group_uid}) else None

    def _task_of(self, result: GenerationResult) -> str:
        sizes = self._config.sizes
        task = next(iter(sizes)) if result.task is None and len(sizes) == 1 else result.task
        if task is None or task not in sizes:
            raise InvalidArgument(
                f"prompt {result.prompt_id!r} is of task {task!r}; name one of: {', '.join(sizes)}"
            )
        return task

    def _group_of(self, result: GenerationResult) -> list[Rollout]:
        config = self._config
        return to_group(
            result,
            eos_token_id=config.eos_token_id,
            train_empty=config.train_empty,
            group_size=config.group_size,
            min_group_size=config.min_group_size,
            salvage=config.salvage,
        )

    def _screened(self, result: GenerationResult, group: list[Rollout]) -> Screened:
        config = self._config
        if config.overlong == "error":  # refused now, and not with all others of its step
            check_length(result.prompt_id, max(rollout.num_tokens for rollout in group), config.pack_length)
        if config.advantage is not None and not config.late_rewards and None in (known := scores_of(group)):
            raise InvalidArgument(
                f"prompt {result.prompt_id!r}: response {known.index(None)} has no reward, and advantages need one of each; "
                "give it, or set advantage=None, or late_rewards=True if you patch it before its step is prepared"
            )
        return screen(
            [group],
            filter_zero_std=config.filter_zero_std,
            eps=config.zero_std_eps,
            max_possible_score=config.max_possible_score,
            predicates=config.predicates,
            no_resampling_pass_rate=config.no_resampling_pass_rate,
        )

    async def _store(
        self,
        result: GenerationResult,
        task: str,
        group: list[Rollout],
        found: Screened | None,
        timeout: float | None,
    ) -> _Fate:
        """Put a group, or leave it out."""
        if found is None:
            # Nobody trains on it, but somebody may look at it, or roll it again.
            self.arrivals.count(group_status(group).value)
            await self._put(result, task, group, timeout)
            return _Fate.LEFT_OUT
        outcome, oldest = Outcome.of(group, found.verdicts[0]), _oldest_version(group)
        if not found.kept:
            if self._config.keep_filtered:
                for rollout in group:
                    rollout.status = Status.FILTERED
                # One that comes again after a restart is stored once, and lacks another one in its place as before.
                await self._put(result, task, group, timeout, put_id=self._put_id(result))
            self.arrivals.add(task, None, outcome)
            self._remember(result, is_stored=False)
            return _Fate.LEFT_OUT
        uid = await self._put(result, task, group, timeout, put_id=self._put_id(result))
        # It came before a restart, or at the same time from somebody else.
        came_before = (uid or 0) <= self._last_uid or self._put_id(result) in self._seen
        if uid is not None and came_before and result.group_uid is None:
            self._repeats()
            self._remember(result, is_stored=True)
            return _Fate.KNOWN
        is_stale = self._is_stale(task, oldest)
        is_stored = uid is not None and not (is_stale and await self._has_expired(uid))
        self.arrivals.add(task, uid if is_stored else None, outcome)
        if not is_stored:
            self.arrivals.count("expired" if is_stale else "evicted")
        self._remember(result, is_stored=is_stored)
        return _Fate.NEW if is_stored else _Fate.LEFT_OUT

    async def _put(
        self,
        result: GenerationResult,
        task: str,
        group: list[Rollout],
        timeout: float | None,
        *,
        put_id: Hashable = None,
    ) -> int | None:
        limit, step = self._config.staleness_limit(task), self._next_step()
        if step > self._expired_at:  # first, so that groups which expire by the step of this put are counted
            await self.expire(step)
        uid: int | None = await self._buffer.put(
            group,
            task,
            model_step=result.model_step,
            current_train_step=step,
            stale_threshold=None if limit is None else limit + 1,
            expired_groups_retryable=self._config.retry_expired,
            priority=self._priority(group) if group_status(group) is Status.COMPLETED else None,
            uid=result.group_uid,
            put_id=put_id,
            timeout=timeout,
        )
        self._newest_uid = max(self._newest_uid, uid or 0)
        return uid

    def _priority(self, group: list[Rollout]) -> float | None:
        scores = [score for score in scores_of(group) if score is not None]
        if not self._config.priorities_from_advantages or len(scores) < len(group):
            return None
        return priority_of(advantages_of(scores, self._config.advantage or "standard"))

    def _is_stale(self, task: str, oldest: int | None) -> bool:
        """Return whether a group may have been too stale when it came into the buffer, for which it may have waited."""
        limit = self._config.staleness_limit(task)
        return limit is not None and oldest is not None and self._next_step() - oldest - 1 > limit

    async def _has_expired(self, uid: int) -> bool:
        return not await self._buffer.query({"uid": uid, "status": {"$ne": Status.EXPIRED}})

    def _put_id(self, result: GenerationResult) -> Hashable:
        """Return what a result that comes twice is known by; None if that cannot be told."""
        found: Hashable = result.prompt_id if self._config.unique_prompt_ids else None
        return found

    def _remember(self, result: GenerationResult, *, is_stored: bool) -> None:
        if (put_id := self._put_id(result)) is not None:
            self._seen[put_id] = is_stored
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)

    async def _no_room(self, results: Sequence[GenerationResult], place: int) -> str:
        """Return what became of results, of which so many were taken in before a timeout, and what holds the room."""
        held = {
            task: {name: buckets[name].groups for name in _HOLDING if buckets[name].groups}
            for task, buckets in (await self._buffer.ledger()).items()
        }
        again = (
            "put them again, or all: what is known is stored once"
            if self._config.unique_prompt_ids
            else "put only these again"
        )
        missing = ", ".join(repr(result.prompt_id) for result in results[place : place + _NAMED])
        more = f" and {len(results) - place - _NAMED} more" if len(results) - place > _NAMED else ""
        return (
            f"put timed out: {place} of {len(results)} results were taken in, and not those of prompts {missing}{more}; "
            f"{again}. The buffer holds {held}: there is room when steps are trained (leased groups are those of prepared "
            "steps), or with a larger replay_buffer.capacity"
        )

    def _repeats(self) -> None:
        self.repeated += 1
        self.arrivals.count("repeated")

    def _tell(self, told: _Told) -> None:
        if told.settled:
            self._prompts.settled(told.settled)
        if told.excluded:
            self._prompts.exclude(told.excluded)
        if told.missing:
            self._prompts.replace(told.missing)


def results_in(item: Any) -> list[GenerationResult]:
    """Return what came from a source as a list: it gives one result, or several at once. Raises InvalidArgument."""
    found = list(item) if isinstance(item, list | tuple) else [item]
    for result in found:
        if not isinstance(result, GenerationResult):
            raise InvalidArgument(f"a source gives a GenerationResult, or a list of them, not {result!r}")
    return found


def _oldest_version(group: Sequence[Rollout]) -> int | None:
    found = [rollout.response_model_steps.oldest for rollout in group]
    return min((version for version in found if version is not None), default=None)
