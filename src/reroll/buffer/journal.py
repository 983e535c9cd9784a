"""The journal of a durable buffer: every change of its state, and every payload, is committed before a call returns.

A call changes the buffer first, and then waits here for the commit. Changes that are made while a commit runs are gathered into
the next one, so that many calls share it; the event loop never waits for the disk. Rollouts that do not fit into memory are
evicted when they are committed, and loaded again when they are delivered.
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

from reroll.buffer.group import Group, Payload
from reroll.buffer.groups import Groups
from reroll.buffer.records import (
    STATE,
    Entries,
    Part,
    Rows,
    Uses,
    check_row,
    encode_payload,
    read_columns,
    read_payload,
    write_group_id,
    write_put,
    write_state,
)
from reroll.buffer.references import HOLDER, OBJECT, Held, References
from reroll.errors import CorruptData, NotStorable, RerollError, StoreFailed
from reroll.group import RolloutGroup
from reroll.store import (
    MAX_PAYLOAD_BYTES,
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
from reroll.telemetry.stats import DiskUse
from reroll.waiting import Signal, Waits

Damaged = Literal["raise", "skip"]
"""What to do about a group whose payload was altered on disk."""

_AT_ONCE: Final = 64
"""Payloads of one commit when a buffer is resumed into a store."""


Columns = Sequence[str] | None
"""The further columns that a receiver asks for; None: all."""


class Fetched(NamedTuple):
    """What a read of groups found."""

    damaged: set[int]
    parts: dict[int, RolloutGroup]
    """Groups of which only the columns that were asked for were read, by uid."""


class Encoded(NamedTuple):
    """Rollouts as bytes, and the references in them, which are released when the bytes are committed or dropped."""

    blob: Blob
    held: Held


class _Commit:
    """A commit, and the groups whose rollouts it holds, by uid."""

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.error: BaseException | None = None
        self.is_over = False
        self.groups: dict[int, Group] = {}

    async def wait(self) -> None:
        """Return when the commit is over. Raises its error."""
        await self.signal.wait()
        if self.error is not None:
            raise self.error


class Journal:
    """Commits changes to a store, and loads and evicts rollouts."""

    def __init__(
        self,
        store: Store,
        groups: Groups,
        waits: Waits,
        *,
        entries: Sequence[Entries],
        small_state: Callable[[], dict[str, Any]],
        max_resident_bytes: int | None,
        on_corrupt: Damaged,
        allow_pickle: bool,
    ) -> None:
        self.store = store
        self._groups = groups
        self._waits = waits
        self._entries = entries
        self._small_state = small_state
        self._max_resident_bytes = max_resident_bytes
        self._on_corrupt: Damaged = on_corrupt
        self._allow_pickle = allow_pickle
        self._references = References(self._read_object, allow_pickle=allow_pickle)
        with store.reader() as reader:
            self._references.restore(reader.records(HOLDER))
        self._parts: list[Part] = [
            Rows(groups, allow_pickle=allow_pickle),
            *entries,
            Uses(groups.engine),
            self._references,
        ]
        self._imported: list[Record] = []  # written with the next commit
        self._error: RerollError | None = None
        self._blobs: dict[int, Blob] = {}  # by uid, not yet handed to the store
        self._sizes: dict[int, int] = {}  # of groups whose rollouts are in memory
        self._resident = 0
        self._held: Counter[int] = Counter()  # groups that are being delivered
        self._all_delivered: Signal | None = None  # for `close`, which waits for that
        self._pinned: Counter[int] = Counter()  # payloads that are being read: they are not deleted meanwhile
        self._now: _Commit | None = None  # being written
        self._next: _Commit | None = None  # gathering
        self._last_state = b""
        self._track()

    def _track(self) -> None:
        """Record changes from now on."""
        columns = self._groups.engine.columns
        if columns.dirty is None:
            columns.dirty = set()
        for each in self._entries:
            each.entries.track()

    # --- encoding

    async def encode(self, items: Payload, deadline: float | None = None) -> Encoded:
        """Return rollouts as bytes, when the objects of their references are here as well.

        Raises NotStorable with the path to the value that cannot be stored; WaitTimeout.
        """
        encoded = self._encode(items)
        if self._references.missing(encoded.held):
            try:
                await self._waits.apart(lambda: self._references.fetch(encoded.held, deadline))
            except BaseException:
                encoded.held.release()
                raise
        return encoded

    def encode_now(self, items: Payload) -> Encoded:
        """Return rollouts as bytes, at once; it waits for Ray unless their references are stored already."""
        encoded = self._encode(items)
        self._references.fetch(encoded.held)
        return encoded

    def _encode(self, items: Payload) -> Encoded:
        held = Held(self._references)
        try:
            blob = encode_payload(items, held, allow_pickle=self._allow_pickle)
            if len(blob) > MAX_PAYLOAD_BYTES:
                raise NotStorable(  # noqa: TRY301  (as any other)
                    f"group too large: {len(blob)} bytes, the limit is {MAX_PAYLOAD_BYTES}; split it"
                )
        except BaseException:
            held.release()
            raise
        return Encoded(blob, held)

    def check_ids(self, group_id: Any, put_id: Any) -> None:
        """Raise NotStorable for ids that cannot be written."""
        if group_id is not None and type(group_id) not in (str, int):
            write_group_id(group_id, allow_pickle=self._allow_pickle)
        if put_id is not None and type(put_id) not in (str, int):
            write_put(put_id, None, allow_pickle=self._allow_pickle)

    def check_rows(self, uids: Iterable[int | None]) -> None:
        """Raise NotStorable, and delete the groups, if a row cannot be written: it must not fail the commit of others."""
        columns, groups = self._groups.engine.columns, self._groups
        slots = groups.resident_slots(uid for uid in uids if uid is not None)
        try:
            for slot, group in zip(slots.tolist(), groups.groups(slots), strict=True):
                check_row(
                    group, columns.group_id.get(slot), columns.tags.get(slot), allow_pickle=self._allow_pickle
                )
        except NotStorable:
            groups.delete(slots)
            raise

    def add(self, uid: int | None, encoded: Encoded) -> None:
        """Commit the rollouts of a group that was just put or changed together with its row."""
        if uid is not None and (slot := self._groups.slot_of(uid)) is not None:
            self._blobs[uid] = encoded.blob
            self._references.hold(uid, encoded.held)
            self._count(uid, int(self._groups.engine.columns.num_bytes[slot]))

    # --- committing

    @property
    def error(self) -> RerollError | None:
        """The error after which nothing is written any more, or None."""
        return self._error or self.store.error

    def raise_if_failed(self) -> None:
        """Raise StoreFailed if nothing can be written any more."""
        if (error := self.error) is not None:
            raise error

    async def written(self) -> None:
        """Return when all changes so far are committed. Raises StoreFailed."""
        self.raise_if_failed()
        self._waits.here()  # first: later commits report to this loop
        if self._now is not None and self._now.is_over:
            self._finish()  # the loop that it reported to is closed
        if self._has_changed():
            await self._begin().wait()
        elif self._now is not None:
            await self._now.wait()

    def write_soon(self) -> None:
        """Commit all changes so far, for a caller that does not wait."""
        if self.error is None and self._has_changed():
            with suppress(RuntimeError):  # no loop runs any more: the next change commits them
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
        """Commit all changes, and close the store; groups that are being delivered are delivered first.

        They are taken already, and a failed delivery could not be undone in a closed store.
        """
        try:
            while self._held:
                self._all_delivered = self._waits.signal()
                await self._all_delivered.wait()
            await self.written()
        finally:
            await self._waits.aside(self.store.close)

    def _has_changed(self) -> bool:
        return bool(
            self._blobs
            or self._imported
            or any(part.has_changed for part in self._parts)
            or self._state() != self._last_state
        )

    def _state(self) -> bytes:
        return write_state(self._groups.engine, self._small_state())

    def _start_if_idle(self) -> None:
        if self._next is not None and self._now is None:
            self._start()

    def _start(self) -> None:
        commit = self._next
        assert commit is not None  # noqa: S101  (the caller has checked it)
        if self._pinned and not self._pinned.keys().isdisjoint(self._groups.engine.columns.gone):
            return  # a reader of a payload that goes starts this commit when it has read it
        self._next, self._now = None, commit
        try:
            self.raise_if_failed()
            self.store.write(self._gather(commit), lambda error: self._done(commit, error))
        except Exception as error:  # noqa: BLE001  (all waiting calls raise it)
            self._error = commit.error = self._error or write_error(error, self.store.path)
            commit.is_over = True
            self._waits.soon(self._finish)  # not posted: this thread runs the buffer already

    def _gather(self, commit: _Commit) -> Change:
        """Return all changes since the last commit, and mark them as written."""
        gone = self._groups.engine.columns.gone
        self._last_state = self._state()  # first: it may move rows within their samplers
        records: list[Record] = [(STATE, 0, self._last_state), *self._imported]
        for part in self._parts:
            records += part.records(gone)
        totals = {kind: total for part in self._parts for kind, total in part.totals().items()}
        payloads = [*self._blobs.items(), *((uid, None) for uid in gone)]
        commit.groups = {uid: group for uid in self._blobs if (group := self._groups.find(uid)) is not None}
        self._blobs, self._imported = {}, []
        return Change(records, payloads, totals)

    def _done(self, commit: _Commit, error: BaseException | None) -> None:
        """Report the end of a commit, from the thread of the store."""
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

    # --- saving and resuming

    async def save(self, path: str | PathLike[str]) -> None:
        """Save the committed state; a damaged group raises CorruptData, or has no rollouts there."""
        await self.written()
        on_damaged = _skip if self._on_corrupt == "skip" else self._refuse
        stopped = threading.Event()
        with self.store.begin_copy() as copy:

            def write() -> None:
                # Closed before the copy: SQLite ends a process that closes a file which a thread reads.
                with closing(copy_of(copy, on_damaged, stopped)) as changes:
                    write_snapshot(path, changes)

            await self._waits.aside(write, stopped.set)

    def _refuse(self, uid: int) -> None:
        raise _damaged(uid, self.store, CorruptData("its rollouts were altered"))

    async def import_saved(self, path: str | PathLike[str]) -> None:
        """Commit the whole buffer, whose rollouts are in a saved file. Payloads come first, the rest in one commit.

        Until that commit, the store holds an empty buffer.
        """
        self._track()
        try:
            await self._import_payloads(path)
        except BaseException as error:
            self._error = self.store.error or StoreFailed(
                f"{self.store.path} does not hold the resumed buffer ({type(error).__name__}: {error}): build the buffer "
                "again, which is empty, and resume once more"
            )
            raise
        columns = self._groups.engine.columns
        for each in self._entries:
            each.entries.mark(each.entries)
        for task in self._groups.engine.tasks.values():
            task.log.new = task.log.records()
        columns.dirty = set(columns.alive().tolist())

    async def _import_payloads(self, path: str | PathLike[str]) -> None:
        known = self._groups.find
        with ExitStack() as opened:  # closed also if the caller is cancelled while a thread opens it
            saved = await self._waits.aside(lambda: opened.enter_context(Saved(find_saved(path))))
            blobs = saved.all_payloads(_skip)
            while some := await self._waits.aside(lambda: list(islice(blobs, _AT_ONCE))):
                await self._write(
                    Change(payloads=[(uid, blob) for uid, blob in some if known(uid) is not None])
                )
            holders = [
                (uid, numbers) for uid, numbers in saved.records(HOLDER) if known(int(uid)) is not None
            ]
            self._references.restore(holders)
            self._imported += [(HOLDER, uid, numbers) for uid, numbers in holders]
            for done, number in enumerate(self._references.numbers(), 1):
                blob = await self._waits.aside(partial(saved.record, OBJECT, number))
                await self._write(Change([(OBJECT, number, blob)], totals={OBJECT: done}))

    def drop_interrupted_import(self) -> None:
        """Delete the payloads of an import that was killed: the empty buffer will use their uids."""
        with self.store.reader() as reader:
            payloads: list[tuple[int, Blob | None]] = [(uid, None) for uid in reader.payload_uids()]
            objects: list[Record] = [(OBJECT, number, None) for number, _ in reader.records(OBJECT)]
        if payloads or objects:
            self.store.write(Change(objects, payloads, {OBJECT: 0}), lambda _: None)

    async def _write(self, change: Change) -> None:
        commit = _Commit(self._waits.signal())

        def done(error: BaseException | None) -> None:
            commit.error = error
            self._waits.post(commit.signal.set)

        self.store.write(change, done)
        await commit.wait()

    # --- residency of rollouts

    async def secure(self, groups: Sequence[Group], columns: Columns = None) -> Fetched:
        """Load the rollouts of groups as `fetch` does, and commit all changes.

        The rollouts stay in memory until `release`.
        """
        self._held.update(group.uid for group in groups)
        try:
            fetched = await self.fetch(groups, columns)
            await self.written()
        except BaseException:
            self.release(groups)
            raise
        return fetched

    def release(self, groups: Sequence[Group]) -> None:
        """Allow the eviction of groups that were secured: they are delivered."""
        held = self._held
        for group in groups:
            if (count := held.pop(group.uid)) > 1:
                held[group.uid] = count - 1
        if not held and self._all_delivered is not None:
            self._all_delivered.set()

    async def look(self, groups: Sequence[Group], columns: Columns = None) -> Fetched:
        """Load the rollouts of groups as `fetch` does, until all are here. Raises UnknownUid for a deleted one."""
        found = Fetched(set(), {})
        while missing := [
            group
            for group in groups
            if not group.is_here and group.uid not in found.damaged and group.uid not in found.parts
        ]:
            more = await self.fetch(missing, columns)
            found = Fetched(found.damaged | more.damaged, {**found.parts, **more.parts})
        return found

    async def fetch(self, groups: Sequence[Group], columns: Columns = None) -> Fetched:
        """Load the rollouts of groups in a thread; of large groups only the further columns that are asked for.

        Returns the damaged groups, if those are to be skipped, and the groups of which only a part was read: these are not
        kept in memory.
        """
        missing = {group.uid: group for group in groups if not group.is_here}
        if not missing:
            return Fetched(set(), {})
        uids = sorted(missing)
        self._pinned.update(uids)
        try:
            parts: dict[int, RolloutGroup] = {}
            loaded = await self._waits.aside(lambda: self._read(missing.values(), columns, parts))
        finally:
            self._pinned.subtract(uids)
            self._pinned = +self._pinned
            self._start_if_idle()
        damaged = {
            uid for uid, group in missing.items() if uid not in parts and not self._load(group, loaded[uid])
        }
        return Fetched(damaged, parts)

    def load(self, groups: Sequence[Group]) -> None:
        """Load the rollouts of groups in this thread."""
        loaded = self._read(groups)
        for group in groups:
            if not self._load(group, loaded[group.uid]):
                raise _damaged(group.uid, self.store, loaded[group.uid])

    def _read(
        self, groups: Iterable[Group], columns: Columns = None, parts: dict[int, RolloutGroup] | None = None
    ) -> dict[int, Any]:
        """Return rollouts by uid, or the error of damaged ones; `parts` gets groups of which only these columns were read."""
        loaded: dict[int, Any] = {}
        for group in sorted(groups, key=lambda group: group.uid):
            try:
                if columns is not None and parts is not None:
                    with self.store.reader() as reader:
                        part = read_columns(
                            reader, group, columns, refs=self._references, allow_pickle=self._allow_pickle
                        )
                    if part is not None:
                        parts[group.uid] = part
                        continue
                (blob,) = self.store.read([group.uid])
            except CorruptData as error:
                loaded[group.uid] = error
            else:
                loaded[group.uid] = read_payload(
                    blob, group, self.store.path, refs=self._references, allow_pickle=self._allow_pickle
                )
        return loaded

    def _read_object(self, number: int) -> bytes:
        with self.store.reader() as reader:
            return reader.record(OBJECT, number)

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

    def settle(self, groups: Iterable[Group]) -> None:
        """Evict rollouts that are committed and do not fit into memory, or were consumed."""
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
        """Bytes of rollouts in memory, by the estimate of their rows."""
        return self._resident

    def use(self) -> DiskUse:
        """Return the disk space of the store."""
        return DiskUse.of(self.store.path, self.store.commits)

    def forget(self, group: Group) -> None:
        """Drop the rollouts of a group whose row was deleted."""
        self._blobs.pop(group.uid, None)
        self._discount(group.uid)

    def _count(self, uid: int, num_bytes: int) -> None:
        self._discount(uid)
        self._sizes[uid] = num_bytes
        self._resident += num_bytes

    def _discount(self, uid: int) -> None:
        self._resident -= self._sizes.pop(uid, 0)


def _skip(uid: int) -> None:
    """Pass over a damaged payload: its group is lost already."""


def _damaged(uid: int, store: Store, error: CorruptData) -> CorruptData:
    return CorruptData(
        f"group {uid} in {store.path} is damaged ({error}); delete([{uid}]) removes it, and a buffer with "
        'on_corrupt="skip" passes such groups over and counts them as lost'
    )
