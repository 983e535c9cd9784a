"""What all verbs of a buffer share: it is open, time passes, and they wait. The only place that waits."""

import logging
import math
import time
import warnings
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from reroll import forking
from reroll.buffer.arguments import unknown_task
from reroll.buffer.groups import Groups
from reroll.buffer.handed import Handed
from reroll.buffer.journal import Damaged, Journal
from reroll.buffer.leases import Leases
from reroll.buffer.out import Until
from reroll.buffer.records import SavedState, as_corrupt_data, entries_of, read_state
from reroll.buffer.reservations import Reservation, Reservations
from reroll.buffer.tracked import PutIds
from reroll.engine.ledger import Dropped
from reroll.engine.rewind import return_all
from reroll.engine.state import rebuild_ledger, restore
from reroll.engine.task import STATUS_CODE, Task
from reroll.errors import Closed
from reroll.store import Store
from reroll.telemetry.health import HealthMonitor
from reroll.telemetry.metrics import Readers
from reroll.telemetry.stats import DiskUse, Stats, task_stats
from reroll.waiting import Signal, Waits

_log = logging.getLogger("reroll")


_OUTCOMES: Final = {
    "put": "no group was stored",
    "take": "no group was handed out",
    "sample": "no group was drawn",
    "reserve": "nothing was reserved",
}
"""What a wait that timed out did not do. A training step that the call named stays learned, and may have expired groups."""


class Shell:
    """The state of a buffer, and how its verbs wait."""

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
        self._groups = groups
        self._engine = groups.engine
        self._waits = waits
        self._clock = clock
        self._home = forking.here()
        self._closed = False
        self._closing: Signal | None = None  # while the store is being closed, and after that
        self._is_resuming = False
        self._is_saving = False
        self._put_ids = PutIds(put_id_history)
        self._leases = Leases(groups)
        self._entries = entries_of(groups, self._leases, self._put_ids, allow_pickle=allow_pickle)
        self._reservations = Reservations()
        self._health = HealthMonitor()
        self._readers = Readers()
        self._disk: Journal | None = None
        self._allow_pickle = allow_pickle
        self._on_drop = on_drop
        if on_drop is not None:
            self._engine.dropped = []
            waits.report = self._drop_report
        waits.next_event = self._next_event
        groups.counters.started = clock()
        if store is not None:
            self._keep_in(store, max_resident_bytes, on_corrupt)

    # --- on disk

    def _keep_in(self, store: Store, max_resident_bytes: int | None, on_corrupt: Damaged) -> None:
        """Be what a store holds, and write every change to it from now on."""
        skip = on_corrupt == "skip"
        with store.reader() as reader:
            saved = read_state(reader, self._entries, skip=skip, allow_pickle=self._allow_pickle)
            payloads = reader.payload_uids() if saved is not None and saved.damaged else []
        disk = Journal(
            store,
            self._groups,
            self._waits,
            entries=self._entries,
            small_state=self._rest,
            max_resident_bytes=max_resident_bytes,
            on_corrupt=on_corrupt,
            allow_pickle=self._allow_pickle,
        )
        if saved is None or not saved.engine["last_uid"]:
            disk.drop_interrupted_import()
        self._groups.keeper = disk
        if saved is not None:
            self._become(saved, store.path)  # the next commit writes rows that returned
            if saved.damaged:
                lost = np.setdiff1d(payloads, [group.uid for group in saved.groups]).tolist()
                self._engine.columns.gone += [*saved.damaged, *lost]
            self._leases.recheck(saved.leased())
            self._groups.enforce_bounds()  # they may be configured since
        self._disk = disk

    def _become(self, saved: SavedState, path: Path) -> None:
        """Be what is remembered in a file.

        Raises InvalidConfig if the configuration is another, CorruptData for what cannot be: nothing has changed then.
        """
        before = dict(vars(self._engine))
        try:
            with as_corrupt_data(path):
                restore(self._engine, saved.engine)
                home = return_all(self._engine)
                if saved.damaged:
                    rebuild_ledger(self._engine)
                evicted = self._engine.keep_limits()  # those of now, which may be lower
        except BaseException:
            vars(self._engine).update(before)
            if self._engine.dropped:
                self._engine.dropped = []
            raise
        self._groups.restore(saved.groups)
        self._groups.counters.restore(saved.small["flow"])
        self._groups.counters.started = self._clock()
        self._health = HealthMonitor()
        self._readers = Readers(self._stats())
        self._groups.restore_rules(saved.small["rules"])
        self._leases.last = saved.small["last_lease"]
        self._reservations.last = saved.small["last_reservation"]
        for each in self._entries:
            each.restore(saved.entries[each.kind])
        self._groups.out.returned = set(saved.small["returned"])
        until = Until(self._engine.last_uid, self._engine.last_tick)
        self._groups.out.name.restore(saved.small["name"], until)
        self._groups.come_home(home.back, np.concatenate([home.gone, evicted]))  # whoever had them is no more
        for task in self._engine.tasks.values():
            if not task.has_room(0):
                warnings.warn(
                    f"task {task.name!r} holds {len(task.completed)} COMPLETED groups, above its capacity of "
                    f"{task.settings.capacity}: all are kept, and puts wait until there is room; raise the capacity, or "
                    "configure a remover",
                    UserWarning,
                    stacklevel=2,
                )

    def _rest(self) -> dict[str, Any]:
        """Return what is to be remembered beside engine, groups, leases and put ids."""
        return {
            "flow": self._groups.counters.tasks,
            "rules": self._groups.rules_state(),
            "last_lease": self._leases.last,
            "last_reservation": self._reservations.last,
            "returned": sorted(self._groups.out.returned),
            "name": self._groups.out.name.state(),
        }

    def _stats(self) -> Stats:
        now, started = self._clock(), self._groups.counters.started
        return Stats.of(
            task_stats(self._engine, self._groups.counters, now),
            leases=len(self._leases),
            open_leases=self._leases.open_leases(now),
            reservations=len(self._reservations),
            max_bytes=self._engine.max_bytes,
            memory_bytes=self._memory_bytes(),
            disk=self._disk_use(),
            uptime_s=None if started is None else now - started,
        )

    def _memory_bytes(self) -> int:
        if self._disk is None:
            return sum(task.num_bytes for task in self._engine.tasks.values())
        return self._disk.resident_bytes

    def _disk_use(self) -> DiskUse | None:
        return None if self._disk is None else disk_use(self._disk.store.path, self._disk.store.commits)

    def _drop_report(self) -> Callable[[], None] | None:
        """Return a call that gives the groups dropped since the last report to `on_drop`, None without any."""
        dropped, on_drop = self._engine.dropped, self._on_drop
        if not dropped or on_drop is None:
            return None
        self._engine.dropped = []

        def report() -> None:
            try:
                on_drop(dropped)
            except Exception:  # noqa: BLE001  (of the user's function)
                _log.exception("on_drop failed for %d dropped groups; the buffer goes on", len(dropped))

        return report

    async def _written(self) -> None:
        """Return when all that changed so far is on disk, where it is kept there."""
        self._waits.flush()
        if self._disk is not None:
            await self._disk.written()

    async def _deliver(
        self, handed: Sequence[Handed], undo: Callable[[], None]
    ) -> list[list[list[Any]]] | None:
        """Return the rollouts of what is handed out, when that is on disk; whoever is cancelled meanwhile got nothing.

        Return None if some are damaged and to be passed over: they are given up, and the caller chooses anew.
        """
        for given in handed:
            self._groups.count_handed(given)
        if self._disk is None:
            return [self._groups.hand_over(given) for given in handed]
        groups = [group for given in handed for group in given.groups]
        room = list(map(self._groups.keep_room, handed))
        try:
            damaged = await self._disk.secure(groups)
        except BaseException:
            self._free_room(handed, room)
            undo()
            self._changed()
            self._disk.write_soon()  # what is undone may be on disk already
            raise
        self._free_room(handed, room)
        if damaged and all(map(self._groups.can_take_back, handed)):
            self._disk.release(groups)
            undo()
            self._groups.lose(damaged)
            self._disk.settle(groups)
            self._changed()
            await self._disk.written()
            return None
        try:
            for given in handed:  # final already
                self._groups.leave_out(given, damaged)
            shown = [self._groups.hand_over(given) for given in handed]
        finally:
            self._disk.release(groups)
        for given in handed:
            self._groups.let_go(given)
            self._disk.settle(given.groups)
        if any(len(given.consumed) for given in handed):
            self._waits.wake()  # puts that waited for their room
        self._waits.flush()
        return shown

    def _free_room(self, handed: Sequence[Handed], room: Sequence[int]) -> None:
        for given, num_bytes in zip(handed, room, strict=True):
            self._groups.free_room(given, num_bytes)

    def __len__(self) -> int:
        """Return how many groups are resident, whatever their status."""
        forking.check(self._home, "the buffer")
        if not self._closed:
            self._pass_time()
        return len(self._groups)

    def __bool__(self) -> bool:
        return True  # also when it is empty

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<{type(self).__name__}: {len(self._groups)} groups, {len(self._engine.tasks)} tasks{state}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the buffer: leases come back, and every waiting or later call raises Closed.

        A second call returns when the first has ended; so does a cancelled one.
        """
        if forking.is_elsewhere(self._home):
            return  # a forked child has nothing to close
        if self._closed:
            if self._closing is not None:
                await self._closing.wait()
            return
        self._leases.end_all()
        self._closed = True
        self._waits.wake()
        if self._disk is not None:
            self._closing = self._waits.signal()
            try:
                await self._waits.to_the_end(self._disk.close())
            finally:
                self._closing.set()

    def _check_open(self) -> None:
        forking.check(self._home, "the buffer")
        if self._closed:
            raise Closed("the buffer was closed")
        if self._is_resuming:
            raise Closed(
                "the buffer resumes what was saved, and takes no calls until that is done; await it first"
            )
        if self._disk is not None:
            self._disk.raise_if_failed()
        self._pass_time()

    def _pass_time(self) -> None:
        """Let happen what happens by itself: leases, reservations and groups that are out come to their end."""
        now = self._clock()
        ended = self._groups.forget_overdue(now)
        ended |= self._leases.end_overdue(now)
        ended |= self._reservations.end_overdue(now)
        if ended:
            self._waits.wake()

    def _changed(self) -> None:
        """Wake whoever may go on, and let sleepers know if something ends by itself sooner than they think."""
        self._waits.wake()
        if self._next_event() is not None:
            self._waits.look_again()

    def _end_of(self, ttl_s: float | None) -> float | None:
        """Return when, by the buffer's clock, a time to live that starts now is over."""
        return None if ttl_s is None or ttl_s == math.inf else self._clock() + ttl_s

    def _next_event(self) -> float | None:
        first = self._leases.next_deadline()
        for end in (self._reservations.next_deadline(), self._groups.out.next_deadline()):
            if end is not None and (first is None or end < first):
                first = end
        return first

    async def _until(
        self,
        what: str,
        queues: Mapping[Hashable, Task],
        possible: Callable[[], bool],
        deadline: float | None,
        wanted: Callable[[], str] = str,
        *,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """Wait in these queues, each of a task, until it is possible; count how long that took.

        `prepare` is done when it is possible, and may make it impossible again: then the wait goes on.
        """
        started, waited, counters = self._clock(), False, self._groups.counters
        call = counters.begin_wait(what, [task.name for task in queues.values()], started)
        try:
            while True:
                waited |= await self._wait(
                    queues,
                    possible,
                    deadline,
                    lambda: f"{what}{wanted()} timed out; {_OUTCOMES[what]}.",
                    queues.values(),
                )
                if prepare is None:
                    break
                prepare()
                if possible():
                    break
                self._waits.wake()  # whatever went has made room
        finally:
            counters.end_wait(call, self._clock())
        for task in queues.values() if waited else ():
            counters.count_wait(what, task.name, self._clock() - started)

    async def _wait(
        self,
        queues: Iterable[Hashable],
        possible: Callable[[], bool],
        deadline: float | None,
        what: Callable[[], str],
        tasks: Iterable[Task] = (),
    ) -> bool:
        waited = await self._waits.until(
            queues,
            lambda: self._closed or self._has_failed() or self._is_possible(possible),
            deadline,
            lambda: self._timed_out(what(), tasks),
        )
        self._check_open()
        return waited

    def _has_failed(self) -> bool:
        return self._disk is not None and self._disk.error is not None

    def _is_possible(self, possible: Callable[[], bool]) -> bool:
        if self._next_event() is not None:
            self._pass_time()
        return possible()

    def _timed_out(self, what: str, tasks: Iterable[Task]) -> str:
        known = self._engine.known_tasks()
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
            for name, task in self._engine.tasks.items()
        }
        return f"{what} The buffer holds {held}"


def disk_use(path: Path, commits: int = 0) -> DiskUse:
    """Return the disk space of a file and its log."""
    sizes = [file.stat().st_size if file.exists() else 0 for file in (path, Path(f"{path}-wal"))]
    return DiskUse(file_bytes=sizes[0], log_bytes=sizes[1], commits=commits)


def settle_in(buffer: Shell, reservation: Reservation, put_id: Hashable) -> None:
    """Let a reservation have one group less: the group was put elsewhere, and is told by its put id."""
    if buffer._reservations.settle(reservation, put_id):  # noqa: SLF001  (of this module)
        buffer._waits.wake()  # noqa: SLF001


def knows_put(buffer: Shell, put_id: Hashable) -> bool:
    """Return whether a put of this id was carried out in a buffer."""
    return put_id in buffer._put_ids  # noqa: SLF001  (of this module)


def has_stale(buffer: Shell, lease: int) -> bool:
    """Return whether COMPLETED groups of a lease have passed `max_staleness` since they were lent."""
    return buffer._leases.has_stale(lease)  # noqa: SLF001  (of this module)


def open_in(buffer: Shell) -> tuple[Container[int], Container[int]]:
    """Return which leases and which reservations are open in a buffer, for whoever holds them in the name of others."""
    return buffer._leases, buffer._reservations  # noqa: SLF001  (of this module)
