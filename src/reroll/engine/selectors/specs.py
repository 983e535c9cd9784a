"""The specifications of selectors that users write, and their names in configuration files."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from reroll.engine.rows import Columns, IntArray
from reroll.engine.selectors.ordered import ByStaleness, Key, Ordered
from reroll.engine.selectors.prioritized import PrioritizedSelector
from reroll.engine.selectors.random import MixtureSelector, UniformSelector
from reroll.engine.selectors.selector import Role, Selector, SelectorSpec
from reroll.errors import InvalidConfig, shown


@dataclass(frozen=True, slots=True)
class Fifo:
    """The oldest group first."""

    type: ClassVar[str] = "fifo"

    def build(self, columns: Columns, role: Role) -> Selector:
        return Ordered(columns, role, lambda c, s: zip(c.timestamp[s].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Lifo:
    """The newest group first."""

    type: ClassVar[str] = "lifo"

    def build(self, columns: Columns, role: Role) -> Selector:
        return Ordered(columns, role, lambda c, s: zip((-c.timestamp[s]).tolist(), strict=True))


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
        _check("Prioritized", "alpha", self.alpha, at_least=0)
        _check("Prioritized", "beta", self.beta, at_least=0)
        if self.half_life is not None:
            _check("Prioritized", "half_life", self.half_life, above=0)
        _check("Prioritized", "reuse_decay", self.reuse_decay, at_least=0)

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
class MinHeap:
    """The lowest priority first; of equal ones the least recently inserted or updated."""

    type: ClassVar[str] = "min_heap"

    def build(self, columns: Columns, role: Role) -> Selector:
        return Ordered(
            columns, role, lambda c, s: zip(c.priority[s].tolist(), c.touched[s].tolist(), strict=True)
        )


@dataclass(frozen=True, slots=True)
class MaxHeap:
    """The highest priority first; of equal ones the least recently inserted or updated."""

    type: ClassVar[str] = "max_heap"

    def build(self, columns: Columns, role: Role) -> Selector:
        return Ordered(
            columns, role, lambda c, s: zip((-c.priority[s]).tolist(), c.touched[s].tolist(), strict=True)
        )


@dataclass(frozen=True, slots=True)
class LeastUsed:
    """The least sampled group first, then the oldest.

    Args:
        shuffle: among groups that were sampled equally often, a random order instead of the oldest first, and another
            order for each number of uses: epochs without repetition. The seed of the buffer decides the orders.

    """

    type: ClassVar[str] = "least_used"
    shuffle: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.shuffle, bool):
            raise InvalidConfig(f"LeastUsed: shuffle must be True or False, not {self.shuffle!r}")

    def build(self, columns: Columns, role: Role) -> Selector:
        if self.shuffle:
            return Ordered(columns, role, _by_uses_shuffled)
        return Ordered(
            columns, role, lambda c, s: zip(c.uses[s].tolist(), c.timestamp[s].tolist(), strict=True)
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
        _check("Mixture", "fresh_share", self.fresh_share, at_least=0)
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
    if isinstance(value, str):
        value = {"type": value}
    if isinstance(value, dict):
        options = dict(value)
        name = options.pop("type", None)
        if not isinstance(name, str) or name not in SELECTORS:
            raise InvalidConfig(f"{shown(name)} is not a selector; use one of {', '.join(SELECTORS)}")
        known = {option.name for option in fields(SELECTORS[name])}
        if unknown := sorted(map(str, set(options) - known)):
            raise InvalidConfig(
                f"{name} has no option {', '.join(unknown)}; it has: {', '.join(sorted(known)) or 'none'}"
            )
        try:
            spec: SelectorSpec = SELECTORS[name](**options)
        except TypeError as error:
            raise InvalidConfig(f"{name}: {error}") from None
        return spec
    if not isinstance(value, type) and callable(getattr(value, "build", None)) and hasattr(value, "type"):
        return value  # type: ignore[return-value]  # users may write their own
    raise InvalidConfig(
        f"{shown(value)} is not a selector; use one such as Fifo() or its name: {', '.join(SELECTORS)}"
    )


def spec_options(spec: SelectorSpec) -> dict[str, Any]:
    """Return the mapping that `selector_spec` reads back."""
    options: dict[str, Any] = {"type": spec.type}
    for option in fields(spec):  # type: ignore[arg-type]
        value = getattr(spec, option.name)
        options[option.name] = spec_options(value) if hasattr(value, "build") else value
    return options


def known_spec_options(spec: SelectorSpec) -> dict[str, Any] | None:
    """Return `spec_options` of a selector of this library; None for one of a user's own class."""
    parts = [part for name in ("fresh", "replay") if (part := getattr(spec, name, None)) is not None]
    known = all(type(part) is SELECTORS.get(getattr(part, "type", "")) for part in (spec, *parts))
    return spec_options(spec) if known else None


def _by_uses_shuffled(columns: Columns, slots: IntArray) -> Iterable[Key]:
    """Return the keys of `LeastUsed(shuffle=True)`: uses, then a hash of uid, uses and the salt of the columns."""
    uses = columns.uses[slots]
    mixed = columns.uid[slots].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed += uses.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03) + np.uint64(columns.salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the finalizer of SplitMix64
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return zip(uses.tolist(), mixed.tolist(), columns.timestamp[slots].tolist(), strict=True)


def _check(
    owner: str, name: str, value: object, *, at_least: float | None = None, above: float | None = None
) -> None:
    limit = f"at least {at_least}" if at_least is not None else f"above {above}"
    if (
        isinstance(value, bool | np.bool_)
        or not isinstance(value, int | float | np.integer | np.floating)
        or not math.isfinite(value)
        or (at_least is not None and value < at_least)
        or (above is not None and value <= above)
    ):
        raise InvalidConfig(f"{owner}: {name} must be a number {limit}, not {value!r}")
