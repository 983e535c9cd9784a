"""ReplayBuffer: every public verb, in the order of docs/buffer.md.

A verb checks its arguments, plans, waits if it must, applies the change, persists it and returns. The change itself is decided by
synchronous code below: a verb that fails, times out or is cancelled has changed nothing.
"""

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace as replaced
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Final, Literal, Self

import numpy as np

from reroll.buffer import arrow, saving, scan
from reroll.buffer.arguments import (
    Where,
    batch_sizes,
    checked_choice,
    checked_columns,
    checked_count,
    checked_entries,
    checked_flag,
    checked_flags,
    checked_id,
    checked_names,
    checked_path,
    checked_size,
    checked_sizes,
    checked_statuses,
    checked_step,
    checked_task,
    checked_thresholds,
    checked_uids,
    required_step,
    unknown_task,
)
from reroll.buffer.batch import Batch, Lease, group_batch
from reroll.buffer.expiring import Thresholds
from reroll.buffer.group import Payload
from reroll.buffer.groups import Groups
from reroll.buffer.journal import Damaged, Encoded
from reroll.buffer.patch import Patch
from reroll.buffer.put import Put
from reroll.buffer.reservations import Reservation
from reroll.buffer.runtime import Runtime
from reroll.engine.ledger import Amount, LedgerReport
from reroll.engine.limits import Limiter, StalenessWindow, limiter_of
from reroll.engine.query import Row, parse_order, still_at
from reroll.engine.rewind import commit, rewind
from reroll.engine.rows import PLACES
from reroll.engine.selectors.selector import SelectorSpec
from reroll.engine.selectors.specs import selector_spec
from reroll.engine.task import COMPLETED, REJECTED, RETURNING, STATUS_CODE, STATUSES, Task, checked_priority
from reroll.errors import CorruptData, InvalidArgument, NotEmpty, NotStorable, UncommittedWarning, shown
from reroll.group import GroupBatch, RolloutGroup
from reroll.query import Query, Scalar, parse_query
from reroll.rollout import Status, check_threshold
from reroll.telemetry.metrics import metrics_dict
from reroll.telemetry.stats import Stats
from reroll.waiting import Waits, deadline_of, read_seconds

MAX_DRAWN: Final = 65_536
"""Groups that one call can draw with replacement; without, the resident groups are the limit."""
_SAVES: Final = "save"
"""The queue of saves."""


class ReplayBuffer:
    """Groups of rollouts by task, with status, policy versions and staleness. Made by `ReplayBufferConfig.build()`.

    All methods except `len()` and `lease` are coroutines. Arguments are checked before anything changes, in the buffer and in
    the caller's objects; a cancelled call loses and duplicates nothing. In a durable buffer, a put that is cancelled while it
    is being written may be stored: repeated with its `put_id`, it is stored once. After `close()` every call raises Closed.
    """

    def __init__(self, groups: Groups, waits: Waits, **options: Any) -> None:
        self._runtime = Runtime(groups, waits, **options)

    # --- put

    async def put(
        self,
        items: Sequence[Any],
        task_name: str,
        *,
        model_step: int | None = None,
        current_train_step: int | None = None,
        stale_threshold: int | None = None,
        token_stale_threshold: int | None = None,
        expired_groups_retryable: bool = True,
        priority: float | None = None,
        tags: Mapping[str, Scalar] | None = None,
        uid: int | None = None,
        put_id: Hashable = None,
        reservation: Reservation | None = None,
        timeout: float | None = None,
    ) -> int | None:
        """Store a group of rollouts. From then on the buffer owns the group.

        A COMPLETED group waits until the limiter allows it and there is room; other groups, and groups under a reservation,
        never wait. O(rollouts).

        Args:
            items: the rollouts of one prompt.
            task_name: their task.
            model_step: version of the weights that generated the tokens which have no version yet.
            current_train_step: the training step being prepared; staleness is computed from it. None: from each rollout's
                own `seq_staleness`.
            stale_threshold: the group expires if its staleness is at least this.
            token_stale_threshold: a rollout expires when all its trainable tokens have at least this staleness.
            expired_groups_retryable: whether a group that expires, or arrives EXPIRED, is kept for regeneration, or dropped.
            priority: weight of the group for prioritized samplers; None: the initial priority of the task.
            tags: names and values to query by.
            uid: the checked-out group that these rollouts continue, if they carry no `Rollout.checkout`.
            put_id: a repeated put with the same id stores nothing and returns the uid of the first, unless its group is
                checked out and returns with other tokens or another status.
            reservation: the reservation this group belongs to; an expired one is ignored.
            timeout: seconds to wait at most.

        Returns:
            The uid of the group; None if it was dropped, or `items` is empty.

        Raises:
            InvalidArgument: an argument or a rollout is invalid; the message names rollout and field.
            Superseded: another producer has put this checked-out group.
            WaitTimeout: the group could not be stored in time.
            Closed: the buffer was closed.

        Example: `uid = await buffer.put(rollouts, "math", model_step=3)`.

        """
        (stored,) = await self._put(
            [items],
            task_name,
            [(priority, tags, uid, put_id)],
            model_step=model_step,
            current_train_step=current_train_step,
            stale_threshold=stale_threshold,
            token_stale_threshold=token_stale_threshold,
            expired_groups_retryable=expired_groups_retryable,
            reservation=reservation,
            timeout=timeout,
        )
        return stored

    async def put_many(
        self,
        groups: Sequence[Sequence[Any]],
        task_name: str,
        *,
        model_step: int | None = None,
        current_train_step: int | None = None,
        stale_threshold: int | None = None,
        token_stale_threshold: int | None = None,
        expired_groups_retryable: bool = True,
        priorities: Sequence[float | None] | None = None,
        tags: Sequence[Mapping[str, Scalar] | None] | None = None,
        uids: Sequence[int | None] | None = None,
        put_ids: Sequence[Hashable] | None = None,
        reservation: Reservation | None = None,
        timeout: float | None = None,
    ) -> list[int | None]:
        """Store groups as `put` does, in order and all at once: one admission, one engine step, one commit. O(rollouts).

        All groups are stored, or none: the call waits until the limiter and the room allow all of them.

        Args:
            groups: the groups, each the rollouts of one prompt.
            task_name: their task.
            model_step: see `put`.
            current_train_step: see `put`.
            stale_threshold: see `put`.
            token_stale_threshold: see `put`.
            expired_groups_retryable: see `put`.
            priorities: the priority of each group.
            tags: the tags of each group.
            uids: the checked-out group that each group continues.
            put_ids: the put id of each group.
            reservation: one reservation for all groups; groups beyond it wait as groups without a reservation do.
            timeout: seconds to wait at most.

        Returns:
            The uid of each group; None for a group that was dropped, or is empty.

        Raises:
            InvalidArgument: an argument or a rollout is invalid, the message names the group; or the limiter or the capacity
                can never admit all groups at once.
            Superseded: another producer has put one of the checked-out groups.
            WaitTimeout: the groups could not be stored in time.
            Closed: the buffer was closed.

        Example: `uids = await buffer.put_many(groups, "math", model_step=3)`.

        """
        given = checked_names("groups", groups)
        columns = (
            checked_entries(name, values, len(given))
            for name, values in (
                ("priorities", priorities),
                ("tags", tags),
                ("uids", uids),
                ("put_ids", put_ids),
            )
        )
        return await self._put(
            given,
            task_name,
            list(zip(*columns, strict=True)),
            model_step=model_step,
            current_train_step=current_train_step,
            stale_threshold=stale_threshold,
            token_stale_threshold=token_stale_threshold,
            expired_groups_retryable=expired_groups_retryable,
            reservation=reservation,
            timeout=timeout,
        )

    async def _put(
        self,
        given: Sequence[Sequence[Any]],
        task_name: str,
        entries: Sequence[tuple[Any, Any, Any, Any]],
        *,
        model_step: int | None,
        current_train_step: int | None,
        stale_threshold: int | None,
        token_stale_threshold: int | None,
        expired_groups_retryable: bool,
        reservation: Reservation | None,
        timeout: float | None,
    ) -> list[int | None]:
        """Store groups; `entries` has priority, tags, uid and put id of each."""
        runtime, groups, disk = self._runtime, self._runtime.groups, self._runtime.disk
        runtime.check_open()
        deadline, known = deadline_of(timeout), runtime.put_ids
        task_name = checked_task(task_name)
        reserved = runtime.reservations.check(reservation, task_name)
        options: dict[str, Any] = {
            "model_step": checked_step("model_step", model_step),
            "current_train_step": checked_step("current_train_step", current_train_step),
            "stale_threshold": check_threshold("stale_threshold", stale_threshold),
            "token_stale_threshold": check_threshold("token_stale_threshold", token_stale_threshold),
            "expired_groups_retryable": checked_flag("expired_groups_retryable", expired_groups_retryable),
        }
        put_ids, plans = self._plan_puts(given, task_name, entries, options)
        encoded: dict[int, Encoded] = {}

        def pending() -> dict[int, Put]:
            """Return the plans without those that a concurrent put with the same id has carried out."""
            return {
                place: plan
                for place, plan in plans.items()
                if put_ids[place] is None or put_ids[place] not in known or groups.has_grown(plan)
            }

        try:
            if disk is not None:
                for place, plan in plans.items():
                    disk.check_ids(plan.summary.group_id, put_ids[place])
                    encoded[place] = await disk.encode(plan.items, deadline)
                runtime.check_open()  # encoding may have waited
            if plans and groups.must_be_admitted(plans.values(), reserved, may_wait=timeout != 0):
                task = next(iter(plans.values())).task
                queue = ("put", task.name)
                # A put that need not wait skips the queue, which is a tenth of its time.
                if runtime.waits.waiting(queue) or not groups.can_put(plans.values(), reserved):
                    await runtime.wait_recorded(
                        "put",
                        {queue: task},
                        lambda: groups.can_put(pending().values(), reserved),
                        deadline,
                    )
            plans = pending()
            for plan in plans.values():
                groups.check_turn(plan, has_waited=True)
            stored = dict(zip(plans, groups.put(list(plans.values())), strict=True))
            if disk is not None:
                disk.check_rows(stored.values())
            for place, put_id in enumerate(put_ids):
                if place in stored or put_id is not None:
                    runtime.reservations.settle(reservation, put_id)
                if place in stored and put_id is not None:
                    known.add(put_id, stored[place])
            runtime.waits.wake()
            if disk is not None:
                for place, uid in stored.items():
                    disk.add(uid, encoded[place])
                await disk.written()
            return [
                stored[place] if place in stored else None if put_id is None else known[put_id]
                for place, put_id in enumerate(put_ids)
            ]
        finally:
            for one in encoded.values():
                one.held.release()

    def _plan_puts(
        self,
        given: Sequence[Sequence[Any]],
        task_name: str,
        entries: Sequence[tuple[Any, Any, Any, Any]],
        options: Mapping[str, Any],
    ) -> tuple[list[Any], dict[int, Put]]:
        """Return the put id of each group, and the plans by place of groups that are not stored yet."""
        runtime, groups, known = self._runtime, self._runtime.groups, self._runtime.put_ids
        put_ids = [checked_id("put_id", put_id) for *_, put_id in entries]
        plans: dict[int, Put] = {}
        continued, seen = set[int](), set[Hashable]()
        for place, (items, (priority, tags, uid, put_id)) in enumerate(zip(given, entries, strict=True)):
            is_known = put_id is not None and put_id in known
            if is_known and not groups.may_be_continued:
                continue
            if isinstance(items, Sequence) and not isinstance(items, str) and not len(items):
                runtime.engine.named(task_name)  # raises for a task that the configuration does not allow
                put_ids[place] = None
                continue
            if put_id is not None and put_id in seen:
                continue  # as a repeated put
            seen.add(put_id)
            try:
                plan = groups.plan_put(
                    items,
                    task_name,
                    priority=priority,
                    tags=tags,
                    uid=None if uid is None else checked_count("uid", uid),
                    **options,
                )
            except InvalidArgument as error:
                if len(given) > 1 and type(error) is InvalidArgument:
                    raise InvalidArgument(f"groups[{place}]: {error}") from error
                raise
            if is_known and not groups.has_grown(plan):
                continue
            groups.check_turn(plan)
            if plan.continues is not None:
                if plan.continues in continued:
                    raise InvalidArgument(
                        f"groups[{place}] continues group {plan.continues}, as an earlier group of the call does; put one of them"
                    )
                continued.add(plan.continues)
            plans[place] = plan
        return put_ids, plans

    # --- take, sample, lease

    async def get(
        self, batch_size: int, task_name: str, group_status: Status | str, *, train_step: int | None = None
    ) -> list[RolloutGroup]:
        """Take up to `batch_size` groups of one task and status, in the sampler's order, without waiting.

        Args:
            batch_size: largest number of groups.
            task_name: the task.
            group_status: status of the groups; see `take_batch`.
            train_step: the training step that the groups are for.

        Returns:
            The groups, each a list of rollouts.

        Raises:
            InvalidArgument: an argument is invalid.
            Closed: the buffer was closed.

        Example: `groups = await buffer.get(8, "math", "completed")`.

        """
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
        columns: Sequence[str] | None = None,
    ) -> tuple[dict[str, list[RolloutGroup]], dict[str, int]]:
        """Take groups of several tasks in one step. O(groups).

        COMPLETED groups are consumed; ABORTED and EXPIRED groups are checked out until they are put again.

        Args:
            task_batch_sizes: number of groups by task.
            group_status: status of the groups.
            wait: whether to wait until all groups are available, and take all or nothing, in order of arrival among equal
                requests. Otherwise each task gives the groups it has.
            timeout: seconds to wait at most.
            train_step: the training step that the groups are for.
            columns: the further columns of the groups to read; None: all, `[]`: none. Others are not read from disk.

        Returns:
            The groups by task, and the number of groups by task.

        Raises:
            InvalidArgument: an argument is invalid, or the batch exceeds the capacity or the limiter of a task.
            WaitTimeout: the groups were not available in time.
            Closed: the buffer was closed.

        Example: `groups, counts = await buffer.take_batch({"math": 64}, wait=True, train_step=5)`.

        """
        runtime, deadline, delivered = self._runtime, deadline_of(timeout), None
        names = self._checked_columns(columns, group_status)
        while delivered is None:
            wanted, status = await self._await_batch(
                task_batch_sizes, group_status, wait, deadline, train_step
            )
            taken = [runtime.groups.take(task, status, n) for task, n in wanted.items() if n]
            runtime.notify()
            delivered = await runtime.deliver(taken, partial(runtime.groups.undo_all, taken), names)
        groups: dict[str, list[Any]] = {task.name: [] for task in wanted}
        groups.update((given.task.name, rollouts) for given, rollouts in zip(taken, delivered, strict=True))
        return groups, {name: len(given) for name, given in groups.items()}

    async def sample(
        self,
        n: int,
        task_name: str | Mapping[str, float],
        *,
        timeout: float | None = None,
        replace: bool = False,
        allow_short: bool = False,
        train_step: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> GroupBatch:
        """Draw COMPLETED groups without taking them; a group leaves after `max_times_sampled` draws. O(n log rows).

        Args:
            n: number of groups.
            task_name: the task; or the weight of each task of a mix, as in `{"math": 3, "code": 1}`. Each task gives its share
                of n; a fractional share is rounded up or down at random, so that shares hold on average. All tasks give
                their groups in one step, and the result is ordered by task.
            timeout: seconds to wait at most for n distinct groups.
            replace: whether a random sampler may draw a group more than once, within its use limit; n is then 65,536 at most.
            allow_short: whether to return fewer groups at once instead of waiting.
            train_step: the training step that the groups are for.
            columns: the further columns of the groups to read; None: all, `[]`: none. Others are not read from disk.

        Returns:
            A sequence with a Sample (group and SampleInfo) for each draw, and their metadata as arrays.

        Raises:
            InvalidArgument: an argument is invalid, or n exceeds the capacity or the limiter of a task.
            WaitTimeout: the groups were not available in time.
            Closed: the buffer was closed.

        Example: `samples = await buffer.sample(32, "math", train_step=5)`.

        """
        runtime, engine = self._runtime, self._runtime.engine
        runtime.check_open()
        deadline = deadline_of(timeout)
        replace, allow_short = checked_flag("replace", replace), checked_flag("allow_short", allow_short)
        step, names = checked_step("train_step", train_step), checked_columns(columns)
        sizes = batch_sizes(n, task_name, engine.rng.random)
        if replace and sum(sizes.values()) > MAX_DRAWN:
            raise InvalidArgument(
                f"cannot draw {sum(sizes.values())} groups with replace=True: at most {MAX_DRAWN} at once; draw several times"
            )
        wanted = {engine.named(name): count for name, count in sizes.items() if count}
        if not allow_short:
            _check_possible(wanted, COMPLETED, distinct=not replace)
        delivered = None
        while delivered is None:
            counts = wanted
            if allow_short:
                self._set_step(wanted, step)
                counts = {task: engine.available(task, COMPLETED, k) for task, k in wanted.items()}
            else:
                await runtime.wait_recorded(
                    "sample",
                    {(COMPLETED, task.name): task for task in wanted},
                    lambda: all(engine.can_draw(task, k, replace=replace) for task, k in wanted.items()),
                    deadline,
                    lambda: f" of {n} groups",
                    prepare=lambda: self._set_step(wanted, step),
                )
            if not any(counts.values()):
                await runtime.persist()  # the step
                return GroupBatch.of([])
            drawn = [runtime.groups.sample(task, k, replace=replace) for task, k in counts.items() if k]
            runtime.waits.wake()
            delivered = await runtime.deliver(drawn, partial(runtime.groups.undo_all, drawn), names)
        return group_batch(drawn, delivered)

    def lease(
        self,
        task_batch_sizes: Mapping[str, int],
        *,
        group_status: Status | str = Status.COMPLETED,
        wait: bool = False,
        timeout: float | None = None,
        ttl_s: float | None = None,
        train_step: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Lease:
        """Lease groups: they are consumed when the lease holder acknowledges them. O(groups).

        Without `ack` the groups return to their place: by `batch.nack()`, when the context ends, or after `ttl_s` seconds.
        Groups that can be used several times are drawn as by `sample`: `ack` counts the use, `nack` gives it back.

        Args:
            task_batch_sizes: number of groups by task.
            group_status: status of the groups.
            wait: whether to wait until all groups are available, as `take_batch` does.
            timeout: seconds to wait at most.
            ttl_s: seconds until the lease ends by itself; None: never.
            train_step: the training step that the groups are for.
            columns: the further columns of the groups to read; None: all, `[]`: none. Others are not read from disk.

        Returns:
            A Lease, to be entered with `async with` or awaited; both give a Batch.

        Raises:
            InvalidArgument, WaitTimeout, Closed: when it is entered or awaited, as `take_batch`.

        Example: `async with buffer.lease({"math": 64}, wait=True) as batch: ...; await batch.ack()`.

        """

        async def acquire() -> Batch:
            runtime = self._runtime
            names = self._checked_columns(columns, group_status)
            ttl = read_seconds(ttl_s, "ttl_s")  # it starts when the groups are leased
            deadline, delivered = deadline_of(timeout), None
            while delivered is None:
                wanted, status = await self._await_batch(
                    task_batch_sizes, group_status, wait, deadline, train_step
                )
                lease, leased = runtime.leases.lend(
                    wanted, status, runtime.clock(), runtime.deadline_after(ttl)
                )
                runtime.notify()
                undo = partial(runtime.leases.undo, lease, leased)
                delivered = await runtime.deliver(leased, undo, names)
            samples = {task.name: GroupBatch.of([]) for task in wanted}
            for given, groups in zip(leased, delivered, strict=True):
                samples[given.task.name] = group_batch([given], [groups])
            return Batch(self, lease, samples)

        return Lease(acquire)

    async def ack_lease(self, lease: int, *, train_step: int | None = None) -> None:
        """Acknowledge a lease by its id, as `Batch.ack` does. A repeated call has no effect. O(groups).

        Args:
            lease: the id of the lease.
            train_step: the step that trained the groups; None: the step they were leased for.

        Raises:
            LeaseExpired: the lease had ended, and some of its groups were delivered again; the other groups are consumed.
            InvalidArgument: the lease is unknown.
            Closed: the buffer was closed.

        """
        runtime = self._runtime
        runtime.check_open()
        step, lease = checked_step("train_step", train_step), checked_count("lease", lease)
        try:
            runtime.leases.ack(lease, step)
        finally:
            runtime.notify()
            await runtime.persist()

    async def nack_lease(self, lease: int) -> None:
        """Return the groups of a lease to their place, as `Batch.nack` does. O(groups).

        Args:
            lease: the id of the lease.

        """
        runtime = self._runtime
        runtime.check_process()
        if not runtime.is_closed:  # close() has ended all leases
            runtime.leases.nack(checked_count("lease", lease))
            runtime.waits.wake()
            await runtime.persist()

    async def trim_lease(self, lease: int, uids: Iterable[int]) -> None:
        """Return all groups of a lease to their place except these. O(groups).

        Args:
            lease: the id of the lease.
            uids: the groups that stay leased.

        """
        runtime = self._runtime
        runtime.check_open()
        runtime.leases.keep(checked_count("lease", lease), checked_uids(uids))
        runtime.notify()
        await runtime.persist()

    async def end_lease(self, lease: int) -> None:
        """End a lease whose holder seems to be gone, as its TTL does: it can still be acknowledged. O(groups).

        Args:
            lease: the id of the lease.

        """
        runtime = self._runtime
        runtime.check_process()
        if not runtime.is_closed:
            runtime.leases.end(checked_count("lease", lease))
            runtime.waits.wake()
            await runtime.persist()

    async def _await_batch(
        self,
        sizes: Mapping[str, int],
        group_status: Status | str,
        wait: bool,
        deadline: float | None,
        train_step: int | None,
    ) -> tuple[dict[Task, int], int]:
        """Check a request, wait for it if asked, and return the number of groups to deliver now, by task, and their status."""
        runtime, engine = self._runtime, self._runtime.engine
        runtime.check_open()
        status = STATUS_CODE[Status.of(group_status)]
        wanted = self._wanted(sizes)
        step = checked_step("train_step", train_step)
        if not checked_flag("wait", wait):
            self._set_step(wanted, step)
            return {task: engine.available(task, status, n) for task, n in wanted.items()}, status
        _check_possible(wanted, status)
        queues: dict[Hashable, Task] = {(status, task.name): task for task, n in wanted.items() if n}

        def is_available() -> bool:
            return all(engine.available(task, status, n) >= n for task, n in wanted.items())

        # A request that need not wait skips the queue.
        is_first = not any(map(runtime.waits.waiting, queues))
        if is_first and is_available():
            if step is None:
                return wanted, status
            self._set_step(wanted, step)
            if is_available():
                return wanted, status
        await runtime.wait_recorded(
            "take",
            queues,
            is_available,
            deadline,
            lambda: f" of {dict(sizes)} {Status.of(group_status).value} groups",
            prepare=lambda: self._set_step(wanted, step),
        )
        return wanted, status

    def _checked_columns(self, columns: object, group_status: Status | str) -> list[str] | None:
        names = checked_columns(columns)
        if names is not None and STATUS_CODE[Status.of(group_status)] in RETURNING:
            raise InvalidArgument(
                f"columns cannot be chosen for {Status.of(group_status).value} groups: they are put again, and would lose the "
                "others; leave columns out"
            )
        return names

    def _wanted(self, sizes: Mapping[str, int]) -> dict[Task, int]:
        return {self._runtime.engine.named(name): max(n, 0) for name, n in checked_sizes(sizes).items()}

    def _set_step(self, tasks: Iterable[Task], step: int | None) -> None:
        for task in tasks:
            later = None if step is None else task.log.after(step)
            if later and self._runtime.groups.warn_once(task.name, f"earlier than {max(later)}"):
                warnings.warn(
                    f"task {task.name!r}: train_step {step} is older than step {max(later)}, which already used groups; "
                    f"using step {max(later)}. If the trainer resumed from a checkpoint, call rewind(step) first, with the "
                    "step of the checkpoint (0: none); otherwise groups are trained twice, or never",
                    UncommittedWarning,
                    stacklevel=2,
                )
            self._runtime.groups.learn_step(task, step)

    # --- reserve, release, advance

    async def reserve(
        self, n: int, task_name: str, *, timeout: float | None = None, ttl_s: float | None = None
    ) -> Reservation:
        """Wait until n groups can be started so that all can be trained in time; see `StalenessWindow`. O(1).

        `put(..., reservation=...)` consumes one group of it, `release` the rest. Without a window it is granted at once.

        Args:
            n: number of groups.
            task_name: their task.
            timeout: seconds to wait at most.
            ttl_s: seconds after which the remaining groups are released; None: never.

        Returns:
            The reservation.

        Raises:
            InvalidArgument: an argument is invalid, or n exceeds the window.
            WaitTimeout: the groups could not be reserved in time.
            Closed: the buffer was closed.

        Example: `reservation = await buffer.reserve(8, "math", timeout=600)`.

        """
        runtime = self._runtime
        runtime.check_open()
        deadline = deadline_of(timeout)
        ttl_s = read_seconds(ttl_s, "ttl_s")  # it starts when the reservation is granted
        count = checked_count("n", n)
        task = runtime.engine.named(checked_task(task_name))
        window = task.settings.window
        if count < 1 or (window is not None and count > window.largest):
            raise InvalidArgument(
                f"n must be at least 1{'' if window is None else f', and at most {window.largest} under {window}'}, not {count}"
            )
        queue = object()  # one for each call: a large reservation that waits must not block a small one
        await runtime.wait_recorded(
            "reserve",
            {queue: task},
            lambda: task.may_start() >= count,
            deadline,
            lambda: f" of {count} groups, of which {task.explain_start()},",
        )
        reservation = runtime.reservations.make(task, count, runtime.deadline_after(ttl_s))
        runtime.notify()
        try:
            await runtime.persist()  # ids are never reused
        except BaseException:
            runtime.reservations.release(reservation)
            runtime.waits.wake()
            raise
        return reservation

    async def release(self, reservation: Reservation) -> int:
        """Release the groups of a reservation that were not put. O(1).

        Args:
            reservation: the result of `reserve`.

        Returns:
            The number of groups released.

        Raises:
            InvalidArgument: it is not a reservation.
            Closed: the buffer was closed.

        """
        runtime = self._runtime
        runtime.check_open()
        if not isinstance(reservation, Reservation):
            raise InvalidArgument(f"reservation must be the result of reserve(), not {shown(reservation)}")
        runtime.reservations.check(reservation, reservation.task_name)
        released = runtime.reservations.release(reservation)
        runtime.waits.wake()
        return released

    async def advance(self, step: int, *, version: int | None = None) -> None:
        """Report that a training step has finished. O(tasks + groups that expire).

        Args:
            step: the finished training step; a smaller step than before changes nothing, as a late report does.
            version: version of the weights that generate from now on; None: the last multiple of the window's
                `sync_interval`. A smaller version than before changes nothing: `rewind` goes back.

        Raises:
            InvalidArgument: an argument is invalid.
            Closed: the buffer was closed.

        Example: `await buffer.advance(5)`.

        """
        runtime, engine = self._runtime, self._runtime.engine
        runtime.check_open()
        done = required_step("step", step, "the training step that has finished")
        serving = checked_step("version", version)
        engine.advanced = (done, serving)
        current = done - done % engine.sync_interval if serving is None else serving
        engine.version = max(current, engine.version or 0)
        for task in (*engine.tasks.values(), *engine.named_tasks()):
            runtime.groups.learn_step(task, done)
            task.advance(done, serving)
        runtime.waits.wake()
        await runtime.persist()

    async def version(self) -> int | None:
        """Return the version of the weights that generate. O(1).

        `advance` raises it, and `rewind(k)` sets it to k. It survives a restart, `save` and `resume`.

        Returns:
            The version; None before the first `advance`.

        Example: `version = await buffer.version()` before generating, then `put(..., model_step=version)`.

        """
        self._runtime.check_open()
        return self._runtime.engine.version

    async def wait_version(self, v: int, timeout: float | None = None) -> int:
        """Wait until weights of version `v` or later generate.

        Args:
            v: the version to wait for.
            timeout: seconds to wait at most.

        Returns:
            The version that generates. A later `rewind` may set it back.

        Raises:
            InvalidArgument: `v` is not an integer of at least 0.
            WaitTimeout: the version was not reached in time.
            Closed: the buffer was closed.

        Example: `await buffer.wait_version(3, timeout=600)`.

        """
        runtime, engine = self._runtime, self._runtime.engine
        runtime.check_open()
        deadline = deadline_of(timeout)
        wanted = checked_step("v", v)
        if wanted is None:
            raise InvalidArgument("v must be a version, not None; name the version to wait for")
        await runtime.wait(  # in its own queue: it blocks no other call
            [object()],
            lambda: engine.version is not None and engine.version >= wanted,
            deadline,
            lambda: (
                f"wait_version({wanted}) timed out: version {engine.version} serves; nothing was changed."
            ),
        )
        assert engine.version is not None  # noqa: S101  (it was reached)
        return engine.version

    async def wait_overdue(self, running: Reservation | int, timeout: float | None = None) -> str | None:
        """Wait until a running group can no longer be trained within the bound of its `StalenessWindow`. O(1).

        A producer waits for it beside the generation. Without a window a group is never overdue.

        Args:
            running: the reservation of the group, or the uid of a checked-out group. With `stragglers="resume"` a checked-out
                group counts from this call, otherwise from its oldest token.
            timeout: seconds to wait at most.

        Returns:
            What to do: `"cancel"`: stop the group, and `release` its reservation or `forget` it. `"resume"`: abort the group,
            put it ABORTED, and continue it under the weights that generate now. None: it is not running any more.

        Raises:
            InvalidArgument: `running` is neither a reservation nor a uid.
            WaitTimeout: the group was not overdue in time.
            Closed: the buffer was closed.

        Example: `verdict = await buffer.wait_overdue(reservation)`.

        """
        runtime = self._runtime
        runtime.check_open()
        deadline = deadline_of(timeout)
        started = runtime.started(running)
        if started is None:
            return None
        task, version = started
        step = task.overdue_step(version)
        await runtime.wait(  # all that are overdue at the same step share a queue
            [("overdue", task.name, step)],
            lambda: task.next_step >= step,
            deadline,
            lambda: (
                f"wait_overdue timed out: the group is in time until step {step - 1:g}; nothing was changed."
            ),
        )
        window = task.settings.window
        if window is None or runtime.started(running) is None:
            return None
        return "resume" if window.stragglers == "resume" else "cancel"

    # --- refresh

    async def refresh_staleness(
        self,
        *,
        task_stale_thresholds: Mapping[str, int],
        current_train_step: int,
        statuses: Iterable[Status | str] | None = None,
        task_token_stale_thresholds: Mapping[str, int | None] | None = None,
        expired_groups_retryable_by_task: Mapping[str, bool] | None = None,
    ) -> dict[str, int]:
        """Report the step that is prepared next, and expire groups that are too stale for it. O(groups that expire).

        A group without versions has staleness 0 from now on.

        Args:
            task_stale_thresholds: groups of a task expire if their staleness is at least this.
            current_train_step: the training step that is prepared next.
            statuses: statuses of the groups that expire; None: COMPLETED and ABORTED, and with `expire="member"` EXPIRED.
            task_token_stale_thresholds: rollouts of a task expire when all their trainable tokens have at least this staleness.
            expired_groups_retryable_by_task: False drops expired groups of a task, also those that expired before; by
                default they are kept for regeneration.

        Returns:
            The number of groups that expired now, by task.

        Raises:
            InvalidArgument: an argument is invalid, such as a threshold below 1; nothing has changed.
            Closed: the buffer was closed.

        Example: `await buffer.refresh_staleness(task_stale_thresholds={"math": 4}, current_train_step=9)`.

        """
        runtime = self._runtime
        runtime.check_open()
        step = required_step(
            "current_train_step", current_train_step, "the training step that will be prepared next"
        )
        thresholds = checked_thresholds("task_stale_thresholds", task_stale_thresholds)
        by_token = checked_thresholds(
            "task_token_stale_thresholds",
            {} if task_token_stale_thresholds is None else task_token_stale_thresholds,
            optional=True,
        )
        retryable = checked_flags(
            "expired_groups_retryable_by_task",
            {} if expired_groups_retryable_by_task is None else expired_groups_retryable_by_task,
        )
        chosen = None if statuses is None else checked_statuses(statuses)
        expired = {}
        tasks = {name: runtime.engine.named(name) for name in dict.fromkeys((*thresholds, *by_token))}
        for name, task in tasks.items():
            asked = Thresholds(thresholds.get(name), by_token.get(name), retryable.get(name, True))
            expired[name] = runtime.groups.learn_step(task, step, retryable=asked.retryable)
            expired[name] += runtime.groups.refresh(task, chosen, asked)
        runtime.waits.wake()
        await runtime.persist()
        return expired

    # --- readiness

    async def is_ready(
        self, task_batch_sizes: Mapping[str, int], *, group_status: Status | str = Status.COMPLETED
    ) -> bool:
        """Return whether `take_batch` would deliver all of these groups now. O(tasks).

        Args:
            task_batch_sizes: number of groups by task.
            group_status: status of the groups.

        Example: `await buffer.is_ready({"math": 64})`.

        """
        runtime = self._runtime
        runtime.check_open()
        status = STATUS_CODE[Status.of(group_status)]
        wanted = self._wanted(task_batch_sizes)
        return all(runtime.engine.available(task, status, n) >= n for task, n in wanted.items())

    async def wait_ready(
        self,
        task_batch_sizes: Mapping[str, int],
        *,
        group_status: Status | str = Status.COMPLETED,
        timeout: float | None = None,
    ) -> None:
        """Wait until `take_batch` would deliver all of these groups.

        Args:
            task_batch_sizes: number of groups by task.
            group_status: status of the groups.
            timeout: seconds to wait at most.

        Raises:
            InvalidArgument: an argument is invalid, or the batch exceeds the capacity or the limiter of a task.
            WaitTimeout: the groups were not available in time.
            Closed: the buffer was closed.

        """
        runtime = self._runtime
        runtime.check_open()
        deadline = deadline_of(timeout)
        status = STATUS_CODE[Status.of(group_status)]
        wanted = self._wanted(task_batch_sizes)
        _check_possible(wanted, status)
        await runtime.wait(  # in its own queue: it takes nothing
            [object()],
            lambda: all(runtime.engine.available(task, status, n) >= n for task, n in wanted.items()),
            deadline,
            lambda: "wait_ready timed out.",
            wanted,
        )

    # --- count and look

    def __len__(self) -> int:
        """Return the number of resident groups of any status. O(tasks)."""
        runtime = self._runtime
        runtime.check_process()
        if not runtime.is_closed:
            runtime.expire_deadlines()
        return len(runtime.groups)

    def __bool__(self) -> bool:
        return True  # also when it is empty

    def __repr__(self) -> str:
        runtime = self._runtime
        state = ", closed" if runtime.is_closed else ""
        return (
            f"<{type(self).__name__}: {len(runtime.groups)} groups, {len(runtime.engine.tasks)} tasks{state}>"
        )

    def _repr_html_(self) -> str:
        return self._ledger().to_html(repr(self))

    async def count(self, task_name: str, group_status: Status | str) -> int:
        """Return the number of resident groups of one task and status. O(1).

        Args:
            task_name: the task.
            group_status: the status.

        Example: `await buffer.count("math", "completed")`.

        """
        self._runtime.check_open()
        task = self._runtime.engine.named(checked_task(task_name))
        return len(task.pools[STATUS_CODE[Status.of(group_status)]])

    async def count_statuses(
        self, task_names: Iterable[str], statuses: Iterable[Status | str]
    ) -> dict[str, dict[Status, int]]:
        """Return the number of resident groups by task and status, zeros included. O(tasks x statuses).

        Args:
            task_names: the tasks.
            statuses: the statuses.

        """
        self._runtime.check_open()
        wanted = [Status.of(status) for status in checked_names("statuses", statuses)]
        names = [checked_task(name) for name in checked_names("task_names", task_names)]
        return {name: {status: await self.count(name, status) for status in wanted} for name in names}

    async def peek(self, uids: Iterable[int], *, columns: Sequence[str] | None = None) -> list[RolloutGroup]:
        """Return the rollouts of groups without taking them. Other calls run between slices. O(groups).

        Args:
            uids: the groups.
            columns: the further columns of the groups to read; None: all, `[]`: none. Others are not read from disk.

        Returns:
            The groups in this order.

        Raises:
            UnknownUid: a group is not here, or left meanwhile (a KeyError).
            CorruptData: groups were altered on disk; they are counted as lost.
            Closed: the buffer was closed.

        Example: `(group,) = await buffer.peek([17])`.

        """
        runtime = self._runtime
        runtime.check_open()
        wanted, names = checked_uids(uids), checked_columns(columns)
        runtime.groups.slots(wanted)  # UnknownUid before any is read
        groups: list[Any] = []
        lost: list[int] = []
        for start in range(0, len(wanted), scan.GROUPS_AT_ONCE):
            if start:
                await runtime.pause()
            part = wanted[start : start + scan.GROUPS_AT_ONCE]
            found = runtime.groups.look(part)
            groups += [group for shown_ in await scan.read_groups(runtime, found, names) for group in shown_]
            lost += [uid for uid, given in zip(part, found, strict=True) if not given.groups]
        if lost:
            raise CorruptData(
                f"groups {lost} are corrupt and counted as lost; the other groups are unchanged: peek at those"
            )
        return groups

    # --- query

    async def query(
        self, where: Where, *, order_by: str | None = None, limit: int | None = None, offset: int = 0
    ) -> list[Row]:
        """Return the metadata of resident groups that satisfy a query. O(rows), vectorised.

        Over many groups other calls run in between: each row is as of its own moment, and groups that leave meanwhile are left
        out.

        Args:
            where: the query.
            order_by: a field, such as `"reward_std"`, or `"-reward_std"` for descending order; groups without a value come
                last. None: by uid.
            limit: largest number of rows; only these are made.
            offset: number of rows to skip.

        Returns:
            A Row for each group.

        Raises:
            QueryError: the query is invalid; the message names the path inside it.
            Closed: the buffer was closed.

        Example: `rows = await buffer.query({"status": "completed", "staleness": {"$lte": 2}}, limit=10)`.

        """
        runtime = self._runtime
        runtime.check_open()
        parsed = parse_query(where)
        order, first = parse_order(order_by), checked_size("offset", offset)
        last = None if limit is None else first + checked_size("limit", limit)
        slots = await scan.find_slots(runtime, parsed)
        if order is not None:
            slots = await scan.sort(runtime, slots, *order)
        return await scan.read_rows(runtime, slots[first:last])

    async def count_where(self, where: Where) -> int:
        """Return the number of resident groups that satisfy a query. O(rows), vectorised.

        Args:
            where: the query.

        Raises:
            QueryError: the query is invalid; the message names the path inside it.
            Closed: the buffer was closed.

        """
        self._runtime.check_open()
        return len(await scan.find_slots(self._runtime, parse_query(where)))

    async def to_arrow(
        self, where: Where | None = None, *, payloads: bool = False, place: str | None = "resident"
    ) -> Any:
        """Return a pyarrow.Table of groups that satisfy a query, by uid. Needs the extra `arrow`. O(rows).

        The columns are the fields of `Row` (missing values as nulls, tags as JSON) and the place.

        Args:
            where: the query; None: all groups.
            payloads: whether to return a row for each rollout, with the columns of its group repeated; groups that leave
                meanwhile are left out.
            place: where the groups are: "resident", "out", "leased" or "uncommitted"; None: anywhere.

        Raises:
            ImportError: pyarrow is not installed.
            QueryError: the query is invalid; the message names the path inside it.
            InvalidArgument: another argument is invalid.
            Closed: the buffer was closed.

        """
        runtime, engine = self._runtime, self._runtime.engine
        runtime.check_open()
        query = parse_query({} if where is None else where)
        code = None if place is None else PLACES.index(checked_choice("place", place, PLACES))
        payloads = checked_flag("payloads", payloads)
        arrow.check_installed()
        slots = await scan.find_slots(runtime, query, code)
        gathered = arrow.Rows(engine, slots)
        if len(slots) <= scan.ROWS_AT_ONCE:
            gathered.gather(slots)
            rows = gathered.table()
        else:
            for part, uids in scan.slices_of(engine, slots, scan.ROWS_AT_ONCE):
                gathered.gather(part, still_at(engine, part, uids, code))
                await runtime.pause()
            rows = await runtime.waits.aside(gathered.table)
        if not payloads:
            return rows
        parts = arrow.Rollouts(rows)
        for chunk in arrow.chunks(rows["uid"].to_numpy(), rows["num_tokens"].to_numpy()):
            parts.gather(chunk.start, await scan.read_members(runtime, chunk.uids, code))
            await runtime.waits.aside(parts.build)
        return await runtime.waits.aside(parts.table)

    async def to_pandas(
        self, where: Where | None = None, *, payloads: bool = False, place: str | None = "resident"
    ) -> Any:
        """Return the table of `to_arrow` as a pandas.DataFrame. Needs pandas as well.

        Args:
            where: the query; None: all groups.
            payloads: whether to return a row for each rollout.
            place: where the groups are; None: anywhere.

        """
        arrow.check_pandas()
        table = await self.to_arrow(where, payloads=payloads, place=place)
        return await self._runtime.waits.aside(lambda: arrow.frame_of(table))

    # --- change

    async def update_priorities(self, priorities: Mapping[int, float]) -> list[int]:
        """Set the priorities of resident groups. O(log rows) each.

        Args:
            priorities: the priority of each uid.

        Returns:
            The uids that are not resident.

        Raises:
            InvalidPriority: a priority is negative, infinite or not a number; nothing has changed.
            InvalidArgument: the argument is not a mapping of uids.
            Closed: the buffer was closed.

        Example: `await buffer.update_priorities({17: 0.5, 18: 2.0})`.

        """
        runtime, groups = self._runtime, self._runtime.groups
        runtime.check_open()
        if not isinstance(priorities, Mapping):
            raise InvalidArgument(f"priorities must be a mapping of uids to numbers, not {shown(priorities)}")
        checked = {
            checked_count("uid", uid): checked_priority(value, f"priority of {shown(uid)}")
            for uid, value in priorities.items()
        }
        known = [uid for uid in checked if groups.is_resident(uid)]
        weights = np.array([checked[uid] for uid in known], np.float64)
        runtime.engine.set_priorities(groups.slots(known), weights)
        runtime.waits.wake()
        unknown = [uid for uid in checked if not groups.is_resident(uid)]
        await runtime.persist()
        return unknown

    async def patch(
        self, /, uid: int, *, tags: Mapping[str, Scalar] | None = None, **fields: Sequence[Any]
    ) -> None:
        """Set late fields of a group's rollouts, such as rewards. O(rollouts).

        Args:
            uid: the group.
            tags: tags to add.
            fields: for each field a list with one value for each rollout. A field that a rollout does not have goes into its
                `extra_fields`.

        Raises:
            UnknownUid: the group is not here.
            InvalidArgument: a field cannot be patched, or has another number of values; nothing has changed.
            NotStorable: a value cannot be stored on disk; nothing has changed.
            Closed: the buffer was closed.

        Example: `await buffer.patch(17, reward=[1.0, 0.0])`.

        """
        self._runtime.check_open()
        await self._patch({checked_count("uid", uid): Patch(fields, tags)}, skip_gone=False)

    async def patch_many(
        self, patches: Mapping[int, Mapping[str, Any]], *, only_if_newer: int | None = None
    ) -> list[int]:
        """Set late fields of several groups in one step and one commit. O(rollouts).

        Args:
            patches: for each uid the arguments of `patch` by name:
                `{17: {"reward": [1.0, 0.0]}, 18: {"tags": {"level": 2}}}`.
            only_if_newer: the training step that the values were computed at. A group that was patched at this step or a
                later one is left as it is, so that late results of several workers never replace newer ones.

        Returns:
            The uids of groups that are gone.

        Raises:
            InvalidArgument: a patch is invalid; the message names the uid, and nothing has changed.
            NotStorable: a value cannot be stored on disk; nothing has changed.
            Closed: the buffer was closed.

        """
        self._runtime.check_open()
        step = checked_step("only_if_newer", only_if_newer)
        checked: dict[int, Patch] = {}
        if not isinstance(patches, Mapping):
            raise InvalidArgument(f"patches must be a mapping of uids to fields, not {shown(patches)}")
        for uid, fields in patches.items():
            if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
                raise InvalidArgument(
                    f"group {shown(uid)}: the patch must be fields by name, not {shown(fields)}"
                )
            rest = dict(fields)
            checked[checked_count("uid", uid)] = Patch(tags=rest.pop("tags", None), fields=rest)
        return await self._patch(checked, skip_gone=True, step=step)

    async def _patch(
        self, patches: Mapping[int, Patch], *, skip_gone: bool, step: int | None = None
    ) -> list[int]:
        runtime, disk, groups = self._runtime, self._runtime.disk, self._runtime.groups
        encoded: list[Encoded] = []
        stored: dict[int, Encoded] = {}

        def encode(uid: int, items: Payload) -> None:
            assert disk is not None  # noqa: S101  (only a durable buffer encodes)
            stored[uid] = disk.encode_now(items)
            encoded.append(stored[uid])

        try:
            if disk is not None:
                # Fetch references before anything changes; `encode` names the path of a value that cannot be stored.
                with suppress(NotStorable):
                    fields = [value for patch in patches.values() for value in patch.fields.values()]
                    late = [list(value) for value in fields if isinstance(value, Sequence | np.ndarray)]
                    encoded.append(await disk.encode(late))
                await disk.fetch([group for uid in patches if (group := groups.find(uid)) is not None])
                runtime.check_open()
            gone = [uid for uid in patches if groups.slot_of(uid) is None] if skip_gone else []
            chosen = {
                uid: patch
                for uid, patch in patches.items()
                if uid not in gone and (step is None or groups.is_newer(uid, step))
            }
            groups.patch(chosen, None if disk is None else encode, step=step)
            for uid, one in stored.items():
                if disk is not None:
                    disk.add(uid, one)
            runtime.waits.wake()  # groups may need fewer bytes
        finally:
            for one in encoded:
                one.held.release()
        await runtime.persist()
        return gone

    async def delete(self, which: Iterable[int] | Where) -> int:
        """Delete resident groups. Over many groups other calls run in between. O(groups).

        Args:
            which: uids, or a query.

        Returns:
            The number of groups deleted; groups that left meanwhile are not counted.

        Raises:
            QueryError: the query is invalid; the message names the path inside it.
            InvalidArgument: the uids are invalid.
            Closed: the buffer was closed.

        Example: `await buffer.delete({"task": "math", "reward_std": 0})`.

        """
        runtime = self._runtime
        runtime.check_open()
        if isinstance(which, Mapping | Query):
            slots = await scan.find_slots(runtime, parse_query(which))
        else:
            slots = runtime.groups.resident_slots(checked_uids(which))
        deleted = 0
        for part, uids in scan.slices_of(runtime.engine, slots, scan.ROWS_AT_ONCE):
            if deleted:
                await runtime.pause()
            deleted += runtime.groups.delete(part[still_at(runtime.engine, part, uids)])
            runtime.waits.wake()
        await runtime.persist()
        return deleted

    async def forget(self, uids: Iterable[int]) -> int:
        """Delete checked-out groups that will not return. O(groups).

        Args:
            uids: the groups; those that are not checked out are ignored.

        Returns:
            The number of groups deleted.

        Raises:
            InvalidArgument: the uids are invalid.
            Closed: the buffer was closed.

        """
        runtime = self._runtime
        runtime.check_open()
        forgotten = runtime.groups.forget_out(checked_uids(uids))
        runtime.waits.wake()
        await runtime.persist()
        return forgotten

    async def set_rate_limiter(self, task_name: str, rate_limiter: Limiter) -> None:
        """Replace the rate limiter of a task; its counters stay. O(1).

        Files keep it, unless its class is your own. A reopened buffer uses it as long as the configured limiter is the same.

        Args:
            task_name: the task.
            rate_limiter: the new limiter.

        Raises:
            InvalidConfig: the task could never proceed; nothing has changed.
            InvalidArgument: it is a StalenessWindow, which is configured when the buffer is built; or the configuration
                names tasks, and this one is neither named nor had a group.
            Closed: the buffer was closed.

        """
        runtime = self._runtime
        runtime.check_open()
        task = self._configurable(task_name)
        if isinstance(rate_limiter, StalenessWindow):
            raise InvalidArgument(
                "rate_limiter cannot be a StalenessWindow: that is configured when the buffer is built"
            )
        task.set_limiter(limiter_of(rate_limiter))
        runtime.waits.wake()
        await runtime.persist()

    async def set_sampler(self, task_name: str, sampler: SelectorSpec | str) -> None:
        """Change the parameters of a task's sampler, such as `Prioritized(beta=0.8)`.

        A new `beta` costs O(1), other parameters O(COMPLETED groups of the task). Files keep the parameters, unless the
        sampler's class is your own; a reopened buffer uses them as long as its configuration is the same.

        Args:
            task_name: the task.
            sampler: a sampler of the configured kind, or its mapping of `type` and options.

        Raises:
            InvalidConfig: the sampler is of another kind, or its parameters are impossible; nothing has changed.
            InvalidArgument: the configuration names tasks, and this one is neither named nor had a group.
            Closed: the buffer was closed.

        """
        runtime = self._runtime
        runtime.check_open()
        self._configurable(task_name).set_sampler(selector_spec(sampler))
        runtime.waits.wake()
        await runtime.persist()

    def _configurable(self, task_name: str) -> Task:
        """Return a task to change. Raises InvalidArgument for a name that is likely misspelt."""
        engine, name = self._runtime.engine, checked_task(task_name)
        if engine.declared and name not in (known := engine.known_tasks()):
            raise InvalidArgument(f"task {name!r} is unknown; {unknown_task(name, known)}")
        return engine.task(name)

    # --- checkpoints

    async def commit(self, step: int) -> int:
        """Report that the trainer's checkpoint of a step is on disk. O(groups used up to it).

        Groups consumed up to this step are no longer kept for a rewind.

        Args:
            step: the training step of the checkpoint.

        Returns:
            The number of groups that are now consumed for good.

        Raises:
            InvalidArgument: the step is invalid.
            Closed: the buffer was closed.

        Example: `await buffer.commit(100)`.

        """
        runtime, engine = self._runtime, self._runtime.engine
        runtime.check_open()
        done = required_step("step", step, "the training step of the checkpoint")
        finished = 0
        for task in engine.tasks.values():
            slots = commit(task, done)
            runtime.groups.forget_rows(slots)
            finished += len(slots)
        await runtime.persist()
        return finished

    async def rewind(self, step: int, *, newer: Literal["keep", "expire"] = "keep") -> int:
        """Report that the trainer resumes from an earlier checkpoint. O(groups used since).

        Groups used after this step are available again, at their old place; priorities, and groups put since, stay.

        Args:
            step: the training step of the checkpoint; -1: before step 0, with the weights of version 0.
            newer: whether groups of versions above `step` are kept, with the distance as their staleness, or expire.

        Returns:
            The number of groups that are available again.

        Raises:
            CannotRewind: a later step was committed, or is no longer kept; nothing has changed.
            InvalidArgument: an argument is invalid.
            Closed: the buffer was closed.

        Example: `await buffer.rewind(100)`.

        """
        runtime, engine = self._runtime, self._runtime.engine
        runtime.check_open()
        last = checked_count("step", step)
        if last != -1:
            required_step("step", last, "the training step of the checkpoint")
        version = max(last, 0)
        checked_choice("newer", newer, ("keep", "expire"))
        for task in engine.tasks.values():
            task.log.check_rewind(task.name, last)
        engine.version = version
        advanced, serving = engine.advanced
        engine.advanced = (min(advanced, version), None if serving is None else min(serving, version))
        for task in engine.named_tasks():
            task.rewind(last, engine.last_tick)
        count = 0
        for task in engine.tasks.values():
            back, gone = rewind(engine, task, last)
            count += len(back)
            runtime.groups.come_back(back, gone)
            if newer == "expire":
                runtime.groups.expire_newer(task, version)
        runtime.groups.enforce_bounds()  # versions ahead of the step may exceed max_staleness
        runtime.notify()
        await runtime.persist()
        return count

    async def save(self, path: str | PathLike[str]) -> None:
        """Save the buffer as it is now to a directory; other calls run meanwhile. O(groups).

        The file `replay_buffer.sqlite` replaces an older one as a whole: a crash leaves the old or the new file. In it leases
        are returned, reservations released, and checked-out groups are back, up to the last token that all fields of a rollout
        have. Saves of one buffer run one after another. A cancelled save stops its thread first.

        Args:
            path: the directory; it is made with its parents.

        Raises:
            NotStorable: a group cannot be stored; the message names the path inside it.
            StoreFailed: the file cannot be written.
            StoreLocked: another process uses the directory.
            CorruptData: a group of a durable buffer was altered on disk. In all cases the old file is untouched.
            Closed: the buffer was closed.

        Example: `await buffer.save("checkpoints/100")`.

        """
        runtime = self._runtime
        runtime.check_open()
        path = checked_path(path)
        await runtime.wait([_SAVES], lambda: not runtime.is_saving, None, lambda: "save", ())
        runtime.is_saving = True
        try:
            await saving.save(runtime, path)
        finally:
            runtime.is_saving = False
            runtime.waits.wake()

    async def resume(self, path: str | PathLike[str], *, on_corrupt: Damaged = "raise") -> None:
        """Restore an empty buffer from a saved or durable one, including the state of its samplers. O(groups).

        Calls made meanwhile raise Closed.

        Args:
            path: the directory.
            on_corrupt: "skip" leaves out groups whose data were altered, and counts them as lost.

        Raises:
            NotEmpty: this buffer was used before (a RuntimeError).
            InvalidConfig: it has another sampler or remover.
            SavedNotFound: there is no file.
            CorruptData: the file was altered.
            UnsupportedFormat: the file has another format. In all cases nothing has changed.

        Example: `await buffer.resume("checkpoints/100")`.

        """
        runtime = self._runtime
        runtime.check_open()
        path = checked_path(path)
        checked_choice("on_corrupt", on_corrupt, ("raise", "skip"))
        if runtime.engine.last_uid:
            raise NotEmpty(
                f"cannot resume a buffer that was used: {runtime.engine.last_uid} groups were put into it, and uids are never "
                "reused; build a new one"
            )
        runtime.is_resuming = True
        try:
            await saving.resume(runtime, path, on_corrupt)
        finally:
            runtime.is_resuming = False
        runtime.notify()
        await runtime.persist()

    # --- ledger, stats, metrics

    async def ledger(self) -> dict[str, dict[str, Amount]]:
        """Return, by task, the place of every group and token that was put, or the way it left. O(tasks)."""
        self._runtime.check_open()
        return self._ledger()

    def _ledger(self) -> LedgerReport:
        tasks = self._runtime.engine.tasks.items()
        return LedgerReport((name, task.ledger.amounts()) for name, task in tasks)

    async def stats(self) -> Stats:
        """Return counts, histograms, wait times, rates and warnings. O(resident groups), vectorised."""
        self._runtime.check_open()
        stats = self._runtime.stats()
        return replaced(stats, warnings=self._runtime.health.evaluate(stats))

    async def metrics(self, *, reader: str | None = None, detail: bool = False) -> dict[str, float]:
        """Return a flat dict of numbers, for W&B or TensorBoard. O(resident groups), vectorised.

        Counts, means and rates are over the interval since the previous call of the same reader, or since the buffer was made
        or resumed. Gauges are as of now. `total/` has counts since the beginning.

        Args:
            reader: name of the caller. Each name has intervals of its own; the least recent of 64 names is dropped for a new
                one. None: the buffer's own reader, or that of the connection.
            detail: whether to return all metrics. Otherwise they are at most 30, and by task only if there are several tasks.

        Returns:
            Numbers by name. Unknown numbers, such as the mean reward of no groups, are left out.

        Raises:
            InvalidArgument: `reader` is not a name.
            Closed: the buffer was closed.

        Example: `wandb.log(await buffer.metrics(), step=step)`.

        """
        self._runtime.check_open()
        everything = checked_flag("detail", detail)
        total, interval = self._runtime.interval(reader)
        self._runtime.health.evaluate(total)
        return metrics_dict(total, interval, detail=everything)

    # --- close

    async def close(self) -> None:
        """Close the buffer: leases end, and every waiting or later call raises Closed.

        A second call returns when the first has ended; so does a cancelled call.
        """
        await self._runtime.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def runtime_of(buffer: ReplayBuffer) -> Runtime:
    """Return the runtime of a buffer, for servers and shards that carry its verbs."""
    return buffer._runtime  # noqa: SLF001  (of this module)


def _check_possible(wanted: Mapping[Task, int], status: int, *, distinct: bool = True) -> None:
    """Raise InvalidArgument for numbers of groups that can never be delivered at once."""
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
                    f"cannot take {n} {STATUSES[status].value} groups of task {task.name!r} at once: "
                    f"{why.format(limiter=settings.limiter)} {limit:g}"
                )
