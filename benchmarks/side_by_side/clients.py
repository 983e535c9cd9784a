"""Processes that put groups to a server and take them, for contenders that are reached from other processes.

A contender's module has `serve()`, a generator that yields the address of its server, and `Client(address)` with

    prepare(groups)     what `put` is given, made beforehand and not measured
    put(prepared)       returns when the server has acknowledged all of them
    take(n)             waits for n groups, takes them, and returns how many tokens their responses have
    close()

All clients wait for a word of their parent, which measures from the word to the last answer.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import work

ROUND_BYTES = 8_000_000
FEWEST, MOST = 16, 512
"""Groups that a client puts in a round."""

Loads = Mapping[str, tuple[work.Shape, int]]
"""What clients put, by name: groups of a shape, and how many."""


class Process:
    """One client, from its parent's side."""

    def __init__(self, module: Any, address: str, loads: Loads, seed: int) -> None:
        name = module.__name__.rpartition(".")[2]
        worker = str(Path(__file__).with_name("worker.py"))
        command = [sys.executable, worker, name, "--client", address, json.dumps(loads), str(seed)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, verb: str, load: str) -> None:
        assert self._process.stdin is not None  # noqa: S101
        print(f"{verb} {load}", file=self._process.stdin, flush=True)

    def answer(self) -> int:
        """Wait for the answer to the last word, the tokens that were taken; raises RuntimeError with what went wrong."""
        assert self._process.stdout is not None  # noqa: S101
        line = self._process.stdout.readline()
        said = json.loads(line) if line else {"failed": f"a client ended: {self._process.wait()}"}
        if "failed" in said:
            raise RuntimeError(said["failed"])
        return int(said["tokens"])

    def leave(self) -> None:
        """Let it close what it has."""
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.close()

    def end(self) -> None:
        """Wait until it has ended; kill it if it does not."""
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def started(module: Any, address: str, loads: Loads, number: int) -> Iterator[list[Process]]:
    """Start so many clients, and wait until all are ready."""
    some = [Process(module, address, loads, seed) for seed in range(number)]
    try:
        for process in some:
            process.answer()
        yield some
    finally:
        for process in some:
            process.leave()
        for process in some:
            process.end()


def follow(module: Any, address: str, loads: str, seed: str) -> None:
    """Be a client: do what each line says."""
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(**message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    known: Loads = {name: (work.Shape(*shape), count) for name, (shape, count) in json.loads(loads).items()}
    prepared: dict[str, Any] = {}
    try:
        client = module.Client(address)
        answer(tokens=0)
        for line in sys.stdin:
            verb, load = line.rstrip("\n").split(" ", 1)
            shape, count = known[load]
            if verb == "put":
                if load not in prepared:  # in the round that warms up
                    prepared[load] = client.prepare(work.make_groups(shape, count, int(seed)))
                client.put(prepared[load])
                answer(tokens=0)
            else:
                answer(tokens=client.take(count))
        client.close()
    except Exception as error:  # noqa: BLE001  (the parent tells it)
        answer(failed=f"{type(error).__name__}: {error}"[:300])


def remote(
    module: Any, sizes: Sequence[int], clients: Sequence[int]
) -> Iterator[Callable[[], dict[str, float]]]:
    """Let each client put groups of a size, then let each take as many; both in groups a second, by the wall."""
    counts = {size: max(FEWEST, min(MOST, ROUND_BYTES // size // max(clients))) for size in sizes}
    loads = {str(size): (work.shape_of_bytes(size), count) for size, count in counts.items()}
    with contextmanager(module.serve)() as address, started(module, address, loads, max(clients)) as some:

        def measure() -> dict[str, float]:
            found = {}
            for load, (shape, count) in loads.items():
                for number in clients:
                    groups = count * number
                    put_s, _ = _timed(some[:number], "put", load)
                    take_s, taken = _timed(some[:number], "take", load)
                    if taken != groups * shape.members * shape.mean_tokens:
                        raise RuntimeError(f"{groups} groups were put, and {taken} tokens came back")
                    found |= {
                        f"put {load} {number}": groups / put_s,
                        f"take {load} {number}": groups / take_s,
                    }
            return found

        measure()  # warm
        yield measure


def step(
    module: Any, loads: Mapping[str, tuple[Sequence[Any], int, int, int]]
) -> Iterator[Callable[[], dict[str, float]]]:
    """Let readers wait for their share of a step, let producers put it, and measure until the last reader has it.

    A load is a shape, how many groups a step has, and how many producers and readers take part.
    """
    putting = {name: (work.Shape(*shape), groups // some) for name, (shape, groups, some, _) in loads.items()}
    taking = {name: (work.Shape(*shape), groups // some) for name, (shape, groups, _, some) in loads.items()}
    most = [max(load[place] for load in loads.values()) for place in (2, 3)]
    with (
        contextmanager(module.serve)() as address,
        started(module, address, putting, most[0]) as producers,
        started(module, address, taking, most[1]) as readers,
    ):

        def measure() -> dict[str, float]:
            found = {}
            for name, (_, _, num_producers, num_readers) in loads.items():
                found[f"step {name}"] = _stepped(producers[:num_producers], readers[:num_readers], name)
            return found

        measure()  # warm
        yield measure


def _stepped(producers: Sequence[Process], readers: Sequence[Process], load: str) -> float:
    start = perf_counter()
    for some, verb in ((readers, "take"), (producers, "put")):
        for process in some:
            process.say(verb, load)
    for process in readers:
        process.answer()
    seconds = perf_counter() - start
    for process in producers:
        process.answer()
    return seconds


def acknowledged(module: Any, address: str, groups: int) -> int:
    """Let a client put groups of 4 KB one after another, and return how many the server has acknowledged."""
    client = module.Client(address)
    given = work.make_groups(work.shape_of_bytes(4096), groups)
    for group in given:
        client.put(client.prepare([group]))
    client.close()
    return len(given)


def _timed(some: Sequence[Process], verb: str, load: str) -> tuple[float, int]:
    start = perf_counter()
    for process in some:
        process.say(verb, load)
    tokens = sum(process.answer() for process in some)
    return perf_counter() - start, tokens
