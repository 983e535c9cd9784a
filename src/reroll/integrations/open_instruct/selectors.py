"""Selectors and `MinSize` of reroll with open-instruct's methods: `select(keys, metadata, n)`, `can_sample(table)`."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from reroll.engine import limits
from reroll.engine.rows import Columns
from reroll.engine.selectors import specs
from reroll.engine.selectors.selector import SelectorSpec
from reroll.engine.task import checked_priority
from reroll.table import Table

K = TypeVar("K", bound=Hashable)
RateLimiter = limits.Limiter
"""Rule for how far inserts and samples may run ahead of each other."""


@dataclass
class ItemMetadata:
    """The data of an item that selectors read."""

    insert_order: int
    sample_count: int
    priority: float


class Selector(Protocol):
    """Chooses among items."""

    def select(self, keys: Sequence[K], metadata: Mapping[K, ItemMetadata], n: int) -> list[K]:
        """Return n distinct keys, or all if there are fewer.

        Args:
            keys: candidates.
            metadata: order of insertion, number of samples and priority, by key.
            n: how many keys.

        """


class _Select:
    """`select` for every selector: builds a pool of the given items and picks from it."""

    __slots__ = ()

    def select(
        self: Any,
        keys: Sequence[K],
        metadata: Mapping[K, ItemMetadata],
        n: int,
        *,
        rng: np.random.Generator | None = None,
    ) -> list[K]:
        """Return n distinct keys, or all if there are fewer, in the order of selection. O(keys).

        Args:
            keys: candidates.
            metadata: order of insertion, number of samples and priority, by key.
            n: how many keys.
            rng: random generator; None: a new one.

        Raises:
            InvalidPriority: a priority is negative or not finite.
            KeyError: a key has no metadata.

        """
        columns = Columns()
        for place, key in enumerate(keys, start=1):
            known = metadata[key]
            columns.allocate(
                {
                    "uid": place,
                    "timestamp": known.insert_order,
                    "touched": known.insert_order,
                    "uses": known.sample_count,
                    "priority": checked_priority(known.priority),
                }
            )
        pool = self.build(columns, "sampler")
        pool.add(np.arange(len(keys)))
        picks = pool.pick(max(0, min(n, len(keys))), np.random.default_rng() if rng is None else rng)
        return [keys[slot] for slot in picks.slots.tolist()]


@dataclass(frozen=True, slots=True)
class Uniform(_Select, specs.Uniform):
    """All items with equal probability."""


@dataclass(frozen=True, slots=True)
class Prioritized(_Select, specs.Prioritized):
    """Probability in proportion to the weight: priority^alpha x reuse_decay^uses."""


@dataclass(frozen=True, slots=True)
class Fifo(_Select, specs.Fifo):
    """The oldest item first."""


@dataclass(frozen=True, slots=True)
class Lifo(_Select, specs.Lifo):
    """The newest item first."""


_SELECTORS: Final = {spec.type: spec for spec in (Uniform, Prioritized, Fifo, Lifo)}


def make_selector(selector: str | Mapping[str, Any] | SelectorSpec | None) -> SelectorSpec | None:
    """Return the selector of a name or a configuration; None, for no eviction, stays None.

    Args:
        selector: a name, a mapping with `type` and options, or a selector.

    Raises:
        InvalidConfig: the name is unknown; the message lists the known names.

    """
    if selector is None:
        return None
    spec = specs.selector_spec(dict(selector) if isinstance(selector, Mapping) else selector)
    kind = _SELECTORS.get(spec.type)
    if kind is None or isinstance(spec, kind):
        return spec
    return kind(**{option.name: getattr(spec, option.name) for option in fields(kind)})


@dataclass(frozen=True, slots=True)
class MinSize(limits.MinSize):
    """Samples wait until `min_size` items are present; inserts never wait."""

    def can_sample(self, counters: limits.Counters | Table, k: int = 1) -> bool:
        """Return whether k samples are allowed, for counters or for a table."""
        if isinstance(counters, Table):
            return len(counters) >= self.min_size
        return limits.MinSize.can_sample(self, counters, k)
