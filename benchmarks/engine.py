"""Measure every operation of the engine: how it grows, and how it compares. `make bench` runs this.

    python benchmarks/engine.py             all sizes, a few minutes
    python benchmarks/engine.py --quick     smaller sizes, fewer rounds, half a minute
    python benchmarks/engine.py --check     a claim that is missed makes the exit code 1

Prints tables, then every claim with PASS or MISS, and writes all numbers as JSON (--json PATH).
"""

import sys
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

import claims
import cycle
import footprint
import operations
from measure import Timing, microseconds, print_table, times
from reporting import arguments, conclude, print_title, seconds, versions
from reroll import Fifo, Prioritized


class Plan(NamedTuple):
    """How much is measured."""

    sizes: Sequence[int] = (10**3, 10**4, 10**5, 10**6)
    scanning_sizes: Sequence[int] = (10**3, 10**4, 10**5)
    rounds: int = 31
    cycle_sizes: Sequence[int] = (10**4, 10**5, 10**6)
    cycle_rounds: int = 101
    cycles: int = 5
    overhead_rows: int = 50_000
    import_rounds: int = 7
    growth_rows: int = 10**6


QUICK = Plan(
    sizes=(10**3, 10**4, 10**5),
    scanning_sizes=(10**3, 10**4, 10**5),
    rounds=7,
    cycle_sizes=(10**4, 10**5),
    cycle_rounds=21,
    overhead_rows=5000,
    import_rounds=3,
    growth_rows=30_000,
)


def main() -> int:
    options = arguments("Measure every operation of the engine.", "engine.json").parse_args()
    plan = QUICK if options.quick else Plan()
    start = perf_counter()
    print_title("reroll engine benchmark")

    timed = operations.measure_operations(plan.sizes, plan.scanning_sizes, plan.rounds)
    _print_operations(timed, plan)
    cycles, notes = cycle.measure_cycles(plan.cycle_sizes, plan.cycle_rounds, plan.cycles)
    _print_cycles(cycles, notes)
    heavy = cycle.measure_heavy(plan.cycle_sizes, plan.cycle_rounds, plan.cycles)
    _print_heavy(heavy)
    overheads = footprint.measure_overhead(plan.overhead_rows)
    imports = footprint.measure_imports(plan.import_rounds)
    _print_footprint(overheads, imports, plan)
    grown = footprint.measure_growth(plan.growth_rows, Prioritized(), Fifo())
    _print_growth(grown)

    judged = [
        *claims.operation_claims(timed),
        *claims.heavy_claims(heavy),
        *claims.footprint_claims(overheads, imports),
    ]
    report = {
        "versions": versions(),
        "plan": plan._asdict(),
        "operations": [key._asdict() | seconds(timing) for key, timing in timed.items()],
        "cycles": [key._asdict() | seconds(timing) for key, timing in cycles.items()],
        "heavy": [
            key._asdict() | {"even": seconds(even), "heavy": seconds(uneven)}
            for key, (even, uneven) in heavy.items()
        ],
        "overhead_bytes": [overhead._asdict() for overhead in overheads],
        "import_s": {name: taken._asdict() for name, taken in imports.items()},
        "growth": grown._asdict() | {"worst": [stall._asdict() for stall in grown.worst]},
    }
    return conclude(judged, report, perf_counter() - start, options)


def _size(rows: int) -> str:
    return f"10^{len(str(rows)) - 1}"


def _print_operations(timed: Mapping[operations.Measured, Timing], plan: Plan) -> None:
    def cells(operation: str, design: str) -> list[str]:
        found = [timed.get(operations.Measured(operation, design, rows)) for rows in plan.sizes]
        spread = max(timing.spread for timing in found if timing)
        growth = times(claims.growth(timed, operation, design))
        return [
            *(microseconds(timing.median if timing else None) for timing in found),
            growth,
            f"{spread:.0%}",
        ]

    rows = []
    for operation in dict.fromkeys(key.operation for key in timed):
        rows.append([operation, "reroll", *cells(operation, operations.OURS), ""])
        ratio = times(claims.speedup(timed, operation))
        rows.append(["", "scanning", *cells(operation, operations.SCANNING), ratio])
    header = ("operation", "design", *map(_size, plan.sizes), "growth", "spread", "scanning / reroll")
    skipped = [_size(rows) for rows in plan.sizes if rows not in plan.scanning_sizes]
    notes = [
        "growth: from 10^4 to 10^5 rows. spread: largest distance of the quartiles, of the median. Ratio: at 10^5 rows."
    ]
    if skipped:
        notes.append(
            f"The scanning design is not run at {', '.join(skipped)} rows: a call takes a second or more."
        )
    print_table("Operations of a Table, median microseconds", header, rows, notes)


def _print_cycles(timed: Mapping[cycle.Measured, Timing], notes: Sequence[str]) -> None:
    sizes = list(dict.fromkeys(key.rows for key in timed))
    rows = []
    for contender in dict.fromkeys(key.contender for key in timed):
        timings = [timed[cycle.Measured(contender, rows)] for rows in sizes]
        per_second = [f"{1 / timing.median:,.0f}" for timing in timings]
        spread = f"{max(timing.spread for timing in timings):.0%}"
        rows.append([contender, *per_second, *(microseconds(timing.median) for timing in timings), spread])
    print_table(
        "Prioritized cycle (sample 256 + update 256): cycles per second, and microseconds",
        ("contender", *map(_size, sizes), *(f"{_size(rows)} us" for rows in sizes), "spread"),
        rows,
        ["256 distinct rows, with importance weights. Beside other libraries: make bench-peers.", *notes],
    )


def _print_heavy(timed: Mapping[cycle.Measured, tuple[Timing, Timing]]) -> None:
    print_table(
        "256 distinct picks, median microseconds",
        ("contender", "rows", "even", "99 % in one row", "ratio"),
        [
            (
                key.contender,
                _size(key.rows),
                microseconds(even.median),
                microseconds(heavy.median),
                times(heavy.median / even.median),
            )
            for key, (even, heavy) in timed.items()
        ],
    )


def _print_footprint(
    overheads: Sequence[footprint.Overhead], imports: Mapping[str, footprint.Import], plan: Plan
) -> None:
    print_table(
        f"Bytes of overhead per row, without key and payload, from {plan.overhead_rows // 2:,} to "
        f"{plan.overhead_rows:,} rows",
        ("selectors", "least", "mean", "most"),
        [(o.kind, *(f"{size:.0f}" for size in (o.least, o.mean, o.most))) for o in overheads],
    )
    print_table(
        "Import, median seconds of fresh processes",
        ("module", "seconds", "processor"),
        [(name, f"{taken.seconds:.3f}", f"{taken.cpu_seconds:.3f}") for name, taken in imports.items()],
    )


def _print_growth(grown: footprint.Growth) -> None:
    print_table(
        f"Longest inserts while growing to {grown.rows:,} rows, {grown.kind} "
        f"(median {microseconds(grown.median)} us, mean {microseconds(grown.mean)} us)",
        ("at row", "ms", "with other processes", "garbage collection"),
        [
            (
                f"{stall.row:,}",
                *(f"{x * 1e3:.2f}" for x in (stall.cpu_seconds, stall.seconds, stall.collecting)),
            )
            for stall in grown.worst
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
