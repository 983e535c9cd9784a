"""The verbs that hand groups out: consumed, under a lease, or sampled."""

import warnings
from collections.abc import Hashable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from reroll import forking
from reroll.buffer.arguments import (
    checked_count,
    checked_flag,
    checked_mix,
    checked_sizes,
    checked_step,
    checked_task,
    checked_uids,
    task_shares,
)
from reroll.buffer.batch import Batch, Lease
from reroll.buffer.handed import Handed
from reroll.buffer.shell import Shell
from reroll.engine.task import COMPLETED, REJECTED, STATUS_CODE, STATUSES, Task
from reroll.errors import InvalidArgument, UncommittedWarning
from reroll.rollout import Status
from reroll.sample import Sample
from reroll.waiting import deadline_of, read_seconds

MAX_DRAWN: Final = 65_536
"""Groups that one call may draw with replacement: without, what is there is the limit."""


class HandingOut(Shell):
    """For trainers, and for producers that roll groups again."""

    async def get(
        self, batch_size: int, task_name: str, group_status: Status | str, *, train_step: int | None = None
    ) -> list[list[Any]]:
        """Take up to `batch_size` groups of one task and status, in the sampler's order; never waits."""
        task_name = checked_task(task_name)
        groups, _ = await self.take_batch(
            {task_name: batch_size}, group_status=group_status, train_step=train_step
        )
        return groups[task_name]

    async def take_batch(
        self,
        task_batch_sizes: Mapping[str, int],
        *,
        group_status: Status | str = Status.COMPLETED,
        wait: bool = False,
        timeout: float | None = None,
        train_step: int | None = None,
    ) -> tuple[dict[str, list[list[Any]]], dict[str, int]]:
        """Take groups of several tasks in one step; return them, and how many they are, by task.

        Without `wait`, what is there: a task that is short gives fewer. With it, all or nothing, in order of arrival
        among those that want the same. COMPLETED groups are consumed by this; ABORTED and EXPIRED ones are out until
        they are put again. Raises InvalidArgument at once for what can never be met, WaitTimeout, Closed.
        """
        deadline, shown = deadline_of(timeout), None
        while shown is None:
            wanted, status = await self._batch(task_batch_sizes, group_status, wait, deadline, train_step)
            handed = {task.name: self._groups.take(task, status, n) for task, n in wanted.items() if n}
            self._changed()
            given = list(handed.values())
            shown = await self._deliver(given, partial(self._take_back, given))
        groups: dict[str, list[list[Any]]] = {task.name: [] for task in wanted}
        groups.update(zip(handed, shown, strict=True))
        return groups, {name: len(taken) for name, taken in groups.items()}

    def lease(
        self,
        task_batch_sizes: Mapping[str, int],
        *,
        group_status: Status | str = Status.COMPLETED,
        wait: bool = False,
        timeout: float | None = None,
        ttl_s: float | None = None,
        train_step: int | None = None,
    ) -> Lease:
        """Lend groups as `take_batch` takes them; they are consumed when the holder acknowledges them.

        `async with buffer.lease(...) as batch: ...; await batch.ack()`, or `batch = await buffer.lease(...)`. Without
        `ack` they come back to their old place: by `batch.nack()`, by leaving the context, or after `ttl_s` seconds.
        Where groups are used several times, a lease draws as `sample` does: `ack` counts the use, `nack` gives it back.
        """
        return Lease(
            lambda: self._lend(
                task_batch_sizes,
                group_status=group_status,
                wait=wait,
                timeout=timeout,
                ttl_s=ttl_s,
                train_step=train_step,
            )
        )

    async def sample(
        self,
        n: int,
        task_name: str | Mapping[str, float],
        *,
        timeout: float | None = None,
        replace: bool = False,
        allow_short: bool = False,
        train_step: int | None = None,
    ) -> list[Sample]:
        """Draw n COMPLETED groups without taking them; a group goes after `max_times_sampled` draws.

        Waits until n distinct groups can be drawn; with `allow_short` it gives what is there instead. With `replace`,
        samplers that draw by chance may draw a group more than once, within its use limit.

        Args:
            n: how many groups.
            task_name: the task to draw from; or the weight of each task to mix, as in `{"math": 3, "code": 1}`. Each task
                gives its share of n; where a share is no whole number, chance rounds it up or down, so that shares hold
                on average. All tasks give their part in one step, and the groups come task by task, in this order.
            timeout: seconds to wait at most.
            replace: whether a group may be drawn more than once; n is then 65,536 at most.
            allow_short: whether to return fewer groups at once instead of waiting.
            train_step: the training step that the groups are for.

        Raises InvalidArgument at once for what can never be met, WaitTimeout, Closed.

        """
        self._check_open()
        deadline = deadline_of(timeout)
        replace, allow_short = checked_flag("replace", replace), checked_flag("allow_short", allow_short)
        step = checked_step("train_step", train_step)
        sizes = batch_sizes(self, n, task_name)
        if replace and sum(sizes.values()) > MAX_DRAWN:
            raise InvalidArgument(
                f"cannot draw {sum(sizes.values())} groups with replace=True: at most {MAX_DRAWN} at once; draw several times"
            )
        wanted = {self._engine.named(name): count for name, count in sizes.items() if count}
        if not allow_short:
            self._check_can_be_met(wanted, COMPLETED, distinct=not replace)
        can_draw = partial(self._engine.can_draw, replace=replace)
        shown = None
        while shown is None:
            counts = wanted
            if allow_short:
                self._learn_steps(wanted, step)
                counts = {task: self._engine.available(task, COMPLETED, k) for task, k in wanted.items()}
            else:
                await self._until(
                    "sample",
                    {(COMPLETED, task.name): task for task in wanted},
                    lambda: all(can_draw(task, k) for task, k in wanted.items()),
                    deadline,
                    lambda: f" of {n} groups",
                    prepare=lambda: self._learn_steps(wanted, step),
                )
            if not any(counts.values()):
                await self._written()  # the step
                return []
            handed = [self._groups.sample(task, k, replace=replace) for task, k in counts.items() if k]
            self._waits.wake()
            shown = await self._deliver(handed, partial(self._take_back, handed))
        return [
            sample
            for given, groups in zip(handed, shown, strict=True)
            for sample in map(Sample, groups, given.infos)
        ]

    async def is_ready(
        self, task_batch_sizes: Mapping[str, int], *, group_status: Status | str = Status.COMPLETED
    ) -> bool:
        """Return whether `take_batch` would give all of this now."""
        self._check_open()
        status = STATUS_CODE[Status.of(group_status)]
        return self._is_ready(self._wanted(task_batch_sizes), status)

    async def wait_ready(
        self,
        task_batch_sizes: Mapping[str, int],
        *,
        group_status: Status | str = Status.COMPLETED,
        timeout: float | None = None,
    ) -> None:
        """Wait until `take_batch` would give all of this. Raises InvalidArgument, WaitTimeout, Closed."""
        self._check_open()
        deadline = deadline_of(timeout)
        status = STATUS_CODE[Status.of(group_status)]
        wanted = self._wanted(task_batch_sizes)
        self._check_can_be_met(wanted, status)
        # Only looks, takes nothing: it stands in no queue but its own.
        await self._wait(
            [object()],
            lambda: self._is_ready(wanted, status),
            deadline,
            lambda: "wait_ready timed out.",
            wanted,
        )

    async def ack_lease(self, lease: int, *, train_step: int | None = None) -> None:
        """Acknowledge a lease by its id; what `Batch.ack` does."""
        self._check_open()
        step, lease = checked_step("train_step", train_step), checked_count("lease", lease)
        try:
            self._leases.ack(lease, step)
        finally:
            self._changed()
            await self._written()

    async def nack_lease(self, lease: int) -> None:
        """Give a lease back by its id; what `Batch.nack` does."""
        forking.check(self._home, "the buffer")
        if not self._closed:  # closing gives all back
            self._leases.nack(checked_count("lease", lease))
            self._waits.wake()
            await self._written()

    async def trim_lease(self, lease: int, uids: Iterable[int]) -> None:
        """Give back the groups of a lease but these, to their old place."""
        self._check_open()
        self._leases.keep(checked_count("lease", lease), checked_uids(uids))
        self._changed()
        await self._written()

    async def end_lease(self, lease: int) -> None:
        """End a lease whose holder seems to be gone: its groups come back. It may still be acknowledged, as after its time."""
        forking.check(self._home, "the buffer")
        if not self._closed:
            self._leases.end(checked_count("lease", lease))
            self._waits.wake()
            await self._written()

    def _wanted(self, sizes: Mapping[str, int]) -> dict[Task, int]:
        return {self._engine.named(name): max(n, 0) for name, n in checked_sizes(sizes).items()}

    def _is_ready(self, wanted: Mapping[Task, int], status: int) -> bool:
        return all(self._engine.available(task, status, n) >= n for task, n in wanted.items())

    def _check_can_be_met(self, wanted: Mapping[Task, int], status: int, *, distinct: bool = True) -> None:
        """Raise InvalidArgument for what can never be there, or never be taken, at once."""
        for task, n in wanted.items():
            settings = task.settings
            limits: list[tuple[float | None, str]] = []
            if status == COMPLETED:
                largest = settings.largest if distinct else settings.largest_sample
                limits = [(largest, "{limiter} allows at most")]
                if distinct:
                    limits.append((settings.capacity, "its capacity is"))
            elif status in REJECTED:
                limits = [(settings.rejected_capacity, "its rejected_capacity is")]
            for limit, why in limits:
                if limit is not None and n > limit:
                    raise InvalidArgument(
                        f"{n} {STATUSES[status].value} groups of task {task.name!r} can never be had at once: "
                        f"{why.format(limiter=settings.limiter)} {limit:g}"
                    )

    async def _batch(
        self,
        sizes: Mapping[str, int],
        group_status: Status | str,
        wait: bool,
        deadline: float | None,
        train_step: int | None,
    ) -> tuple[dict[Task, int], int]:
        """Check what is wanted, wait for it if asked, and return how many groups can be handed out now, by task."""
        self._check_open()
        status = STATUS_CODE[Status.of(group_status)]
        wanted = self._wanted(sizes)
        step = checked_step("train_step", train_step)
        if not checked_flag("wait", wait):
            self._learn_steps(wanted, step)
            return {task: self._engine.available(task, status, n) for task, n in wanted.items()}, status
        self._check_can_be_met(wanted, status)
        queues: dict[Hashable, Task] = {(status, task.name): task for task, n in wanted.items() if n}
        if not self._is_ready_at_once(queues, wanted, status, step):
            await self._until(
                "take",
                queues,
                lambda: self._is_ready(wanted, status),
                deadline,
                lambda: f" of {dict(sizes)} {Status.of(group_status).value} groups",
                prepare=lambda: self._learn_steps(wanted, step),
            )
        return wanted, status

    def _is_ready_at_once(
        self, queues: Iterable[Hashable], wanted: Mapping[Task, int], status: int, step: int | None
    ) -> bool:
        """Learn the step if nobody is before this call and all is there; return whether it still is.

        Who need not wait is spared the way there.
        """
        if any(map(self._waits.waiting, queues)) or not self._is_ready(wanted, status):
            return False
        if step is None:
            return True
        self._learn_steps(wanted, step)
        return self._is_ready(wanted, status)

    def _learn_steps(self, tasks: Iterable[Task], step: int | None) -> None:
        for task in tasks:
            later = None if step is None else task.log.after(step)
            if later and self._groups.warn_once(task.name, f"earlier than {max(later)}"):
                warnings.warn(
                    f"task {task.name!r} is asked for step {step} after step {max(later)} used groups, and is treated as if "
                    "it were at that one. If the trainer went back to an earlier checkpoint, call rewind(step) first, with "
                    "the step of the checkpoint (0: there is none): else groups are trained twice, or never",
                    UncommittedWarning,
                    stacklevel=2,
                )
            self._groups.learn_step(task, step)

    async def _lend(
        self,
        sizes: Mapping[str, int],
        *,
        group_status: Status | str,
        wait: bool,
        timeout: float | None,
        ttl_s: float | None,
        train_step: int | None,
    ) -> Batch:
        ttl_s = read_seconds(ttl_s, "ttl_s")  # it starts when the groups are lent
        deadline, shown = deadline_of(timeout), None
        while shown is None:
            wanted, status = await self._batch(sizes, group_status, wait, deadline, train_step)
            lease, handed = self._leases.lend(wanted, status, self._clock(), self._end_of(ttl_s))
            self._changed()
            given = list(handed.values())
            shown = await self._deliver(given, partial(self._unlend, lease, given))
        samples: dict[str, list[Sample]] = {task.name: [] for task in wanted}
        for (name, lent), groups in zip(handed.items(), shown, strict=True):
            samples[name] = list(map(Sample, groups, lent.infos))
        return Batch(self, lease, samples)

    def _unlend(self, lease: int, handed: Iterable[Handed]) -> None:
        self._leases.nack(lease)
        for given in handed:
            self._groups.forget_again(given)

    def _take_back(self, handed: Iterable[Handed]) -> None:
        for given in handed:
            self._groups.take_back(given)


def batch_sizes(buffer: Shell, n: object, task_name: object) -> dict[str, int]:
    """Return how many groups `sample(n, task_name)` draws, by task. Raises InvalidArgument."""
    count = checked_count("n", n)
    if count < 1:
        raise InvalidArgument(f"n must be at least 1, not {n}")
    if not isinstance(task_name, Mapping):
        return {checked_task(task_name): count}
    return task_shares(count, checked_mix(task_name), buffer._engine.rng.random)  # noqa: SLF001  (of this module)
