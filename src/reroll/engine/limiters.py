"""Rate limiters: how far inserts and samples may run ahead of each other.

A limiter is a rule without state: two questions about counters. The counters belong to the task, so that a rule can be
replaced at run time. With spi = samples per insert and size = inserts - deletes:

    can_sample(k): size >= min_size  and  inserts*spi - samples - k >= min_diff
    can_insert(k): size + k <= min_size  or  (inserts + k)*spi - samples <= max_diff

where samples that will never come, of groups which left a buffer early, count as samples.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from reroll.errors import InvalidArgument, InvalidConfig, shown
from reroll.rollout.foreign import read_integer, read_number


@dataclass(slots=True)
class Counters:
    """What happened so far, as limiters see it."""

    inserts: int = 0
    samples: int = 0
    deletes: int = 0
    forgone: float = 0.0
    """Samples that groups will never give, since they left early; limiters count them as given."""

    @property
    def size(self) -> int:
        return self.inserts - self.deletes

    def state(self) -> dict[str, float]:
        # Not `asdict`, which takes ten times as long: every commit of a durable buffer writes this.
        return {
            "inserts": self.inserts,
            "samples": self.samples,
            "deletes": self.deletes,
            "forgone": self.forgone,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.inserts, self.samples, self.deletes = state["inserts"], state["samples"], state["deletes"]
        self.forgone = state["forgone"]


class Window(NamedTuple):
    """The four numbers of the rule."""

    spi: float
    min_size: int
    min_diff: float
    max_diff: float

    @property
    def largest_sample(self) -> float:
        """No call can ever sample more than this at once."""
        return max(self.max_diff, self.spi * self.min_size) - self.min_diff


class Limiter(Protocol):
    """A rule: immutable, comparable, without state. Users may bring their own."""

    @property
    def type(self) -> str:
        """The name of the limiter in configuration files."""

    @property
    def window(self) -> Window:
        """The numbers of the rule, for checks that it can proceed."""

    def can_insert(self, counters: Counters, k: int = 1) -> bool:
        """Return whether k inserts may follow."""

    def can_sample(self, counters: Counters, k: int = 1) -> bool:
        """Return whether k samples may follow."""


class _Windowed(ABC):
    """The one place of the inequalities."""

    __slots__ = ()

    @property
    @abstractmethod
    def window(self) -> Window: ...

    def can_insert(self, counters: Counters, k: int = 1) -> bool:
        spi, min_size, _, max_diff = self.window
        ahead = (counters.inserts + k) * spi - counters.samples - counters.forgone
        return counters.size + k <= min_size or ahead <= max_diff

    def can_sample(self, counters: Counters, k: int = 1) -> bool:
        spi, min_size, min_diff, _ = self.window
        ahead = counters.inserts * spi - counters.samples - counters.forgone
        return counters.size >= min_size and ahead - k >= min_diff


_WIDE_OPEN: Final = Window(1.0, 0, -math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Unlimited(_Windowed):
    """Never blocks; a sample of an empty table is empty."""

    type: ClassVar[str] = "unlimited"

    @property
    def window(self) -> Window:
        return _WIDE_OPEN


@dataclass(frozen=True, slots=True)
class MinSize(_Windowed):
    """Samples wait until `min_size` groups are there; inserts never wait."""

    type: ClassVar[str] = "min_size"
    min_size: int

    def __post_init__(self) -> None:
        _set_count(self, "min_size")

    @property
    def window(self) -> Window:
        return Window(1.0, self.min_size, -math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class SampleToInsertRatio(_Windowed):
    """Holds samples and inserts to a ratio, within a window.

    Args:
        samples_per_insert: how often each group is sampled on average.
        min_size: samples wait until this many groups are there.
        error_buffer: how far `inserts * samples_per_insert - samples` may be away from its value at `min_size`
            inserts; or its lower and upper bound as a pair.

    """

    type: ClassVar[str] = "sample_to_insert_ratio"
    samples_per_insert: float
    min_size: int
    error_buffer: float | tuple[float, float]

    def __post_init__(self) -> None:
        name = "SampleToInsertRatio"
        samples_per_insert = _number(self.samples_per_insert)
        if samples_per_insert is None or not 0 < samples_per_insert < math.inf:
            raise InvalidConfig(
                f"{name}: samples_per_insert must be a number above 0, not {shown(self.samples_per_insert)}; "
                "otherwise nothing could ever be sampled"
            )
        object.__setattr__(self, "samples_per_insert", samples_per_insert)
        _set_count(self, "min_size")
        buffer = self.error_buffer
        is_pair = isinstance(buffer, list | tuple)
        bounds = [_number(bound) for bound in (buffer if isinstance(buffer, list | tuple) else (buffer,))]
        if len(bounds) != 1 + is_pair or None in bounds:
            raise InvalidConfig(
                f"{name}: error_buffer must be a number or a pair (lower, upper), not {shown(buffer)}"
            )
        object.__setattr__(self, "error_buffer", tuple(bounds) if is_pair else bounds[0])
        spi, min_size, low, high = self.window
        if not high - low >= 2 * max(1.0, spi):
            raise InvalidConfig(
                f"{name}: the window from {low} to {high} is narrower than 2 * max(1, samples_per_insert) = "
                f"{2 * max(1.0, spi)}; inserts and samples would wait for each other for ever"
            )
        if low > spi * min_size:
            raise InvalidConfig(
                f"{name}: the lower bound {low} is above samples_per_insert * min_size = {spi * min_size}; "
                "samples would still wait when min_size is reached"
            )

    @property
    def window(self) -> Window:
        if isinstance(self.error_buffer, tuple):
            low, high = self.error_buffer
        else:
            centre = self.samples_per_insert * self.min_size
            low, high = centre - self.error_buffer, centre + self.error_buffer
        return Window(self.samples_per_insert, self.min_size, low, high)


@dataclass(frozen=True, slots=True)
class Queue(_Windowed):
    """Each group is sampled once; inserts wait while `size` groups are there."""

    type: ClassVar[str] = "queue"
    size: int

    def __post_init__(self) -> None:
        _set_count(self, "size")

    @property
    def window(self) -> Window:
        return Window(1.0, 1, 0, self.size)


@dataclass(frozen=True, slots=True)
class Stack(_Windowed):
    """The rule of Queue, under the name that goes with a Lifo sampler."""

    type: ClassVar[str] = "stack"
    size: int

    def __post_init__(self) -> None:
        _set_count(self, "size")

    @property
    def window(self) -> Window:
        return Window(1.0, 1, 0, self.size)


LIMITERS: dict[str, type[Any]] = {
    limiter.type: limiter for limiter in (Unlimited, MinSize, SampleToInsertRatio, Queue, Stack)
}


def limiter_of(value: object) -> Limiter:
    """Return the limiter that a mapping with `type`, a name, or a limiter stands for.

    Raises InvalidConfig that lists what there is.
    """
    if isinstance(value, str):
        value = {"type": value}
    if isinstance(value, dict):
        options = dict(value)
        name = options.pop("type", None)
        if not isinstance(name, str) or name not in LIMITERS:
            raise InvalidConfig(f"{shown(name)} is not a rate limiter; there are: {', '.join(LIMITERS)}")
        known = [option.name for option in fields(LIMITERS[name])]
        if set(options) != set(known):
            raise InvalidConfig(
                f"{name} takes {', '.join(known) or 'no options'}, not {', '.join(map(str, options)) or 'nothing'}"
            )
        limiter: Limiter = LIMITERS[name](**options)
        return limiter
    if not isinstance(value, type) and all(
        hasattr(value, verb) for verb in ("can_insert", "can_sample", "window")
    ):
        return value  # type: ignore[return-value]  # checked by shape: users bring their own
    raise InvalidConfig(f"{shown(value)} is not a rate limiter; use one such as MinSize(1)")


def limiter_options(limiter: Limiter) -> dict[str, Any]:
    """Return the mapping that `limiter_of` reads back."""
    return {"type": limiter.type, **asdict(limiter)}  # type: ignore[call-overload]


def known_options(limiter: Limiter) -> dict[str, Any] | None:
    """Return the same, None for a limiter that only its user knows."""
    return limiter_options(limiter) if type(limiter) in LIMITERS.values() else None


def _number(value: object) -> float | None:
    """Return one number as a plain int or float; None for anything else, NaN included."""
    if type(value) is int and abs(value) < 1 << 53:
        return value
    number = read_number(value)
    return None if number is None or math.isnan(number) else number


def _set_count(limiter: object, name: str) -> None:
    """Make an option a plain int. Raises InvalidConfig unless it is at least 1."""
    value = getattr(limiter, name)
    try:
        count = read_integer(name, value)
    except InvalidArgument:
        count = 0
    if count < 1:
        raise InvalidConfig(
            f"{type(limiter).__name__}: {name} must be a whole number of at least 1, not {shown(value)}"
        )
    object.__setattr__(limiter, name, count)
