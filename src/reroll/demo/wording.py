"""What the demo says about its numbers, in the terminal and in the report: what was measured, and no more."""

from collections.abc import Sequence

from reroll.demo.comparing import BreakEven, Spread, Summary

HEADINGS = ("mode", "reached", "generated tokens", "trained tokens", "seconds", "updates")


def table_rows(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    """Return the cells of each mode: the median, and the range in brackets."""
    return [
        (
            summary.mode,
            f"{summary.reached} of {summary.runs}",
            _cell(summary.generated_tokens, ",.0f"),
            _cell(summary.trained_tokens, ",.0f"),
            _cell(summary.seconds, ".1f"),
            _cell(summary.updates, ".0f"),
        )
        for summary in summaries
    ]


def _cell(spread: Spread | None, form: str) -> str:
    if spread is None:
        return "-"
    middle = format(spread.median, form)
    return middle if spread.low == spread.high else f"{middle}\n({spread.low:{form}} to {spread.high:{form}})"


def findings(comparisons: Sequence[BreakEven], price: float | None) -> list[str]:
    """Return what the runs show about replay."""
    told = [_finding(found) for found in comparisons]
    if comparisons and price is not None:
        told.append(
            f"In the on-policy runs a generated token took as long as {price:.1f} trained ones. The price counts tokens only; the "
            "seconds have also what it costs to generate a few groups at a time instead of many. The model is "
            "tiny, and this is a CPU. With real language models generation dominates: responses are long and made token by token, "
            "while all tokens of a batch are trained at once. Measure the ratio of your own system, and compare it."
        )
    if {found.mode for found in comparisons} >= {"replay-uniform", "replay-prioritized"}:
        told.append(
            "Uniform and prioritized replay are shown side by side, and no more: a task this small, and so few seeds, do not "
            "tell which is better."
        )
    return told


def _finding(found: BreakEven) -> str:
    """Return a comparison in words; all numbers are medians."""
    took = f"It took {found.seconds:.1f} s against {found.baseline_seconds:.1f} s."
    if found.ratio is None:
        return (
            f"{found.mode} generated {-found.saved_share:.0%} more tokens than {found.baseline} on the way to the target. "
            f"{took} Here replay did not pay."
        )
    if not found.ratio:
        trained = "It trained no more of them either."
    else:
        trained = (
            "It trained more of them, so that it takes less time where a generated token costs more than "
            f"{found.ratio:.1f} trained ones."
        )
    return (
        f"{found.mode} generated {found.saved_share:.0%} fewer tokens than {found.baseline}. {took} {trained}"
    )
