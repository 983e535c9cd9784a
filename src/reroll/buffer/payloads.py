"""Rows and the rollouts behind them: which group is where, and how it is shown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from reroll.buffer.group import Group
from reroll.buffer.out import Out
from reroll.buffer.put import GroupRules
from reroll.engine.engine import Engine
from reroll.engine.rows import RESIDENT, UNCOMMITTED, IntArray
from reroll.engine.task import RETURNING
from reroll.errors import UnknownUid
from reroll.telemetry.counters import FlowCounters


class Witness(Protocol):
    """Who writes groups down as they were at a moment, while they go on."""

    def before_change(self, group: Group) -> None:
        """Encode the rollouts of a group before a caller reads or changes them, unless that is done."""

    def before_record(self, group: Group) -> None:
        """Note what is known of a group, if that is still to be done: it will change now, its rollouts later."""


class Keeper(Protocol):
    """Who keeps rollouts outside of this process."""

    def load(self, groups: Sequence[Group]) -> None:
        """Let groups have their rollouts."""

    def settle(self, groups: Iterable[Group]) -> None:
        """Evict rollouts from memory that exceed the limit or were consumed; the store keeps them."""

    def forget(self, group: Group) -> None:
        """Learn that a group has no row any more."""


class Payloads:
    """All groups of a buffer, by row."""

    def __init__(
        self, engine: Engine, rules_of: Callable[[str], GroupRules], out_ttl_s: float | None
    ) -> None:
        self.engine = engine
        self.counters = FlowCounters()
        self.out = Out(out_ttl_s)
        self.rules_of = rules_of
        # Observers of deliveries and rollbacks, while a snapshot is taken.
        self.on_hand_out: Callable[[list[int]], Mapping[int, set[int]]] | None = None
        self.on_take_back: Callable[[Mapping[int, set[int]]], None] | None = None
        self._groups: list[Group | None] = []  # by slot
        self._slot_of: dict[int, int] = {}  # by uid; also of groups that are out
        self._kept: dict[int, int] = {}  # the same of groups that were consumed, which may be undone
        self.warned: set[tuple[str, str]] = set()
        """Warnings that were given, by task and kind: each comes once."""
        self.keeper: Keeper | None = None
        self.witnesses: list[Witness] = []

    def __len__(self) -> int:
        return sum(len(pool) for task in self.engine.tasks.values() for pool in task.pools)

    def slots(self, uids: Iterable[int]) -> IntArray:
        """Return where groups are. Raises UnknownUid."""
        wanted = list(uids)
        for uid in wanted:
            if uid not in self._slot_of:
                raise UnknownUid(f"no group has uid {uid!r}: it was consumed, deleted, or never here")
        return np.array([self._slot_of[uid] for uid in wanted], np.int64)

    def slot_of(self, uid: int) -> int | None:
        """Return where a group is, None if it is not here."""
        return self._slot_of.get(uid)

    def find(self, uid: int) -> Group | None:
        """Return the group of this uid, consumed ones that are kept included."""
        slot = self._slot_of.get(uid, self._kept.get(uid))
        return None if slot is None else self._groups[slot]

    def all_slots(self, uids: Iterable[int]) -> IntArray:
        """Return where groups are, consumed ones that are kept included."""
        return np.array([self._slot_of.get(uid, self._kept.get(uid, -1)) for uid in uids], np.int64)

    def is_kept(self, uid: int) -> bool:
        """Return whether a group was consumed and may come back."""
        return uid in self._kept

    def is_resident(self, uid: object) -> bool:
        """Return whether a group of this uid is in a pool."""
        slot = self._slot_of.get(uid)  # type: ignore[call-overload]  # what is no uid is not there
        return slot is not None and bool(self.engine.columns.place[slot] == RESIDENT)

    def resident_slots(self, uids: Iterable[int]) -> IntArray:
        """Return where groups are that are in a pool; others are passed over."""
        return self.slots(uid for uid in dict.fromkeys(uids) if self.is_resident(uid))

    def groups(self, slots: IntArray) -> list[Group]:
        """Return the groups of rows."""
        return [self._group(slot) for slot in slots.tolist()]

    def load(self, groups: Sequence[Group]) -> None:
        """Let groups have their rollouts, here and now."""
        missing = [group for group in groups if not group.is_here]
        if missing and self.keeper is not None:
            self.keeper.load(missing)

    def _group(self, slot: int) -> Group:
        group = self._groups[slot]
        assert group is not None  # noqa: S101  (every row has a group)
        return group

    def _store(self, slot: int, group: Group) -> None:
        if slot == len(self._groups):
            self._groups.append(None)
        self._groups[slot] = group
        self._slot_of[group.uid] = slot

    def _forget(self, slots: IntArray) -> None:
        groups, slot_of, returned = self._groups, self._slot_of, self.out.returned
        keeper = self.keeper
        for slot in slots.tolist():
            group = self._group(slot)
            if keeper is not None:
                keeper.forget(group)
            if returned:
                returned.discard(group.uid)
            if slot_of.pop(group.uid, None) is None:
                del self._kept[group.uid]
            groups[slot] = None

    def _give_up(self, slots: IntArray) -> None:
        """Remember groups that are deleted, and that a producer may have."""
        columns = self.engine.columns
        waiting = slots[np.isin(columns.status[slots], RETURNING)]
        away = (columns.place[waiting] != RESIDENT) | (columns.deliveries[waiting] > 0)
        for uid, is_away in zip(columns.uid[waiting].tolist(), away.tolist(), strict=True):
            if is_away or uid in self.out.returned:
                self.out.give_up(uid)

    def _put_aside(self, slots: IntArray) -> None:
        """Move consumed, uncommitted groups from the live index to the parked index."""
        columns = self.engine.columns
        for slot in slots[(columns.place[slots] == UNCOMMITTED) & (columns.uid[slots] != 0)].tolist():
            uid = self._group(slot).uid
            if self._slot_of.pop(uid, None) is not None:
                self._kept[uid] = slot

    def _take_up(self, slots: IntArray) -> None:
        """Know groups again that were consumed."""
        for slot in slots.tolist():
            uid = self._group(slot).uid
            self._kept.pop(uid, None)
            self._slot_of[uid] = slot

    def restore(self, groups: Sequence[Group]) -> None:
        """Have these groups, at slots 0, 1, ..., whose rows are back."""
        self._groups = list(groups)
        places = self.engine.columns.place[: len(groups)].tolist()
        self._slot_of = {
            g.uid: s for s, (g, p) in enumerate(zip(groups, places, strict=True)) if p != UNCOMMITTED
        }
        self._kept = {
            g.uid: s for s, (g, p) in enumerate(zip(groups, places, strict=True)) if p == UNCOMMITTED
        }

    def warn_once(self, task_name: str, kind: str) -> bool:
        """Return whether a warning of this kind is the first one for a task."""
        is_first = (task_name, kind) not in self.warned
        self.warned.add((task_name, kind))
        return is_first

    def _before_change(self, group: Group) -> None:
        for witness in self.witnesses:
            witness.before_change(group)
