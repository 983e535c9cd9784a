"""ReplayBuffer: the asyncio shell. It checks arguments and waits; what happens is decided below it."""

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from reroll.buffer.arguments import (
    checked_count,
    checked_flags,
    checked_id,
    checked_names,
    checked_sizes,
    checked_statuses,
    checked_step,
    checked_task,
    checked_thresholds,
    checked_uids,
)
from reroll.buffer.batch import Batch, Lease
from reroll.buffer.groups import Groups, Thresholds
from reroll.buffer.leases import Leases
from reroll.buffer.report import Stats, metrics_of, stats_of
from reroll.buffer.reservations import Reservation, Reservations
from reroll.engine.ledger import Amount
from reroll.engine.limiters import Limiter, limiter_of
from reroll.engine.priorities import checked_priority
from reroll.engine.rows import Row, find, rows_of
from reroll.engine.task import COMPLETED, STATUS_CODE, Task
from reroll.errors import Closed, InvalidArgument
from reroll.query import FIELDS, Query, Scalar, parse_query
from reroll.rollout import Status
from reroll.sample import Sample
from reroll.waiting import Waits, deadline_of

Where = Mapping[str, Any] | Query

_REMEMBERED_PUT_IDS: Final = 65_536


class ReplayBuffer:
    """Groups of rollouts, per task, with status, policy versions and staleness. Made by `ReplayBufferConfig.build()`.

    All methods but `len()` are coroutines. Arguments are checked before anything changes, on the buffer and on the
    caller's objects; cancelling any call loses and duplicates nothing. After `close()` every call raises Closed.
    """

    def __init__(self, groups: Groups, waits: Waits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._groups = groups
        self._engine = groups.engine
        self._waits = waits
        self._clock = clock
        self._closed = False
        self._put_ids: OrderedDict[Hashable, int | None] = OrderedDict()
        self._leases = Leases(groups)
        self._reservations = Reservations()
        waits.next_event = self._next_event
        groups.flow.started = clock()

    def __len__(self) -> int:
        """Return how many groups are resident, whatever their status."""
        return len(self._groups)

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
        """Put a group of rollouts, and return its uid; None if it was dropped, or there was nothing to put.

        A COMPLETED group waits until the limiter allows it and there is room; all others, and those under a
        reservation, never wait. From then on the buffer owns the group.

        Args:
            items: the rollouts of one prompt.
            task_name: the task that they belong to.
            model_step: version of the weights that made the tokens which have no version yet.
            current_train_step: the training step being prepared; staleness is computed from it, else each rollout's
                own `seq_staleness` is trusted.
            stale_threshold: the group expires if its staleness is at least this.
            token_stale_threshold: a rollout expires when all its trainable tokens have at least this staleness.
            expired_groups_retryable: whether an expired group is kept to be rolled again, or dropped.
            priority: weight of the group for samplers that look at it; None: 1.
            tags: names and values to query by.
            uid: the group that these rollouts continue, if they are other objects than those that were taken.
            put_id: a put of an id that was seen before stores nothing, and returns what the first one returned.
            reservation: what `reserve` gave; this group is one of its. One that has ended by time is as none.
            timeout: seconds to wait at most.

        Raises InvalidArgument (naming rollout and field), WaitTimeout, Closed: then nothing has changed.

        """
        self._check_open()
        deadline = deadline_of(timeout)
        checked_task(task_name)
        checked_id("put_id", put_id)
        if put_id is not None and put_id in self._put_ids:
            return self._put_ids[put_id]
        if not isinstance(items, str) and isinstance(items, Sequence) and not items:
            return None
        plan = self._groups.plan_put(
            items,
            task_name,
            model_step=model_step,
            current_train_step=current_train_step,
            stale_threshold=stale_threshold,
            token_stale_threshold=token_stale_threshold,
            expired_groups_retryable=expired_groups_retryable,
            priority=priority,
            tags=tags,
            uid=uid,
        )
        await self._until(
            "put", {("put", task_name): plan.task}, lambda: self._groups.can_put(plan), deadline
        )
        if (
            put_id is not None and put_id in self._put_ids
        ):  # carried out by another call while this one waited
            return self._put_ids[put_id]
        stored = self._groups.put(plan, wait=reservation is None)
        if reservation is not None:
            self._reservations.settle(reservation)
        if put_id is not None:
            self._put_ids[put_id] = stored
            if len(self._put_ids) > _REMEMBERED_PUT_IDS:
                self._put_ids.popitem(last=False)
        self._waits.wake()
        return stored

    # --- hand out

    async def get(
        self, batch_size: int, task_name: str, group_status: Status | str, *, train_step: int | None = None
    ) -> list[list[Any]]:
        """Take up to `batch_size` groups of one task and status, in the sampler's order; never waits."""
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
        wanted, status = await self._batch(task_batch_sizes, group_status, wait, timeout, train_step)
        groups = {task.name: self._groups.take(task, status, n) if n else [] for task, n in wanted.items()}
        self._waits.wake()
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
        task_name: str,
        *,
        timeout: float | None = None,
        replace: bool = False,
        allow_short: bool = False,
        train_step: int | None = None,
    ) -> list[Sample]:
        """Draw n COMPLETED groups of a task without taking them; a group goes after `max_times_sampled` draws.

        Waits until n distinct groups can be drawn; with `allow_short` it gives what is there instead. With `replace`,
        samplers that draw by chance may draw a group more than once, within its use limit. Raises InvalidArgument at
        once for what can never be met, WaitTimeout, Closed.
        """
        self._check_open()
        deadline = deadline_of(timeout)
        count = checked_count("n", n)
        if count < 1:
            raise InvalidArgument(f"n must be at least 1, not {n}")
        step = checked_step("train_step", train_step)
        task = self._engine.task(checked_task(task_name))
        if allow_short:
            self._groups.learn_step(task, step)
            count = self._engine.available(task, COMPLETED, count)
        else:
            if not replace:
                self._check_can_be_met({task: count}, COMPLETED)
            await self._until(
                "sample",
                {(COMPLETED, task_name): task},
                lambda: self._engine.can_draw(task, count, replace=replace),
                deadline,
            )
            self._groups.learn_step(task, step)
            count = self._engine.available(task, COMPLETED, count) if not replace else count
        samples = self._groups.sample(task, count, replace=replace) if count else []
        self._waits.wake()
        return samples

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
        await self._wait([object()], lambda: self._is_ready(wanted, status), deadline, "wait_ready")

    # --- staleness

    async def refresh_staleness(
        self,
        *,
        task_stale_thresholds: Mapping[str, int],
        current_train_step: int,
        statuses: Iterable[Status | str] | None = None,
        task_token_stale_thresholds: Mapping[str, int | None] | None = None,
        expired_groups_retryable_by_task: Mapping[str, bool] | None = None,
    ) -> dict[str, int]:
        """Tell the step that is prepared next, and expire what is too stale for it; return how many newly did, by task.

        Expired groups are kept to be rolled again, or dropped where `expired_groups_retryable_by_task` says False. A
        group without versions has staleness 0 from now on. Costs what expires, whatever is there. Raises
        InvalidArgument, and changes nothing, for a threshold below 1.
        """
        self._check_open()
        step = checked_step("current_train_step", current_train_step)
        if step is None:
            raise InvalidArgument("current_train_step must be told: the training step that is prepared next")
        thresholds = checked_thresholds("task_stale_thresholds", task_stale_thresholds)
        by_token = checked_thresholds(
            "task_token_stale_thresholds", task_token_stale_thresholds or {}, optional=True
        )
        retryable = checked_flags("expired_groups_retryable_by_task", expired_groups_retryable_by_task or {})
        chosen = None if statuses is None else checked_statuses(statuses)
        expired = {}
        for name in dict.fromkeys((*thresholds, *by_token)):
            task = self._engine.task(name)
            self._groups.learn_step(task, step)
            asked = Thresholds(thresholds.get(name), by_token.get(name), retryable.get(name, True))
            expired[name] = self._groups.refresh(
                task, self._groups.expirable(name) if chosen is None else chosen, asked
            )
        self._waits.wake()
        return expired

    # --- admission

    async def reserve(
        self, n: int, task_name: str, *, timeout: float | None = None, ttl_s: float | None = None
    ) -> Reservation:
        """Wait until n groups may be started so that all can be trained in time; see `StalenessWindow`.

        Each group is settled by `put(..., reservation=...)`, the rest by `release` or after `ttl_s` seconds. Without a
        window it is granted at once. Raises InvalidArgument for more than the window ever allows, WaitTimeout, Closed.
        """
        self._check_open()
        deadline, ends = deadline_of(timeout), deadline_of(ttl_s)
        count = checked_count("n", n)
        task = self._engine.task(checked_task(task_name))
        window = task.settings.window
        if count < 1 or (window is not None and count > window.largest):
            raise InvalidArgument(
                f"n must be at least 1{'' if window is None else f', and at most {window.largest} under {window}'}, not {n}"
            )
        await self._until(
            "reserve", {("reserve", task_name): task}, lambda: task.may_start() >= count, deadline
        )
        reservation = self._reservations.make(task, count, ends)
        self._waits.look_again()
        return reservation

    async def release(self, reservation: Reservation) -> int:
        """Give up the groups of a reservation that were not put; return how many those were."""
        self._check_open()
        self._reservations.check(reservation, getattr(reservation, "task_name", ""))
        released = self._reservations.release(reservation)
        self._waits.wake()
        return released

    async def advance(self, step: int, *, version: int | None = None) -> None:
        """Tell that training step `step` is done, and which version of the weights generates from now on.

        Without `version`: the last multiple of the window's `sync_interval`.
        """
        self._check_open()
        done = checked_step("step", step)
        serving = checked_step("version", version)
        if done is None:
            raise InvalidArgument("step must be told: the training step that is done")
        self._engine.advanced = (done, serving)
        for task in self._engine.tasks.values():
            task.advance(done, serving)
            self._groups.learn_step(task, done)
        self._waits.wake()

    async def set_rate_limiter(self, task_name: str, rate_limiter: Limiter) -> None:
        """Give a task another rate limiter; its counters stay. Raises InvalidConfig for what can never proceed."""
        self._check_open()
        task = self._engine.task(checked_task(task_name))
        task.settings = dataclasses.replace(task.settings, limiter=limiter_of(rate_limiter))
        self._waits.wake()

    # --- count and look

    async def count(self, task_name: str, group_status: Status | str) -> int:
        """Return how many groups of one task and status are resident. O(1)."""
        self._check_open()
        task = self._engine.tasks.get(checked_task(task_name))
        status = STATUS_CODE[Status.of(group_status)]
        return 0 if task is None else len(task.pools[status])

    async def count_statuses(
        self, task_names: Iterable[str], statuses: Iterable[Status | str]
    ) -> dict[str, dict[Status, int]]:
        """Return the counts of all these tasks and statuses, zeros included."""
        wanted = [Status.of(status) for status in checked_names("statuses", statuses)]
        names = checked_names("task_names", task_names)
        return {name: {status: await self.count(name, status) for status in wanted} for name in names}

    async def query(
        self, where: Where, *, order_by: str | None = None, limit: int | None = None
    ) -> list[Row]:
        """Return a row of metadata for each resident group that satisfies a query.

        In order of uid, or of a field: `order_by="reward_std"`, or `"-reward_std"` for the largest first; groups
        without a value come last. Raises QueryError that names the path inside the query.
        """
        self._check_open()
        parsed = parse_query(where)
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise InvalidArgument(f"limit must be None or a whole number of at least 0, not {limit!r}")
        field = _checked_order(order_by)
        rows = rows_of(self._engine, find(self._engine, parsed))
        if field is not None:
            missing = [row for row in rows if getattr(row, field) is None]
            present = [row for row in rows if getattr(row, field) is not None]
            descending = order_by is not None and order_by.startswith("-")
            rows = sorted(present, key=lambda row: getattr(row, field), reverse=descending) + missing
        return rows[:limit]

    async def peek(self, uids: Iterable[int]) -> list[list[Any]]:
        """Return the rollouts of groups, in this order, without taking them. Raises UnknownUid (a KeyError)."""
        self._check_open()
        return self._groups.peek(checked_uids(uids))

    # --- change one by one

    async def delete(self, which: Iterable[int] | Where) -> int:
        """Delete resident groups, by uids or by a query, and return how many there were."""
        self._check_open()
        if isinstance(which, Mapping | Query):
            slots = find(self._engine, parse_query(which))
        else:
            slots = self._groups.resident_slots(checked_uids(which))
        deleted = self._groups.delete(slots)
        self._waits.wake()
        return deleted

    async def forget(self, uids: Iterable[int]) -> int:
        """Give up groups that were taken to be rolled again and will not come back; return how many there were."""
        self._check_open()
        forgotten = self._groups.forget_out(checked_uids(uids))
        self._waits.wake()
        return forgotten

    async def update_priorities(self, priorities: Mapping[int, float]) -> list[int]:
        """Set priorities by uid and return the uids that are not resident.

        Raises InvalidPriority, and changes nothing, if any of them is negative, NaN, infinite or no number.
        """
        self._check_open()
        if not isinstance(priorities, Mapping):
            raise InvalidArgument(f"priorities must be a mapping of uids to numbers, not {priorities!r}")
        checked = {uid: checked_priority(value, f"priority of {uid!r}") for uid, value in priorities.items()}
        known = [uid for uid in checked if self._groups.is_resident(uid)]
        weights = np.array([checked[uid] for uid in known], np.float64)
        self._engine.set_priorities(self._groups.slots(known), weights)
        self._waits.wake()
        return [uid for uid in checked if not self._groups.is_resident(uid)]

    async def patch(
        self, uid: int, *, tags: Mapping[str, Scalar] | None = None, **fields: Sequence[Any]
    ) -> None:
        """Give the rollouts of a group fields that come late, such as `reward=[1.0, 0.0]`: one value for each.

        A field that a rollout does not have goes into its `extra_fields`. Raises UnknownUid, InvalidArgument.
        """
        self._check_open()
        self._groups.patch(uid, fields, tags)

    # --- tell

    async def ledger(self) -> dict[str, dict[str, Amount]]:
        """Return, by task, where every group and token that was put is, or how it left."""
        self._check_open()
        return {name: task.ledger.amounts() for name, task in self._engine.tasks.items()}

    async def stats(self) -> Stats:
        """Return counts, histograms, wait times, rates and warnings."""
        self._check_open()
        return stats_of(self._groups, self._clock())

    async def metrics(self) -> dict[str, float]:
        """Return a flat dict of numbers, ready for W&B or TensorBoard."""
        self._check_open()
        return metrics_of(self._groups, self._clock())

    async def ack_lease(self, lease: int) -> None:
        """Acknowledge a lease by its id; what `Batch.ack` does."""
        self._check_open()
        try:
            self._leases.ack(lease)
        finally:
            self._waits.wake()

    async def nack_lease(self, lease: int) -> None:
        """Give a lease back by its id; what `Batch.nack` does."""
        if not self._closed:  # closing gives all back
            self._leases.nack(lease)
            self._waits.wake()

    async def close(self) -> None:
        """Close the buffer: leases come back, and every waiting or later call raises Closed."""
        self._leases.give_back_all()
        self._closed = True
        self._waits.wake()

    # --- inside

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the buffer was closed")
        self._pass_time()

    def _pass_time(self) -> None:
        """Let happen what happens by itself: leases, reservations and groups that are out come to their end."""
        now = self._clock()
        ended = self._groups.forget_overdue(now)
        ended |= self._leases.end_overdue(now)
        ended |= self._reservations.end_overdue(now)
        if ended:
            self._waits.wake()

    def _next_event(self) -> float | None:
        ends = (
            self._leases.next_deadline(),
            self._reservations.next_deadline(),
            self._groups.out.next_deadline(),
        )
        return min((end for end in ends if end is not None), default=None)

    def _wanted(self, sizes: Mapping[str, int]) -> dict[Task, int]:
        return {self._engine.task(name): max(n, 0) for name, n in checked_sizes(sizes).items()}

    def _is_ready(self, wanted: Mapping[Task, int], status: int) -> bool:
        return all(self._engine.available(task, status, n) >= n for task, n in wanted.items())

    def _check_can_be_met(self, wanted: Mapping[Task, int], status: int) -> None:
        if status != COMPLETED:
            return
        for task, n in wanted.items():
            settings = task.settings
            if settings.capacity is not None and n > settings.capacity:
                raise InvalidArgument(
                    f"{n} groups of task {task.name!r} can never be there at once: its capacity is {settings.capacity}"
                )
            if n > settings.limiter.window.largest_sample:
                raise InvalidArgument(
                    f"{n} groups of task {task.name!r} can never be taken at once: {settings.limiter} allows at most "
                    f"{settings.limiter.window.largest_sample:g}"
                )

    async def _until(
        self,
        what: str,
        queues: Mapping[Hashable, Task],
        possible: Callable[[], bool],
        deadline: float | None,
        wanted: str = "",
    ) -> None:
        """Wait in these queues, each of a task, until it is possible; count how long that took."""
        started = self._clock()
        if await self._wait(queues, possible, deadline, what + wanted):
            for task in queues.values():
                self._groups.flow.waited(what, task.name, self._clock() - started)

    async def _wait(
        self, queues: Iterable[Hashable], possible: Callable[[], bool], deadline: float | None, what: str
    ) -> bool:
        waited = await self._waits.until(
            queues,
            lambda: self._closed or self._is_possible(possible),
            deadline,
            lambda: self._timed_out(what),
        )
        self._check_open()
        return waited

    def _is_possible(self, possible: Callable[[], bool]) -> bool:
        if self._next_event() is not None:
            self._pass_time()
        return possible()

    async def _batch(
        self,
        sizes: Mapping[str, int],
        group_status: Status | str,
        wait: bool,
        timeout: float | None,
        train_step: int | None,
    ) -> tuple[dict[Task, int], int]:
        """Check what is wanted, wait for it if asked, and return how many groups can be handed out now, by task."""
        self._check_open()
        deadline = deadline_of(timeout)
        status = STATUS_CODE[Status.of(group_status)]
        wanted = self._wanted(sizes)
        step = checked_step("train_step", train_step)
        if wait:
            self._check_can_be_met(wanted, status)
            queues: dict[Hashable, Task] = {(status, task.name): task for task, n in wanted.items() if n}
            await self._until(
                "take",
                queues,
                lambda: self._is_ready(wanted, status),
                deadline,
                f" of {dict(sizes)} {group_status}",
            )
        for task in wanted:
            self._groups.learn_step(task, step)
        return {task: self._engine.available(task, status, n) for task, n in wanted.items()}, status

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
        ends = deadline_of(ttl_s)
        wanted, status = await self._batch(sizes, group_status, wait, timeout, train_step)
        lease, held = self._leases.lend(wanted, status, ends)
        self._waits.wake()
        self._waits.look_again()
        return Batch(self, lease, held)

    def _timed_out(self, what: str) -> str:
        tasks = {
            name: {
                status.value: len(task.pools[code])
                for status, code in STATUS_CODE.items()
                if len(task.pools[code])
            }
            for name, task in self._engine.tasks.items()
        }
        return f"{what} timed out; nothing was changed. The buffer holds {tasks}"


def _checked_order(order_by: str | None) -> str | None:
    if order_by is None:
        return None
    field = order_by.removeprefix("-") if isinstance(order_by, str) else order_by
    if field not in FIELDS:
        raise InvalidArgument(
            f"order_by must be one of {', '.join(FIELDS)}, with '-' for descending, not {order_by!r}"
        )
    return field
