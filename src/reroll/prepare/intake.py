"""From results to groups in the buffer: filtered, counted, and told to whoever has the prompts."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from reroll.errors import InvalidArgument
from reroll.prepare.arrivals import Arrivals
from reroll.prepare.config import PrepareConfig
from reroll.prepare.filters import Verdict, screen
from reroll.prepare.prompts import Prompts
from reroll.prepare.results import GenerationResult, to_group
from reroll.rollout import Rollout, Status, group_status

_REMEMBERED: Final = 65_536
"""How many prompt ids are remembered, to tell what comes twice."""


@dataclass(slots=True)
class _Told:
    """What the prompts are to learn of results that were taken together."""

    settled: list[GenerationResult] = field(default_factory=list)
    excluded: list[GenerationResult] = field(default_factory=list)
    missing: int = 0


class _Judged(NamedTuple):
    """A group that was made of a result, and what is to become of it."""

    group: list[Rollout]
    status: Status
    verdict: Verdict
    is_kept: bool


class Intake:
    """Puts results into a buffer, one after the other."""

    def __init__(self, config: PrepareConfig, buffer: Any, prompts: Prompts) -> None:
        self._config = config
        self._buffer = buffer
        self._prompts = prompts
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self._last_uid = 0  # of what was there before
        self.arrivals = Arrivals()
        self.left_over: list[GenerationResult] = []
        """Results that were taken from the source, but could not be put before it was over."""
        self.repeated = 0
        """Results that came a second time."""

    async def begin(self) -> None:
        """Learn what is in the buffer already."""
        rows = await self._buffer.query({}, order_by="-uid", limit=1)
        self._last_uid = max((row.uid for row in rows), default=0)
        self.arrivals.carried = await self._buffer.count(self._config.task, Status.COMPLETED)

    async def take(self, item: Any, step: int, timeout: float | None = None) -> int:
        """Put what came from a source, for the step that is prepared next; return how many groups are in the buffer.

        Raises InvalidArgument for what is no result or cannot be used, WaitTimeout, Closed.
        """
        told = _Told()
        results = _results(item)
        stored = 0
        try:
            for place, result in enumerate(results):
                try:
                    stored += await self._take(result, step, timeout, told)
                except BaseException:
                    self.left_over = [*self.left_over, *results[place:]]
                    raise
        finally:
            self._tell(told)
        return stored

    def expired(self, count: int) -> None:
        """Learn that so many groups became too stale in the buffer."""
        if count:
            for _ in range(count):
                self.arrivals.count("expired")
            self._tell(_Told(missing=count))

    async def _take(self, result: GenerationResult, step: int, timeout: float | None, told: _Told) -> bool:
        config = self._config
        try:
            group = to_group(
                result,
                eos_token_id=config.eos_token_id,
                train_empty=config.train_empty,
                group_size=config.group_size,
                min_group_size=config.min_group_size,
                salvage=config.salvage,
            )
            found = screen(
                [group],
                filter_zero_std=config.filter_zero_std,
                eps=config.zero_std_eps,
                max_possible_score=config.max_possible_score,
                predicates=config.predicates,
                no_resampling_pass_rate=config.no_resampling_pass_rate,
            )
        except InvalidArgument:
            if config.on_invalid == "raise":
                raise
            self.arrivals.results += 1
            self.arrivals.count("invalid")
            told.settled.append(result)
            told.missing += 1
            return False
        judged = _Judged(group, group_status(group), found.verdicts[0], bool(found.kept))
        is_stored = await self._store(result, judged, step, timeout)
        self.arrivals.results += 1
        told.settled.append(result)
        told.missing += not is_stored
        if found.excluded and judged.status is Status.COMPLETED:
            told.excluded.append(result)
        return is_stored

    async def _store(
        self, result: GenerationResult, judged: _Judged, step: int, timeout: float | None
    ) -> bool:
        """Put a group, or leave it out; return whether it is there to be trained, now or since it first came."""
        group, status, verdict, is_kept = judged
        if status is not Status.COMPLETED:
            # Nobody trains on it, but somebody may look at it, or roll it again.
            await self._put(result, group, step, timeout)
            self.arrivals.count(status.value)
            return False
        if not is_kept:
            if self._config.keep_filtered:
                for rollout in group:
                    rollout.status = Status.FILTERED
                await self._put(result, group, step, timeout)
            self.arrivals.add(group, verdict, None)
            return False
        is_stale = self._is_stale(group, step)
        uid = await self._put(result, group, step, timeout)
        if self._is_repeated(result, uid):
            self.repeated += 1
            self.arrivals.count("repeated")
            return True
        if uid is None or is_stale:
            self.arrivals.add(group, verdict, None)
            self.arrivals.count("expired" if is_stale else "evicted")
            return False
        self.arrivals.add(group, verdict, uid)
        return True

    async def _put(
        self, result: GenerationResult, group: list[Rollout], step: int, timeout: float | None
    ) -> int | None:
        limit = self._config.max_staleness
        uid: int | None = await self._buffer.put(
            group,
            self._config.task,
            model_step=result.model_step,
            current_train_step=step,
            stale_threshold=None if limit is None else limit + 1,
            expired_groups_retryable=self._config.retry_expired,
            put_id=result.prompt_id if self._config.unique_prompt_ids else None,
            timeout=timeout,
        )
        return uid

    def _is_stale(self, group: Sequence[Rollout], step: int) -> bool:
        limit = self._config.max_staleness
        oldest = [
            version for rollout in group if (version := rollout.response_model_steps.oldest) is not None
        ]
        return limit is not None and bool(oldest) and step - min(oldest) - 1 > limit

    def _is_repeated(self, result: GenerationResult, uid: int | None) -> bool:
        if not self._config.unique_prompt_ids:
            return False
        if result.prompt_id in self._seen or (uid is not None and uid <= self._last_uid):
            return True
        self._seen[result.prompt_id] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return False

    def _tell(self, told: _Told) -> None:
        if told.settled:
            self._prompts.settled(told.settled)
        if told.excluded:
            self._prompts.exclude(told.excluded)
        if told.missing and self._config.when_filtered == "wait":
            self._prompts.replace(told.missing)


def _results(item: Any) -> list[GenerationResult]:
    """Return what came from a source as a list: it gives one result, or several at once."""
    found = (
        [item]
        if isinstance(item, GenerationResult)
        else list(item)
        if isinstance(item, list | tuple)
        else [item]
    )
    for result in found:
        if not isinstance(result, GenerationResult):
            raise InvalidArgument(f"a source gives a GenerationResult, or a list of them, not {result!r}")
    return found
