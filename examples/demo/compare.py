"""What the runs show: medians and ranges over the seeds, and from which price of a generated token replay pays.

A mode that missed the target in some run has no numbers to compare.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from demo.run import TARGET, Run, closes

PLAIN = "on-policy"
BASELINES = (PLAIN, "on-policy-small")
"""Replay is compared with the same batch, all new, and with the same new groups alone."""
FORMATS = {"generated_tokens": ",.0f", "trained_tokens": ",.0f", "seconds": ".1f", "step": ".0f"}
HEADINGS = ("mode", "reached", "generated tokens", "trained tokens", "seconds", "updates")


class Spread(NamedTuple):
    """Median and range over the seeds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One mode over all seeds, with the spreads (by FORMATS) of the runs that reached the target."""

    mode: str
    runs: int
    reached: int
    spreads: dict[str, Spread]

    def row(self) -> tuple[str, ...]:
        """Return the cells under HEADINGS."""
        cells = []
        for name, form in FORMATS.items():
            middle, low, high = [format(value, form) for value in self.spreads.get(name, ())] or "---"
            cells.append(middle if low == high else f"{middle}\n({low} to {high})")
        return (self.mode, f"{self.reached} of {self.runs}", *cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """A replay mode compared with one without replay, by medians."""

    mode: str
    baseline: str
    saved_share: float
    """Share of the baseline's generated tokens; negative if replay generated more."""
    seconds: float
    baseline_seconds: float
    ratio: float | None
    """Replay takes less time where a generated token costs more than this many trained ones; None: nowhere."""

    def text(self) -> str:
        time = f"It took {self.seconds:.1f} s against {self.baseline_seconds:.1f} s."
        if self.ratio is None:
            return (
                f"{self.mode} generated {-self.saved_share:.0%} more tokens than {self.baseline} on the way to the target. "
                f"{time} Here replay did not pay."
            )
        trained = f"It trained more tokens, so it pays where a generated token costs more than {self.ratio:.1f} trained ones."
        if not self.ratio:
            trained = "It trained no more tokens either."
        return f"{self.mode} generated {self.saved_share:.0%} fewer tokens than {self.baseline}. {time} {trained}"


def summarise(runs: Sequence[Run]) -> list[Summary]:
    """Return a summary of each mode, in the order of the runs; interrupted runs do not count."""
    summaries = []
    for mode in dict.fromkeys(run.mode for run in runs if run.is_whole):
        whole = [run for run in runs if run.mode == mode and run.is_whole]
        points = [point for run in whole if (point := run.reached) is not None]
        columns = {name: [getattr(point, name) for point in points] for name in FORMATS if points}
        spreads = {name: Spread(median(of), min(of), max(of)) for name, of in columns.items()}
        summaries.append(Summary(mode=mode, runs=len(whole), reached=len(points), spreads=spreads))
    return summaries


def break_evens(summaries: Sequence[Summary]) -> list[BreakEven]:
    """Compare each replay mode with each baseline, if all runs of both reached the target."""
    complete = {one.mode: one.spreads for one in summaries if one.reached == one.runs}
    return [
        _break_even(mode, spreads, baseline, complete[baseline])
        for mode, spreads in complete.items()
        for baseline in BASELINES
        if mode.startswith("replay") and baseline in complete
    ]


def _break_even(mode: str, own: dict[str, Spread], baseline: str, other: dict[str, Spread]) -> BreakEven:
    saved = other["generated_tokens"].median - own["generated_tokens"].median
    more = own["trained_tokens"].median - other["trained_tokens"].median
    return BreakEven(
        mode=mode,
        baseline=baseline,
        saved_share=saved / other["generated_tokens"].median,
        seconds=own["seconds"].median,
        baseline_seconds=other["seconds"].median,
        # price * generated + trained < price * other_generated + other_trained
        ratio=max(0.0, more / saved) if saved > 0 else None,
    )


def token_price(runs: Sequence[Run]) -> float | None:
    """Return how many trained tokens a generated one cost in `on-policy` runs, by seconds."""
    prices = [
        run.seconds_per_generated_token / run.seconds_per_trained_token
        for run in runs
        if run.mode == PLAIN and run.is_whole and run.seconds_per_trained_token
    ]
    return median(prices) if prices else None


def findings(comparisons: Sequence[BreakEven], price: float | None) -> list[str]:
    """Return what the runs show about replay, in sentences."""
    found = [comparison.text() for comparison in comparisons]
    if comparisons and price is not None:
        found.append(
            f"In the on-policy runs a generated token took as long as {price:.1f} trained ones. This price counts tokens only; "
            "the seconds include the cost of generating a few groups at a time instead of many. The model is tiny, and this is "
            "a CPU. With real language models generation dominates: responses are long and made token by token, while all "
            "tokens of a batch are trained at once. Measure the ratio of your own system, and compare it."
        )
    if {comparison.mode for comparison in comparisons} >= {"replay-uniform", "replay-prioritized"}:
        found.append(
            "Uniform and prioritized replay are shown side by side, without a claim: a task this small, with few seeds, does "
            "not tell which is better."
        )
    return found


def headlines(runs: Sequence[Run]) -> list[str]:
    """Return the three lines that matter, as far as the modes that were run show them."""
    lines = []
    compared = [one for one in break_evens(summarise(runs)) if one.baseline == PLAIN and one.saved_share > 0]
    if compared:
        best = max(compared, key=lambda one: one.saved_share)
        lines.append(
            f"Replay: {best.mode} reached reward {TARGET} with {best.saved_share:.0%} fewer generated tokens"
        )
    ahead = [run for run in runs if run.mode == "async" and run.staleness]
    if ahead:
        overlap, oldest = median(run.overlap for run in ahead), max(max(run.staleness) for run in ahead)
        lines.append(
            f"Async:  generated during {overlap:.0%} of the training time, at most {oldest} steps stale"
        )
    put = sum(run.ledger["put"]["groups"] for run in runs if run.ledger)
    closed = sum(closes(run.ledger) for run in runs)
    lines.append(
        f"Ledger: closes in {closed} of {len(runs)} runs; {put:,} groups put, each in exactly one bucket"
    )
    return lines
