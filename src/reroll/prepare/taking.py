"""The groups of a step, under a lease: how many, until when they are waited for, and what is told if they do not come."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from reroll.prepare.config import PrepareConfig
from reroll.prepare.intake import Intake
from reroll.rollout import Status
from reroll.waiting import LoopWaits


class _Plan(NamedTuple):
    """What the preparing loop waits for."""

    wanted: Mapping[str, int] | None
    """How many groups of each task the step has; None while that is not known."""
    is_last: bool
    """Whether nothing will come any more."""
    patience_s: float | None
    """After which time a step may be short; None: it waits."""


class Taking:
    """Takes the groups of one step after the other from a buffer."""

    def __init__(
        self,
        config: PrepareConfig,
        buffer: Any,
        intake: Intake,
        waits: LoopWaits,
        *,
        is_asked_for: Callable[[int], bool],
    ) -> None:
        """Take groups; `is_asked_for` tells whether a rank waits for a step."""
        self._config = config
        self._buffer = buffer
        self._intake = intake
        self._waits = waits
        self._is_asked_for = is_asked_for
        self._moves = 0
        self._last_result: float | None = None
        self.has_ended = False
        """Whether nothing will come from the source any more."""
        self.source_error: BaseException | None = None
        """Why; what is there is still taken."""
        self.over: str | None = None
        """Why no step can be filled, while none can."""

    def moved(self) -> None:
        """Learn that something changed that a wait for groups may depend on."""
        self._moves += 1
        self._waits.wake()

    def came(self) -> None:
        """Learn that a result came."""
        self._last_result = time.monotonic()

    async def take(self, step: int) -> Any:
        """Return the groups of a step, under a lease; None for none, where that is configured."""
        await self._intake.expire(step)
        while True:
            moves, plan = self._moves, self._plan(step)
            wanted = await self._there(plan.wanted)
            if wanted is not None and not any(wanted.values()):
                return None
            batch = await self._try(step, wanted, plan)
            if batch is not None:
                return batch
            if self._plan(step) != plan:
                continue
            if plan.is_last:
                await self._tell_over(step, moves)
            else:
                await self._until_moved(moves)

    def _plan(self, step: int) -> "_Plan":
        sizes, is_last, arrivals = self._config.sizes, self.has_ended, self._intake.arrivals
        patience = self._config.short_after_s if self._is_asked_for(step) else None
        if self._config.when_filtered == "wait":
            return _Plan(sizes, is_last, patience)
        counted = {task: arrivals.counted(task) for task in sizes}
        is_rest = is_last and self._may_be_short() and any(counted.values())
        if not is_rest and any(counted[task] < size for task, size in sizes.items()):
            return _Plan(None, is_last, patience)
        return _Plan(
            {task: arrivals.passed_of(task, size) for task, size in sizes.items()}, is_last, patience
        )

    async def _there(self, wanted: Mapping[str, int] | None) -> Mapping[str, int] | None:
        """Return what is wanted of a step; of what passed, without what was evicted or became too stale since."""
        if wanted is None or self._config.when_filtered == "wait":
            return wanted
        return {
            task: min(count, await self._buffer.count(task, Status.COMPLETED))
            for task, count in wanted.items()
        }

    async def _try(self, step: int, wanted: Mapping[str, int] | None, plan: "_Plan") -> Any:
        """Return the groups of a step; None if they are not there, or another plan is to be made."""
        if wanted is None:
            return None
        if not plan.is_last:
            batch = await self._lease(step, wanted, plan)
            if batch is not None or plan.patience_s is None or self._plan(step) != plan:
                return batch
        return await self._lease_rest(step, wanted)

    async def _lease(self, step: int, wanted: Mapping[str, int], plan: "_Plan") -> Any:
        """Return a full step; None if the plan changed, or patience was over, before there was one."""
        lease = asyncio.create_task(self._leased(step, wanted, wait=True))
        other = asyncio.create_task(
            self._waits.until(
                [object()], lambda: self._plan(step) != plan, None, str
            )  # not for every group that comes
        )
        try:
            await asyncio.wait((lease, other), timeout=plan.patience_s, return_when=asyncio.FIRST_COMPLETED)
            return await _given_up(lease, other)
        except asyncio.CancelledError:  # also one that comes when the lease is there already
            if (batch := await _given_up(lease, other)) is not None:
                await batch.nack()
            raise

    async def _lease_rest(self, step: int, wanted: Mapping[str, int]) -> Any:
        """Return a step of what is there; None if it is nothing, or less than it has to be."""
        batch = await self._leased(step, wanted, wait=False)
        if batch.counts == wanted or (any(batch.counts.values()) and self._may_be_short()):
            return batch
        await batch.nack()
        return None

    def _may_be_short(self) -> bool:
        return self._config.allow_short and self.source_error is None

    async def _leased(self, step: int, wanted: Mapping[str, int], *, wait: bool) -> Any:
        """Return a lease without groups that are too stale: a buffer of others may have no bound."""
        limits, may_expire = self._limits(), True
        while True:
            batch = await self._buffer.lease(wanted, wait=wait, train_step=step)
            is_stale = any(
                (limit := limits[task]) is not None and sample.info.staleness > limit
                for task, samples in batch.samples.items()
                for sample in samples
            )
            if not is_stale or not may_expire:
                return batch
            await asyncio.shield(batch.nack())
            may_expire = await self._intake.expire(step) > 0

    def _limits(self) -> dict[str, int | None]:
        return {task: self._config.staleness_limit(task) for task in self._config.sizes}

    async def _tell_over(self, step: int, moves: int) -> None:
        """Let whoever waits for a step know that there will be none, unless something moves."""
        self.over = f"the source has ended: {await self.missing(step)}"
        self._waits.wake()
        try:
            await self._until_moved(moves)
        finally:
            self.over = None

    async def missing(self, step: int) -> str:
        """Return how many groups a step lacks, and since when."""
        sizes, arrivals = self._config.sizes, self._intake.arrivals
        if self._config.when_filtered == "yield":
            there, what = {task: arrivals.counted(task) for task in sizes}, "results"
        else:
            there = {task: await self._buffer.count(task, Status.COMPLETED) for task in sizes}
            what = "groups"
        seconds = None if self._last_result is None else time.monotonic() - self._last_result
        when = "no result has come" if seconds is None else f"the last result came {seconds:.1f} s ago"
        repeated = (
            f"; {self._intake.repeated} results had a prompt_id that had come before, and were stored once (give each "
            "request its own, or set unique_prompt_ids=False)"
            if self._intake.repeated
            else ""
        )
        lacking = {task: size - there[task] for task, size in sizes.items() if size > there[task]}
        by_task = ", ".join(f"{count} of task {task!r}" for task, count in lacking.items())
        held = (
            " (are they held back by the rate limiter of the buffer?)"
            if not lacking
            else f" ({by_task})"
            if len(sizes) > 1
            else ""
        )
        missing, size = sum(lacking.values()), self._config.global_batch_size
        return f"{missing} of {size} {what} are missing for step {step}{held}; {when}, {arrivals.results} in all{repeated}{self._intake.explain_failures()}"

    async def _until_moved(self, moves: int) -> None:
        await self._waits.until([object()], lambda: self._moves != moves, None, str)


async def _given_up(lease: asyncio.Task[Any], other: asyncio.Task[Any]) -> Any:
    """Give up waiting; return what was leased all the same, None if nothing was. Raises what the lease raised."""
    lease.cancel()
    other.cancel()
    await asyncio.gather(lease, other, return_exceptions=True)
    return None if lease.cancelled() else lease.result()
