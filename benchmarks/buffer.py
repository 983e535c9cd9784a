"""Measure every call of a ReplayBuffer: beside a scanning design, its memory, its waits, and as a replay memory.

    python benchmarks/buffer.py             all sizes, a few minutes, about 6 GB of memory
    python benchmarks/buffer.py --quick     smaller sizes, fewer rounds, half a minute
    python benchmarks/buffer.py --check     a claim that is missed makes the exit code 1

Prints tables, then every claim with PASS or MISS, and writes all numbers as JSON (--json PATH).
"""

import sys
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

import buffer_claims as claims
import group_memory
import group_operations as ops
import group_waits
import replay
from group_operations import LARGE_SHORT, MIDDLE, MIDDLE_SHORT, SMALL
from groups import LONG, SHORT, WORKLOAD_R
from measure import Timing, microseconds, print_table, times
from reporting import arguments, conclude, print_title, seconds, versions


class Plan(NamedTuple):
    """How much is measured."""

    sizes: Sequence[ops.Size] = (SMALL, MIDDLE, MIDDLE_SHORT, LARGE_SHORT)
    rounds: int = 21
    expire_rounds: Sequence[int] = (3, 1, 1, 1)
    """Of each size."""
    memory_groups: Sequence[int] = (10_000, 2_000)
    """As Rollout, and as lists."""
    wake_up_rounds: int = 200
    stall_groups: int = 20_000
    replay_sizes: Sequence[int] = (5_000, 50_000)
    replay_rounds: int = 31
    samplers: Sequence[str] = tuple(replay.SAMPLERS)
    lease_groups: int = 10_000
    lease_rounds: int = 61


QUICK = Plan(
    sizes=(SMALL, MIDDLE),
    rounds=7,
    expire_rounds=(2, 1),
    memory_groups=(1_000, 300),
    wake_up_rounds=50,
    stall_groups=2_000,
    replay_sizes=(1_000, 10_000),
    replay_rounds=15,
    samplers=(replay.PLAIN,),
    lease_groups=1_000,
    lease_rounds=21,
)


def main() -> int:
    options = arguments("Measure every call of a buffer.", "buffer.json").parse_args()
    plan = QUICK if options.quick else Plan()
    start = perf_counter()
    print_title("reroll buffer benchmark")

    memory = group_memory.measure_memory(dict(zip(group_memory.KINDS, plan.memory_groups, strict=True)))
    _print_memory(memory)
    wake_ups = {batch: group_waits.measure_wake_up(batch, plan.wake_up_rounds, 1000) for batch in (1, 64)}
    _print_wake_ups(wake_ups)
    leases = replay.measure_leases(plan.lease_groups, plan.lease_rounds)
    replayed = replay.measure_replay(plan.replay_sizes, plan.replay_rounds, plan.samplers)
    _print_replay(replayed, leases, plan)
    timed = ops.measure_operations(
        plan.sizes, plan.rounds, dict(zip(plan.sizes, plan.expire_rounds, strict=True))
    )
    _print_operations(timed, plan)
    stalls = group_waits.measure_stalls(plan.stall_groups)
    _print_stalls(stalls, plan)

    judged = [
        *claims.operation_claims(timed),
        *claims.memory_claims(memory),
        *claims.wake_up_claims(wake_ups),
        *claims.replay_claims(replayed),
        *claims.lease_claims(leases),
    ]
    report = {
        "versions": versions(),
        "plan": plan._asdict(),
        "operations": [
            key._asdict() | {"size": key.size._asdict() | {"shape": str(key.size.shape)}} | seconds(timing)
            for key, timing in timed.items()
        ],
        "memory": [found._asdict() for found in memory.values()],
        "wake_up": [
            {
                "batch": batch,
                "from_call": seconds(woken.from_call),
                "from_return": seconds(woken.from_return),
            }
            for batch, woken in wake_ups.items()
        ],
        "stalls": [stall._asdict() for stall in stalls],
        "replay": [key._asdict() | seconds(timing) for key, timing in replayed.items()],
        "leases": {name: seconds(timing) for name, timing in leases.items()},
    }
    return conclude(judged, report, perf_counter() - start, options)


def _print_operations(timed: claims.Operations, plan: Plan) -> None:
    rows = []
    for operation in dict.fromkeys(key.operation for key in timed):
        for number, design in enumerate((ops.SCANNING, ops.LISTS, ops.ROLLOUTS)):
            found = [timed[ops.Measured(operation, design, size)] for size in plan.sizes]
            ratios = [
                "" if design == ops.SCANNING else times(claims.speedup(timed, operation, size, design))
                for size in plan.sizes
                if size in (MIDDLE, LARGE_SHORT)
            ]
            rows.append(
                [
                    "" if number else operation,
                    design,
                    *(microseconds(timing.median) for timing in found),
                    times(claims.growth(timed, operation, design)),
                    f"{max(timing.spread for timing in found):.0%}",
                    *ratios,
                ]
            )
    ratio_names = [f"ratio {size}" for size in plan.sizes if size in (MIDDLE, LARGE_SHORT)]
    print_table(
        f"Calls of a buffer, groups of {LONG} tokens (short: {SHORT}), median microseconds",
        ("call", "design", *map(str, plan.sizes), "growth", "spread", *ratio_names),
        rows,
        [
            "reroll and the scanning design get the same objects, which hold lists; the third row is with Rollout.",
            "all expire, all expired: microseconds a group; reroll empties expired groups when they are handed out.",
            "growth: from 10k to 100k short groups. ratio: scanning / reroll. spread: of the quartiles, the largest.",
        ],
    )


def _print_memory(memory: Mapping[str, group_memory.Memory]) -> None:
    print_table(
        f"Memory of groups of {LONG} tokens in a buffer (resident memory of a process of its own)",
        ("kind", "groups", "bytes a group", "bytes a token", "overhead a group", "of it the buffer's"),
        [
            (
                found.kind,
                f"{found.groups:,}",
                f"{found.group_bytes:,.0f}",
                f"{found.token_bytes:.2f}",
                f"{found.overhead_bytes:,.0f}",
                f"{found.buffer_bytes:,.0f}",
            )
            for found in memory.values()
        ],
        [
            "overhead: besides 4 bytes an id, 4 a log-prob, 1 a mask entry. Prompts have neither of the last two."
        ],
    )


def _print_wake_ups(wake_ups: Mapping[int, group_waits.WakeUp]) -> None:
    print_table(
        "Wake-up of a consumer that waits for a batch of groups, microseconds on the wall",
        ("batch", "from the call of put", "quartiles", "from its return", "quartiles"),
        [
            (str(batch), *_with_quartiles(woken.from_call), *_with_quartiles(woken.from_return))
            for batch, woken in wake_ups.items()
        ],
    )


def _with_quartiles(timing: Timing) -> tuple[str, str]:
    return microseconds(timing.median), f"{microseconds(timing.low)} to {microseconds(timing.high)}"


def _print_stalls(stalls: Sequence[group_waits.Stall], plan: Plan) -> None:
    print_table(
        f"Longest calls while filling a buffer with {plan.stall_groups:,} groups as Rollout",
        ("call", "calls", "median us", "longest ms", "on the wall", "collecting", "at groups"),
        [
            (
                stall.call,
                f"{stall.calls:,}",
                microseconds(stall.median),
                *(f"{x * 1e3:.2f}" for x in (stall.worst, stall.worst_wall, stall.collecting)),
                f"{stall.groups:,}",
            )
            for stall in stalls
        ],
        ["collecting: of the time on the wall, in Python's garbage collector, which walks all objects."],
    )


def _print_replay(timed: claims.Replay, leases: Mapping[str, Timing], plan: Plan) -> None:
    rows = []
    for operation in (replay.SAMPLE, replay.UPDATE, replay.PUT, replay.ADVANCE):
        for number, sampler in enumerate(plan.samplers):
            found = [timed[replay.Measured(operation, sampler, groups)] for groups in plan.replay_sizes]
            rows.append(
                [
                    "" if number else operation,
                    sampler,
                    *(microseconds(timing.median) for timing in found),
                    times(claims.replay_growth(timed, operation, sampler)),
                    f"{max(timing.spread for timing in found):.0%}",
                ]
            )
    print_table(
        f"Replay from a store of groups of {WORKLOAD_R} tokens, median microseconds",
        ("call", "sampler", *(f"{groups // 1000}k" for groups in plan.replay_sizes), "growth", "spread"),
        rows,
    )
    print_table(
        f"Leases, {plan.lease_groups // 1000}k groups of {LONG} tokens, median microseconds",
        ("call", "us", "spread", "of take_batch"),
        [
            (
                name,
                microseconds(timing.median),
                f"{timing.spread:.0%}",
                times(timing.median / leases[replay.TAKE].median),
            )
            for name, timing in leases.items()
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
