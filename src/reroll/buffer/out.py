"""Groups that producers took to roll them again, and how they are recognised when they come back."""

import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from reroll.buffer.group import Group
from reroll.buffer.tracked import Tracked
from reroll.group import RolloutGroup
from reroll.rollout.checkout import Checkout, Fingerprint, fingerprint_of, read_checkouts

_REMEMBERED: Final = 1 << 16
"""How many groups are known that were given up while a producer had them; the newest."""
_FORMER: Final = 16
"""How many earlier names of the buffer are known; the newest."""


class Until(NamedTuple):
    """How far a buffer had come when it was written down the last time under a name."""

    uid: int
    tick: int


class Name:
    """The name of a buffer in its checkouts.

    A buffer that is opened again or resumed takes a new name, and knows the earlier ones: checkouts made before the state
    was written still hold, and those of a future that was lost cannot name a group that got the same uid since.
    """

    def __init__(self) -> None:
        self.now = secrets.token_hex(8)
        self.former: dict[str, Until] = {}

    def state(self) -> tuple[str, Mapping[str, Until]]:
        """Return what is to be remembered."""
        return self.now, self.former

    def restore(self, state: tuple[str, Mapping[str, Sequence[int]]], until: Until) -> None:
        """Continue as the buffer of an earlier name, which had come that far."""
        name, former = state
        known = {earlier: Until(*then) for earlier, then in former.items()} | {name: until}
        self.former = dict(list(known.items())[-_FORMER:])

    def made(self, checkout: Checkout) -> bool:
        """Return whether this buffer made a checkout, and knows of it."""
        until = self.former.get(checkout.buffer)
        return checkout.buffer == self.now or (until is not None and checkout.uid <= until.uid)

    def is_newer(self, tick: int, checkout: Checkout) -> bool:
        """Return whether a row of this timestamp is newer than the earlier name under which the checkout was made."""
        until = self.former.get(checkout.buffer)
        return until is not None and tick > until.tick


class Out:
    """Groups that are checked out. A group comes back by its rollouts (the same objects), by its checkout, or by `uid`."""

    def __init__(self, ttl_s: float | None) -> None:
        self._ttl_s = ttl_s
        self._since: OrderedDict[int, float] = OrderedDict()  # by uid, the longest out first
        self._uid_of: dict[int, int] = {}  # by id of a rollout
        self._items: dict[int, list[Any]] = {}  # by uid; keeps the rollouts alive, so that an id stays theirs
        self._prints: dict[int, Fingerprint] = {}  # by uid, of groups whose rollouts carry no checkout
        self._printed: dict[bytes, set[int]] = {}  # the same uids by the prompt of the print
        self.name = Name()
        self.returned: set[int] = set()
        """Groups that were out when the buffer was saved or its process ended: they are back, and may still be put again."""
        self.given_up: Tracked[int, None] = Tracked()
        """Groups that were deleted while a producer may have had them: its result is a new group."""
        self.now = 0.0
        """The time, as the shell told it last."""

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, uid: object) -> bool:
        return uid in self._since

    def add(self, uid: int) -> None:
        """Check a group out."""
        self._since[uid] = self.now
        self.returned.discard(uid)

    def knows_objects(self, uid: int) -> bool:
        """Return whether a group can be recognised by its objects."""
        return uid in self._items

    def learn(self, group: Group) -> None:
        """Know a group that is out, or leased and may soon be, by the rollouts that are handed over now."""
        self._forget_items(group.uid)  # loaded anew, they are other objects
        if not (items := group.objects):
            return  # a group of columns carries a checkout
        self._items[group.uid] = items
        self._uid_of.update((id(item), group.uid) for item in items)
        # The objects change while they are rolled: what they were is noted now.
        if not read_checkouts(items) and (found := fingerprint_of(items)) is not None:
            self._prints[group.uid] = found
            self._printed.setdefault(found.prompt, set()).add(group.uid)

    def discard(self, uid: int) -> None:
        """Learn that a group is here again, or gone."""
        self._since.pop(uid, None)
        self._forget_items(uid)

    def give_up(self, uid: int) -> None:
        """Remember a group that is deleted while a producer may have it."""
        self.given_up[uid] = None
        if len(self.given_up) > _REMEMBERED:
            self.given_up.drop_oldest()

    def _forget_items(self, uid: int) -> None:
        for item in self._items.pop(uid, ()):
            self._uid_of.pop(id(item), None)
        if (known := self._prints.pop(uid, None)) is not None:
            self._printed[known.prompt].discard(uid)
            if not self._printed[known.prompt]:
                del self._printed[known.prompt]

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

    @property
    def has_unmarked(self) -> bool:
        """Whether a group may come back that carries no checkout."""
        return bool(self._prints or self.returned)

    def by_object(self, items: Iterable[Any]) -> set[int]:
        """Return the groups that were handed out as these objects."""
        if not self._uid_of or isinstance(items, RolloutGroup):
            return set()
        return {self._uid_of[id(item)] for item in items if id(item) in self._uid_of}

    def by_print(self, prompt: bytes) -> list[tuple[int, Fingerprint]]:
        """Return groups without a checkout that have this prompt, with what they were when they were handed out."""
        return [(uid, self._prints[uid]) for uid in sorted(self._printed.get(prompt, ()))]

    def uids(self) -> Sequence[int]:
        """Return the groups that are out, the longest first."""
        return list(self._since)
