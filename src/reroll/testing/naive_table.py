"""A Table in lists and loops: slow, obvious, written from the definitions, the oracle of the real one.

Where chance decides, the model gets the pick, and asserts that it was possible.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from reroll.engine.limits import Limiter, MinSize, Queue, SampleToInsertRatio, Stack, Unlimited
from reroll.engine.selectors.selector import SelectorSpec
from reroll.engine.selectors.specs import Fifo, LeastUsed, Lifo, MaxHeap, MinHeap, Prioritized
from reroll.errors import WouldBlock


@dataclass(eq=False)
class NaiveItem:
    """One item: `arrived` orders inserts, `touched` inserts and priority updates."""

    key: Any
    data: Any
    priority: float
    arrived: int
    touched: int
    uses: int = 0


class NaiveSample(NamedTuple):
    """What one draw has to tell of one item."""

    key: Any
    data: Any
    priority: float
    probability: float
    weight: float
    times_sampled: int
    table_size: int


class NaiveTable:
    """All that a Table does, but for waiting: it raises WouldBlock."""

    def __init__(
        self,
        max_size: int,
        sampler: SelectorSpec,
        remover: SelectorSpec | None,
        max_times_sampled: int | None,
        rate_limiter: Limiter,
    ) -> None:
        self.max_size = max_size
        self.sampler = sampler
        self.remover = remover
        self.max_times_sampled = max_times_sampled
        self.rate_limiter = rate_limiter
        self.items: list[NaiveItem] = []
        self.gone: list[tuple[str, NaiveItem]] = []  # with the ledger's bucket
        self.inserts = self.samples = self.deletes = self.ticks = 0

    def can_insert(self, k: int = 1) -> bool:
        """Return whether the limiter allows k inserts, and they fit."""
        spi, min_size, _, max_diff = bounds(self.rate_limiter)
        size = self.inserts - self.deletes
        fits = self.remover is not None or len(self.items) + k <= self.max_size
        return fits and (size + k <= min_size or (self.inserts + k) * spi - self.samples <= max_diff)

    def can_sample(self, k: int = 1) -> bool:
        """Return whether the limiter allows k samples, clamped to what is there."""
        spi, min_size, min_diff, _ = bounds(self.rate_limiter)
        k = min(k, len(self.items))
        size = self.inserts - self.deletes
        return size >= min_size and self.inserts * spi - self.samples - k >= min_diff

    def insert(self, key: Any, data: Any, priority: float = 1.0, victim: Any = None) -> None:
        """Insert or replace; `victim` is the key that was evicted, told where the remover leaves that to chance."""
        old = self.find(key)
        if old is None and not self.can_insert(1):
            raise WouldBlock(f"{key!r} cannot be inserted now")
        self.ticks += 1
        self.items.append(NaiveItem(key, data, priority, self.ticks, self.ticks))
        if old is not None:
            self._leave(old, "deleted")
            return
        self.inserts += 1
        if len(self.items) > self.max_size and self.remover is not None:
            possible = candidates(self.remover, self.items, 1)
            assert victim is not None or len(possible) == 1, (
                "tell the victim: the remover leaves it to chance"
            )
            evicted = possible[0] if victim is None else self.find(victim)
            assert evicted in possible, (
                f"{victim!r} cannot be evicted, only {[item.key for item in possible]}"
            )
            self.deletes += 1
            self._leave(evicted, "evicted")

    def sample(self, n: int, picked: Iterable[Any] | None = None) -> list[NaiveSample]:
        """Sample; `picked` are the keys that were drawn, in order, told where the sampler leaves that to chance."""
        if not self.can_sample(n):
            raise WouldBlock(f"{n} cannot be sampled now")
        size = len(self.items)
        n = min(n, size)
        possible = candidates(self.sampler, self.items, n)
        chosen = possible[:n] if picked is None else [self._held(key) for key in picked]
        assert len({item.key for item in chosen}) == len(chosen) == n, (
            "picks are distinct, and as many as there are"
        )
        assert all(item in possible for item in chosen), "a pick has weight zero although others suffice"
        if sort_key(self.sampler, self.items[0] if self.items else None) is not None:
            assert chosen == possible, "the sampler leaves nothing to chance, but the order differs"
        chances = [probability(self.sampler, self.items, item) for item in chosen]
        beta = self.sampler.beta if isinstance(self.sampler, Prioritized) else 0.0
        known = [(size * chance) ** -beta for chance in chances if chance > 0]
        largest = max(known, default=1.0)
        result = []
        for item, chance in zip(chosen, chances, strict=True):
            weight = (size * chance) ** -beta / largest if chance > 0 else 1.0
            item.uses += 1
            result.append(NaiveSample(item.key, item.data, item.priority, chance, weight, item.uses, size))
        self.samples += n
        for item in chosen:
            if self.max_times_sampled is not None and item.uses >= self.max_times_sampled:
                self.deletes += 1
                self._leave(item, "consumed")
        return result

    def update_priorities(self, priorities: Mapping[Any, float]) -> list[Any]:
        """Set priorities in the order given and return the keys that are not there."""
        unknown = []
        for key, priority in priorities.items():
            item = self.find(key)
            if item is None:
                unknown.append(key)
            else:
                self.ticks += 1
                item.priority, item.touched = priority, self.ticks
        return unknown

    def delete(self, keys: Iterable[Any]) -> int:
        """Delete and return how many there were; one that was never sampled is refunded."""
        found = [item for item in self.items if item.key in list(keys)]
        for item in found:
            if item.uses == 0:
                self.inserts -= 1
            else:
                self.deletes += 1
            self._leave(item, "deleted")
        return len(found)

    def reset(self) -> None:
        """Delete everything; the limiter's counters start anew."""
        self.delete(self.keys())
        self.inserts = self.samples = self.deletes = 0

    def keys(self) -> list[Any]:
        """Return all keys, the oldest insert first."""
        return [item.key for item in self.items]

    def find(self, key: Any) -> NaiveItem | None:
        """Return the item under a key, if there is one."""
        return next((item for item in self.items if item.key == key), None)

    def ledger(self) -> dict[str, tuple[int, int]]:
        """Return groups, and groups trained at least once, by bucket."""
        places = [("resident", item) for item in self.items] + self.gone
        books = dict.fromkeys(("put", "resident", "consumed", "evicted", "deleted"), (0, 0))
        for place, item in places:
            for name in ("put", place):
                groups, trained = books[name]
                books[name] = (groups + 1, trained + (item.uses > 0))
        return books

    def _held(self, key: Any) -> NaiveItem:
        item = self.find(key)
        assert item is not None, f"{key!r} was drawn but is not there"
        return item

    def _leave(self, item: NaiveItem | None, bucket: str) -> None:
        assert item is not None
        self.items.remove(item)
        self.gone.append((bucket, item))


def bounds(limiter: Limiter) -> tuple[float, float, float, float]:
    """Return samples per insert, min_size, min_diff and max_diff."""
    match limiter:
        case MinSize(n):
            return 1, n, -math.inf, math.inf
        case SampleToInsertRatio(spi, n, (low, high)):
            return spi, n, low, high
        case SampleToInsertRatio(spi, n, error):
            assert not isinstance(error, tuple)
            return spi, n, spi * n - error, spi * n + error
        case Queue(size) | Stack(size):
            return 1, 1, 0, size
        case Unlimited():
            return 1, 0, -math.inf, math.inf
    return limiter.window  # a user's own


def sort_key(selector: SelectorSpec, item: NaiveItem | None) -> tuple[float, ...] | None:
    """Return what the selector sorts by; None: it leaves the choice to chance."""
    if item is None:
        return None
    match selector:
        case Fifo():
            return (item.arrived,)
        case Lifo():
            return (-item.arrived,)
        case MinHeap():
            return (item.priority, item.touched)
        case MaxHeap():
            return (-item.priority, item.touched)
        case LeastUsed():
            return (item.uses, item.arrived)
    return None


def candidates(selector: SelectorSpec, items: list[NaiveItem], n: int) -> list[NaiveItem]:
    """Return who can be among the next n picks; in order, and no more than n, where nothing is left to chance."""
    if items and sort_key(selector, items[0]) is not None:
        return sorted(items, key=lambda item: sort_key(selector, item) or ())[:n]
    positive = [item for item in items if weight_of(selector, item) > 0]
    return positive if len(positive) >= n else items


def weight_of(selector: SelectorSpec, item: NaiveItem) -> float:
    """Return the weight by which the selector draws; a table has no versions, so nothing ages."""
    if isinstance(selector, Prioritized):
        return float(item.priority**selector.alpha * selector.reuse_decay**item.uses)
    return 1.0


def probability(selector: SelectorSpec, items: list[NaiveItem], item: NaiveItem) -> float:
    """Return the item's share of all weights; 1 where nothing is left to chance."""
    if sort_key(selector, item) is not None:
        return 1.0
    total = math.fsum(weight_of(selector, other) for other in items)
    return weight_of(selector, item) / total if total > 0 else 1 / len(items)
