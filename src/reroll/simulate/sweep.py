"""Many runs that differ in some values: which settings are better than all others?"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from reroll.errors import InvalidArgument
from reroll.simulate.result import Result

OBJECTIVES: Final[Mapping[str, int]] = {"trained_tokens_per_s": 1, "mean_staleness": -1, "waste": -1}
"""What a setting is judged by: 1: more is better, -1: less is better."""
_RANGE: Final = re.compile(r"(-?\d+)\.\.(-?\d+)$")


class Trial(NamedTuple):
    """One run of a sweep."""

    changes: dict[str, Any]
    result: Result
    is_best: bool
    """Whether no other run is at least as good in every objective and better in one."""


def parse_sweep(words: Iterable[str]) -> dict[str, list[Any]]:
    """Return the values of each name, from words as `max_staleness=0..4` and `engines=8,16,32`.

    Raises:
        InvalidArgument: a word has no name, or no value.

    """
    found: dict[str, list[Any]] = {}
    for word in words:
        name, separator, text = word.partition("=")
        values = [value for part in text.split(",") for value in _values(part.strip())]
        if not separator or not name.strip() or not all(value != "" for value in values):
            raise InvalidArgument(
                f"sweep: {word!r} is not a name with values; write max_staleness=0..4 or engines=8,16"
            )
        found[name.strip()] = values
    return found


def _values(text: str) -> list[Any]:
    if (match := _RANGE.match(text)) is not None:
        first, last = int(match[1]), int(match[2])
        return list(range(first, last + 1)) or [""]
    for kind in (int, float):
        try:
            return [kind(text)]
        except ValueError:
            continue
    return [{"true": True, "false": False, "none": None}.get(text.lower(), text)]


def combinations(sweep: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of the values, in order."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def run_sweep(sweep: Mapping[str, Sequence[Any]], run: Callable[[dict[str, Any]], Result]) -> list[Trial]:
    """Run every combination, and mark those that no other dominates."""
    results = [(changes, run(changes)) for changes in combinations(sweep)]
    scores = [_score(result) for _, result in results]
    return [
        Trial(changes, result, not any(_dominates(other, score) for other in scores))
        for (changes, result), score in zip(results, scores, strict=True)
    ]


def _score(result: Result) -> tuple[float, ...]:
    row = result.row()
    return tuple(sign * row[name] for name, sign in OBJECTIVES.items())


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether one is at least as good everywhere, and better somewhere; 1 % of throughput is no difference."""
    close = [b - 0.01 * abs(b) if i == 0 else b for i, b in enumerate(other)]
    better = [b + 0.01 * abs(b) if i == 0 else b for i, b in enumerate(other)]
    return all(a >= b for a, b in zip(one, close, strict=True)) and any(
        a > b for a, b in zip(one, better, strict=True)
    )
