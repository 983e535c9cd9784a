"""A durable buffer's other half: every change of rows, and every payload, goes to a store before a call returns.

Calls change the buffer first, and then wait here until that is written. What changes while a commit runs is gathered
into the next one, so that many calls share it, and the event loop never waits for the disk.
"""

import math
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import islice
from os import PathLike
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from reroll.buffer.group import Group
from reroll.buffer.groups import Groups
from reroll.buffer.leases import Leases
from reroll.buffer.packed import Packed
from reroll.buffer.put_ids import PutIds
from reroll.buffer.recording import (
    GIVEN_UP,
    PUT_ID,
    STATE,
    check_row,
    read_rollouts,
    write_group_id,
    write_put,
    write_rows,
    write_small,
    write_use,
)
from reroll.buffer.references import HOLDER, OBJECT, Held, References
from reroll.codec import encode
from reroll.errors import CorruptData, NotStorable, RerollError, StoreFailed
from reroll.store import (
    MAX_PAYLOAD_BYTES,
    ROW,
    Blob,
    Change,
    Record,
    Saved,
    Store,
    copy_of,
    find_saved,
    write_error,
    write_snapshot,
)
from reroll.waiting import Signal, Waits

Damaged = Literal["raise", "skip"]
"""What to do about a group whose payload was altered on disk."""

_ROOT: Final = "rollouts"
_AT_ONCE: Final = 64
"""Groups of one commit when a store takes over a whole buffer."""


class Encoded(NamedTuple):
    """Rollouts as bytes, and the references in them, which are to be released when these are stored or given up."""

    blob: Blob
    held: Held


class _Commit:
    """What one commit holds, and whom it matters to."""

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.error: BaseException | None = None
        self.is_over = False
        self.groups: dict[int, Group] = {}  # by uid, whose rollouts are in it


class Disk:
    """Writes what changed, and reads rollouts that are not in memory."""

    def __init__(
        self,
        store: Store,
        groups: Groups,
        waits: Waits,
        *,
        leases: Leases,
        put_ids: PutIds,
        rest: Callable[[], dict[str, Any]],
        max_resident_bytes: int | None,
        on_corrupt: Damaged,
        allow_pickle: bool,
    ) -> None:
        self.store = store
        self._groups = groups
        self._leases = leases
        self._put_ids = put_ids
        self._waits = waits
        self._rest = rest  # the small state beside the engine's
        self._max_resident_bytes = max_resident_bytes
        self._on_corrupt: Damaged = on_corrupt
        self._allow_pickle = allow_pickle
        self._references = References(self._read_object, allow_pickle=allow_pickle)
        with store.reader() as reader:
            self._references.restore(reader.records(HOLDER))
        self._taken_over: list[Record] = []  # records that are written with the next state
        self._error: RerollError | None = None
        self._blobs: dict[int, Blob] = {}  # by uid, not yet handed to the store
        self._sizes: dict[int, int] = {}  # of groups whose rollouts are in memory
        self._resident = 0
        self._held: Counter[int] = Counter()  # groups that are about to be shown
        self._all_shown: Signal | None = None  # for whoever closes, and waits for that
        self._pinned: Counter[int] = Counter()  # payloads that are being read, and stay until then
        self._now: _Commit | None = None  # being written
        self._next: _Commit | None = None  # gathering
        self._last_state = b""
        self.watch()

    def _read_object(self, number: int) -> bytes:
        with self.store.reader() as reader:
            return reader.record(OBJECT, number)

    def watch(self) -> None:
        """Learn from now on what changes."""
        columns = self._groups.engine.columns
        if columns.dirty is None:
            columns.dirty = set()
        self._leases.changed = set()
        self._put_ids.committed()
        self._groups.out.changed = set()

    # --- writing

    async def encode(self, items: Sequence[Any] | Packed, deadline: float | None = None) -> Encoded:
        """Return rollouts as bytes, when what their references stand for is here as well.

        Raises NotStorable, with the path to what cannot be stored, and WaitTimeout.
        """
        encoded = self._encode(items)
        if self._references.missing(encoded.held):
            try:
                await self._waits.apart(lambda: self._references.fetch(encoded.held, deadline))
            except BaseException:
                encoded.held.release()
                raise
        return encoded

    def encode_now(self, items: Sequence[Any]) -> Encoded:
        """Do the same at once; for rollouts whose references are stored already, or it waits for Ray."""
        encoded = self._encode(items)
        self._references.fetch(encoded.held)
        return encoded

    def _encode(self, items: Sequence[Any] | Packed) -> Encoded:
        held = Held(self._references)
        try:
            if isinstance(items, Packed):
                blob = items.blob
            else:
                blob = encode(list(items), refs=held, root=_ROOT, allow_pickle=self._allow_pickle)
            if len(blob) > MAX_PAYLOAD_BYTES:
                raise NotStorable(  # noqa: TRY301  (as any other)
                    f"{_ROOT}: they take {len(blob)} bytes, and a group of {MAX_PAYLOAD_BYTES} can be stored; split it"
                )
        except BaseException:
            held.release()
            raise
        return Encoded(blob, held)

    def check_ids(self, group_id: Any, put_id: Any) -> None:
        """Raise NotStorable for ids that could not be written."""
        if group_id is not None and type(group_id) not in (str, int):
            write_group_id(group_id, allow_pickle=self._allow_pickle)
        if put_id is not None and type(put_id) not in (str, int):
            write_put(put_id, None, allow_pickle=self._allow_pickle)

    def check_row(self, uid: int | None) -> None:
        """Raise NotStorable, and delete the group, if its row could not be written: a bad row fails no other call."""
        if uid is None or (slot := self._groups.slot_of(uid)) is None:
            return
        columns = self._groups.engine.columns
        (group,) = self._groups.groups(np.array([slot]))
        try:
            check_row(
                group, columns.group_id.get(slot), columns.tags.get(slot), allow_pickle=self._allow_pickle
            )
        except NotStorable:
            self._groups.delete(np.array([slot]))
            raise

    def add(self, uid: int | None, encoded: Encoded) -> None:
        """Let the rollouts of a group that was just put or changed be written with its row."""
        if uid is not None and (slot := self._groups.slot_of(uid)) is not None:
            self._blobs[uid] = encoded.blob
            self._references.hold(uid, encoded.held)
            self._count(uid, int(self._groups.engine.columns.num_bytes[slot]))

    @property
    def error(self) -> RerollError | None:
        """The error after which nothing is written any more, or None."""
        return self._error or self.store.error

    def raise_if_failed(self) -> None:
        """Raise StoreFailed if nothing can be written any more."""
        if (error := self.error) is not None:
            raise error

    async def written(self) -> None:
        """Return when all that changed so far is written. Raises StoreFailed."""
        self.raise_if_failed()
        self._waits.here()  # first: what ends from now on is told here
        if self._now is not None and self._now.is_over:
            self._finish()  # the loop that it was to be told to is over
        if not self._has_changed():
            if self._now is not None:
                await self._until(self._now)
            return
        await self._until(self._begin())

    def write_soon(self) -> None:
        """Let what changed be written, for whoever does not wait for it."""
        if self._error is None and self.store.error is None and self._has_changed():
            with suppress(RuntimeError):  # no loop runs any more: so it goes with the next change
                self._begin()

    def _begin(self) -> _Commit:
        if self._next is None:
            self._next = _Commit(self._waits.signal())
        commit = self._next
        if self._now is None:
            self._waits.soon(self._start_if_idle)
        return commit

    async def drained(self) -> None:
        """Return when nothing is being written."""
        while self._now is not None or self._has_changed():
            await self.written()

    async def close(self) -> None:
        """Write all that changed, and close the store; groups that are about to be shown are shown first.

        They are taken already, and what fails now could not be undone in a store that is closed.
        """
        try:
            while self._held:
                self._all_shown = self._waits.signal()
                await self._all_shown.wait()
            await self.written()
        finally:
            await self._waits.aside(self.store.close)

    async def _until(self, commit: _Commit) -> None:
        await commit.signal.wait()
        if commit.error is not None:
            raise commit.error

    def _has_changed(self) -> bool:
        columns = self._groups.engine.columns
        return bool(
            columns.dirty
            or columns.gone
            or self._blobs
            or self._leases.changed
            or self._put_ids.added
            or self._put_ids.dropped
            or self._groups.out.changed
            or self._references.has_changed
            or self._taken_over
            or any(task.log.new or task.log.old for task in self._groups.engine.tasks.values())
            or self._state() != self._last_state
        )

    def _state(self) -> bytes:
        return write_small(self._groups.engine, self._rest())

    def _start_if_idle(self) -> None:
        if self._next is not None and self._now is None:
            self._start()

    def _start(self) -> None:
        commit = self._next
        assert commit is not None  # noqa: S101  (whoever starts has made it)
        if self._pinned and not self._pinned.keys().isdisjoint(self._groups.engine.columns.gone):
            return  # somebody still reads what goes, and starts this as soon as it has it
        self._next, self._now = None, commit
        try:
            self.raise_if_failed()
            self.store.write(self._gather(commit), lambda error: self._done(commit, error))
        except Exception as error:  # noqa: BLE001  (whatever it was, whoever waits is told)
            self._error = commit.error = self._error or write_error(error, self.store.path)
            commit.is_over = True
            self._waits.soon(self._finish)  # not posted: this thread runs the buffer already

    def _done(self, commit: _Commit, error: BaseException | None) -> None:
        """Learn, in the thread of the store, that a commit is over."""
        commit.error, commit.is_over = error, True
        self._waits.post(self._finish)

    def _finish(self) -> None:
        commit = self._now
        if commit is None or not commit.is_over:
            return
        self._now = None
        if commit.error is None:
            self.settle(commit.groups.values())
        commit.signal.set()
        if commit.error is not None:
            self._waits.wake()  # calls that wait for groups or room raise the error too
        if self._next is not None:
            self._start()

    def _gather(self, commit: _Commit) -> Change:
        """Return all that changed since the last commit, and forget that it did."""
        groups, columns = self._groups, self._groups.engine.columns
        slots = np.array(sorted(columns.dirty or ()), np.int64)
        dirty = groups.groups(slots)
        gone = columns.gone
        self._last_state = self._state()
        change = Change(
            records=[
                *write_rows(groups.engine, slots, dirty, allow_pickle=self._allow_pickle),
                *((ROW, uid, None) for uid in gone),
                *self._records(gone),
                (STATE, 0, self._last_state),
            ],
            payloads=[*self._blobs.items(), *((uid, None) for uid in gone)],
            totals=self._totals(),
        )
        commit.groups = {uid: group for uid in self._blobs if (group := groups.find(uid)) is not None}
        self._blobs = {}
        columns.dirty, columns.gone = set(), []
        return change

    def _totals(self) -> dict[str, int]:
        """Return how many records of each kind there are after this commit."""
        engine, out = self._groups.engine, self._groups.out
        return {
            ROW: len(engine.columns),
            "lease": self._leases.num_records,
            PUT_ID: len(self._put_ids),
            GIVEN_UP: len(out.given_up),
            "uses": sum(task.log.num_records for task in engine.tasks.values()),
            **self._references.totals(),
        }

    def _records(self, gone: Iterable[int]) -> Iterable[Record]:
        for lease in sorted(self._leases.changed or ()):
            yield "lease", lease, self._leases.record(lease)
        self._leases.changed = set()
        for number in self._put_ids.dropped:
            yield PUT_ID, number, None
        for number, (put_id, uid) in self._put_ids.added.items():
            yield PUT_ID, number, write_put(put_id, uid, allow_pickle=self._allow_pickle)
        self._put_ids.committed()
        out = self._groups.out
        for uid in sorted(out.changed or ()):
            yield GIVEN_UP, uid, b"" if uid in out.given_up else None
        out.changed = set()
        for name, task in self._groups.engine.tasks.items():
            for number, used in task.log.new.items():
                yield "uses", number, write_use(name, used)
            for number in task.log.old:
                yield "uses", number, None
            task.log.new, task.log.old = {}, []
        yield from self._references.records(gone)
        taken_over, self._taken_over = self._taken_over, []
        yield from taken_over

    async def take_over(self, path: str | PathLike[str]) -> None:
        """Let the store hold all groups of this buffer, whose rollouts were saved elsewhere; the rest follows as usual."""
        self.watch()
        try:
            await self._copy_payloads(path)
        except BaseException as error:
            self._error = self.store.error or StoreFailed(
                f"{self.store.path} does not hold what was to be resumed ({type(error).__name__}: {error}): open it "
                "again, where it is empty, and resume once more"
            )
            raise
        groups, columns = self._groups, self._groups.engine.columns
        # All of this is written with the state, in one commit: until then, the store is as it was before.
        self._leases.changed = set(self._leases.records())
        self._put_ids.added = {number: (put_id, uid) for number, put_id, uid in self._put_ids.items()}
        groups.out.changed = set(groups.out.given_up)
        for task in groups.engine.tasks.values():
            task.log.new = task.log.records()
        columns.dirty = set(columns.alive().tolist())

    async def _copy_payloads(self, path: str | PathLike[str]) -> None:
        groups = self._groups
        with ExitStack() as opened:  # closed also when the caller is cancelled while a thread opens it
            saved = await self._waits.aside(
                lambda: opened.enter_context(Saved(find_saved(path)))
            )  # checked before
            blobs = saved.all_payloads(_pass_over)
            while True:
                some = await self._waits.aside(lambda: list(islice(blobs, _AT_ONCE)))
                if not some:
                    break
                await self._write(
                    Change(payloads=[(uid, blob) for uid, blob in some if groups.find(uid) is not None])
                )
            await self._take_over_references(saved)

    async def _take_over_references(self, saved: Saved) -> None:
        known = self._groups.find
        holders = [(uid, numbers) for uid, numbers in saved.records(HOLDER) if known(int(uid)) is not None]
        self._references.restore(holders)
        self._taken_over += [(HOLDER, uid, numbers) for uid, numbers in holders]
        for done, number in enumerate(self._references.numbers(), 1):
            blob = await self._waits.aside(partial(saved.record, OBJECT, number))
            await self._write(Change(records=[(OBJECT, number, blob)], totals={OBJECT: done}))

    def forget_interrupted(self) -> None:
        """Let all go that a resume wrote which did not come to its end; by itself, since these uids will be used."""
        with self.store.reader() as reader:
            uids = reader.payload_uids()
            objects: list[Record] = [(OBJECT, number, None) for number, _ in reader.records(OBJECT)]
        if uids or objects:
            gone = [(uid, None) for uid in uids]
            self.store.write(Change(records=objects, payloads=[*gone], totals={OBJECT: 0}), lambda _: None)

    async def _write(self, change: Change) -> None:
        commit = _Commit(self._waits.signal())

        def done(error: BaseException | None) -> None:
            commit.error = error
            self._waits.post(commit.signal.set)

        self.store.write(change, done)
        await self._until(commit)

    async def save(self, path: str | PathLike[str]) -> None:
        """Save what is written; damaged groups raise CorruptData, or have no rollouts there."""
        await self.written()
        on_damaged = _pass_over if self._on_corrupt == "skip" else self._refuse
        stopped = threading.Event()
        with self.store.begin_copy() as copy:
            # Closed before the copy, also by an error that the caller keeps: SQLite ends a process that closes a file in use.
            def write() -> None:
                with closing(copy_of(copy, on_damaged, stopped)) as changes:
                    write_snapshot(path, changes)

            await self._waits.aside(write, stopped.set)

    def _refuse(self, uid: int) -> None:
        raise _damaged(uid, self.store, CorruptData("its rollouts were altered"))

    # --- reading

    async def secure(self, groups: Sequence[Group]) -> set[int]:
        """Return when all that changed is written and groups have their rollouts; damaged ones to be skipped by uid.

        They keep them until they are released, whoever else is done with them.
        """
        self._held.update(group.uid for group in groups)
        try:
            damaged = {group.uid for group in await self.fetch(groups)}
            await self.written()
        except BaseException:
            self.release(groups)
            raise
        return damaged

    def release(self, groups: Sequence[Group]) -> None:
        """Let groups that were secured lose their rollouts again: they were shown."""
        held = self._held
        for group in groups:
            if (count := held.pop(group.uid)) > 1:
                held[group.uid] = count - 1
        if not held and self._all_shown is not None:
            self._all_shown.set()

    async def look(self, groups: Sequence[Group]) -> set[int]:
        """Return when groups have their rollouts; damaged ones to be skipped by uid. Raises UnknownUid for one that went."""
        damaged: set[int] = set()
        while missing := [group for group in groups if not group.is_here and group.uid not in damaged]:
            damaged |= {group.uid for group in await self.fetch(missing)}
        return damaged

    async def fetch(self, groups: Sequence[Group]) -> list[Group]:
        """Let groups have their rollouts; return those that are damaged, if those are to be skipped."""
        missing = {group.uid: group for group in groups if not group.is_here}
        if not missing:
            return []
        uids = sorted(missing)
        self._pinned.update(uids)
        try:
            loaded = await self._waits.aside(lambda: self._read(missing.values()))
        finally:
            self._pinned.subtract(uids)
            self._pinned = +self._pinned
            self._start_if_idle()
        return [group for uid, group in missing.items() if not self._load(group, loaded[uid])]

    def load(self, groups: Sequence[Group]) -> None:
        """Let groups have their rollouts, here and now."""
        loaded = self._read(groups)
        for group in groups:
            if not self._load(group, loaded[group.uid]):
                raise _damaged(group.uid, self.store, loaded[group.uid])

    def _read(self, groups: Iterable[Group]) -> dict[int, Any]:
        """Return rollouts by uid, or the error of those that are damaged."""
        loaded: dict[int, Any] = {}
        for group in sorted(groups, key=lambda group: group.uid):
            try:
                (blob,) = self.store.read([group.uid])
            except CorruptData as error:
                loaded[group.uid] = error
            else:
                loaded[group.uid] = read_rollouts(
                    blob, group, self.store.path, refs=self._references, allow_pickle=self._allow_pickle
                )
        return loaded

    def _load(self, group: Group, loaded: Any) -> bool:
        if isinstance(loaded, CorruptData):
            error = _damaged(group.uid, self.store, loaded)
            if self._on_corrupt == "raise":
                raise error from loaded
            warnings.warn(str(error), UserWarning, stacklevel=2)
            return False
        group.load(loaded)
        slot = self._groups.slot_of(group.uid)
        if slot is not None:
            self._count(group.uid, int(self._groups.engine.columns.num_bytes[slot]))
        return True

    # --- memory

    def settle(self, groups: Iterable[Group]) -> None:
        """Let go of rollouts that do not fit into memory, or were consumed; they are on disk."""
        being_written = {} if self._now is None else self._now.groups
        most = math.inf if self._max_resident_bytes is None else self._max_resident_bytes
        for group in groups:
            uid = group.uid
            may_go = self._resident > most or self._groups.is_kept(uid)
            if not may_go or uid in being_written or uid in self._blobs or uid in self._held:
                continue
            if group.is_here:
                group.unload()
                self._discount(uid)

    @property
    def resident_bytes(self) -> int:
        """Bytes of rollouts that are in memory, by the estimate that rows have."""
        return self._resident

    def forget(self, group: Group) -> None:
        """Learn that a group has no row any more."""
        self._blobs.pop(group.uid, None)
        self._discount(group.uid)

    def _count(self, uid: int, num_bytes: int) -> None:
        self._discount(uid)
        self._sizes[uid] = num_bytes
        self._resident += num_bytes

    def _discount(self, uid: int) -> None:
        self._resident -= self._sizes.pop(uid, 0)


def _pass_over(uid: int) -> None:
    """A payload that was altered: its group is lost already."""


def _damaged(uid: int, store: Store, error: CorruptData) -> CorruptData:
    return CorruptData(
        f"group {uid} in {store.path} is damaged ({error}); delete([{uid}]) removes it, and a buffer with "
        'on_corrupt="skip" passes such groups over and counts them as lost'
    )
