"""Measure the drop-ins beside our own API, with 10k groups: what the names of others cost.

    python benchmarks/integrations.py            about two minutes, 1 GB of memory
    python benchmarks/integrations.py --quick    1k groups, fewer rounds
    python benchmarks/integrations.py --check    a claim that is missed makes the exit code 1

Both get the same objects: RolloutStates for buffers, results of open-instruct's shape for the queue.
"""

import asyncio
import gc
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from time import perf_counter, process_time
from typing import Any, NamedTuple

import reroll
from group_operations import EXPIRE, TAKE_EXPIRED, Size, Subject
from groups import MEMBERS, SHORT, TASK, VERSIONS, Group, Shape, drive, fill
from measure import Case, Timing, interleave, microseconds, per_operation, print_table, times
from reporting import Claim, arguments, conclude, print_title, seconds, versions
from reroll.integrations import open_instruct, xtuner
from reroll.prepare import GenerationResult, screen, to_group

OURS, DROP_IN = "reroll", "drop-in"
BATCH = 64
MOST = 1.5
"""How many times as long a call may take through a drop-in."""


class Measured(NamedTuple):
    """One operation, through our own API or through a drop-in."""

    operation: str
    design: str


# --- xtuner: the buffer


def state_maker(shape: Shape) -> Callable[[], Group]:
    """Return what makes groups of RolloutStates; they share all lists but their versions."""
    prompt, response = list(range(1000, 1000 + shape.prompt)), list(range(1000, 1000 + shape.response))
    shared: dict[str, Any] = {
        "prompt_ids": prompt,
        "response_ids": response,
        "logprobs": [-0.5] * shape.response,
        "response_mask": [1] * shape.response,
        "status": reroll.Status.COMPLETED,
    }
    return lambda: [
        xtuner.RolloutState.model_construct(
            response_model_steps=[], reward={"score": float(i % 2)}, extra_fields={}, **shared
        )
        for i in range(MEMBERS)
    ]


def empty_buffer(design: str) -> Any:
    if design == OURS:
        return reroll.AsyncReplayBufferConfig(seed=0).build()
    return xtuner.ReplayBuffer(
        policy=xtuner.StalenessReplayPolicy(), storage_backend=xtuner.NaiveStorage(), seed=0
    )


class Pair(Subject):
    """A filled buffer of RolloutStates."""

    def __init__(self, design: str, size: Size) -> None:
        self.size = size
        self.steps = count(VERSIONS + 2)
        self.make = state_maker(size.shape)
        self.buffer = empty_buffer(design)
        self.repeats = 200
        fill(self.buffer, self.make, size.groups)

    def cases(self) -> dict[str, Case]:
        buffer, stale = self.buffer, {"staleness": {"$gte": 10**6}}
        looks: dict[str, Callable[[], Any]] = {
            "len": lambda: len(buffer),
            "count_statuses, 6 statuses": lambda: drive(
                buffer.count_statuses([TASK], list(xtuner.Status)[:6])
            ),
            "is_ready": lambda: drive(buffer.is_ready({TASK: BATCH})),
            "query": lambda: drive(buffer.query(stale)),
        }
        return {
            **super().cases(),
            **{name: lambda look=look: per_operation(look, 50) for name, look in looks.items()},  # type: ignore[misc]
            "take_batch(64)": self._take_batch_case,
        }

    def _take_batch_case(self) -> float:
        taken: list[Group] = []
        seconds = per_operation(lambda: taken.extend(drive(self.buffer.take_batch({TASK: BATCH}))[0][TASK]))
        for group in taken:
            drive(self.buffer.put(group, TASK))
        return seconds

    def save_and_resume(self, design: str) -> tuple[float, float]:
        """Return the processor's seconds of both, in all threads: on the wall the disk and others count as well."""
        with tempfile.TemporaryDirectory() as where:
            return self._timed(self.buffer.save(where)), self._timed(empty_buffer(design).resume(where))

    def _timed(self, coroutine: Any) -> float:
        start = process_time()
        asyncio.run(coroutine)
        return process_time() - start


def measure_buffers(size: Size, rounds: int, slow_rounds: int) -> dict[Measured, Timing]:
    pairs = {design: Pair(design, size) for design in (OURS, DROP_IN)}
    gc.collect()
    gc.freeze()
    cases = {design: pair.cases() for design, pair in pairs.items()}
    results: dict[Measured, Timing] = {}
    for operation in cases[OURS]:
        results |= interleave(
            {Measured(operation, design): of_design[operation] for design, of_design in cases.items()}, rounds
        )
    taken: dict[Measured, list[float]] = {}
    for number in range(slow_rounds):
        for design, pair in list(pairs.items())[:: -1 if number % 2 else 1]:
            for operation, value in zip(("save", "resume"), pair.save_and_resume(design), strict=True):
                taken.setdefault(Measured(operation, design), []).append(value)
    cases.clear()
    for number in range(slow_rounds):
        for design in (OURS, DROP_IN)[:: -1 if number % 2 else 1]:
            pair = pairs.pop(design, None) or Pair(design, size)
            gc.disable()
            for operation, value in zip((EXPIRE, TAKE_EXPIRED), pair.expire_all(), strict=True):
                taken.setdefault(Measured(f"{operation}, a group", design), []).append(value)
            gc.enable()
            del pair
    gc.unfreeze()
    return results | {key: Timing.of(values) for key, values in taken.items()}


# --- open-instruct: the table and the queue


def table_cases(items: int) -> dict[Measured, Case]:
    cases: dict[Measured, Case] = {}
    for design, module in ((OURS, reroll), (DROP_IN, open_instruct)):
        for name in ("Fifo", "Uniform", "Prioritized"):
            sampler, uses = getattr(module, name)(), 1 if name == "Fifo" else None
            table = module.Table(
                max_size=items,
                sampler=sampler,
                remover=module.Fifo(),
                max_times_sampled=uses,
                rate_limiter=module.MinSize(1),
                seed=0,
            )
            keys = count()
            for _ in range(items):
                table.insert(next(keys), None, 1.0)
            cases[Measured(f"Table.insert, {name}", design)] = _insert_case(table, keys)
            if uses is None:
                cases[Measured(f"Table.sample(64), {name}", design)] = _sample_case(table)
    return cases


def _insert_case(table: Any, keys: Any) -> Case:
    return lambda: per_operation(lambda: table.insert(next(keys), None, 1.0), 64)


def _sample_case(table: Any) -> Case:
    return lambda: per_operation(lambda: table.sample(BATCH), 4)


def make_result(number: int, shape: Shape) -> GenerationResult:
    return GenerationResult(
        prompt_id=number,
        prompt_ids=list(range(shape.prompt)),
        responses=[list(range(shape.response))] * MEMBERS,
        finish_reasons=["stop"] * MEMBERS,
        rewards=[float(i % 2) for i in range(MEMBERS)],
        model_step=1,
    )


class QueueOfResults:
    """The same as the drop-in's queue, written with our own API."""

    def __init__(self) -> None:
        self.buffer: Any = reroll.SyncReplayBufferConfig().build_blocking()

    def put(self, result: GenerationResult) -> None:
        group = to_group(result)
        if screen([group]).kept:
            self.buffer.put(group, TASK)

    def get(self) -> Any:
        return self.buffer.take_batch({TASK: 1}, wait=True)[0][TASK][0]


def queue_cases(items: int, shape: Shape) -> dict[Measured, Case]:
    cases: dict[Measured, Case] = {}
    for design in (OURS, DROP_IN):
        results: Any = (
            QueueOfResults() if design == OURS else open_instruct.ResultsQueue(filter_zero_std=True)
        )
        numbers = count()
        for _ in range(items):
            results.put(make_result(next(numbers), shape))
        cases[Measured("ResultsQueue.put", design)] = _queue_put_case(results, numbers, shape)
        cases[Measured("ResultsQueue.get", design)] = _queue_get_case(results, numbers, shape)
    return cases


def _queue_put_case(results: Any, numbers: Any, shape: Shape) -> Case:
    def case() -> float:
        made = iter([make_result(next(numbers), shape) for _ in range(16)])
        taken = per_operation(lambda: results.put(next(made)), 16)
        for _ in range(16):
            results.get()
        return taken

    return case


def _queue_get_case(results: Any, numbers: Any, shape: Shape) -> Case:
    def case() -> float:
        taken = per_operation(results.get, 16)
        for _ in range(16):
            results.put(make_result(next(numbers), shape))
        return taken

    return case


def main() -> int:
    options = arguments(__doc__.splitlines()[0], "integrations.json").parse_args()
    print_title("reroll, drop-ins")
    started = perf_counter()
    groups, rounds, slow_rounds = (1_000, 21, 3) if options.quick else (10_000, 61, 3)
    size = Size(groups, SHORT)
    timings = measure_buffers(size, rounds, slow_rounds)
    for cases in (table_cases(groups), queue_cases(groups, SHORT)):
        for operation in dict.fromkeys(key.operation for key in cases):
            timings |= interleave({k: case for k, case in cases.items() if k.operation == operation}, rounds)
    operations = list(dict.fromkeys(key.operation for key in timings))
    ratios = {
        name: timings[Measured(name, DROP_IN)].median / timings[Measured(name, OURS)].median
        for name in operations
    }
    print_table(
        f"{groups:,} groups of {SHORT} tokens: a call in microseconds, median of {rounds} blocks",
        ("operation", OURS, DROP_IN, "ratio"),
        [
            (
                name,
                *(microseconds(timings[Measured(name, design)].median) for design in (OURS, DROP_IN)),
                times(ratios[name]),
            )
            for name in operations
        ],
        (
            "save and resume: processor time of all threads; ResultsQueue beside to_group, screen and put of our own",
        ),
    )
    worst = max(ratios, key=ratios.__getitem__)
    claim = Claim(
        f"with {groups:,} groups no operation is more than {MOST:g} times as slow as through our own API",
        f"{times(ratios[worst])} ({worst})",
        ratios[worst] <= MOST,
    )
    numbers = {f"{key.operation}; {key.design}": seconds(timing) for key, timing in timings.items()}
    report = {"versions": versions(), "groups": groups, "timings": numbers}
    return conclude([claim], report, perf_counter() - started, options)


if __name__ == "__main__":
    sys.exit(main())
