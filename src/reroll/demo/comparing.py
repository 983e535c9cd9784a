"""What follows from the runs: medians and ranges over the seeds, and from which price of a generated token on replay pays.

Says only what these runs show. A mode that did not reach the target in every run has no numbers to compare.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from reroll.demo.measuring import Measured, Point

PLAIN = "on-policy"
BASELINES = (PLAIN, "on-policy-small")
"""What replay is compared with: the same batch, all new; and the same new groups, without the old ones."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle and the ends over the seeds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One mode, over the seeds that were run."""

    mode: str
    runs: int
    reached: int
    """How many of them reached the target; the rest of the numbers is about these."""
    generated_tokens: Spread | None
    trained_tokens: Spread | None
    seconds: Spread | None
    updates: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """A replay mode beside one without replay, by medians."""

    mode: str
    baseline: str
    saved_share: float
    """Of the generated tokens of the baseline; negative: it needed more."""
    seconds: float
    """Of the replay mode."""
    baseline_seconds: float
    ratio: float | None
    """A generated token has to cost more than so many trained ones for replay to take less time; None: it never does."""


def summarise(runs: Sequence[Measured]) -> list[Summary]:
    """Return a summary of each mode, in the order in which modes were run."""
    modes = dict.fromkeys(run.mode for run in runs if run.is_whole)
    return [_summary(mode, [run for run in runs if run.mode == mode and run.is_whole]) for mode in modes]


def _summary(mode: str, runs: Sequence[Measured]) -> Summary:
    points = [point for run in runs if (point := run.reached) is not None]

    def spread(value: Callable[[Point], float]) -> Spread | None:
        return Spread.of([value(point) for point in points]) if points else None

    return Summary(
        mode=mode,
        runs=len(runs),
        reached=len(points),
        generated_tokens=spread(lambda point: point.generated_tokens),
        trained_tokens=spread(lambda point: point.trained_tokens),
        seconds=spread(lambda point: point.seconds),
        updates=spread(lambda point: point.step),
    )


def break_evens(summaries: Sequence[Summary]) -> list[BreakEven]:
    """Compare each replay mode with each that does without, where all their runs reached the target."""
    by_mode = {summary.mode: summary for summary in summaries if summary.reached == summary.runs}
    return [
        _break_even(by_mode[mode], by_mode[baseline])
        for mode in by_mode
        for baseline in BASELINES
        if mode.startswith("replay") and baseline in by_mode
    ]


def _break_even(replay: Summary, other: Summary) -> BreakEven:
    generated, trained, seconds = _medians(replay)
    other_generated, other_trained, other_seconds = _medians(other)
    saved, more = other_generated - generated, trained - other_trained
    return BreakEven(
        mode=replay.mode,
        baseline=other.mode,
        saved_share=saved / other_generated,
        seconds=seconds,
        baseline_seconds=other_seconds,
        # price * generated + trained < price * other_generated + other_trained
        ratio=max(0.0, more / saved) if saved > 0 else None,
    )


def _medians(summary: Summary) -> tuple[float, float, float]:
    """Return the tokens that a mode generated and trained, and its seconds; it reached the target in every run."""
    spreads = (summary.generated_tokens, summary.trained_tokens, summary.seconds)
    generated, trained, seconds = (spread.median for spread in spreads if spread is not None)
    return generated, trained, seconds


def token_price(runs: Sequence[Measured]) -> float | None:
    """Return how many trained tokens a generated one cost, by the seconds spent on each in `on-policy` runs."""
    measured = [
        run.seconds_per_generated_token / run.seconds_per_trained_token
        for run in runs
        if run.mode == PLAIN and run.is_whole and run.seconds_per_trained_token
    ]
    return median(measured) if measured else None
