"""A buffer at one moment, for saving it while it goes on.

What is copied at once is small: columns, and references to groups. The rest is encoded in the thread that writes. A group
that somebody is about to see or change meanwhile is encoded first, as it was.
"""

import threading
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from reroll.buffer.group import Group
from reroll.buffer.groups import Groups
from reroll.buffer.halfway import as_far_as_written
from reroll.buffer.leases import Leases
from reroll.buffer.put_ids import PutIds
from reroll.buffer.recording import (
    GIVEN_UP,
    PUT_ID,
    STATE,
    rows_of_columns,
    write_put,
    write_small,
    write_use,
)
from reroll.buffer.references import OBJECT, Held, References, nothing_is_stored
from reroll.codec import encode
from reroll.engine.rows import LEASED, OUT
from reroll.engine.task import RETURNING
from reroll.errors import Closed, NotStorable
from reroll.store import MAX_PAYLOAD_BYTES, ROW, Blob, Change, Record

_AT_ONCE: Final = 32
"""Groups of one change; small, so that memory stays small and the loop gets its turn."""
_ROWS_AT_ONCE: Final = 500
_TRIES: Final = 5


class Snapshot:
    """What is to be saved. Made by the buffer; `changes` is for the thread that writes."""

    def __init__(
        self, groups: Groups, leases: Leases, put_ids: PutIds, rest: dict[str, Any], *, allow_pickle: bool
    ) -> None:
        self._allow_pickle = allow_pickle
        engine = groups.engine
        self._state = write_small(engine, rest)  # first: it files newcomers, and their rows tell where
        alive = engine.columns.alive()
        self._lock = threading.Lock()
        self._rows = engine.columns.rows(alive)
        self._tasks = list(engine.tasks)
        self._groups = groups.groups(alive)
        self._pending = {group.uid for group in self._groups}
        self._records: dict[int, bytes] = {}
        self._blobs: dict[int, Blob | Exception] = {}
        self._is_over = False
        self._references = References(nothing_is_stored, allow_pickle=allow_pickle)
        self._leases = leases.records()
        self._put_ids = list(put_ids.items())
        self._given_up = list(groups.out.given_up)
        self._uses = [
            (name, number, used)
            for name, task in engine.tasks.items()
            for number, used in task.log.records().items()
        ]
        # Producers write into what they have as they please, without telling.
        columns = engine.columns
        rolled = (columns.place[alive] == OUT) | (
            (columns.place[alive] == LEASED) & np.isin(columns.status[alive], RETURNING)
        )
        for place in np.flatnonzero(rolled).tolist():
            group = self._groups[place]
            self._keep(group, list(map(as_far_as_written, group.items)))

    # --- for the buffer

    def before_change(self, group: Group) -> None:
        """Encode a group as it is, if that was not done yet."""
        self._keep(group)

    def before_record(self, group: Group) -> None:
        """Note what is known of a group; its rollouts stay as they are for now."""
        with self._lock:
            if group.uid in self._pending:
                self._records.setdefault(group.uid, group.record())

    def end(self) -> None:
        """Learn that nobody tells of changes any more: what is not written by now never will be."""
        with self._lock:
            self._is_over = True

    def _keep(self, group: Group, items: list[Any] | None = None) -> None:
        with self._lock:
            if group.uid in self._pending:
                self._pending.discard(group.uid)
                self._records.setdefault(group.uid, group.record())
                try:
                    self._blobs[group.uid] = self._encode(group, items)
                except Exception as error:  # noqa: BLE001  (it is the save that fails, not whoever gets the group)
                    self._blobs[group.uid] = error

    # --- for the thread

    def changes(self) -> Iterator[Change]:
        """Yield all that is to be written. Raises Closed after `end`."""
        for change in self._changes():
            self._check()
            yield change
            del change  # before the next part is made

    def _check(self) -> None:
        if self._is_over:
            raise Closed("the save was cancelled, and groups may have changed since")

    def _changes(self) -> Iterator[Change]:
        records: list[bytes] = []
        for start in range(0, len(self._groups), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            groups = self._groups[part]
            payloads: list[tuple[int, Blob | None]] = []
            for group in groups:
                record, blob = self._take(group)
                if len(blob) > MAX_PAYLOAD_BYTES:
                    task = self._tasks[self._rows["task"][len(records)]]
                    raise NotStorable(
                        f"group {group.uid} of task {task!r} takes {len(blob)} bytes, and a group of {MAX_PAYLOAD_BYTES} can "
                        f"be saved; delete([{group.uid}]) and save again, or put it in parts"
                    )
                records.append(record)
                payloads.append((group.uid, blob))
            self._groups[part] = [None] * len(groups)  # type: ignore[list-item]  # written ones may go
            del groups, group
            yield Change(payloads=payloads)
            del payloads
        for start in range(0, len(records), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            rows = {name: column[part] for name, column in self._rows.items()}
            written = rows_of_columns(rows, self._tasks, records[part], allow_pickle=self._allow_pickle)
            yield Change(records=written)
        others: dict[str, list[tuple[int, bytes]]] = {
            "lease": list(self._leases.items()),
            PUT_ID: [
                (number, write_put(put_id, uid, allow_pickle=self._allow_pickle))
                for number, put_id, uid in self._put_ids
            ],
            GIVEN_UP: [(uid, b"") for uid in self._given_up],
            "uses": [(number, write_use(name, used)) for name, number, used in self._uses],
        }
        found: list[Record] = [(kind, *one) for kind, known in others.items() for one in known]
        found += self._references.records(())
        numbers = self._references.numbers()
        for number in numbers:
            yield Change(records=[(OBJECT, number, self._references.blob(number))])
        totals = {kind: len(known) for kind, known in others.items()}
        totals |= {ROW: len(records), **self._references.totals(), OBJECT: len(numbers)}
        yield Change(records=[*found, (STATE, 0, self._state)], totals=totals)

    def _take(self, group: Group) -> tuple[bytes, Blob]:
        with self._lock:
            self._check()
            if group.uid not in self._pending:
                record, blob = self._records.pop(group.uid), self._blobs.pop(group.uid)
                if isinstance(blob, Exception):
                    raise blob
                return record, blob
            self._pending.discard(group.uid)
            known = self._records.pop(group.uid, None) or group.record()
            return known, self._encode(group)

    def _encode(self, group: Group, items: list[Any] | None = None) -> Blob:
        """Return the rollouts of a group as bytes, or these instead."""
        if items is None:
            if (packed := group.packed) is not None:
                return packed
            items = group.items
        held = Held(self._references)  # for good: a snapshot is saved as it is
        for left in reversed(range(_TRIES)):
            try:
                blob = encode(
                    items,
                    refs=held,
                    root=f"group {group.uid}: rollouts",
                    allow_pickle=self._allow_pickle,
                )
            except RuntimeError:  # a trainer that has it added to a dict of it just now
                if not left:
                    raise
            else:
                self._references.hold(group.uid, held)
                return blob
        raise AssertionError
