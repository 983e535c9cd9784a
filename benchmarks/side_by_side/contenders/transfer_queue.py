"""TransferQueue: a controller that knows which rows are ready, and storage units that hold them, in actors of Ray."""

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version as version_of
from pathlib import Path
from time import perf_counter
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict

import work
from clients import Process, started
from contenders.local_ray import join_ray, local_ray
from worker import Measure

CANNOT = {
    "cycle": "it has no priorities",
    "packed": "a row is handed out once to each task: nothing is sampled again",
    "replay": "it has no priorities, and hands out a row once to each task",
}
FIELDS = list(work.Group._fields)
PARTITION, TASK = "train", "train"
POLL_S = 0.002
PATIENCE_S = 20


def version() -> str:
    return f"{version_of('TransferQueue')} with Ray {version_of('ray')}"


def _config() -> Any:
    """Return a configuration in which a request for rows that are not there yet does not stop the controller for seconds."""
    return OmegaConf.create({"controller": {"polling_mode": True}})


@contextmanager
def _running() -> Iterator[None]:
    """Have a controller and storage units in a Ray that runs."""
    tq.init(_config())
    try:
        yield
    finally:
        tq.close()


def serve() -> Iterator[str]:
    with local_ray() as address, _running():
        yield address


class Client:
    """A row for each group, packed; all rows of a client in one `put` of a TensorDict that was made beforehand, jagged where lengths vary. `get_meta`, which is asked again every 2 ms until enough rows are ready, `get_data`, and `clear_samples`. Two storage units, as it is by default."""

    def __init__(self, address: str) -> None:
        join_ray(address)
        tq.init()
        self._client = tq.get_client()

    def prepare(self, groups: Sequence[work.Group]) -> Any:
        return rows_of(groups)

    def put(self, prepared: Any) -> None:
        self._client.put(prepared, partition_id=PARTITION)

    def take(self, n: int) -> int:
        while (meta := self._client.get_meta(FIELDS, n, PARTITION, task_name=TASK)).size < n:
            time.sleep(POLL_S)
        data = self._client.get_data(meta)
        self._client.clear_samples(meta)
        return int(sum(int(row.sum()) for row in data["lengths"]))

    def close(self) -> None:
        ray.shutdown()


def rows_of(groups: Sequence[work.Group]) -> Any:
    columns = {name: _column([getattr(group, name) for group in groups]) for name in FIELDS}
    return TensorDict(columns, batch_size=len(groups))


def _column(arrays: Sequence[Any]) -> torch.Tensor:
    rows = [torch.from_numpy(array) for array in arrays]
    if len({len(row) for row in rows}) == 1:
        return torch.stack(rows)
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _unit_pids() -> list[int]:
    """Return the processes of the storage units."""
    units = [ray.get_actor(f"TransferQueueStorageUnit#{number}") for number in range(2)]
    return ray.get([unit.__ray_call__.remote(lambda _: os.getpid()) for unit in units])


def checkpoint(groups: int) -> Iterator[Measure]:
    """`save_checkpoint`, and `load_checkpoint` into one that was started anew. While it saves, a client in another process puts one group after another; the stall is the longest that a put took."""
    given = work.make_groups(work.CHECKPOINTED, groups)
    megabytes = sum(group.num_bytes for group in given) / 1e6

    one = {"one": (work.CHECKPOINTED, 1)}

    with local_ray() as address:

        def run() -> dict[str, float]:
            with tempfile.TemporaryDirectory(dir=".") as where:
                path = Path(where).absolute() / "saved"
                with _running(), started(sys.modules[__name__], address, one, 1) as (other,):
                    tq.get_client().put(rows_of(given), partition_id=PARTITION)
                    save_s = seconds_of(lambda: tq.save_checkpoint(path))
                    stall_s = _longest_put_while(lambda: tq.save_checkpoint(path), other)
                with _running():
                    resume_s = seconds_of(lambda: tq.load_checkpoint(path))
                    meta = tq.get_client().get_meta(FIELDS, groups, PARTITION, task_name=TASK)
                    if meta.size != groups:
                        raise RuntimeError(f"{meta.size} of {groups} groups came back")
            return {"save": megabytes / save_s, "resume": megabytes / resume_s, "stall": 1e3 * stall_s}

        yield run


def seconds_of(act: Callable[[], object]) -> float:
    start = perf_counter()
    act()
    return perf_counter() - start


def _longest_put_while(act: Callable[[], object], other: Process) -> float:
    longest, acting = 0.0, threading.Thread(target=act)
    for _ in range(2):  # warm
        other.say("put", "one")
        other.answer()
    acting.start()
    while acting.is_alive():
        start = perf_counter()
        other.say("put", "one")
        other.answer()
        longest = max(longest, perf_counter() - start)
    acting.join()
    return longest


def memory(groups: int) -> Iterator[Measure]:
    """A row for each group, packed and jagged; resident memory of the storage units' processes."""
    with local_ray(), _running():

        def start(_: int) -> work.Keep:
            return lambda given: tq.get_client().put(rows_of(given), partition_id=PARTITION)

        yield lambda: work.memory_of(start, groups, _unit_pids())


def crash(groups: int) -> Iterator[Measure]:
    """Both storage units are killed when the last put has returned; then all rows are asked for, and waited for 20 s. No checkpoint was made: that is for the user to ask for."""

    def run() -> dict[str, float]:
        with local_ray():  # without `tq.close`, which would wait for the dead
            tq.init(_config())
            client = tq.get_client()
            for group in work.make_groups(work.shape_of_bytes(4096), groups):
                client.put(rows_of([group]), partition_id=PARTITION)
            for pid in _unit_pids():
                os.kill(pid, signal.SIGKILL)
            found: list[int] = []

            def ask() -> None:
                meta = client.get_meta(FIELDS, groups, PARTITION, task_name=TASK)
                found.append(len(client.get_data(meta)))

            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            asking.join(PATIENCE_S)
        return {"acknowledged": groups, "lost": groups - sum(found)}

    yield run
