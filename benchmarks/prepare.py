"""Measure preparation: sampled groups to a packed batch beside one memcpy, and the parts of ranks beside pickle of lists.

    python benchmarks/prepare.py             about a minute, about 3 GB of memory
    python benchmarks/prepare.py --quick     an eighth of workload M, fewer rounds
    python benchmarks/prepare.py --check     a claim that is missed makes the exit code 1

Beside other libraries: make bench-peers.
"""

import pickle
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from groups import TASK, drive
from measure import Case, Timing, interleave, microseconds, per_operation, print_table
from reporting import Claim, arguments, conclude, print_title, seconds, versions
from reroll import ReplayBuffer, ReplayBufferConfig, Rollout
from reroll.prepare import ArrayPool, PackedBatch, pack, sequences_of, split

BATCH, STEP = 64, 4
SAMPLE, TABLE, PACK, ARRAYS, WHOLE = "sample(64)", "sequences_of", "pack", "arrays", "all of it"
MEMCPY = "memcpy of the batch"
M_SAMPLE, M_TABLE, M_SPLIT, M_WHOLE = (
    "sample",
    "sequences_of",
    "split to 4 ranks",
    "sample + sequences_of + split",
)
M_FRESH = "the same, memory not used again"
M_ARRAYS = "arrays of every micro-batch, one by one"
PICKLE = "pickle of lists"
PICKLED_SHARE = 16
"""Lists of one group in so many are pickled, since all of them take gigabytes; their time is multiplied."""
RANKS = 4


class Workload(NamedTuple):
    """Groups of responses whose lengths are log-normal."""

    groups: int
    members: int
    mean_tokens: int
    pack_length: int

    def __str__(self) -> str:
        return f"{self.groups} groups x {self.members} x about {self.mean_tokens:,} tokens"


FLAT = Workload(BATCH, 8, 1000, 8192)
M = Workload(512, 16, 4000, 32_768)


def make_groups(workload: Workload) -> list[list[Rollout]]:
    """Return groups that share nothing but the prompt of each."""
    random = np.random.default_rng(0)
    prompt_tokens = workload.mean_tokens // 8
    mean = workload.mean_tokens - prompt_tokens
    lengths = random.lognormal(np.log(mean) - 0.125, 0.5, (workload.groups, workload.members)).astype(int) + 1
    lengths = np.minimum(lengths, workload.pack_length - prompt_tokens)
    return [_group(random, prompt_tokens, row.tolist()) for row in lengths]


def _group(random: np.random.Generator, prompt_tokens: int, lengths: Sequence[int]) -> list[Rollout]:
    prompt = random.integers(300, 150_000, prompt_tokens, dtype=np.int32)
    return [
        Rollout(
            prompt_ids=prompt,
            response_ids=random.integers(300, 150_000, length, dtype=np.int32),
            logprobs=-random.random(length, dtype=np.float32),
            response_mask=np.ones(length, np.uint8),
            reward=float(place % 2),
            status="completed",
            finish_reason="stop",
        )
        for place, length in enumerate(lengths)
    ]


def filled(groups: Sequence[list[Rollout]]) -> ReplayBuffer:
    """Return a buffer whose groups can be drawn again and again."""
    buffer = ReplayBufferConfig(sampler="uniform", max_times_sampled=None, seed=0).build()
    for group in groups:
        drive(buffer.put(group, TASK, model_step=STEP - 1))
    return buffer


def output_bytes(packed: PackedBatch) -> int:
    """Return the bytes of all arrays."""
    return sum(array.nbytes for array in packed.arrays().values())


def collate(groups: Any) -> dict[str, Any]:
    """Return all arrays of the batch, those that are written out when they are asked for among them."""
    return pack(sequences_of(groups, train_step=STEP), FLAT.pack_length).arrays()


def flat_cases() -> tuple[dict[str, Case], int]:
    """Return what is measured of one packed batch, and its bytes."""
    groups = make_groups(FLAT._replace(groups=4 * BATCH))
    buffer = filled(groups)

    def draw() -> Any:
        return drive(buffer.sample(BATCH, TASK, train_step=STEP))

    drawn = draw()
    table = sequences_of(drawn, train_step=STEP)
    packed = pack(table, FLAT.pack_length)
    size = output_bytes(packed)
    source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
    operations: dict[str, Callable[[], object]] = {
        SAMPLE: draw,
        TABLE: lambda: sequences_of(drawn, train_step=STEP),
        PACK: lambda: pack(table, FLAT.pack_length),
        ARRAYS: packed.arrays,
        WHOLE: lambda: collate(draw()),
        MEMCPY: lambda: np.copyto(target, source),
    }
    return {name: _case(operation) for name, operation in operations.items()}, size


def _case(operation: Callable[[], object]) -> Case:
    return lambda: per_operation(operation)


def m_cases(workload: Workload) -> dict[str, Case]:
    """Return what is measured of a large batch for several ranks."""
    groups = make_groups(workload)
    buffer = filled(groups)

    def draw() -> Any:
        return drive(buffer.sample(workload.groups, TASK, train_step=STEP))

    drawn = draw()
    table = sequences_of(drawn, train_step=STEP)

    memory = ArrayPool()

    def whole(memory: ArrayPool | None = memory) -> Any:
        table = sequences_of(draw(), train_step=STEP)
        return split(table, RANKS, pack_length=workload.pack_length, pool=memory)

    def write_out(parts: Any) -> None:
        for part in parts:
            for micro_batch in part:
                micro_batch.arrays()

    parts = whole()

    lists = [[member.to_dict() for member in group] for group in groups[::PICKLED_SHARE]]
    share = len(groups) / len(lists)
    return {
        M_SAMPLE: _case(draw),
        M_TABLE: _case(lambda: sequences_of(drawn, train_step=STEP)),
        M_SPLIT: _case(lambda: split(table, RANKS, pack_length=workload.pack_length, pool=memory)),
        M_WHOLE: _case(whole),
        M_FRESH: _case(lambda: whole(None)),
        M_ARRAYS: _case(lambda: write_out(parts)),
        PICKLE: lambda: share * per_operation(lambda: pickle.dumps(lists, pickle.HIGHEST_PROTOCOL)),
    }


def claims_of(flat: dict[str, Timing], large: dict[str, Timing]) -> list[Claim]:
    speed = flat[MEMCPY].median / flat[WHOLE].median
    claims = [
        Claim("packed batch: at least 10 % of the speed of a memcpy", f"{speed:.0%}", speed >= 0.10),
        Claim("packed batch: the aim, 25 % of the speed of a memcpy", f"{speed:.0%}", speed >= 0.25),
    ]
    share = large[M_WHOLE].median / large[PICKLE].median
    written = share + large[M_ARRAYS].median / large[PICKLE].median
    text = "M: sample + prepare + split in under 10 % of a pickle of the same as lists"
    claims.append(Claim(text, f"{share:.1%}, {written:.1%} with all arrays written out", share < 0.10))
    return claims


def main() -> int:
    options = arguments("Measure preparation.", "prepare.json").parse_args()
    start = perf_counter()
    print_title("reroll prepare benchmark")
    cases, size = flat_cases()
    flat = interleave(cases, 31 if options.quick else 101)
    cases.clear()
    _print(f"A packed batch of {FLAT}, {size / 1e6:.1f} MB", flat, MEMCPY, [])
    workload = M._replace(groups=M.groups // 8) if options.quick else M
    large = interleave(m_cases(workload), 11)
    notes = [f"Of the lists, one group in {PICKLED_SHARE} is pickled, and its time multiplied."]
    _print(f"Workload M: {workload}, {RANKS} ranks", large, PICKLE, notes)
    report = {
        "versions": versions(),
        "flat": {name: seconds(timing) for name, timing in flat.items()},
        "flat_bytes": size,
        "large": {name: seconds(timing) for name, timing in large.items()},
        "large_workload": workload._asdict(),
    }
    return conclude(claims_of(flat, large), report, perf_counter() - start, options)


def _print(title: str, timed: dict[str, Timing], measure: str, notes: Sequence[str]) -> None:
    rows = [
        (
            name,
            microseconds(timing.median),
            f"{timing.spread:.0%}",
            f"{timing.median / timed[measure].median:.1%}",
        )
        for name, timing in timed.items()
    ]
    print_table(title, ("", "median us", "spread", f"of {measure}"), rows, notes)


if __name__ == "__main__":
    sys.exit(main())
