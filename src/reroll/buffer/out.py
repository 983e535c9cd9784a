"""Groups that producers took to roll them again, and how they are recognised when they come back."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from reroll.buffer.group import Group
from reroll.buffer.packed import Packed
from reroll.errors import InvalidArgument, Superseded

_REMEMBERED: Final = 1 << 16
"""Groups that several producers hold, of which the newest are known."""


class Out:
    """Who is out. A group comes back by its rollouts (the same objects), by `group_uid`, or by `uid`."""

    def __init__(self, ttl_s: float | None) -> None:
        self._ttl_s = ttl_s
        self._since: OrderedDict[int, float] = OrderedDict()  # by uid, the longest out first
        self._uid_of: dict[int, int] = {}  # by id of a rollout
        self._items: dict[int, list[Any]] = {}  # by uid; keeps the rollouts alive, so that an id stays theirs
        self._again: set[int] = set()  # of those, the ones that somebody else may hold, too
        self.returned: set[int] = set()
        """Groups that were out when the buffer was saved or its process ended: they are back, and may still be put again."""
        self.superseded: dict[int, int] = {}
        """Of those, the ones that were handed out once more, and how often: only one of their holders may put them."""
        self.changed: set[int] | None = None
        """Groups of which `superseded` tells something else since somebody wrote it down; None: nobody does."""
        self.now = 0.0
        """The time, as the shell told it last."""

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, uid: object) -> bool:
        return uid in self._since

    @property
    def may_come_back(self) -> bool:
        """Whether there is any group that may be put again, or must not be."""
        return bool(self._since or self.returned or self.superseded)

    def add(self, group: Group) -> None:
        """Let a group be out; it is known by the rollouts that were handed over, or by those that it has."""
        self._since[group.uid] = self.now
        if group.uid in self.returned:
            self.returned.discard(group.uid)
            self._again.add(group.uid)
            self.superseded[group.uid] = self.superseded.pop(group.uid, 0) + 1
            self._note(group.uid)
            if len(self.superseded) > _REMEMBERED:
                oldest = next(iter(self.superseded))
                del self.superseded[oldest]
                self._note(oldest)
        if group.uid not in self._items:
            self.learn(group)

    def learn(self, group: Group) -> None:
        """Know a group that is out, or lent and may soon be, by the rollouts that are handed over now."""
        self._forget_items(group.uid)  # loaded anew, they are other objects
        if group.packed is not None:
            return  # nobody has its objects
        self._items[group.uid] = group.items
        self._uid_of.update((id(item), group.uid) for item in group.items)

    def take_back(self, uid: int) -> None:
        """Let a group be here again that was handed out, and reached nobody."""
        if uid in self._again and uid in self.superseded:
            self.returned.add(uid)
            self.superseded[uid] -= 1
            if not self.superseded[uid]:
                del self.superseded[uid]
            self._note(uid)
        self.discard(uid)

    def discard(self, uid: int) -> None:
        """Learn that a group is here again, or gone."""
        self._since.pop(uid, None)
        self._again.discard(uid)
        self._forget_items(uid)

    def _note(self, uid: int) -> None:
        if self.changed is not None:
            self.changed.add(uid)

    def _forget_items(self, uid: int) -> None:
        for item in self._items.pop(uid, ()):
            self._uid_of.pop(id(item), None)

    def overdue(self) -> list[int]:
        """Return the uids that have been out for longer than the ttl. O(found)."""
        found: list[int] = []
        if self._ttl_s is not None:
            for uid, since in self._since.items():
                if self.now - since < self._ttl_s:
                    break
                found.append(uid)
        return found

    def next_deadline(self) -> float | None:
        """Return when the next group has been out for too long."""
        if self._ttl_s is None or not self._since:
            return None
        return next(iter(self._since.values())) + self._ttl_s

    def recognise(self, items: Iterable[Any] | Packed, uid: int | None) -> int | None:
        """Return the uid of the group that these rollouts are of, None if they are a new one; see `check`.

        Raises InvalidArgument if they belong to several groups.
        """
        found = set() if uid is None else {uid}
        if self.may_come_back:
            carried: set[Any]
            if isinstance(items, Packed):
                carried = set(items.group_uids)
            else:
                found.update(
                    self._uid_of[id(item)] for item in items if self._uid_of.get(id(item)) in self._since
                )
                carried = set() if found else {getattr(item, "group_uid", None) for item in items}
            if not found:
                found = {
                    known
                    for known in carried
                    if known is not None and (self.is_awaited(known) or known in self.superseded)
                }
        if len(found) > 1:
            raise InvalidArgument(
                f"these rollouts belong to several groups that are out: {sorted(found)}; put each by itself"
            )
        return found.pop() if found else None

    def is_awaited(self, uid: int) -> bool:
        """Return whether a group may be put by somebody who holds it."""
        return uid in self._since or uid in self.returned

    def check(self, uid: int, *, is_lent: bool) -> None:
        """Raise Superseded for a group that is somebody else's now, InvalidArgument for any other that is not out."""
        if self.is_awaited(uid) and not is_lent:
            return
        if is_lent or uid in self.superseded:
            raise Superseded(
                f"group {uid} came back when the buffer was opened again, and another producer took it: this result is not "
                "stored. Go on with the next group; or set group_uid to None, and put it as a new one"
            )
        raise InvalidArgument(f"group {uid!r} is not out, so it cannot be continued; put it without uid")

    def uids(self) -> Sequence[int]:
        """Return who is out, the longest first."""
        return list(self._since)
