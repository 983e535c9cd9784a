"""Timing that survives a noisy machine, and plain-text tables.

Contenders are measured in turn (A B A B ...), in blocks, and compared by the medians of their blocks: what disturbs the
machine for a second disturbs all of them. Inside a block the garbage collector rests, as in `timeit`.

The clock is the processor time of the calling thread: nothing measured here waits or uses other threads, so on an idle
machine that is the time on the wall, and on a busy one it leaves out what other processes took. (Where a peer does use
threads of its own, they are not counted: this favours the peer.)
"""

import gc
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from time import perf_counter, thread_time
from typing import NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

Case = Callable[[], float]
"""Runs one block and returns seconds per operation; what it prepares and tidies up is not in them."""


class Timing(NamedTuple):
    """Seconds per operation over all blocks."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Timing":
        if len(seconds) == 1:
            return cls(seconds[0], seconds[0], seconds[0])
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high)

    @property
    def spread(self) -> float:
        """Distance of the quartiles, as a share of the median."""
        return (self.high - self.low) / self.median


def per_operation(operation: Callable[[], object], times: int = 1) -> float:
    """Call an operation some times and return the seconds of one call."""
    start = thread_time()
    for _ in range(times):
        operation()
    return (thread_time() - start) / times


def interleave(cases: Mapping[K, Case], rounds: int) -> dict[K, Timing]:
    """Run the cases in turn, forwards and backwards, after one round that does not count.

    Blocks should be short, a millisecond or so: then most of them pass undisturbed. Slow cases run in a few rounds only.
    """
    seconds: dict[K, list[float]] = {name: [] for name in cases}
    gc.collect()
    gc.disable()
    try:
        every = {name: _rounds_between(case) for name, case in cases.items()}
        for number in range(rounds):
            turn = [name for name in cases if number % every[name] == 0]
            for name in reversed(turn) if number % 2 else turn:
                seconds[name].append(cases[name]())
    finally:
        gc.enable()
    return {name: Timing.of(values) for name, values in seconds.items()}


def _rounds_between(case: Case) -> int:
    """Warm a case up, and tell how seldom it should run: its preparation counts here."""
    start = perf_counter()
    case()
    return 1 if perf_counter() - start < 0.02 else 5


def microseconds(seconds: float | None) -> str:
    """Three significant digits, without exponents."""
    if seconds is None:
        return "-"
    value = seconds * 1e6
    decimals = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{decimals}f}"


def times(ratio: float | None) -> str:
    """Write a ratio."""
    if ratio is None:
        return "-"
    return f"{ratio:,.2f}x" if ratio < 100 else f"{ratio:,.0f}x"


def print_table(
    title: str, header: Sequence[str], rows: Iterable[Sequence[str]], notes: Sequence[str] = ()
) -> None:
    """Print columns as wide as needed: the first to the left, numbers to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    print(f"\n{title}")
    for number, line in enumerate(lines):
        first, *others = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join((line[0].ljust(len(first)), *others)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
    for note in notes:
        print(f"  {note}")
