"""Shared runtime of a buffer's verbs: open and closed, TTL expiry, waiting, delivery. The only module that waits."""

import logging
import math
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from reroll import forking
from reroll.buffer.arguments import checked_count, checked_reader, unknown_task
from reroll.buffer.group import Group, Payload
from reroll.buffer.groups import Groups
from reroll.buffer.handed import Handed
from reroll.buffer.journal import Columns, Damaged, Fetched, Journal
from reroll.buffer.leases import Leases
from reroll.buffer.out import Until
from reroll.buffer.records import SavedState, as_corrupt_data, entries_of, read_state
from reroll.buffer.reservations import Reservation, Reservations
from reroll.buffer.tracked import PutIds
from reroll.engine.ledger import Dropped, Spot
from reroll.engine.rewind import return_all
from reroll.engine.rows import NO_VERSION
from reroll.engine.state import rebuild_ledger, restore
from reroll.engine.task import RUNNING, STATUS_CODE, Task
from reroll.errors import Closed
from reroll.store import Store
from reroll.telemetry.health import HealthMonitor
from reroll.telemetry.metrics import Readers
from reroll.telemetry.stats import DiskUse, Stats, task_stats
from reroll.waiting import Signal, Waits

_log = logging.getLogger("reroll")

_OUTCOMES: Final = {
    "put": "no group was stored",
    "take": "no group was delivered",
    "sample": "no group was drawn",
    "reserve": "nothing was reserved",
}
"""State after a timeout. A training step that the call named is kept, and may have expired groups."""


class PayloadReader(Protocol):
    """Reads rollouts that are not in memory."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of rollouts in memory."""

    async def look(self, groups: Sequence[Group], columns: Columns = None) -> Fetched:
        """Load the rollouts of groups; return the uids of corrupt groups that are to be skipped."""

    def settle(self, groups: Iterable[Group]) -> None:
        """Unload rollouts that do not fit into memory, or were consumed."""

    def use(self) -> DiskUse:
        """Return the disk space in use."""


class Runtime:
    """State and clock of a buffer, and the way its verbs wait, deliver and persist."""

    def __init__(
        self,
        groups: Groups,
        waits: Waits,
        *,
        store: Store | None = None,
        max_resident_bytes: int | None = None,
        on_corrupt: Damaged = "raise",
        put_id_history: int = 65_536,
        allow_pickle: bool = False,
        on_drop: Callable[[list[Dropped]], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.groups = groups
        self.engine = groups.engine
        self.waits = waits
        self.clock = clock
        self.put_ids = PutIds(put_id_history)
        self.leases = Leases(groups)
        self.reservations = Reservations()
        self.health = HealthMonitor()
        self.allow_pickle = allow_pickle
        self.entries = entries_of(groups, self.leases, self.put_ids, allow_pickle=allow_pickle)
        self.disk: Journal | None = None
        self.payloads: PayloadReader | None = None
        """The disk, or the file of a read-only buffer; None: all rollouts are in memory."""
        self.is_closed = False
        self.is_resuming = False
        self.is_saving = False
        self._home = forking.here()
        self._closing: Signal | None = None  # while the store is being closed, and after that
        self._readers = Readers()
        self._on_drop = on_drop
        if on_drop is not None:
            self.engine.columns.dropped = []
            waits.report = self._drop_report
        waits.next_event = self._next_deadline
        groups.counters.started = clock()
        if store is not None:
            self._open_store(store, max_resident_bytes, on_corrupt)

    # --- open, restore, close

    def _open_store(self, store: Store, max_resident_bytes: int | None, on_corrupt: Damaged) -> None:
        """Load the buffer's state from `store`, then persist every later change to it."""
        with store.reader() as reader:
            skip = on_corrupt == "skip"
            saved = read_state(reader, self.entries, skip=skip, allow_pickle=self.allow_pickle)
            payloads = reader.payload_uids() if saved is not None and saved.damaged else []
        disk = Journal(
            store,
            self.groups,
            self.waits,
            entries=self.entries,
            small_state=self.small_state,
            max_resident_bytes=max_resident_bytes,
            on_corrupt=on_corrupt,
            allow_pickle=self.allow_pickle,
        )
        if saved is None or not saved.engine["last_uid"]:
            disk.drop_interrupted_import()
        self.groups.keeper = disk
        if saved is not None:
            self.restore(saved, store.path)  # rows that return to their pool are written with the next change
            if saved.damaged:
                lost = np.setdiff1d(payloads, [group.uid for group in saved.groups]).tolist()
                self.engine.columns.gone += [*saved.damaged, *lost]
            self.leases.recheck(saved.leased())
            self.groups.enforce_bounds()  # max_staleness may have changed in the configuration
        self.disk = self.payloads = disk

    def restore(self, saved: SavedState, path: Path) -> None:
        """Restore engine, groups, leases and put ids from `saved`.

        Raises InvalidConfig for another configuration and CorruptData for impossible values: then nothing has changed.
        """
        before = dict(vars(self.engine))
        try:
            with as_corrupt_data(path):
                restore(self.engine, saved.engine)
                home = return_all(self.engine)
                if saved.damaged:
                    rebuild_ledger(self.engine)
                evicted = self.engine.keep_limits()  # the configured limits may be lower now
        except BaseException:
            vars(self.engine).update(before)
            if self.engine.columns.dropped:
                self.engine.columns.dropped = []
            raise
        groups = self.groups
        groups.restore(saved.groups)
        groups.counters.restore(saved.small["flow"])
        groups.counters.started = self.clock()
        groups.restore_rules(saved.small["rules"])
        self.health = HealthMonitor()
        self.leases.last = saved.small["last_lease"]
        self.reservations.last = saved.small["last_reservation"]
        for each in self.entries:
            each.restore(saved.entries[each.kind])
        groups.out.returned = set(saved.small["returned"])
        groups.out.name.restore(saved.small["name"], Until(self.engine.last_uid, self.engine.last_tick))
        self.start_intervals()
        groups.come_home(home.back, np.concatenate([home.gone, evicted]))  # their holders are gone
        for task in self.engine.tasks.values():
            if not task.has_room(0):
                warnings.warn(
                    f"task {task.name!r} holds {len(task.completed)} COMPLETED groups, above its capacity of "
                    f"{task.settings.capacity}: all are kept, and puts wait until there is room; raise the capacity, or "
                    "configure a remover",
                    UserWarning,
                    stacklevel=2,
                )

    def small_state(self) -> dict[str, Any]:
        """Return the persisted state that is not stored as rows, leases or put ids."""
        return {
            "flow": self.groups.counters.tasks,
            "rules": self.groups.rules_state(),
            "last_lease": self.leases.last,
            "last_reservation": self.reservations.last,
            "returned": sorted(self.groups.out.returned),
            "name": self.groups.out.name.state(),
        }

    async def close(self) -> None:
        """End all leases, wake all waiters, and close the store."""
        if forking.is_elsewhere(self._home):
            return  # a forked child has nothing to close
        if self.is_closed:
            if self._closing is not None:
                await self._closing.wait()
            return
        self.leases.end_all()
        self.is_closed = True
        self.waits.wake()
        if self.disk is not None:
            self._closing = self.waits.signal()
            try:
                await self.waits.to_the_end(self.disk.close())
            finally:
                self._closing.set()

    def check_process(self) -> None:
        """Raise RuntimeError in a forked child."""
        forking.check(self._home, "the buffer")

    def check_open(self) -> None:
        """Raise Closed or StoreFailed if verbs cannot run; expire leases, reservations and checkouts."""
        self.check_process()
        if self.is_closed:
            raise Closed("the buffer was closed")
        if self.is_resuming:
            raise Closed("resume() is in progress; await it before calling other methods")
        if self.disk is not None:
            self.disk.raise_if_failed()
        self.expire_deadlines()

    # --- time

    def expire_deadlines(self) -> None:
        """End leases, reservations and checkouts whose TTL has passed."""
        now = self.clock()
        ended = self.groups.forget_overdue(now)
        ended |= self.leases.end_overdue(now)
        ended |= self.reservations.end_overdue(now)
        if ended:
            self.waits.wake()

    def deadline_after(self, ttl_s: float | None) -> float | None:
        """Return the time, by the buffer's clock, at which a TTL that starts now has passed."""
        return None if ttl_s is None or ttl_s == math.inf else self.clock() + ttl_s

    def _next_deadline(self) -> float | None:
        first = self.leases.next_deadline()
        for end in (self.reservations.next_deadline(), self.groups.out.next_deadline()):
            if end is not None and (first is None or end < first):
                first = end
        return first

    def notify(self) -> None:
        """Wake waiters that can proceed; wake sleepers if the next deadline may have moved earlier."""
        self.waits.wake()
        if self._next_deadline() is not None:
            self.waits.look_again()

    # --- waiting

    async def wait_recorded(
        self,
        verb: str,
        queues: Mapping[Hashable, Task],
        possible: Callable[[], bool],
        deadline: float | None,
        wanted: Callable[[], str] = str,
        *,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """Wait in queues until a call is possible, and count the wait for their tasks.

        Args:
            verb: a key of `waits` in the stats.
            queues: the task of each queue.
            possible: whether the call can proceed.
            deadline: time of `time.monotonic` at which WaitTimeout is raised.
            wanted: text for the error.
            prepare: runs when the call is possible; if that makes it impossible, the wait continues.

        """
        started, waited, counters = self.clock(), False, self.groups.counters
        call = counters.begin_wait(verb, [task.name for task in queues.values()], started)
        try:
            while True:
                waited |= await self.wait(
                    queues,
                    possible,
                    deadline,
                    lambda: f"{verb}{wanted()} timed out; {_OUTCOMES[verb]}.",
                    queues.values(),
                )
                if prepare is None:
                    break
                prepare()
                if possible():
                    break
                self.waits.wake()  # expired groups have made room
        finally:
            counters.end_wait(call, self.clock())
        for task in queues.values() if waited else ():
            counters.count_wait(verb, task.name, self.clock() - started)

    async def wait(
        self,
        queues: Iterable[Hashable],
        possible: Callable[[], bool],
        deadline: float | None,
        what: Callable[[], str],
        tasks: Iterable[Task] = (),
    ) -> bool:
        """Wait in queues until a call is possible; return whether it had to wait. Raises WaitTimeout, Closed."""

        def can_proceed() -> bool:
            if self.is_closed or (self.disk is not None and self.disk.error is not None):
                return True
            if self._next_deadline() is not None:
                self.expire_deadlines()
            return possible()

        waited = await self.waits.until(
            queues, can_proceed, deadline, lambda: self._timeout_text(what(), tasks)
        )
        self.check_open()
        return waited

    async def pause(self) -> None:
        """Let other calls run. Raises Closed if one of them closed the buffer."""
        await self.waits.pause()
        self.check_open()

    def _timeout_text(self, what: str, tasks: Iterable[Task]) -> str:
        known = self.engine.known_tasks()
        for task in tasks:
            if task.name not in known:
                return (
                    f"{what} Task {task.name!r} is unknown: it has no group, and the configuration does not name it; "
                    + unknown_task(task.name, known)
                )
        held = {
            name: {
                status.value: len(task.pools[code])
                for status, code in STATUS_CODE.items()
                if len(task.pools[code])
            }
            for name, task in self.engine.tasks.items()
        }
        places = min((task.places_left() for task in tasks), default=math.inf)
        waits = (
            ""
            if places == math.inf
            else f" At most {max(0, places)} groups may be trained before running ones are put."
        )
        return f"{what}{waits} The buffer holds {held}"

    # --- delivery and persistence

    async def persist(self) -> None:
        """Return when all changes so far are on disk, if the buffer is durable."""
        self.waits.flush()
        if self.disk is not None:
            await self.disk.written()

    async def deliver(
        self, handed: Sequence[Handed], undo: Callable[[], None], columns: Sequence[str] | None = None
    ) -> list[list[Payload]] | None:
        """Persist deliveries, then return their rollouts with these further columns. On cancellation call `undo`.

        Returns None if some groups were corrupt: they are counted as lost, and the caller must select again.
        """
        for given in handed:
            given.columns = columns
            self.groups.count_handed(given)
        if self.disk is None:
            return [self.groups.hand_over(given) for given in handed]
        groups = [group for given in handed for group in given.groups]
        room = list(map(self.groups.keep_room, handed))
        try:
            damaged, parts = await self.disk.secure(groups, columns)
        except BaseException:
            self._free_room(handed, room)
            undo()
            self.notify()
            self.disk.write_soon()  # the delivery may be on disk already
            raise
        self._free_room(handed, room)
        if damaged and all(map(self.groups.can_take_back, handed)):
            self.disk.release(groups)
            undo()
            self.groups.lose(damaged)
            self.disk.settle(groups)
            self.notify()
            await self.disk.written()
            return None
        try:
            for given in handed:  # too late to undo
                given.parts = parts
                self.groups.leave_out(given, damaged)
            shown = [self.groups.hand_over(given) for given in handed]
        finally:
            self.disk.release(groups)
        for given in handed:
            self.groups.let_go(given)
            self.disk.settle(given.groups)
        if any(len(given.consumed) for given in handed):
            self.waits.wake()  # puts that waited for room
        self.waits.flush()
        return shown

    def _free_room(self, handed: Sequence[Handed], room: Sequence[int]) -> None:
        for given, num_bytes in zip(handed, room, strict=True):
            self.groups.free_room(given, num_bytes)

    def consume_reservation(self, reservation: Reservation | None, put_id: Hashable) -> None:
        """Consume one group of a reservation for a put that was carried out before, or on another shard."""
        if self.reservations.settle(reservation, put_id):
            self.waits.wake()

    def started(self, running: Reservation | int) -> tuple[Task, int] | None:
        """Return the task of a running group and the version that it counts from; None if it is not running."""
        if isinstance(running, Reservation):
            self.reservations.check(running, running.task_name)
            return self.reservations.started(running.id)
        slot = int(self.groups.all_slots([checked_count("running", running)])[0])
        columns = self.engine.columns
        if slot < 0 or Spot(columns.status.item(slot), columns.place.item(slot)) not in RUNNING:
            return None
        task = list(self.engine.tasks.values())[columns.task.item(slot)]
        window, version = task.settings.window, columns.version.item(slot)
        is_resumed = window is not None and window.stragglers == "resume"
        return task, task.serving_version if is_resumed or version == NO_VERSION else version

    # --- telemetry

    def stats(self) -> Stats:
        """Return the stats of the buffer, without warnings."""
        now, started = self.clock(), self.groups.counters.started
        in_memory = sum(task.num_bytes for task in self.engine.tasks.values())
        return Stats.of(
            task_stats(self.engine, self.groups.counters, now),
            leases=len(self.leases),
            open_leases=self.leases.open_leases(now),
            reservations=len(self.reservations),
            max_bytes=self.engine.max_bytes,
            memory_bytes=in_memory if self.payloads is None else self.payloads.resident_bytes,
            disk=None if self.payloads is None else self.payloads.use(),
            uptime_s=None if started is None else now - started,
        )

    def interval(self, reader: str | None) -> tuple[Stats, Stats]:
        """Return the stats since the beginning, and since the previous call of a reader."""
        name, stats = checked_reader(reader), self.stats()
        return stats, self._readers.interval(stats, name)

    def start_intervals(self) -> None:
        """Start the intervals of all readers now."""
        self._readers = Readers(self.stats())

    def _drop_report(self) -> Callable[[], None] | None:
        """Return a call that passes the groups dropped since the last report to `on_drop`; None without any."""
        dropped, on_drop = self.engine.columns.dropped, self._on_drop
        if not dropped or on_drop is None:
            return None
        self.engine.columns.dropped = []

        def report() -> None:
            try:
                on_drop(dropped)
            except Exception:  # noqa: BLE001  (of the user's function)
                _log.exception("on_drop failed for %d dropped groups; the buffer goes on", len(dropped))

        return report
