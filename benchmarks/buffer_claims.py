"""What the project promises about the speed of buffers, held against what was measured."""

from collections.abc import Mapping

import group_operations as ops
import replay
from group_memory import Memory
from group_operations import LARGE_SHORT, MIDDLE, MIDDLE_SHORT, Size
from group_waits import WakeUp
from groups import LONG
from measure import Timing, microseconds, times
from reporting import Claim

Operations = Mapping[ops.Measured, Timing]
Replay = Mapping[replay.Measured, Timing]

GROUP_BYTES = 10 * LONG.group_tokens + 1024


def speedup(timed: Operations, operation: str, size: Size, design: str = ops.LISTS) -> float | None:
    """How many times faster than the scanning design, both given the same kind of objects."""
    ours = timed.get(ops.Measured(operation, design, size))
    theirs = timed.get(ops.Measured(operation, ops.SCANNING, size))
    return theirs.median / ours.median if ours and theirs else None


def growth(timed: Operations, operation: str, design: str = ops.LISTS) -> float | None:
    """How many times slower with ten times the groups, of the same shape."""
    small = timed.get(ops.Measured(operation, design, MIDDLE_SHORT))
    large = timed.get(ops.Measured(operation, design, LARGE_SHORT))
    return large.median / small.median if small and large else None


def replay_growth(timed: Replay, operation: str, sampler: str) -> float:
    """How many times slower with ten times the groups."""
    small, large = replay_sizes(timed)
    return (
        timed[replay.Measured(operation, sampler, large)].median
        / timed[replay.Measured(operation, sampler, small)].median
    )


def replay_sizes(timed: Replay) -> tuple[int, int]:
    """The fewest and the most groups: 5k and 50k, fewer in a quick run."""
    sizes = [key.groups for key in timed]
    return min(sizes), max(sizes)


def operation_claims(timed: Operations) -> list[Claim]:
    """The distance to the scanning design, and growth with size."""
    claims = []
    for operation, size, bound in (
        (ops.COUNT, MIDDLE, 1000),
        (ops.NOTHING, MIDDLE, 1000),
        (ops.TAKE, MIDDLE, 25),
        (ops.TAKE, LARGE_SHORT, 100),
        (ops.REFRESH, MIDDLE, 1000),
        (ops.PUT_VERSIONS, MIDDLE, 1),
    ):
        ratio = speedup(timed, operation, size)
        than = f"at least {bound:,} times faster" if bound > 1 else "not slower"
        text = f"{operation}: at {size.groups // 1000}k groups {than} than the scanning design"
        claims.append(Claim(text, times(ratio), None if ratio is None else ratio >= bound))
    for size in (MIDDLE, LARGE_SHORT):
        for design in (ops.LISTS, ops.ROLLOUTS):
            text = f"{ops.TAKE}: at {size.groups // 1000}k groups, {_kind(design)}, below 1 ms"
            claims.append(_below(text, timed.get(ops.Measured(ops.TAKE, design, size)), 1e-3))
    for operation in (ops.COUNT, ops.NOTHING, ops.TAKE, ops.REFRESH, ops.PUT_VERSIONS):
        ratios = [growth(timed, operation, design) for design in (ops.LISTS, ops.ROLLOUTS)]
        text = f"{operation}: from 10k to 100k groups at most 3 times slower (lists, Rollout)"
        known = [ratio for ratio in ratios if ratio is not None]
        claims.append(Claim(text, ", ".join(map(times, ratios)), max(known) <= 3 if known else None))
    return claims


def memory_claims(memory: Mapping[str, Memory]) -> list[Claim]:
    """Bytes of groups as Rollout, and beside lists."""
    ours, lists = memory["Rollout"], memory["lists"]
    ratio = lists.group_bytes / ours.group_bytes
    return [
        Claim(
            "memory as Rollout: at most 10 bytes a token + 1 KB a group",
            f"{ours.group_bytes:,.0f} of {GROUP_BYTES:,} bytes a group",
            ours.group_bytes <= GROUP_BYTES,
        ),
        Claim("memory as Rollout: at least 4 times less than lists", times(ratio), ratio >= 4),
    ]


def wake_up_claims(wake_ups: Mapping[int, WakeUp]) -> list[Claim]:
    """From the put to the consumer, for the largest batch."""
    woken = wake_ups[max(wake_ups)]
    text = f"wake-up: from the put that completes a batch of {woken.batch} to its holder below 1 ms"
    return [_below(text, woken.from_call, 1e-3)]


def replay_claims(timed: Replay) -> list[Claim]:
    """Workload R."""
    claims = []
    small, large = replay_sizes(timed)
    for operation, bound in ((replay.SAMPLE, 1e-3), (replay.UPDATE, 0.5e-3)):
        text = f"R, {operation}: at {large // 1000}k groups below {bound * 1e3:g} ms"
        claims.append(_below(text, timed[replay.Measured(operation, replay.PLAIN, large)], bound))
    for operation in (replay.SAMPLE, replay.UPDATE, replay.ADVANCE):
        ratio = replay_growth(timed, operation, replay.PLAIN)
        text = f"R, {operation}: from {small // 1000}k to {large // 1000}k groups less than 3 times slower"
        claims.append(Claim(text, times(ratio), ratio < 3))
    return claims


def lease_claims(timed: Mapping[str, Timing]) -> list[Claim]:
    """A lease beside a plain take."""
    ratio = timed[replay.LEASE].median / timed[replay.TAKE].median
    return [Claim("lease + ack of 64 groups: at most 3 times a plain take_batch", times(ratio), ratio <= 3)]


def _below(text: str, timing: Timing | None, bound: float) -> Claim:
    measured = "-" if timing is None else f"{microseconds(timing.median)} us"
    return Claim(text, measured, None if timing is None else timing.median < bound)


def _kind(design: str) -> str:
    return "Rollout" if design == ops.ROLLOUTS else "lists"
