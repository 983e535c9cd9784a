"""Leasing the groups of a step: how many of each task, how long to wait for them, and what is missing.

A step waits for its lease in the buffer. The wait is given up, and started anew, only when the plan changes: another number of
groups is needed, the source has ended, or a rank requested the step.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from reroll.prepare.config import PrepareConfig
from reroll.prepare.intake import Intake
from reroll.prepare.steps import Step, Steps
from reroll.rollout import Status
from reroll.waiting import LoopWaits


class _Plan(NamedTuple):
    """What a step waits for."""

    wanted: Mapping[str, int] | None
    """Groups of each task; None while that is not known."""
    has_ended: bool
    """Whether the source has ended."""
    patience_s: float | None
    """After how many seconds the step may be short; None: never."""


class StepLeaser:
    """Leases the groups of one step after the other."""

    def __init__(
        self, config: PrepareConfig, buffer: Any, intake: Intake, steps: Steps, waits: LoopWaits
    ) -> None:
        self._config = config
        self._buffer = buffer
        self._intake = intake
        self._steps = steps
        self._waits = waits
        self._changes = 0
        self._rounds = 1  # how often the step took `global_batch_size` results, see `when_filtered="shorten"`
        self._last_result: float | None = None
        self.has_ended = False
        """Whether the source has ended."""
        self.source_error: BaseException | None = None
        """The error that ended the source; groups in the buffer are still leased."""
        self.shortage: str | None = None
        """Why no step can be filled; None while one may be."""

    def invalidate_plan(self) -> None:
        """Re-evaluate the plan of the waiting step, because state that it depends on changed."""
        self._changes += 1
        self._waits.wake()

    def note_result(self) -> None:
        """Record the time at which a result arrived."""
        self._last_result = time.monotonic()

    async def open(self, number: int) -> Step:
        """Lease the groups of a step, add it to `Steps`, and count the results that were generated for it."""
        batch = await self._lease(number)
        step = self._steps.open(number, batch)
        await asyncio.sleep(0)  # the put of its last group logs it first
        config, log = self._config, self._intake.log
        if config.when_filtered != "wait":
            step.generated = log.take({task: self._rounds * size for task, size in config.sizes.items()})
        elif config.is_in_order:
            step.generated = log.take_up_to(
                {
                    task: max(sample.info.uid for sample in drawn)
                    for task, drawn in batch.samples.items()
                    if drawn
                }
            )
        else:
            step.generated = log.take_all()
        return step

    async def _lease(self, number: int) -> Any:
        """Return the leased groups of a step; None for an empty step."""
        await self._intake.expire(number)
        self._rounds = 1
        while True:
            changes, plan = self._changes, self._plan(number)
            wanted = await self._clip_to_available(plan.wanted)
            if wanted is not None and not any(wanted.values()):
                if self._config.when_filtered == "yield":
                    return None
                if self._is_full():  # no group passed: the step takes as many results again
                    self._rounds += 1
                    self._intake.request_replacements(self._config.global_batch_size)
                    continue
                wanted = None
            batch = await self._try_lease(number, wanted, plan)
            if batch is not None:
                return batch
            if self._plan(number) != plan:
                continue
            if plan.has_ended:
                await self._report_shortage(number, changes)
            else:
                await self._wait_for_change(changes)

    def _plan(self, number: int) -> _Plan:
        sizes, log = self._config.sizes, self._intake.log
        patience = self._config.short_after_s if self._steps.is_requested(number) else None
        if self._config.when_filtered == "wait":
            return _Plan(sizes, self.has_ended, patience)
        is_rest = self.has_ended and self._may_be_short() and any(log.num_results(task) for task in sizes)
        if not is_rest and not self._is_full():
            return _Plan(None, self.has_ended, patience)
        passed = {task: log.num_passed(task, self._rounds * size) for task, size in sizes.items()}
        return _Plan(passed, self.has_ended, patience)

    def _is_full(self) -> bool:
        """Return whether all results of the step arrived."""
        log, rounds = self._intake.log, self._rounds
        return all(log.num_results(task) >= rounds * size for task, size in self._config.sizes.items())

    async def _clip_to_available(self, wanted: Mapping[str, int] | None) -> Mapping[str, int] | None:
        """Return the wanted groups without those that passed the filters and were evicted or expired since."""
        if wanted is None or self._config.when_filtered == "wait":
            return wanted
        return {
            task: min(count, await self._buffer.count(task, Status.COMPLETED))
            for task, count in wanted.items()
        }

    async def _try_lease(self, number: int, wanted: Mapping[str, int] | None, plan: _Plan) -> Any:
        """Return the leased groups; None if they are not there, or the plan changed."""
        if wanted is None:
            return None
        if not plan.has_ended:
            batch = await self._wait_for_lease(number, wanted, plan)
            if batch is not None or plan.patience_s is None or self._plan(number) != plan:
                return batch
        batch = await self._lease_fresh(number, wanted, wait=False)
        if batch.counts == wanted or (any(batch.counts.values()) and self._may_be_short()):
            return batch
        await batch.nack()
        return None

    async def _wait_for_lease(self, number: int, wanted: Mapping[str, int], plan: _Plan) -> Any:
        """Return a full lease; None if the plan changed, or patience ended, before there was one."""
        lease = asyncio.create_task(self._lease_fresh(number, wanted, wait=True))
        change = asyncio.create_task(
            self._waits.until([object()], lambda: self._plan(number) != plan, None, str)
        )
        try:
            await asyncio.wait((lease, change), timeout=plan.patience_s, return_when=asyncio.FIRST_COMPLETED)
            return await _cancel(lease, change)
        except asyncio.CancelledError:  # also if the lease was granted in the same moment
            if (batch := await _cancel(lease, change)) is not None:
                await batch.nack()
            raise

    async def _lease_fresh(self, number: int, wanted: Mapping[str, int], *, wait: bool) -> Any:
        """Return a lease without groups that are too stale: a buffer that is not ours may have no bound."""
        limits = {task: self._config.staleness_limit(task) for task in self._config.sizes}
        may_expire = True
        while True:
            batch = await self._buffer.lease(wanted, wait=wait, train_step=number)
            is_stale = any(
                (limit := limits[task]) is not None and sample.info.staleness > limit
                for task, samples in batch.samples.items()
                for sample in samples
            )
            if not is_stale or not may_expire:
                return batch
            await asyncio.shield(batch.nack())
            may_expire = await self._intake.expire(number) > 0

    def _may_be_short(self) -> bool:
        return self._config.allow_short and self.source_error is None

    async def _report_shortage(self, number: int, changes: int) -> None:
        """Make waiting ranks fail with SourceEnded, until something changes."""
        self.shortage = f"the source has ended: {await self.explain_missing(number)}"
        self._waits.wake()
        try:
            await self._wait_for_change(changes)
        finally:
            self.shortage = None

    async def _wait_for_change(self, changes: int) -> None:
        await self._waits.until([object()], lambda: self._changes != changes, None, str)

    async def explain_missing(self, number: int) -> str:
        """Return how many groups or results a step lacks, and when the last result arrived."""
        sizes, intake = self._config.sizes, self._intake
        if self._config.when_filtered == "wait":
            there = {task: await self._buffer.count(task, Status.COMPLETED) for task in sizes}
            what = "groups"
        else:
            skipped = self._rounds - 1
            there = {task: intake.log.num_results(task) - skipped * size for task, size in sizes.items()}
            what = "results"
        lacking = {task: size - there[task] for task, size in sizes.items() if size > there[task]}
        by_task = ", ".join(f"{count} of task {task!r}" for task, count in lacking.items())
        detail = f" ({by_task})" if len(sizes) > 1 else ""
        if not lacking:
            detail = " (are they held back by the rate limiter of the buffer?)"
        seconds = None if self._last_result is None else time.monotonic() - self._last_result
        when = "no result has come" if seconds is None else f"the last result came {seconds:.1f} s ago"
        missing, size = sum(lacking.values()), self._config.global_batch_size
        return (
            f"{missing} of {size} {what} are missing for step {number}{detail}; {when}, {intake.log.results} in all"
            f"{intake.explain_repeats()}{intake.explain_failures()}"
        )


async def _cancel(lease: asyncio.Task[Any], change: asyncio.Task[Any]) -> Any:
    """Cancel both tasks; return the lease if it was granted all the same, else None. Raises what the lease raised."""
    lease.cancel()
    change.cancel()
    await asyncio.gather(lease, change, return_exceptions=True)
    return None if lease.cancelled() else lease.result()
