"""What one writes without a library: a dict of packed numpy arrays, and pickle."""

import asyncio
import os
import pickle
import random
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

import work
from checkpoints import stalled
from contenders.killing import acknowledged_then_killed
from worker import Measure

BATCH = 64
CANNOT: dict[str, str] = {}


def version() -> str:
    return f"Python {sys.version.split()[0]}"


def packed(groups: int) -> Iterator[Measure]:
    """A deque of packed groups, `random.sample`, and the same packing with numpy: no status, version, priority or books."""
    given = work.make_groups(work.VARIED, groups)
    kept = deque(given, maxlen=groups)
    random.seed(0)

    def add() -> None:
        for group in given[:BATCH]:
            kept.append(group)

    def batch() -> None:
        work.pack(random.sample(kept, BATCH))

    batch()
    yield lambda: {"insert": work.rate(add, BATCH), "batch": work.rate(batch, 1)}


def memory(groups: int) -> Iterator[Measure]:
    """Packed groups in a dict; resident memory of the process."""

    def start(_: int) -> work.Keep:
        kept: dict[int, work.Group] = {}
        return lambda given: kept.update(enumerate(given, len(kept)))

    yield lambda: work.memory_of(start, groups)


def checkpoint(groups: int) -> Iterator[Measure]:
    """`pickle.dump` of packed groups in a thread, and fsync; while it runs, two tasks of an event loop append groups. Loading it runs whatever code is in it."""
    given = work.make_groups(work.CHECKPOINTED, groups)
    megabytes = sum(group.num_bytes for group in given) / 1e6

    async def measure(path: Path) -> dict[str, float]:
        save_s, resume_s = _written(given, path), _read(path, groups)
        others: deque[work.Group] = deque(maxlen=BATCH)

        async def put(number: int) -> None:
            others.append(given[number % groups])

        stall_s, _, _ = await stalled(put, lambda: asyncio.to_thread(_written, given, path))
        return {"save": megabytes / save_s, "resume": megabytes / resume_s, "stall": 1e3 * stall_s}

    def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=".") as where:
            return asyncio.run(measure(Path(where) / "groups.pickle"))

    yield run


def _read(path: Path, groups: int) -> float:
    start = perf_counter()
    if len(pickle.loads(path.read_bytes())) != groups:  # noqa: S301
        raise RuntimeError("something was lost")
    return perf_counter() - start


def _written(groups: Sequence[work.Group], path: Path) -> float:
    start = perf_counter()
    with path.open("wb") as file:
        pickle.dump(groups, file, pickle.HIGHEST_PROTOCOL)
        file.flush()
        os.fsync(file.fileno())
    return perf_counter() - start


PUTTING = """
import os, pickle, time
import work
kept = []
for group in work.make_groups(work.shape_of_bytes(4096), int(sys.argv[2])):
    kept.append(group)
    if len(kept) % 100 == 0:
        with open(sys.argv[1] + ".new", "wb") as file:
            pickle.dump(kept, file)
        os.replace(sys.argv[1] + ".new", sys.argv[1])
    print("acknowledged", flush=True)
time.sleep(1e6)
"""


def crash(groups: int) -> Iterator[Measure]:
    """A list that is pickled after every 100 groups, in a process that is killed when the last was appended; the file is read again. (The number of groups is not a multiple of 100.)"""

    def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=".") as where:
            path = Path(where).absolute() / "groups.pickle"
            acknowledged = acknowledged_then_killed(PUTTING, str(path), groups)
            found = len(pickle.loads(path.read_bytes()))  # noqa: S301
        return {"acknowledged": acknowledged, "lost": acknowledged - found}

    yield run
