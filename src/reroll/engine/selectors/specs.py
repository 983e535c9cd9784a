"""The specifications of selectors that users write, and their names in configuration files."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from reroll.engine.options import from_options, set_number
from reroll.engine.rows import Columns, IntArray
from reroll.engine.selectors.ordered import ByStaleness, Key, Ordered, by_columns
from reroll.engine.selectors.prioritized import PrioritizedSelector
from reroll.engine.selectors.random import MixtureSelector, UniformSelector
from reroll.engine.selectors.selector import Role, Selector, SelectorSpec
from reroll.errors import InvalidConfig, shown


class _Sorted:
    """Rows in the order of some columns; of "-name", the largest value comes first."""

    __slots__ = ()
    columns: ClassVar[tuple[str, ...]]

    def build(self, columns: Columns, role: Role) -> Selector:
        is_fixed = self.columns[0].endswith("timestamp")
        return Ordered(columns, role, by_columns(*self.columns), is_fixed=is_fixed)


@dataclass(frozen=True, slots=True)
class Fifo(_Sorted):
    """The oldest group first."""

    type: ClassVar[str] = "fifo"
    columns: ClassVar[tuple[str, ...]] = ("timestamp",)


@dataclass(frozen=True, slots=True)
class Lifo(_Sorted):
    """The newest group first."""

    type: ClassVar[str] = "lifo"
    columns: ClassVar[tuple[str, ...]] = ("-timestamp",)


@dataclass(frozen=True, slots=True)
class MinHeap(_Sorted):
    """The lowest priority first; of equal ones the least recently inserted or updated."""

    type: ClassVar[str] = "min_heap"
    columns: ClassVar[tuple[str, ...]] = ("priority", "touched")


@dataclass(frozen=True, slots=True)
class MaxHeap(_Sorted):
    """The highest priority first; of equal ones the least recently inserted or updated."""

    type: ClassVar[str] = "max_heap"
    columns: ClassVar[tuple[str, ...]] = ("-priority", "touched")


@dataclass(frozen=True, slots=True)
class LeastUsed(_Sorted):
    """The least sampled group first, then the oldest.

    Args:
        shuffle: among groups that were sampled equally often, a random order instead of the oldest first, and another
            order for each number of uses: epochs without repetition. The seed of the buffer decides the orders.

    """

    type: ClassVar[str] = "least_used"
    columns: ClassVar[tuple[str, ...]] = ("uses", "timestamp")
    shuffle: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.shuffle, bool):
            raise InvalidConfig(f"LeastUsed: shuffle must be True or False, not {self.shuffle!r}")

    def build(self, columns: Columns, role: Role) -> Selector:
        keys = _by_uses_shuffled if self.shuffle else by_columns(*self.columns)
        return Ordered(columns, role, keys)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every group with the same probability."""

    type: ClassVar[str] = "uniform"

    def build(self, columns: Columns, role: Role) -> Selector:
        return UniformSelector(columns, role)


@dataclass(frozen=True, slots=True)
class Prioritized:
    """Draws in proportion to priority^alpha x 2^(-age / half_life) x reuse_decay^uses.

    Args:
        alpha: exponent of priorities; 0 is uniform.
        beta: exponent of the importance weights, (N x probability)^-beta.
        half_life: policy versions after which a weight has halved; None: never.
        reuse_decay: factor for each time a group was sampled.

    """

    type: ClassVar[str] = "prioritized"
    alpha: float = 1.0
    beta: float = 1.0
    half_life: float | None = None
    reuse_decay: float = 1.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "reuse_decay"):
            set_number(self, name)
        if self.half_life is not None:
            set_number(self, "half_life", above=0)

    def build(self, columns: Columns, role: Role) -> Selector:
        return PrioritizedSelector(
            columns,
            role,
            alpha=self.alpha,
            beta=self.beta,
            half_life=self.half_life,
            reuse_decay=self.reuse_decay,
        )


@dataclass(frozen=True, slots=True)
class Stalest:
    """The largest staleness first, then the oldest. For buffers: a table has no versions."""

    type: ClassVar[str] = "stalest"

    def build(self, columns: Columns, role: Role) -> Selector:
        return ByStaleness(columns, role, sign=-1)


@dataclass(frozen=True, slots=True)
class Freshest:
    """The smallest staleness first, then the oldest. For buffers: a table has no versions."""

    type: ClassVar[str] = "freshest"

    def build(self, columns: Columns, role: Role) -> Selector:
        return ByStaleness(columns, role, sign=1)


@dataclass(frozen=True, slots=True)
class Mixture:
    """A share of fresh groups (never sampled), the rest replayed. For buffers, as sampler.

    Args:
        fresh_share: share of fresh groups in each batch, 0 to 1.
        replay: selector of groups that were sampled before.
        fresh: selector of fresh groups.

    """

    type: ClassVar[str] = "mixture"
    fresh_share: float
    replay: SelectorSpec = field(default_factory=Prioritized)
    fresh: SelectorSpec = field(default_factory=Fifo)

    def __post_init__(self) -> None:
        set_number(self, "fresh_share")
        if self.fresh_share > 1:
            raise InvalidConfig(f"Mixture: fresh_share must be from 0 to 1, not {self.fresh_share}")
        for name in ("replay", "fresh"):
            object.__setattr__(self, name, selector_spec(getattr(self, name)))
            if isinstance(getattr(self, name), Mixture):
                raise InvalidConfig(f"Mixture: {name} must not be a Mixture; use another selector")

    def build(self, columns: Columns, role: Role) -> Selector:
        return MixtureSelector(columns, role, self.fresh_share, self.fresh, self.replay)


SELECTORS: dict[str, type[Any]] = {
    spec.type: spec
    for spec in (Fifo, Lifo, Uniform, Prioritized, MinHeap, MaxHeap, LeastUsed, Stalest, Freshest, Mixture)
}


def selector_spec(value: object) -> SelectorSpec:
    """Return the specification of a name, of a mapping with `type`, or a specification as it is.

    Raises InvalidConfig with the known names.
    """
    spec = from_options(value, SELECTORS, "selector")
    if isinstance(spec, type) or not callable(getattr(spec, "build", None)) or not hasattr(spec, "type"):
        raise InvalidConfig(
            f"{shown(value)} is not a selector; use one such as Fifo() or its name: {', '.join(SELECTORS)}"
        )
    found: SelectorSpec = spec  # users may write their own
    return found


def _by_uses_shuffled(columns: Columns, slots: IntArray) -> Iterable[Key]:
    """Return the keys of `LeastUsed(shuffle=True)`: uses, then a hash of uid, uses and the salt of the columns."""
    uses = columns.uses[slots]
    mixed = columns.uid[slots].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed += uses.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03) + np.uint64(columns.salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the finalizer of SplitMix64
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return zip(uses.tolist(), mixed.tolist(), columns.timestamp[slots].tolist(), strict=True)
