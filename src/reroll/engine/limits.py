"""Limits of a task: rate limiters, the staleness window, and the check that a configuration cannot deadlock.

A rate limiter bounds how far inserts and samples may run ahead of each other. It is a rule without state: two
questions about counters. The counters belong to the task, so that a rule can be replaced at run time. With spi = samples
per insert and size = inserts - deletes:

    can_sample(k): size >= min_size  and  inserts*spi - samples - k >= min_diff
    can_insert(k): size + k <= min_size  or  (inserts + k)*spi - samples <= max_diff

Samples that groups can never give, because they left a buffer early, count as samples.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol

from reroll.engine.options import from_options, plain_number, set_count, set_number
from reroll.engine.selectors.selector import SelectorSpec
from reroll.engine.selectors.specs import Fifo, Mixture, Prioritized, Stalest
from reroll.errors import InvalidConfig, shown


@dataclass(slots=True)
class Counters:
    """Inserts, samples and deletes so far, as limiters see them."""

    inserts: int = 0
    samples: int = 0
    deletes: int = 0
    forgone: float = 0.0
    """Samples that groups can never give, because they left early; limiters count them as given."""

    @property
    def size(self) -> int:
        return self.inserts - self.deletes

    def state(self) -> dict[str, float]:
        # `asdict` takes ten times as long, and every commit of a durable buffer writes this.
        return {name: getattr(self, name) for name in self.__slots__}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name in self.__slots__:
            setattr(self, name, state[name])


class Window(NamedTuple):
    """The four numbers of the rule."""

    spi: float
    min_size: int
    min_diff: float
    max_diff: float

    @property
    def largest_sample(self) -> float:
        """The most samples that one call can ever take."""
        return max(self.max_diff, self.spi * self.min_size) - self.min_diff

    @property
    def largest_insert(self) -> float:
        """The most inserts that one call can ever make."""
        return max(self.min_size, (self.max_diff - self.min_diff) / self.spi)


class Limiter(Protocol):
    """A rule: immutable, comparable, without state. Users may write their own."""

    @property
    def type(self) -> str:
        """The name of the limiter in configuration files."""

    @property
    def window(self) -> Window:
        """The numbers of the rule, for the deadlock check."""

    def can_insert(self, counters: Counters, k: int = 1) -> bool:
        """Return whether k more inserts are allowed.

        Args:
            counters: inserts, samples and size so far.
            k: number of inserts.

        """

    def can_sample(self, counters: Counters, k: int = 1) -> bool:
        """Return whether k more samples are allowed.

        Args:
            counters: inserts, samples and size so far.
            k: number of samples.

        """


class _Windowed:
    """The inequalities of the rule."""

    __slots__ = ()

    @property
    def window(self) -> Window:
        raise NotImplementedError

    def can_insert(self, counters: Counters, k: int = 1) -> bool:
        spi, min_size, _, max_diff = self.window
        ahead = (counters.inserts + k) * spi - counters.samples - counters.forgone
        return counters.size + k <= min_size or ahead <= max_diff

    def can_sample(self, counters: Counters, k: int = 1) -> bool:
        spi, min_size, min_diff, _ = self.window
        ahead = counters.inserts * spi - counters.samples - counters.forgone
        return counters.size >= min_size and ahead - k >= min_diff


_UNLIMITED: Final = Window(1.0, 0, -math.inf, math.inf)  # asked for at every call


@dataclass(frozen=True, slots=True)
class Unlimited(_Windowed):
    """Never blocks; a sample of an empty table is empty."""

    type: ClassVar[str] = "unlimited"

    @property
    def window(self) -> Window:
        return _UNLIMITED


@dataclass(frozen=True, slots=True)
class MinSize(_Windowed):
    """Samples wait until the task has `min_size` groups; inserts never wait."""

    type: ClassVar[str] = "min_size"
    min_size: int

    def __post_init__(self) -> None:
        set_count(self, "min_size")

    @property
    def window(self) -> Window:
        return Window(1.0, self.min_size, -math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class SampleToInsertRatio(_Windowed):
    """Keeps samples and inserts at a ratio, within a window.

    Args:
        samples_per_insert: how often each group is sampled on average.
        min_size: samples wait until the task has this many groups.
        error_buffer: how far `inserts * samples_per_insert - samples` may deviate from its value at `min_size`
            inserts; or its lower and upper bound as a pair.

    """

    type: ClassVar[str] = "sample_to_insert_ratio"
    samples_per_insert: float
    min_size: int
    error_buffer: float | tuple[float, float]

    def __post_init__(self) -> None:
        set_number(self, "samples_per_insert", above=0, why="; otherwise nothing could ever be sampled")
        set_count(self, "min_size")
        buffer = self.error_buffer
        bounds = [
            plain_number(bound) for bound in (buffer if isinstance(buffer, list | tuple) else (buffer,))
        ]
        if len(bounds) != 1 + isinstance(buffer, list | tuple) or None in bounds:
            raise InvalidConfig(
                f"SampleToInsertRatio: error_buffer must be a number or a pair (lower, upper), not {shown(buffer)}"
            )
        object.__setattr__(self, "error_buffer", bounds[0] if len(bounds) == 1 else tuple(bounds))
        spi, min_size, low, high = self.window
        if not high - low >= 2 * max(1.0, spi):
            raise InvalidConfig(
                f"SampleToInsertRatio: the window from {low} to {high} is narrower than 2 * max(1, samples_per_insert) = "
                f"{2 * max(1.0, spi)}; inserts and samples would wait for each other forever"
            )
        if low > spi * min_size:
            raise InvalidConfig(
                f"SampleToInsertRatio: the lower bound {low} is above samples_per_insert * min_size = {spi * min_size}; "
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
    """Each group is sampled once; inserts wait while the task has `size` groups."""

    type: ClassVar[str] = "queue"
    size: int

    def __post_init__(self) -> None:
        set_count(self, "size")

    @property
    def window(self) -> Window:
        return Window(1.0, 1, 0, self.size)


@dataclass(frozen=True, slots=True)
class Stack(Queue):
    """The rule of Queue, under the name that goes with a Lifo sampler."""

    type: ClassVar[str] = "stack"


LIMITERS: dict[str, type[Any]] = {
    limiter.type: limiter for limiter in (Unlimited, MinSize, SampleToInsertRatio, Queue, Stack)
}


def limiter_of(value: object) -> Limiter:
    """Return the limiter of a name, of a mapping with `type`, or a limiter as it is.

    Raises InvalidConfig with the known names.
    """
    limiter = from_options(value, LIMITERS, "rate limiter")
    verbs = ("can_insert", "can_sample", "window")
    if isinstance(limiter, type) or not all(hasattr(limiter, verb) for verb in verbs):
        raise InvalidConfig(f"{shown(value)} is not a rate limiter; use one such as MinSize(1)")
    found: Limiter = limiter  # users may write their own
    return found


@dataclass(frozen=True, slots=True)
class StalenessWindow:
    """Limits how many groups are in progress, so that each is trained with at most `max_staleness`.

    Args:
        max_staleness: largest training step minus oldest version minus 1; None: the `max_staleness` of the task. A fraction
            admits a share of one more batch: with 1.25, a quarter of the groups of a batch may reach staleness 2.
        batch: groups per training step.
        sync_interval: training steps between two updates of the weights that generate.
        stragglers: what happens to running groups that would pass the bound. `expire`: they are late, and
            `ReplayBuffer.wait_overdue` asks producers to cancel them. `wait`: trainers wait for them. `resume`:
            `wait_overdue` asks producers to abort them, and to continue them under the weights that generate.

    """

    type: ClassVar[str] = "staleness_window"
    max_staleness: float | None = None
    batch: int = 0  # required
    sync_interval: int = 1
    stragglers: Literal["expire", "wait", "resume"] = "expire"

    def __post_init__(self) -> None:
        if self.stragglers not in ("expire", "wait", "resume"):
            raise InvalidConfig(
                f"StalenessWindow: stragglers must be expire, wait or resume, not {self.stragglers!r}"
            )
        set_count(self, "batch")
        set_count(self, "sync_interval")
        if self.max_staleness is None:
            return
        set_number(self, "max_staleness")
        if self.max_staleness < self.sync_interval - 1:
            raise InvalidConfig(
                f"StalenessWindow: max_staleness={self.max_staleness} never admits a group, because groups reach staleness "
                f"{self.sync_interval - 1} while they wait for weights that are updated every {self.sync_interval} steps; "
                f"set max_staleness to at least {self.sync_interval - 1}"
            )

    def _groups(self, fewer_steps: int = 0) -> int:
        """Return how many groups may be in progress, less those of some training steps."""
        assert self.max_staleness is not None  # noqa: S101  (`TaskConfig.window` fills it in)
        return math.floor((self.max_staleness + 1 - fewer_steps) * self.batch + 1e-9)

    @property
    def largest(self) -> int:
        """The most groups that can ever be in progress."""
        return self._groups()

    @property
    def least_left(self) -> int:
        """The fewest groups that may be left when a batch is one group short and no group may start."""
        return self._groups(self.sync_interval) + 1

    @property
    def bound(self) -> int:
        """The largest staleness of a group that is trained in time."""
        assert self.max_staleness is not None  # noqa: S101
        return math.ceil(self.max_staleness - 1e-9)

    def may_start(self, done_step: int, serving_version: int, busy: int) -> int:
        """Return how many groups may start.

        Args:
            done_step: last finished training step.
            serving_version: version of the weights that generate.
            busy: groups in progress, ready, or consumed since `done_step`.

        """
        return max(0, self._groups(done_step - serving_version) - busy)


def check_for_deadlock(
    *,
    capacity: int | None,
    sampler: SelectorSpec,
    remover: SelectorSpec | None,
    max_times_sampled: int | None,
    limiter: Limiter,
) -> None:
    """Raise InvalidConfig if producers or trainers would wait forever; warn if groups would be wasted."""
    if max_times_sampled is None and isinstance(sampler, Fifo | Stalest):
        raise InvalidConfig(
            f"a {sampler.type} sampler without a use limit returns the same items forever; set max_times_sampled, "
            "or use LeastUsed()"
        )
    if isinstance(remover, Mixture):
        raise InvalidConfig("Mixture composes training batches and cannot be a remover; use one of its parts")
    uses = math.inf if max_times_sampled is None else max_times_sampled
    if isinstance(sampler, Mixture) and sampler.fresh_share > 0:
        if capacity is not None and remover is None and max_times_sampled != 1:
            raise InvalidConfig(
                f"deadlock: once {capacity} groups have been sampled, sampling waits for fresh groups and inserts wait "
                "for space; set a remover or fresh_share=0"
            )
        spi, _, _, max_diff = limiter.window
        if min(spi, uses) * sampler.fresh_share > 1 and max_diff < math.inf:
            raise InvalidConfig(
                f"deadlock: with fresh_share={sampler.fresh_share} each group is sampled {1 / sampler.fresh_share:g} "
                f"times on average, then samples wait for fresh groups; but inserts wait until each was sampled {spi:g} "
                "times; lower fresh_share or the limiter's samples per insert"
            )
    if capacity is not None:
        _check_capacity(capacity, remover, uses, limiter)
    if isinstance(remover, Prioritized):
        _warn(
            "a prioritized remover evicts the most valuable groups first; MinHeap() evicts the least valuable"
        )
    if remover is not None and capacity is None:
        _warn("the remover never evicts anything, because there is no capacity; set capacity")


def _check_capacity(capacity: int, remover: SelectorSpec | None, uses: float, limiter: Limiter) -> None:
    spi, min_size, min_diff, max_diff = limiter.window
    if min_size > capacity:
        raise InvalidConfig(
            f"the limiter allows no sample before the task has {min_size} items, but at most {capacity} fit; raise the "
            "capacity or lower min_size"
        )
    if uses < spi and max_diff < math.inf:
        _warn(
            f"items leave after {uses} samples, so {spi} samples per insert are never reached, and inserts continue only "
            "while there are fewer than min_size items"
        )
    if remover is not None:
        if spi * capacity < max_diff < math.inf:
            _warn(
                f"the limiter admits more than the {capacity} items that fit, so the remover evicts items that were "
                "never sampled; lower the limiter's upper bound, or set no remover"
            )
        return
    # In a full task, inserts wait for space, which items free only by their last use. So the limiter must allow those
    # uses, even when every item has exactly one use left.
    if min_diff > -math.inf and (uses > spi or capacity * (spi - uses + 1) - 1 < min_diff):
        raise InvalidConfig(
            f"deadlock: once {capacity} items are stored, inserts wait until an item was sampled "
            f"{uses if uses < math.inf else 'infinitely many'} times, and samples wait for inserts, because the limiter "
            f"allows {spi} samples per insert (lower bound {min_diff}); set a remover, or set max_times_sampled to "
            f"{spi:g} and widen the window"
        )
    if uses == math.inf:
        _warn(
            f"nothing ever leaves: without a remover and a use limit, inserts wait forever once {capacity} items are "
            "stored, unless items are deleted"
        )


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=5)
