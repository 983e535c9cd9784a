"""Save a buffer in memory as it is at one moment while it goes on, and load a saved one.

The copy that is made at once is small: columns, and references to groups. The rest is encoded in the thread that writes. A group
that is about to be delivered or changed meanwhile is encoded first, as it was.
"""

import copy
import threading
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any, Final

import numpy as np

from reroll.buffer.group import Group
from reroll.buffer.groups import Groups
from reroll.buffer.journal import Damaged
from reroll.buffer.records import (
    STATE,
    Entries,
    SavedState,
    Uses,
    encode_payload,
    read_payload,
    read_state,
    write_rows,
    write_state,
)
from reroll.buffer.references import OBJECT, Held, PutAgain, References, Whole, nothing_is_stored
from reroll.codec import RefReader
from reroll.engine.rows import LEASED, OUT
from reroll.engine.task import RETURNING
from reroll.errors import Closed, CorruptData, NotStorable
from reroll.rollout.adapters import read_length
from reroll.store import MAX_PAYLOAD_BYTES, ROW, Blob, Change, Record, Saved, open_saved

_AT_ONCE: Final = 32
"""Groups of one change; few, so that memory stays small and the event loop gets its turn."""
_ROWS_AT_ONCE: Final = 500
_TRIES: Final = 5
_PER_TOKEN: Final = ("response_ids", "logprobs", "response_mask", "response_model_steps")
"""The fields with one entry for each response token; None and empty mean absent."""


class Snapshot:
    """The state of a buffer at one moment. The buffer makes it; the thread that writes reads `changes`."""

    def __init__(
        self, groups: Groups, entries: Sequence[Entries], small_state: dict[str, Any], *, allow_pickle: bool
    ) -> None:
        self._allow_pickle = allow_pickle
        engine = groups.engine
        self._state = write_state(engine, small_state)  # first: it may move rows within their samplers
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
        parts: list[Entries | Uses] = [*entries, Uses(engine)]
        self._parts = [(part.totals(), part.copy()) for part in parts]
        # Producers write into checked-out rollouts without notice.
        columns = engine.columns
        rolled = (columns.place[alive] == OUT) | (
            (columns.place[alive] == LEASED) & np.isin(columns.status[alive], RETURNING)
        )
        for place in np.flatnonzero(rolled).tolist():
            group = self._groups[place]
            if group.objects:
                self._keep(group, list(map(consistent_prefix, group.objects)))

    # --- for the buffer

    def before_change(self, group: Group) -> None:
        """Encode a group as it is, if that was not done yet."""
        self._keep(group)

    def before_record(self, group: Group) -> None:
        """Copy the metadata of a group; its rollouts stay as they are for now."""
        with self._lock:
            if group.uid in self._pending:
                self._records.setdefault(group.uid, group.record())

    def end(self) -> None:
        """Stop: the buffer reports no more changes, so groups that are not written by now must not be written."""
        with self._lock:
            self._is_over = True

    def _keep(self, group: Group, items: list[Any] | None = None) -> None:
        with self._lock:
            if group.uid in self._pending:
                self._pending.discard(group.uid)
                self._records.setdefault(group.uid, group.record())
                try:
                    self._blobs[group.uid] = self._encode(group, items)
                except Exception as error:  # noqa: BLE001  (it fails the save, not the call that delivers the group)
                    self._blobs[group.uid] = error

    # --- for the thread

    def changes(self) -> Iterator[Change]:
        """Yield the content of the file. Raises Closed after `end`."""
        for change in self._changes():
            self._check()
            yield change
            del change  # before the next one is made

    def _check(self) -> None:
        if self._is_over:
            raise Closed("the save was cancelled, and groups may have changed since")

    def _changes(self) -> Iterator[Change]:
        members: list[bytes] = []
        for start in range(0, len(self._groups), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            groups = self._groups[part]
            payloads: list[tuple[int, Blob | None]] = []
            for group in groups:
                record, blob = self._take(group)
                if len(blob) > MAX_PAYLOAD_BYTES:
                    task = self._tasks[self._rows["task"][len(members)]]
                    raise NotStorable(
                        f"group {group.uid} of task {task!r} takes {len(blob)} bytes, and a group of {MAX_PAYLOAD_BYTES} can "
                        f"be saved; delete([{group.uid}]) and save again, or put it in parts"
                    )
                members.append(record)
                payloads.append((group.uid, blob))
            self._groups[part] = [None] * len(groups)  # type: ignore[list-item]  # frees written ones
            del groups, group
            yield Change(payloads=payloads)
            del payloads
        for start in range(0, len(members), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            rows = {name: column[part] for name, column in self._rows.items()}
            yield Change(write_rows(rows, self._tasks, members[part], allow_pickle=self._allow_pickle))
        numbers = self._references.numbers()
        for number in numbers:
            yield Change([(OBJECT, number, self._references.blob(number))])
        records: list[Record] = [(STATE, 0, self._state), *self._references.records(())]
        totals = {ROW: len(members), **self._references.totals(), OBJECT: len(numbers)}
        for known, write in self._parts:
            records += write()
            totals |= known
        yield Change(records, totals=totals)

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
        """Return the payload of a group as bytes, or these objects instead."""
        payload = group.payload if items is None else items
        held = Held(self._references)  # never released: a snapshot does not change
        for left in reversed(range(_TRIES)):
            try:
                blob = encode_payload(
                    payload, held, allow_pickle=self._allow_pickle, root=f"group {group.uid}: rollouts"
                )
            except RuntimeError:  # a trainer that has it added to one of its dicts just now
                if not left:
                    raise
            else:
                self._references.hold(group.uid, held)
                return blob
        raise AssertionError


def consistent_prefix(rollout: Any) -> Any:
    """Return a copy of a rollout whose fields agree about the number of response tokens.

    A producer that continues a response extends one field after the other, so the shortest field ends with the last token
    that all of them have.
    """
    seen = copy.copy(rollout)
    values: dict[str, Any] = {name: getattr(seen, name, None) for name in _PER_TOKEN}
    lengths = {name: read_length(name, value) for name, value in values.items()}
    if lengths["response_ids"] is None:
        return seen
    if lengths["logprobs"] == read_length("input_ids", getattr(seen, "input_ids", None)):
        del lengths["logprobs"]  # one for each position of the whole sequence
    present = {name: length for name, length in lengths.items() if length or name == "response_ids"}
    tokens = min(length or 0 for length in present.values())
    for name, length in present.items():
        # Lists are copied even if they have that length: they may grow while they are being encoded.
        if length != tokens or isinstance(values[name], list):
            setattr(seen, name, values[name][:tokens])
    return seen


# --- loading


def load_saved(
    path: str | PathLike[str],
    entries: Sequence[Entries],
    *,
    keep: bool,
    on_corrupt: Damaged,
    allow_pickle: bool,
    stopped: threading.Event,
) -> tuple[SavedState, list[int]]:
    """Return a saved state, with the rollouts if `keep`, and the uids of groups whose rollouts are damaged.

    Raises CorruptData for damaged groups unless such are to be skipped; Closed soon after `stopped` is set.
    """
    with open_saved(path, on_corrupt=on_corrupt) as saved:
        state = read_state(saved, entries, skip=on_corrupt == "skip", allow_pickle=allow_pickle)
        if state is None:
            raise CorruptData(f"{saved.path} holds no buffer; name the directory that one was saved to")
        lost: list[int] = []
        for group, found in _payloads(saved, state.groups, keep, on_corrupt == "skip", allow_pickle):
            if stopped.is_set():
                raise Closed("the resume was cancelled")
            if isinstance(found, CorruptData):
                if on_corrupt == "raise":
                    raise CorruptData(
                        f"group {group.uid} in {saved.path} is damaged ({found}); restore the file from a copy, or "
                        'resume with on_corrupt="skip" to leave such groups out'
                    ) from found
                lost.append(group.uid)
            elif keep:
                group.load(found)
    return state, lost


def _payloads(
    saved: Saved, groups: list[Group], keep: bool, skip: bool, allow_pickle: bool
) -> Iterator[tuple[Group, Any]]:
    """Yield each group with its payload, or with a CorruptData."""

    def read(number: int) -> bytes:
        return saved.record(OBJECT, number)

    references: RefReader = PutAgain(read, allow_pickle=allow_pickle) if keep else Whole(read)
    by_uid = {group.uid: group for group in groups}
    damaged: list[int] = []
    for uid, blob in saved.all_payloads(damaged.append):
        group = by_uid.pop(uid, None)
        if group is not None:
            yield group, read_payload(blob, group, saved.path, refs=references, allow_pickle=allow_pickle)
        elif not skip:
            raise CorruptData(
                f"{saved.path} holds rollouts of group {uid}, which has no row; restore it from a copy, or resume with "
                'on_corrupt="skip" to leave them out'
            )
    for group in by_uid.values():
        yield group, CorruptData(f"its rollouts {'were altered' if group.uid in damaged else 'are missing'}")
