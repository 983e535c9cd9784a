"""Hypothesis strategies: selectors, limiters, priorities, and whole table configurations."""

import math
import warnings
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from reroll.engine.limits import (
    Limiter,
    MinSize,
    Queue,
    SampleToInsertRatio,
    Stack,
    Unlimited,
    check_for_deadlock,
)
from reroll.engine.selectors.selector import SelectorSpec
from reroll.engine.selectors.specs import (
    Fifo,
    Freshest,
    LeastUsed,
    Lifo,
    MaxHeap,
    MinHeap,
    Mixture,
    Prioritized,
    Stalest,
    Uniform,
)
from reroll.errors import InvalidConfig
from reroll.table import Table
from reroll.testing.naive_table import NaiveTable


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """What a Table is made from; `build` and `build_naive` make the real one and its oracle."""

    max_size: int
    sampler: SelectorSpec
    remover: SelectorSpec | None
    max_times_sampled: int | None
    rate_limiter: Limiter
    seed: int = 0

    def build(self) -> Table:
        """Return the real table, without the warnings about waste."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return Table(
                self.max_size,
                self.sampler,
                self.remover,
                self.max_times_sampled,
                self.rate_limiter,
                seed=self.seed,
            )

    def build_naive(self) -> NaiveTable:
        """Return the oracle; it also takes what a real table refuses."""
        return NaiveTable(
            self.max_size, self.sampler, self.remover, self.max_times_sampled, self.rate_limiter
        )

    @property
    def proceeds(self) -> bool:
        """Whether reroll accepts the configuration."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                check_for_deadlock(
                    capacity=self.max_size,
                    sampler=self.sampler,
                    remover=self.remover,
                    max_times_sampled=self.max_times_sampled,
                    limiter=self.rate_limiter,
                )
            except InvalidConfig:
                return False
        return True


def priorities() -> st.SearchStrategy[float]:
    """Return priorities as they come: zeros, ties, and anything between a millionth and a million."""
    return st.sampled_from([0, 1, 1.0, 2.0, 0.5]) | st.floats(1e-6, 1e6)


def bad_priorities() -> st.SearchStrategy[Any]:
    """Return what can be no priority: negative, NaN, infinite, too large for a float, several, or no number."""
    numbers = [-1, -1e-300, math.nan, math.inf, -math.inf, np.float64("nan"), 10**400, Fraction(10**400)]
    others = ["1", b"1", None, True, np.True_, 1j, [1.0], (1.0, 2.0), np.ones(1), np.ones(2), {}, object()]
    return st.sampled_from(numbers) | st.sampled_from(others) | st.floats(max_value=-5e-324)


def prioritized(*, with_versions: bool = False) -> st.SearchStrategy[Prioritized]:
    """Return prioritized selectors; with versions, some that let old ones decay."""
    return st.builds(
        Prioritized,
        alpha=st.sampled_from([1.0, 0.0, 0.6, 2.0]),
        beta=st.sampled_from([1.0, 0.0, 0.4]),
        half_life=st.sampled_from([None, 1.0, 0.5, 20]) if with_versions else st.none(),
        reuse_decay=st.sampled_from([1.0, 0.5, 0.0]),
    )


def certain_selectors() -> st.SearchStrategy[SelectorSpec]:
    """Return selectors of tables that leave nothing to chance."""
    every: list[SelectorSpec] = [Fifo(), Lifo(), MinHeap(), MaxHeap(), LeastUsed()]
    return st.sampled_from(every)


def table_selectors() -> st.SearchStrategy[SelectorSpec]:
    """Return what a table takes as sampler or remover."""
    return st.one_of(certain_selectors(), st.just(Uniform()), prioritized())


def selectors() -> st.SearchStrategy[SelectorSpec]:
    """Return what a buffer takes as sampler."""
    by_staleness: list[SelectorSpec] = [Stalest(), Freshest()]
    parts = st.one_of(table_selectors(), st.sampled_from(by_staleness), prioritized(with_versions=True))
    shares = st.sampled_from([0.0, 0.3, 0.5, 1.0])
    return parts | st.builds(Mixture, fresh_share=shares, replay=parts, fresh=parts)


@st.composite
def ratios(draw: st.DrawFn, *, max_min_size: int = 5) -> SampleToInsertRatio:
    """Return ratio limiters, most of them with a narrow window, where both sides have to wait."""
    spi = draw(st.sampled_from([1.0, 0.5, 1.5, 2, 3.0]))
    min_size = draw(st.integers(1, max_min_size))
    width = 2 * max(1.0, spi) + draw(st.sampled_from([0.0, 0.5, 1.0, 3.0, 20.0]))
    if draw(st.booleans()):
        return SampleToInsertRatio(spi, min_size, width / 2)
    low = spi * min_size - draw(st.sampled_from([0.0, 0.5, 1.0, 2.5, 4.0, 10.0]))
    return SampleToInsertRatio(spi, min_size, (low, low + width))


def limiters(*, max_min_size: int = 5) -> st.SearchStrategy[Limiter]:
    """Return limiters of every kind, with numbers that fit small tables."""
    sizes = st.integers(1, max_min_size)
    return st.one_of(
        st.just(Unlimited()),
        st.builds(MinSize, sizes),
        st.builds(Queue, sizes),
        st.builds(Stack, sizes),
        ratios(max_min_size=max_min_size),
    )


@st.composite
def table_configs(draw: st.DrawFn, *, max_size: int = 6, proceeding: bool = True) -> TableConfig:
    """Return configurations of small tables: those that proceed, or (`proceeding=False`) any."""
    config = st.builds(
        TableConfig,
        max_size=st.integers(1, max_size),
        sampler=table_selectors(),
        remover=st.none() | table_selectors(),
        max_times_sampled=st.none() | st.integers(1, 3),
        rate_limiter=limiters(),
        seed=st.integers(0, 2**32 - 1),
    )
    return draw(config.filter(lambda made: made.proceeds) if proceeding else config)
