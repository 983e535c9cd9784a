"""Maps that know which of their keys changed since the last commit."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Tracked(OrderedDict[K, V]):
    """A dict that records its dirty keys from `track` on: those that were set or deleted since the last commit."""

    dirty: set[K] | None = None
    """None: the buffer is not durable."""

    def track(self) -> None:
        """Record dirty keys from now on, starting with none."""
        self.dirty = set()

    def mark(self, keys: Iterable[K]) -> None:
        """Record keys as dirty, if the buffer is durable."""
        if self.dirty is not None:
            self.dirty.update(keys)

    def load(self, items: Mapping[K, V]) -> None:
        """Become committed items, none of which is dirty."""
        super().clear()
        super().update(items)
        if self.dirty is not None:
            self.dirty = set()

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if self.dirty is not None:
            self.dirty.add(key)

    def discard(self, key: K) -> None:
        """Delete a key, if it is there."""
        if key in self:
            super().__delitem__(key)
            self.mark((key,))

    def drop_oldest(self) -> V:
        """Delete the first key, and return its value."""
        key = next(iter(self))
        value = self[key]
        self.discard(key)
        return value

    def __reduce__(self) -> Any:
        raise TypeError("a tracked map cannot be pickled")


class PutIds:
    """The newest put ids, and the uid that each put returned: a producer may repeat a put without storing it twice."""

    def __init__(self, history: int) -> None:
        self._history = history
        self._numbers: dict[Hashable, int] = {}
        self._last = 0
        self.entries: Tracked[int, tuple[Hashable, int | None]] = Tracked()
        """Put id and uid by number, in the order of the puts."""

    def __contains__(self, put_id: Hashable) -> bool:
        return put_id in self._numbers

    def __getitem__(self, put_id: Hashable) -> int | None:
        return self.entries[self._numbers[put_id]][1]

    def add(self, put_id: Hashable, uid: int | None) -> None:
        """Remember a put; drop the oldest beyond the history."""
        if (known := self._numbers.pop(put_id, None)) is not None:
            self.entries.discard(known)
        self._last += 1
        self._numbers[put_id] = self._last
        self.entries[self._last] = put_id, uid
        self._drop_oldest()

    def restore(self, entries: Mapping[int, tuple[Hashable, int | None]]) -> None:
        """Load committed put ids; drop those beyond the history."""
        self.entries.load(entries)
        self._numbers = {put_id: number for number, (put_id, _) in entries.items()}
        self._last = max(entries, default=0)
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while len(self.entries) > self._history:
            put_id, _ = self.entries.drop_oldest()
            del self._numbers[put_id]
