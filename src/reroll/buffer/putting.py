"""The verbs of producers: put, and the leave to start."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from reroll.buffer.arguments import (
    checked_count,
    checked_flag,
    checked_id,
    checked_step,
    checked_task,
)
from reroll.buffer.journal import Encoded
from reroll.buffer.packed import Packed
from reroll.buffer.put import Put
from reroll.buffer.reservations import Reservation
from reroll.buffer.shell import Shell
from reroll.errors import InvalidArgument, shown
from reroll.query import Scalar
from reroll.rollout import Status, check_threshold
from reroll.waiting import deadline_of, read_seconds


class Putting(Shell):
    """For producers."""

    async def put(
        self,
        items: Sequence[Any] | Packed,
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
            expired_groups_retryable: whether a group that expires, or arrives EXPIRED, is kept to be rolled again, or dropped.
            priority: weight of the group for samplers that look at it; None: 1.
            tags: names and values to query by.
            uid: the group that these rollouts continue, if they do not say so themselves: see `Rollout.checkout`.
            put_id: a put of an id that was seen before stores nothing, and returns what the first one returned; unless
                its group is out, and comes back with other tokens or another status.
            reservation: what `reserve` gave; this group is one of its. One that has ended by time is as none.
            timeout: seconds to wait at most.

        Raises InvalidArgument (naming rollout and field), Superseded (another producer has this group), WaitTimeout,
        Closed: then nothing has changed.

        """
        self._check_open()
        deadline = deadline_of(timeout)
        task_name = checked_task(task_name)
        checked_id("put_id", put_id)
        is_reserved = self._reservations.check(reservation, task_name)
        is_known = put_id is not None and put_id in self._put_ids
        if is_known and not self._groups.may_be_continued:
            return await self._known(put_id, reservation)
        if (
            type(items) is list or (not isinstance(items, str | Packed) and isinstance(items, Sequence))
        ) and not items:
            return None
        plan = self._groups.plan_put(
            items,
            task_name,
            model_step=checked_step("model_step", model_step),
            current_train_step=checked_step("current_train_step", current_train_step),
            stale_threshold=check_threshold("stale_threshold", stale_threshold),
            token_stale_threshold=check_threshold("token_stale_threshold", token_stale_threshold),
            expired_groups_retryable=checked_flag("expired_groups_retryable", expired_groups_retryable),
            priority=priority,
            tags=tags,
            uid=None if uid is None else checked_count("uid", uid),
        )
        if is_known and not self._groups.has_grown(plan):
            return await self._known(put_id, reservation)
        self._groups.check_turn(plan)
        if self._disk is None:
            return await self._carry_out(plan, put_id, reservation, deadline, is_reserved=is_reserved)
        self._disk.check_ids(plan.summary.group_id, put_id)
        encoded = await self._disk.encode(plan.items, deadline)
        try:
            self._check_open()
            return await self._carry_out(
                plan, put_id, reservation, deadline, is_reserved=is_reserved, encoded=encoded
            )
        finally:
            encoded.held.release()

    async def _carry_out(
        self,
        plan: Put,
        put_id: Hashable,
        reservation: Reservation | None,
        deadline: float | None,
        *,
        is_reserved: bool,
        encoded: Encoded | None = None,
    ) -> int | None:
        queue = ("put", plan.task.name)

        def is_done() -> bool:
            """Tell whether another call of this id has carried it out: its group is here, and is not out to be rolled on."""
            return put_id is not None and put_id in self._put_ids and not self._groups.has_grown(plan)

        # Who need not wait is spared the way there, which is a tenth of a put.
        may_wait = not is_reserved and plan.decide().status is Status.COMPLETED
        if may_wait and (self._waits.waiting(queue) or not self._groups.can_put(plan)):
            await self._until(
                "put",
                {queue: plan.task},
                lambda: is_done() or self._groups.can_put(plan),
                deadline,
            )
        if is_done():  # while this one waited
            return await self._known(put_id, reservation)
        self._groups.check_turn(plan, has_waited=True)
        stored = self._groups.put(plan)
        if self._disk is not None:
            self._disk.check_row(stored)
        self._reservations.settle(reservation, put_id)
        if put_id is not None:
            self._put_ids.add(put_id, stored)
        self._waits.wake()
        if self._disk is not None and encoded is not None:
            self._disk.add(stored, encoded)
            await self._disk.written()
        return stored

    async def _known(self, put_id: Hashable, reservation: Reservation | None) -> int | None:
        """Return what the first put of an id returned; who has reserved a group for another one has no use for it."""
        if self._reservations.settle(reservation, put_id):
            self._waits.wake()
        uid = self._put_ids[put_id]
        await self._written()  # the first one may still wait for that
        return uid

    async def reserve(
        self, n: int, task_name: str, *, timeout: float | None = None, ttl_s: float | None = None
    ) -> Reservation:
        """Wait until n groups may be started so that all can be trained in time; see `StalenessWindow`.

        Each group is settled by `put(..., reservation=...)`, the rest by `release` or after `ttl_s` seconds. Without a
        window it is granted at once. Raises InvalidArgument for more than the window ever allows, WaitTimeout, Closed.
        """
        self._check_open()
        deadline = deadline_of(timeout)
        ttl_s = read_seconds(ttl_s, "ttl_s")  # it starts when the reservation is granted
        count = checked_count("n", n)
        task = self._engine.named(checked_task(task_name))
        window = task.settings.window
        if count < 1 or (window is not None and count > window.largest):
            raise InvalidArgument(
                f"n must be at least 1{'' if window is None else f', and at most {window.largest} under {window}'}, not {count}"
            )
        await self._until(
            "reserve",
            {
                object(): task
            },  # a queue for each: a large one that waits must not hold up a small one that can go on
            lambda: task.may_start() >= count,
            deadline,
            lambda: f" of {count} groups, of which {task.explain_start()},",
        )
        reservation = self._reservations.make(task, count, self._end_of(ttl_s))
        self._changed()
        try:
            await self._written()  # its number is never given again
        except BaseException:
            self._reservations.release(reservation)
            self._waits.wake()
            raise
        return reservation

    async def release(self, reservation: Reservation) -> int:
        """Give up the groups of a reservation that were not put; return how many those were."""
        self._check_open()
        if not isinstance(reservation, Reservation):
            raise InvalidArgument(f"reservation must be the result of reserve(), not {shown(reservation)}")
        self._reservations.check(reservation, reservation.task_name)
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
        current = done - done % self._engine.sync_interval if serving is None else serving
        self._engine.version = max(current, self._engine.version or 0)
        for task in (*self._engine.tasks.values(), *self._engine.named_tasks()):
            self._groups.learn_step(task, done)
            task.advance(done, serving)
        self._waits.wake()
        await self._written()

    async def version(self) -> int | None:
        """Return the version of the weights that serve, None before the first `advance`.

        `advance` raises it, and `rewind(k)` sets it to k. It survives a restart, `save` and `resume`. O(1).

        Example: `version = await buffer.version()`, before generating; then `put(..., model_step=version)`.

        """
        self._check_open()
        return self._engine.version

    async def wait_version(self, v: int, timeout: float | None = None) -> int:
        """Wait until the weights of version `v` or a later one serve.

        Args:
            v: the version to wait for.
            timeout: seconds to wait at most.

        Returns:
            The version that serves. A later `rewind` may set it back.

        Raises:
            InvalidArgument: `v` is not an integer of at least 0.
            WaitTimeout: the version was not reached in time.
            Closed: the buffer was closed.

        Example: `await buffer.wait_version(3, timeout=600)`.

        """
        self._check_open()
        deadline = deadline_of(timeout)
        wanted = checked_step("v", v)
        if wanted is None:
            raise InvalidArgument("v must be a version, not None; name the version to wait for")
        engine = self._engine
        await self._wait(  # in a queue of its own: waiters for a version hold up no other call
            [object()],
            lambda: engine.version is not None and engine.version >= wanted,
            deadline,
            lambda: (
                f"wait_version({wanted}) timed out: version {engine.version} serves; nothing was changed."
            ),
        )
        assert engine.version is not None  # noqa: S101  (it was reached)
        return engine.version
