"""Measure what it costs to outlive the process: save and resume beside plain files, durable puts beside plain SQLite.

    python benchmarks/durability.py             10k groups of 64 KB, some minutes, 3 GB of memory and of disk
    python benchmarks/durability.py --quick     1k groups, fewer rounds
    python benchmarks/durability.py --check     a claim that is missed makes the exit code 1

Files are made in the working directory, and its disk is what is measured. Times are on the wall; contenders take turns.
"""

import sys
from time import perf_counter
from typing import NamedTuple

import checkpoints
import durable
from checkpoints import PLAIN_READ, PLAIN_WRITE, RESUME, SAVE, SHAPE, TORCH
from measure import print_table, times
from reporting import Claim, arguments, conclude, print_title, seconds, versions


class Plan(NamedTuple):
    """How much is measured."""

    groups: int = 10_000
    save_rounds: int = 5
    stall_rounds: int = 5
    torch_groups: int = 100
    puts: int = 5_000
    put_rounds: int = 5
    takes: int = 100


QUICK = Plan(groups=1_000, save_rounds=5, stall_rounds=3, torch_groups=20, puts=1_000, put_rounds=3, takes=30)


def main() -> int:
    options = arguments("Measure saving, resuming and durable buffers.", "durability.json").parse_args()
    plan = QUICK if options.quick else Plan()
    start = perf_counter()
    print_title("reroll durability benchmark")

    saves = checkpoints.measure_saves(plan.groups, plan.save_rounds)
    torch_s = checkpoints.measure_torch(plan.torch_groups, 3)
    _print_saves(saves, torch_s, plan)
    stalls = checkpoints.measure_stalls(plan.groups, plan.stall_rounds)
    _print_stalls(stalls)
    puts = durable.measure_puts(plan.puts, plan.put_rounds)
    takes = durable.measure_takes(plan.groups, plan.takes)
    _print_durable(puts, takes, plan)

    report = {
        "versions": versions(),
        "plan": plan._asdict(),
        "saves": {name: seconds(timing) for name, timing in saves.seconds.items()},
        "saved_bytes": saves.num_bytes,
        "torch_group_s": torch_s,
        "stalls": stalls._asdict()
        | {name: seconds(getattr(stalls, name)) for name in ("longest", "without")},
        "puts_per_s": {
            "reroll": puts.ours._asdict(),
            "unwritten": puts.unwritten._asdict(),
            "sqlite3": puts.plain._asdict(),
            "batch": puts.batch,
        },
        "takes": {name: seconds(timing) for name, timing in takes.items()},
    }
    judged = [
        *_save_claims(saves, torch_s),
        _stall_claim(stalls),
        *_durable_claims(puts, takes),
    ]
    return conclude(judged, report, perf_counter() - start, options)


def _save_claims(saves: checkpoints.Speeds, torch_s: float | None) -> list[Claim]:
    claims = []
    for ours, plain, bound, text in (
        (SAVE, PLAIN_WRITE, 0.5, "save at least half as fast as writing and syncing a plain file"),
        (RESUME, PLAIN_READ, 1 / 3, "resume at least a third as fast as reading a plain file"),
    ):
        ratio = saves.rate(ours) / saves.rate(plain)
        claims.append(Claim(text, f"{ratio:.0%}", ratio >= bound))
    ratio = None if torch_s is None else torch_s * saves.groups / saves.seconds[SAVE].median
    text = "save at least 50 times faster than torch.save of the same groups as lists"
    measured = "torch is not installed" if ratio is None else times(ratio)
    return [*claims, Claim(text, measured, None if ratio is None else ratio >= 50)]


def _stall_claim(stalls: checkpoints.Stalls) -> Claim:
    measured = f"{stalls.longest.median * 1e3:.0f} ms (at worst {stalls.worst * 1e3:.0f}), {stalls.puts:,} groups put"
    text = "longest stall of the event loop during save, with puts and batches, under 50 ms"
    return Claim(text, measured, stalls.longest.median < 0.05)


def _durable_claims(puts: durable.Puts, takes: dict[str, durable.Timing]) -> list[Claim]:
    bound = min(5_000, 0.6 * puts.plain.median)
    ratio = puts.ours.median / puts.plain.median
    claims = [
        Claim(
            f"durable puts from {durable.PRODUCERS} tasks: 5,000/s, or 60 % of plain sqlite3",
            f"{puts.ours.median:,.0f}/s, {ratio:.0%}",
            puts.ours.median >= bound,
        )
    ]
    for name in (durable.TAKE_STEP, durable.TAKE):
        milliseconds = takes[name].median * 1e3
        text = f"durable {name}, rollouts in memory: under 2 ms"
        claims.append(Claim(text, f"{milliseconds:.2f} ms", milliseconds < 2))
    return claims


def _print_saves(saves: checkpoints.Speeds, torch_s: float | None, plan: Plan) -> None:
    rows = [
        (name, f"{timing.median:.2f}", f"{timing.spread:.0%}", f"{saves.rate(name):,.0f}")
        for name, timing in saves.seconds.items()
    ]
    notes = ["what is read was written a moment before: all reads come from the page cache."]
    if torch_s is not None:
        taken = torch_s * saves.groups
        rows.append((TORCH, f"{taken:,.1f}", "", f"{saves.num_bytes / 1e6 / taken:,.0f}"))
        notes.append(f"{TORCH}: extrapolated from {plan.torch_groups} groups, for it is slow.")
    print_table(
        f"{saves.groups:,} groups of {SHAPE} tokens, {saves.num_bytes // saves.groups:,} bytes each",
        ("what", "s", "spread", "MB/s"),
        rows,
        notes,
    )


def _print_stalls(stalls: checkpoints.Stalls) -> None:
    print_table(
        f"The event loop, with {checkpoints.PUTTERS} tasks that put one group after another, and batches taken",
        ("", "longest stall ms", "at worst", "groups put", "s"),
        [
            (
                "during save",
                f"{stalls.longest.median * 1e3:.1f}",
                f"{stalls.worst * 1e3:.1f}",
                f"{stalls.puts:,}",
                f"{stalls.save_s:.2f}",
            ),
            ("without save", f"{stalls.without.median * 1e3:.1f}", "", f"{stalls.puts_without:,}", ""),
        ],
        ["medians of rounds. The groups that are there beforehand are frozen for the garbage collector."],
    )


def _print_durable(puts: durable.Puts, takes: dict[str, durable.Timing], plan: Plan) -> None:
    print_table(
        f"{plan.puts:,} durable puts from {durable.PRODUCERS} tasks, a second",
        ("", "puts/s", "spread"),
        [
            ("reroll", f"{puts.ours.median:,.0f}", f"{puts.ours.spread:.0%}"),
            ("reroll, nothing written", f"{puts.unwritten.median:,.0f}", f"{puts.unwritten.spread:.0%}"),
            ("plain sqlite3", f"{puts.plain.median:,.0f}", f"{puts.plain.spread:.0%}"),
        ],
        [
            f"{puts.batch:.1f} puts share a commit; plain sqlite3 commits as many rows and blobs at once, ready to be written."
        ],
    )
    print_table(
        f"Durable batches from {plan.groups:,} groups, rollouts in memory",
        ("call", "median ms", "quartiles"),
        [
            (name, f"{timing.median * 1e3:.2f}", f"{timing.low * 1e3:.2f} to {timing.high * 1e3:.2f}")
            for name, timing in takes.items()
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
