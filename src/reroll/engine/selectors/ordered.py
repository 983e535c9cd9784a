"""Selectors without chance: the rows with the smallest sort keys come first."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final, Literal

import numpy as np

from reroll.engine.rows import NO_VERSION, Columns, IntArray
from reroll.engine.selectors.selector import Picks, Rng, Selector

Key = tuple[Any, ...]
OrderRole = Literal["sampler", "remover", "age", "trainable", "peak"]
KeysOf = Callable[[Columns, IntArray], Iterable[Key]]
"""Returns the sort keys of rows."""

_CHUNK: Final = 512


class SortedChunks:
    """Unique keys in ascending order, in chunks of bounded length.

    `bisect` and list slices, which are written in C, are fast at any size and need no rebuild; a heap with lazy
    deletion must be rebuilt now and then, which stalls a call. add, remove: O(log n + chunk); iteration: O(1) a key.
    """

    def __init__(self) -> None:
        self._chunks: list[list[Key]] = []
        self._lasts: list[Key] = []  # the last key of each chunk
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Key]:
        for chunk in self._chunks:
            yield from chunk

    def add(self, keys: list[Key]) -> None:
        """Add keys; at once if they are larger than all others, as timestamps mostly are."""
        self._count += len(keys)
        keys.sort()
        inside = bisect_left(keys, self._lasts[-1]) if self._lasts else 0
        for key in keys[:inside]:
            index = bisect_left(self._lasts, key)
            chunk = self._chunks[index]
            insort(chunk, key)
            if len(chunk) > 2 * _CHUNK:
                self._chunks.insert(index, chunk[:_CHUNK])
                self._lasts.insert(index, chunk[_CHUNK - 1])
                del chunk[:_CHUNK]
        for start in range(inside, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            if self._chunks and len(self._chunks[-1]) < _CHUNK:
                self._chunks[-1] += part
                self._lasts[-1] = part[-1]
            else:
                self._chunks.append(part)
                self._lasts.append(part[-1])

    def remove(self, key: Key) -> None:
        index = bisect_left(self._lasts, key)
        chunk = self._chunks[index]
        place = bisect_left(chunk, key)
        if chunk[place] != key:
            raise KeyError(key)
        del chunk[place]
        self._count -= 1
        if not chunk:
            del self._chunks[index], self._lasts[index]
        elif place == len(chunk):
            self._lasts[index] = chunk[-1]

    def remove_all(self, keys: list[Key]) -> None:
        """Remove several keys; if they are the first ones, whole chunks at once."""
        count = len(keys)
        if count <= 1 or ((first := self.first(count)) != keys and first != sorted(keys)):
            for key in keys:
                self.remove(key)
            return
        self._count -= count
        while count:
            chunk = self._chunks[0]
            if count < len(chunk):
                del chunk[:count]
                return
            count -= len(chunk)
            del self._chunks[0], self._lasts[0]

    def first(self, n: int) -> list[Key]:
        """Return the n smallest keys, or all if there are fewer. O(n)."""
        result: list[Key] = []
        for chunk in self._chunks:
            result += chunk[: n - len(result)]
            if len(result) >= n:
                break
        return result


class Ordered(Selector):
    """Rows by sort key. add, remove, touch: O(log n) a row; pick: O(picked).

    With `is_fixed`, the keys of rows never change, and touch is O(1).
    """

    def __init__(self, columns: Columns, role: OrderRole, keys_of: KeysOf, *, is_fixed: bool = False) -> None:
        self._is_fixed = is_fixed
        self._columns = columns
        self._keys_of = keys_of
        self._order = SortedChunks()  # of (*key, slot)
        self._keys: list[Any] = columns.sort_keys[role]  # by slot; shared with the other orders of this role

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Key]:
        """Iterate over (*key, slot) in order."""
        return iter(self._order)

    def add(self, slots: IntArray) -> None:
        keys, rows = self._keys, slots.tolist()
        if not rows:
            return
        if (missing := max(rows) + 1 - len(keys)) > 0:
            keys.extend([None] * missing)
        new = [(*key, slot) for slot, key in zip(rows, self._keys_of(self._columns, slots), strict=True)]
        for unique in new:
            keys[unique[-1]] = unique
        self._order.add(new)

    def remove(self, slots: IntArray) -> None:
        removed: list[Key] = []
        for slot in slots.tolist():
            removed.append(self._keys[slot])
            self._keys[slot] = None
        self._order.remove_all(removed)

    def touch(self, slots: IntArray) -> None:
        if self._is_fixed or not len(slots):
            return
        rows = zip(slots.tolist(), self._keys_of(self._columns, slots), strict=True)
        moved = np.array([slot for slot, key in rows if self._keys[slot][:-1] != key], np.int64)
        self.remove(moved)
        self.add(moved)

    def pick(self, n: int, rng: Rng, *, step: int | None = None, replace: bool = False) -> Picks:  # noqa: ARG002
        return Picks.even(_slots(self._order.first(n)))

    def slots(self) -> IntArray:
        return _slots(self._order)


class ByStaleness(Selector):
    """Rows by staleness: the largest first (`sign` -1, Stalest) or the smallest (`sign` 1, Freshest), then the oldest.

    The staleness of rows with versions follows from the training step, so a new step changes no order among them. They
    are kept by version, other rows by declared staleness, and a pick merges both orders. Costs as for Ordered.
    """

    def __init__(self, columns: Columns, role: OrderRole, sign: int) -> None:
        self._columns = columns
        self._sign = sign
        # The smallest version is the stalest, hence the opposite sign.
        by_version, by_value = ("-version", "staleness") if sign > 0 else ("version", "-staleness")
        self._by_version = Ordered(columns, role, by_columns(by_version, "timestamp"))
        self._by_value = Ordered(columns, role, by_columns(by_value, "timestamp"))
        self._has_step = False  # before the first training step, all rows keep their declared staleness

    def __len__(self) -> int:
        return len(self._by_version) + len(self._by_value)

    def add(self, slots: IntArray) -> None:
        for order, part in self._split(slots):
            order.add(part)

    def remove(self, slots: IntArray) -> None:
        for order, part in self._split(slots):
            order.remove(part)

    def touch(self, slots: IntArray) -> None:
        for order, part in self._split(slots):
            order.touch(part)

    def pick(self, n: int, rng: Rng, *, step: int | None = None, replace: bool = False) -> Picks:  # noqa: ARG002
        if step is not None and not self._has_step:  # once: order rows that have versions by version. O(rows)
            slots = self._by_value.slots()
            self._by_value.remove(slots)
            self._has_step = True
            self.add(slots)
        if not len(self._by_value):
            return self._by_version.pick(n, rng)
        if not len(self._by_version):
            return self._by_value.pick(n, rng)
        shift = self._sign * ((step or 0) - 1)  # from a signed version to a signed staleness
        derived = ((key + shift, *rest) for key, *rest in self._by_version)
        return Picks.even(_slots(islice(merge(derived, self._by_value), n)))

    def slots(self) -> IntArray:
        return np.concatenate((self._by_version.slots(), self._by_value.slots()))

    def state(self) -> Mapping[str, Any]:
        return {"has_step": self._has_step}

    def restore(self, state: Mapping[str, Any], slots: IntArray) -> None:
        self._has_step = bool(state["has_step"])
        self.add(slots)

    def _split(self, slots: IntArray) -> list[tuple[Ordered, IntArray]]:
        """Return the order of each row, with its rows."""
        if not self._has_step:
            return [(self._by_value, slots)]
        has_version = self._columns.version[slots] != NO_VERSION
        if has_version.all():
            return [(self._by_version, slots)]
        return [(self._by_version, slots[has_version]), (self._by_value, slots[~has_version])]


def by_columns(*names: str) -> KeysOf:
    """Return the function that makes sort keys of these columns; of "-name", the largest value comes first."""
    signed = [(name.removeprefix("-"), name.startswith("-")) for name in names]

    def keys(columns: Columns, slots: IntArray) -> Iterable[Key]:
        values = [
            (-getattr(columns, name)[slots] if negated else getattr(columns, name)[slots]).tolist()
            for name, negated in signed
        ]
        return zip(*values, strict=True)

    return keys


def _slots(keys: Iterable[Any]) -> IntArray:
    return np.fromiter(map(itemgetter(-1), keys), np.int64)
