"""Rows and the rollouts behind them: which group is where, and how it is shown."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from reroll.buffer.flow import Flow
from reroll.buffer.group import Group
from reroll.buffer.out import Out
from reroll.buffer.put import GroupRules
from reroll.engine.columns import RESIDENT, IntArray
from reroll.engine.engine import Engine
from reroll.errors import UnknownUid


class Payloads:
    """All groups of a buffer, by row."""

    def __init__(
        self, engine: Engine, rules_of: Callable[[str], GroupRules], out_ttl_s: float | None
    ) -> None:
        self.engine = engine
        self.flow = Flow()
        self.out = Out(out_ttl_s)
        self.rules_of = rules_of
        self.on_hand_out: Callable[[list[int]], None] | None = None  # who wants to know, while somebody does
        self._groups: list[Group | None] = []  # by slot
        self._slot_of: dict[int, int] = {}  # by uid; also of groups that are out

    def __len__(self) -> int:
        return sum(len(pool) for task in self.engine.tasks.values() for pool in task.pools)

    def slots(self, uids: Iterable[int]) -> IntArray:
        """Return where groups are. Raises UnknownUid."""
        wanted = list(uids)
        for uid in wanted:
            if uid not in self._slot_of:
                raise UnknownUid(f"no group has uid {uid!r}: it was consumed, deleted, or never here")
        return np.array([self._slot_of[uid] for uid in wanted], np.int64)

    def is_resident(self, uid: object) -> bool:
        """Return whether a group of this uid is in a pool."""
        slot = self._slot_of.get(uid)  # type: ignore[call-overload]  # what is no uid is not there
        return slot is not None and bool(self.engine.columns.place[slot] == RESIDENT)

    def resident_slots(self, uids: Iterable[int]) -> IntArray:
        """Return where groups are that are in a pool; others are passed over."""
        return self.slots(uid for uid in dict.fromkeys(uids) if self.is_resident(uid))

    def peek(self, uids: Iterable[int]) -> list[list[Any]]:
        """Return groups without taking them. Raises UnknownUid."""
        columns = self.engine.columns
        steps = [task.step for task in self.engine.tasks.values()]
        return [
            self._group(slot).shown(steps[columns.task[slot]], int(columns.staleness[slot]))
            for slot in self.slots(uids).tolist()
        ]

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
        for slot in slots.tolist():
            del self._slot_of[self._group(slot).uid]
            self._groups[slot] = None
