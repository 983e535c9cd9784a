"""Workload R: a store of many groups, sampled by priority, several times each; and leases beside plain takes.

A group is 8 x (256 + 4096) tokens. Samples are as users get them: groups, importance weights, infos.
"""

import gc
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from filling import numba_wanted, random_priorities
from groups import LONG, TASK, WORKLOAD_R, Group, drive, fill, rollout_maker
from measure import Case, Timing, interleave, per_operation
from reroll import (
    Fifo,
    Prioritized,
    ReplayBuffer,
    ReplayBufferConfig,
    SyncReplayBufferConfig,
)

BATCH = 64
SAMPLE, UPDATE, PUT = "sample(64)", "update_priorities of 64", "put into the full store"
ADVANCE = "advance, nothing passes max_staleness"
TAKE, LEASE = "take_batch(64)", "lease(64) + ack"
PLAIN = "prioritized"
SAMPLERS: Mapping[str, tuple[Any, bool]] = {
    PLAIN: (Prioritized(alpha=0.6, beta=0.4), True),
    "prioritized, without numba": (Prioritized(alpha=0.6, beta=0.4), False),
    "prioritized, with decay": (Prioritized(alpha=0.6, beta=0.4, half_life=4.0, reuse_decay=0.9), True),
}
"""The sampler, and whether numba may be used."""


class Measured(NamedTuple):
    """One operation of one sampler at one size."""

    operation: str
    sampler: str
    groups: int


def measure_replay(sizes: Sequence[int], rounds: int, samplers: Sequence[str]) -> dict[Measured, Timing]:
    """Time what a replaying trainer calls; sizes take turns."""
    results: dict[Measured, Timing] = {}
    for name in samplers:
        sampler, numba = SAMPLERS[name]
        cases: dict[Measured, Case] = {}
        for groups in sizes:
            buffer = _store(sampler, groups, numba=numba)
            cases |= {Measured(operation, name, groups): case for operation, case in _cases(buffer).items()}
        gc.collect()
        gc.freeze()
        for operation in (SAMPLE, UPDATE, PUT, ADVANCE):  # the last one ages all groups
            results |= interleave(
                {key: case for key, case in cases.items() if key.operation == operation}, rounds
            )
        cases.clear()
        gc.unfreeze()
    gc.collect()
    return results


def measure_leases(groups: int, rounds: int) -> dict[str, Timing]:
    """Time a lease that is acknowledged beside a plain take, each from a FIFO of so many groups."""
    buffers = {name: SyncReplayBufferConfig(seed=0).build() for name in (TAKE, LEASE)}
    for buffer in buffers.values():
        fill(buffer, rollout_maker(LONG), groups)
    gc.collect()
    gc.freeze()
    cases = {TAKE: _take_case(buffers[TAKE]), LEASE: _lease_case(buffers[LEASE])}
    results = interleave(cases, rounds)
    gc.unfreeze()
    return results


def _store(sampler: Any, groups: int, *, numba: bool) -> ReplayBuffer:
    config = ReplayBufferConfig(
        capacity=groups, sampler=sampler, remover=Fifo(), max_times_sampled=None, max_staleness=10**9, seed=0
    )
    priorities = random_priorities(groups).tolist()
    with numba_wanted(numba):
        buffer = config.build()
        return fill(buffer, rollout_maker(WORKLOAD_R), groups, priority=priorities.__getitem__)


def _cases(buffer: ReplayBuffer) -> dict[str, Case]:
    rng, make, steps = np.random.default_rng(1), rollout_maker(WORKLOAD_R), count(1_000)

    def update() -> float:
        # Those of a sample, as after a training step.
        uids = [sample.info.uid for sample in drive(buffer.sample(BATCH, TASK))]
        new = dict(zip(uids, (rng.random(BATCH) + 0.01).tolist(), strict=True))
        return per_operation(lambda: drive(buffer.update_priorities(new)))

    def put() -> float:
        groups = iter([make() for _ in range(16)])
        return per_operation(lambda: drive(buffer.put(next(groups), TASK, model_step=4, priority=0.5)), 16)

    return {
        SAMPLE: lambda: per_operation(lambda: drive(buffer.sample(BATCH, TASK)), 4),
        UPDATE: update,
        PUT: put,
        ADVANCE: lambda: per_operation(lambda: drive(buffer.advance(next(steps))), 64),
    }


def _take_case(buffer: ReplayBuffer) -> Case:
    def case() -> float:
        taken: list[Group] = []
        seconds = per_operation(lambda: taken.extend(drive(buffer.take_batch({TASK: BATCH}))[0][TASK]))
        return _given_back(buffer, taken, seconds)

    return case


def _lease_case(buffer: ReplayBuffer) -> Case:
    async def lend() -> list[Group]:
        async with buffer.lease({TASK: BATCH}) as batch:
            await batch.ack()
        return batch.groups[TASK]

    def case() -> float:
        taken: list[Group] = []
        seconds = per_operation(lambda: taken.extend(drive(lend())))
        return _given_back(buffer, taken, seconds)

    return case


def _given_back(buffer: ReplayBuffer, taken: list[Group], seconds: float) -> float:
    if len(taken) != BATCH:
        raise AssertionError("the buffer has enough groups")
    for group in taken:
        drive(buffer.put(group, TASK))
    return seconds
