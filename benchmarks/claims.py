"""What the project promises about speed, held against what was measured."""

from collections.abc import Mapping, Sequence

from cycle import Measured as Cycle
from footprint import Import, Overhead
from measure import Timing, times
from operations import OURS, SCANNING
from operations import Measured as Operation
from reporting import Claim

SMALL, LARGE = 10**4, 10**5


def growth(timings: Mapping[Operation, Timing], operation: str, design: str = OURS) -> float | None:
    """How many times slower with ten times the rows."""
    small = timings.get(Operation(operation, design, SMALL))
    large = timings.get(Operation(operation, design, LARGE))
    return large.median / small.median if small and large else None


def speedup(timings: Mapping[Operation, Timing], operation: str, rows: int = LARGE) -> float | None:
    """How many times faster than the scanning design."""
    ours = timings.get(Operation(operation, OURS, rows))
    theirs = timings.get(Operation(operation, SCANNING, rows))
    return theirs.median / ours.median if ours and theirs else None


def operation_claims(timings: Mapping[Operation, Timing]) -> list[Claim]:
    """Growth with size, and the distance to the scanning design."""
    bounds = {
        "count": 2.0,
        "insert, fifo": 2.0,
        "insert, uniform": 2.0,
        "insert, prioritized": 2.0,
        "take 64, fifo": 2.0,
        "sample 64, uniform": 2.0,
        "sample 64, prioritized": 3.0,
    }
    claims = []
    for operation, bound in bounds.items():
        ratio = growth(timings, operation)
        text = f"{operation}: from 10^4 to 10^5 rows less than {bound:g} times slower"
        claims.append(Claim(text, times(ratio), None if ratio is None else ratio < bound))
    for operation, bound in {"count": 1000, "take 64, fifo": 300}.items():
        ratio = speedup(timings, operation)
        text = f"{operation}: at 10^5 rows at least {bound:,} times faster than the scanning design"
        claims.append(Claim(text, times(ratio), None if ratio is None else ratio >= bound))
    return claims


def heavy_claims(timings: Mapping[Cycle, tuple[Timing, Timing]]) -> list[Claim]:
    """One row with 99 % of the mass."""
    claims = []
    for contender in dict.fromkeys(key.contender for key in timings):
        ratios = [
            heavy.median / even.median for key, (even, heavy) in timings.items() if key.contender == contender
        ]
        text = f"256 distinct picks, 99 % of the mass in one row, {contender}: at most 3 times slower"
        claims.append(Claim(text, ", ".join(map(times, ratios)), max(ratios) <= 3))
    return claims


def footprint_claims(overheads: Sequence[Overhead], imports: Mapping[str, Import]) -> list[Claim]:
    """Memory of a row and time to import."""
    claims = []
    for selectors, bound, what in ((1, 500, "one selector"), (2, 700, "sampler and remover")):
        largest = max((o for o in overheads if o.selectors == selectors), key=lambda o: o.most)
        text = f"overhead of a row with {what} under {bound} bytes"
        claims.append(Claim(text, f"at most {largest.most:.0f} bytes ({largest.kind})", largest.most < bound))
    seconds, cpu_seconds = imports["reroll"]
    measured = f"{seconds:.3f} s ({cpu_seconds:.3f} s of processor time)"
    return [*claims, Claim("import reroll under 0.3 s", measured, seconds < 0.3)]
