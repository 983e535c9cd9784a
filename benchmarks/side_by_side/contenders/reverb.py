"""DeepMind Reverb: tables in a server of C++, reached over gRPC."""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version as version_of
from time import perf_counter
from typing import Any

import work
from clients import acknowledged
from worker import Measure

CYCLE, BATCH = 256, 64
CANNOT = {"replay": "its server copies what it stores: 50,000 groups are 14 GB"}
SERVER = """
import sys, time, reverb
sampler, uses, rows, path = sys.argv[1:]
selectors = {"fifo": reverb.selectors.Fifo, "uniform": reverb.selectors.Uniform, "prioritized": lambda: reverb.selectors.Prioritized(0.6)}
table = reverb.Table("t", selectors[sampler](), reverb.selectors.Fifo(), max_size=int(rows),
                     rate_limiter=reverb.rate_limiters.MinSize(1), max_times_sampled=int(uses))
checkpointer = reverb.platform.checkpointers_lib.DefaultCheckpointer(path)
start = time.perf_counter()
server = reverb.Server([table], checkpointer=checkpointer)
print(f"localhost:{server.port} {time.perf_counter() - start}", flush=True)
time.sleep(1e6)
"""


def version() -> str:
    return f"{version_of('dm-reverb')} with TensorFlow {version_of('tensorflow')}"


class Served:
    """A server process."""

    def __init__(self, sampler: str, uses: int, rows: int, path: str) -> None:
        command = [sys.executable, "-c", SERVER, sampler, str(uses), str(rows), path]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None  # noqa: S101
        self.address, seconds = self.process.stdout.readline().split()
        self.loading_s = float(seconds)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def served(sampler: str, uses: int, rows: int, path: str | None = None) -> Iterator[Served]:
    """Start a server whose checkpoints go to a path, and kill it in the end."""
    with tempfile.TemporaryDirectory() as nothing:
        server = Served(sampler, uses, rows, path or nothing)
        try:
            yield server
        finally:
            server.kill()


def serve() -> Iterator[str]:
    with served("fifo", 1, 100_000) as server:
        yield server.address


class Client:
    """A FIFO table whose items are sampled once. Packed arrays go in by a `Writer`, which is quicker than the newer `TrajectoryWriter` and takes lengths that vary, and is flushed at the end; `client.sample` takes. (A dataset would prefetch, which counts as taken.)"""

    def __init__(self, address: str) -> None:
        import reverb  # noqa: PLC0415  (takes seconds)

        self.client = reverb.Client(address)

    def prepare(self, groups: Sequence[work.Group]) -> list[list[Any]]:
        return [list(group) for group in groups]

    def put(self, prepared: Sequence[list[Any]], priorities: Sequence[float] | None = None) -> None:
        with self.client.writer(max_sequence_length=1) as writer:
            for place, step in enumerate(prepared):
                writer.append(step)
                writer.create_item("t", 1, 1.0 if priorities is None else priorities[place])

    def take(self, n: int) -> int:
        samples = self.client.sample("t", num_samples=n, emit_timesteps=False)
        return sum(sample.data[2].size for sample in samples)

    def close(self) -> None:
        pass


def _dataset(address: str, batch: int, types: Sequence[Any], shapes: Sequence[Any]) -> Iterator[Any]:
    import reverb  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    dataset = reverb.TrajectoryDataset(
        address,
        "t",
        tuple(tf.as_dtype(kind) for kind in types),
        tuple(tf.TensorShape(shape) for shape in shapes),
        max_in_flight_samples_per_worker=2 * batch,
    )
    return (dataset.batch(batch) if len(shapes) == 1 else dataset).prefetch(1).as_numpy_iterator()


def cycle(rows: int) -> Iterator[Measure]:
    """A server on the same machine; a `TrajectoryDataset` in batches of 256, which prefetches, and `client.mutate_priorities` by key; rows hold one float. By the wall. Draws with replacement."""
    import numpy as np  # noqa: PLC0415

    with served("prioritized", 0, rows) as server:
        client = Client(server.address)
        client.put([[np.zeros(1, np.float32)]] * rows, work.priorities(rows).tolist())
        batches = _dataset(server.address, CYCLE, ["float32"], [[1, 1]])
        new = work.priorities(CYCLE).tolist()

        def once() -> None:
            keys = next(batches).info.key.ravel()
            client.client.mutate_priorities("t", dict(zip(map(int, keys), new, strict=True)))

        once()
        yield lambda: {"us": 1e6 / work.rate(lambda: [once() for _ in range(5)], 5)}


def packed(groups: int) -> Iterator[Measure]:
    """A server on the same machine with a uniform table; packed groups go in by a `Writer`, 64 samples come by a `TrajectoryDataset`, which prefetches, and are packed with numpy."""
    with served("uniform", 0, groups) as server:
        client = Client(server.address)
        given = client.prepare(work.make_groups(work.VARIED, groups))
        client.put(given)
        types = [array.dtype for array in given[0]]
        samples = _dataset(server.address, BATCH, types, [[1, None]] * len(types))

        def batch() -> None:
            some = [next(samples).data for _ in range(BATCH)]
            work.pack([work.Group(*(array[0] for array in data)) for data in some])

        batch()
        yield lambda: {
            "insert": work.rate(lambda: client.put(given[:BATCH]), BATCH),
            "batch": work.rate(batch, 1),
        }


def checkpoint(groups: int) -> Iterator[Measure]:
    """`client.checkpoint`, and a new server that loads it. While it saves, a client inserts one group after another; the stall is the longest that an insert took."""
    given = work.make_groups(work.CHECKPOINTED, groups)
    megabytes = sum(group.num_bytes for group in given) / 1e6

    def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=".") as path:
            with served("uniform", 0, 2 * groups, path) as server:
                client = Client(server.address)
                client.put(client.prepare(given))
                start = perf_counter()
                client.client.checkpoint()
                save_s = perf_counter() - start
                stall_s = _longest_insert_while(client, given)
            with served("uniform", 0, 2 * groups, path) as again:
                if Client(again.address).client.server_info()["t"].current_size < groups:
                    raise RuntimeError("something was lost")
                loading_s = again.loading_s
        return {"save": megabytes / save_s, "resume": megabytes / loading_s, "stall": 1e3 * stall_s}

    yield run


def _longest_insert_while(client: Client, groups: Sequence[work.Group]) -> float:
    saving = threading.Thread(target=client.client.checkpoint)
    other, longest = Client(client.client.server_address), 0.0
    prepared = other.prepare(groups[:BATCH])
    other.put(prepared[:1])
    saving.start()
    while saving.is_alive():
        start = perf_counter()
        other.put(prepared[:1])
        longest = max(longest, perf_counter() - start)
    saving.join()
    return longest


def memory(groups: int) -> Iterator[Measure]:
    """Packed groups in a table; resident memory of the server's process."""
    with served("fifo", 0, groups + 1) as server:
        client = Client(server.address)

        def start(_: int) -> work.Keep:
            return lambda given: client.put(client.prepare(given))

        yield lambda: work.memory_of(start, groups, [server.process.pid])


def crash(groups: int) -> Iterator[Measure]:
    """A server with a checkpointer is killed when the last insert was confirmed, and started again with the same one. Nothing was checkpointed: that is for the user to ask for."""

    def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=".") as path:
            with served("fifo", 1, groups, path) as server:  # which ends by a kill
                given = acknowledged(sys.modules[__name__], server.address, groups)
            with served("fifo", 1, groups, path) as again:
                found = Client(again.address).client.server_info()["t"].current_size
        return {"acknowledged": given, "lost": given - found}

    yield run
