"""From results to groups in the buffer: filtered, logged, and reported to `Prompts`."""

import time
from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from reroll.errors import InvalidArgument, WaitTimeout
from reroll.prepare.advantages import advantages_of, priority_of
from reroll.prepare.config import PrepareConfig
from reroll.prepare.filters import Screened, scores_of, screen
from reroll.prepare.generation import GenerationLog, Outcome
from reroll.prepare.packing import check_length
from reroll.prepare.prompts import Prompts
from reroll.prepare.results import GenerationResult, drop_failed, to_group
from reroll.prepare.steps import Steps
from reroll.rollout import Rollout, Status, group_status
from reroll.waiting import deadline_of

_REMEMBERED: Final = 65_536
"""Number of prompt ids that are remembered to recognise repeated results."""
_REASONS_KEPT: Final = 100
"""Number of different failure reasons that are counted."""
_NAMED: Final = 8
"""Number of prompts that a message names."""
_HOLDING: Final = ("resident", "out", "leased")
"""Ledger buckets of groups that take room."""


@dataclass(slots=True)
class _Reports:
    """Callbacks of `Prompts` that are due after a put."""

    stored: list[GenerationResult] = field(default_factory=list)
    solved: list[GenerationResult] = field(default_factory=list)
    replacements: int = 0


class _Fate(Enum):
    """What became of a result."""

    NEW = auto()
    """A group to train on."""
    KNOWN = auto()
    """A group to train on that arrived before."""
    LEFT_OUT = auto()
    """No group to train on."""


class Intake:
    """Puts results into the buffer, one after the other."""

    def __init__(self, config: PrepareConfig, buffer: Any, prompts: Prompts, steps: Steps) -> None:
        self._config = config
        self._buffer = buffer
        self._prompts = prompts
        self._steps = steps
        self._seen: OrderedDict[Hashable, bool] = (
            OrderedDict()
        )  # prompt ids; True: the group is or was stored
        self._last_uid = self._newest_uid = 0  # of the groups before this preparer, and of all groups
        self._expired_at = 0  # the last step for which groups were expired
        self._results = self._failed = self._repeated = 0
        self._reasons: Counter[str] = Counter()  # of failed results
        self.log = GenerationLog()

    async def begin(self) -> None:
        """Read which groups are in the buffer already."""
        rows = await self._buffer.query({}, order_by="-uid", limit=1)
        self._last_uid = max((self._last_uid, *(row.uid for row in rows)))
        self.log.carry(
            {task: await self._buffer.count(task, Status.COMPLETED) for task in self._config.sizes}
        )

    def state(self) -> dict[str, Any]:
        """Return the log and the newest uid as plain values, for `restore`."""
        newest = max(self._last_uid, self._newest_uid)
        return {"last_uid": newest, **self.log.state(self._steps.untrained())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._last_uid = state["last_uid"]
        self.log.restore(state)

    async def put(self, results: Sequence[GenerationResult], timeout: float | None = None) -> int:
        """Put results; return how many are groups to train on, now or when they first arrived.

        Raises InvalidArgument for an unusable result, WaitTimeout, Closed. Results before it are stored then.
        """
        reports, deadline = _Reports(), deadline_of(timeout)
        stored = 0
        try:
            for place, result in enumerate(results):
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    stored += await self._put_result(result, left, reports) is not _Fate.LEFT_OUT
                except WaitTimeout:
                    raise WaitTimeout(await self._explain_no_room(results, place)) from None
        finally:
            if reports.stored:
                self._prompts.on_stored(reports.stored)
            if reports.solved:
                self._prompts.on_solved(reports.solved)
            self.request_replacements(reports.replacements)
        return stored

    def request_replacements(self, count: int) -> None:
        """Report that `count` other prompts are needed."""
        if count:
            self._prompts.on_replacement_needed(count)

    async def expire(self, step: int) -> int:
        """Expire groups that are too stale for a step; log them, request replacements, return their number."""
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
            self.log.count("expired", count)
            if self._config.when_filtered == "wait":  # otherwise its step is shorter
                self.request_replacements(count)
        return count

    def explain_failures(self) -> str:
        """Return how many results failed and the most frequent reasons; empty if none failed."""
        if not self._failed:
            return ""
        why = ", ".join(reason for reason, _ in self._reasons.most_common(3))
        return f"; {self._failed} of {self._results} results failed: {why}"

    def explain_repeats(self) -> str:
        """Return how many results were repeated; empty if none was."""
        if not self._repeated:
            return ""
        return (
            f"; {self._repeated} results had a prompt_id that had come before, and were stored once (give each request its "
            "own, or set unique_prompt_ids=False)"
        )

    async def _put_result(self, result: GenerationResult, timeout: float | None, reports: _Reports) -> _Fate:
        if (was_stored := await self._find_known(result)) is not None:
            self._count_repeat()
            reports.stored.append(result)
            return _Fate.KNOWN if was_stored else _Fate.LEFT_OUT  # replaced when it first arrived
        screened = None
        try:
            task, group = self._task_of(result), self._group_of(result)
            if group_status(group) is Status.COMPLETED:
                screened = self._screen(result, group)
        except InvalidArgument:
            if self._config.on_invalid == "raise":
                raise
            self.log.count("invalid")
            fate = _Fate.LEFT_OUT
        else:
            if screened is None:
                # Not trained, but stored for inspection, or to be generated again.
                self.log.count(group_status(group).value)
                await self._put_group(result, task, group, timeout)
                fate = _Fate.LEFT_OUT
            else:
                fate = await self._store(result, task, group, screened, timeout)
        self.log.results += 1
        reports.stored.append(result)
        # Unless a step waits, it is shorter by a filtered group. A failed result counts for no step.
        is_replaced = self._config.when_filtered == "wait" or screened is None
        reports.replacements += is_replaced and fate is _Fate.LEFT_OUT
        if screened is not None and screened.excluded:
            reports.solved.append(result)
        return fate

    async def _find_known(self, result: GenerationResult) -> bool | None:
        """Return whether the group of a repeated result is or was stored; None if the result is new.

        A result that continues a checked-out group is new, unless that group is in the buffer again.
        """
        was_stored = self._seen.get(self._put_id(result))
        if was_stored is None or result.group_uid is None or self._steps.is_leased(result.group_uid):
            return was_stored
        return was_stored if await self._buffer.query({"uid": result.group_uid}) else None

    def _task_of(self, result: GenerationResult) -> str:
        sizes = self._config.sizes
        task = next(iter(sizes)) if result.task is None and len(sizes) == 1 else result.task
        if task is None or task not in sizes:
            raise InvalidArgument(
                f"prompt {result.prompt_id!r} is of task {task!r}; name one of: {', '.join(sizes)}"
            )
        return task

    def _group_of(self, result: GenerationResult) -> list[Rollout]:
        """Return the group of a result; count failed members, and drop them if configured."""
        config = self._config
        members = to_group(
            result,
            eos_token_id=config.eos_token_id,
            train_empty=config.train_empty,
            group_size=config.group_size,
            min_group_size=config.min_group_size,
        )
        reasons = {str(member.error_msg) for member in members if member.status is Status.FAILED}
        self._results += 1
        self._failed += bool(reasons)
        if len(self._reasons) < _REASONS_KEPT:
            self._reasons.update(reasons)
        if config.on_failed == "group":
            return members
        group = drop_failed(members, config.min_group_size)
        if len(group) < len(members):
            self.log.count("dropped_members", len(members) - len(group))
        return group

    def _screen(self, result: GenerationResult, group: list[Rollout]) -> Screened:
        config = self._config
        if config.overlong == "error":  # refused now, instead of together with the other groups of its step
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
        screened: Screened,
        timeout: float | None,
    ) -> _Fate:
        """Put a completed group, or filter it."""
        outcome, put_id = Outcome.of(group, screened.verdicts[0]), self._put_id(result)
        versions = [rollout.response_model_steps.oldest for rollout in group]
        oldest = min((version for version in versions if version is not None), default=None)
        if not screened.kept:
            if self._config.keep_filtered:
                for rollout in group:
                    rollout.status = Status.FILTERED
                # With its put id: a repetition after a restart is stored once, and is replaced as before.
                await self._put_group(result, task, group, timeout, put_id=put_id)
            self.log.add(task, None, outcome)
            self._remember(put_id, is_stored=False)
            return _Fate.LEFT_OUT
        uid = await self._put_group(result, task, group, timeout, put_id=put_id)
        # It arrived before a restart, or at the same time from another producer.
        arrived_before = (uid or 0) <= self._last_uid or put_id in self._seen
        if uid is not None and arrived_before and result.group_uid is None:
            self._count_repeat()
            self._remember(put_id, is_stored=True)
            return _Fate.KNOWN
        limit = self._config.staleness_limit(task)
        # The step may have advanced while the put waited for room.
        is_stale = limit is not None and oldest is not None and self._steps.newest - oldest > limit
        is_stored = uid is not None and not (is_stale and await self._has_expired(uid))
        self.log.add(task, uid if is_stored else None, outcome)
        if not is_stored:
            self.log.count("expired" if is_stale else "evicted")
        self._remember(put_id, is_stored=is_stored)
        return _Fate.NEW if is_stored else _Fate.LEFT_OUT

    async def _put_group(
        self,
        result: GenerationResult,
        task: str,
        group: list[Rollout],
        timeout: float | None,
        *,
        put_id: Hashable = None,
    ) -> int | None:
        limit, step = self._config.staleness_limit(task), self._steps.newest + 1
        if step > self._expired_at:  # before the put, which would expire groups without logging them
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
        return priority_of(advantages_of(scores, self._config.advantage or "grpo"))

    async def _has_expired(self, uid: int) -> bool:
        if self._steps.is_leased(uid):  # a query does not return leased groups
            return False
        return not await self._buffer.query({"uid": uid, "status": {"$ne": Status.EXPIRED}})

    def _put_id(self, result: GenerationResult) -> Hashable:
        """Return the id by which a repeated result is recognised; None if ids are not unique."""
        found: Hashable = result.prompt_id if self._config.unique_prompt_ids else None
        return found

    def _remember(self, put_id: Hashable, *, is_stored: bool) -> None:
        if put_id is not None:
            self._seen[put_id] = is_stored
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)

    def _count_repeat(self) -> None:
        self._repeated += 1
        self.log.count("repeated")

    async def _explain_no_room(self, results: Sequence[GenerationResult], place: int) -> str:
        """Return which results were stored before a timeout, and which groups take the room."""
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


def results_in(item: Any) -> list[GenerationResult]:
    """Return an item of a source as a list of results. Raises InvalidArgument if it is something else."""
    found = list(item) if isinstance(item, list | tuple) else [item]
    for result in found:
        if not isinstance(result, GenerationResult):
            raise InvalidArgument(
                f"a source gives a GenerationResult, or a list of them, not {result!r}; convert its items"
            )
    return found
