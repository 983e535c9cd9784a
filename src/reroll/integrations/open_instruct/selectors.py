"""The selectors of reroll, which also answer `select(keys, metadata, n)` for whoever keeps items of their own."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from reroll.engine.rows import Columns
from reroll.engine.selectors import specs
from reroll.engine.selectors.selector import SelectorSpec
from reroll.engine.task import checked_priority

K = TypeVar("K", bound=Hashable)


@dataclass
class ItemMetadata:
    """What a selector knows of an item."""

    insert_order: int
    sample_count: int
    priority: float


class Selector(Protocol):
    """Chooses among items."""

    def select(self, keys: Sequence[K], metadata: Mapping[K, ItemMetadata], n: int) -> list[K]:
        """Return n distinct keys, or all if there are fewer."""


class _Selects:
    """The answer of every selector: that of a pool which holds just these items."""

    __slots__ = ()

    def select(
        self: Any,
        keys: Sequence[K],
        metadata: Mapping[K, ItemMetadata],
        n: int,
        *,
        rng: np.random.Generator | None = None,
    ) -> list[K]:
        """Return n distinct keys, or all if there are fewer, in the order in which they are chosen. O(keys).

        Raises InvalidPriority, KeyError for a key without metadata.
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
class Uniform(_Selects, specs.Uniform):
    """Every one with the same chance."""


@dataclass(frozen=True, slots=True)
class Prioritized(_Selects, specs.Prioritized):
    """Chances in proportion to the weight: priority^alpha x reuse_decay^uses."""


@dataclass(frozen=True, slots=True)
class Fifo(_Selects, specs.Fifo):
    """The oldest first."""


@dataclass(frozen=True, slots=True)
class Lifo(_Selects, specs.Lifo):
    """The newest first."""


_SELECTORS: Final = {spec.type: spec for spec in (Uniform, Prioritized, Fifo, Lifo)}


def make_selector(selector: str | Mapping[str, Any] | SelectorSpec | None) -> SelectorSpec | None:
    """Return the selector of a name, or of what a configuration holds; None, where nobody is to be evicted, stays None.

    Raises InvalidConfig (a ValueError) that lists what there is.
    """
    if selector is None:
        return None
    spec = specs.selector_spec(dict(selector) if isinstance(selector, Mapping) else selector)
    kind = _SELECTORS.get(spec.type)
    if kind is None or isinstance(spec, kind):
        return spec
    return kind(**{option.name: getattr(spec, option.name) for option in fields(kind)})
