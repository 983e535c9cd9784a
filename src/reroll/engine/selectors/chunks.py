"""A sorted collection of unique keys in chunks: the order behind every deterministic selector.

Python's C-coded `bisect` and list slices on chunks of bounded length are fast at any size, need no rebuild (a heap
with lazy deletion has to be rebuilt now and then, which stalls), and let the first n be read without a change.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, Final

_CHUNK: Final = 512

Key = tuple[Any, ...]


class SortedChunks:
    """Unique keys in ascending order. add, remove: O(log n + chunk); iteration from the first: O(1) a key."""

    def __init__(self) -> None:
        self._chunks: list[list[Key]] = []
        self._lasts: list[Key] = []  # the last key of each chunk
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Key]:
        for chunk in self._chunks:
            yield from chunk

    def add(self, key: Key) -> None:
        self._count += 1
        index = bisect_left(self._lasts, key)
        if index == len(self._lasts):  # larger than all: the usual case, where order is the order of arrival
            if not self._chunks or len(self._chunks[-1]) >= _CHUNK:
                self._chunks.append([key])
                self._lasts.append(key)
                return
            self._chunks[-1].append(key)
            self._lasts[-1] = key
            return
        chunk = self._chunks[index]
        insort(chunk, key)
        if len(chunk) > 2 * _CHUNK:
            self._chunks.insert(index, chunk[:_CHUNK])
            self._lasts.insert(index, chunk[_CHUNK - 1])
            del chunk[:_CHUNK]

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
        """Remove several keys; those at the front, which leave together, in one go."""
        if len(keys) > 1:
            first = self.first(len(keys))
            if keys == first or sorted(keys) == first:
                self._remove_first(len(keys))
                return
        for key in keys:
            self.remove(key)

    def _remove_first(self, n: int) -> None:
        self._count -= n
        while n:
            chunk = self._chunks[0]
            if n < len(chunk):
                del chunk[:n]
                return
            n -= len(chunk)
            del self._chunks[0], self._lasts[0]

    def first(self, n: int) -> list[Key]:
        """Return the n smallest keys, or all if there are fewer. O(n)."""
        result: list[Key] = []
        for chunk in self._chunks:
            result += chunk[: n - len(result)]
            if len(result) >= n:
                break
        return result
