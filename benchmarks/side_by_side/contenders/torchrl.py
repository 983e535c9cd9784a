"""torchrl: replay buffers of storages, samplers and writers, on torch."""

from collections.abc import Iterator
from importlib.metadata import version as version_of
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ListStorage, PrioritizedSampler, ReplayBuffer

import work
from worker import Measure

ALPHA, BETA = 0.6, 0.4
CYCLE, BATCH = 256, 64
CANNOT = {
    "crash": "in the memory of the process that trains, and gone with it; `dumps` writes a checkpoint by hand",
}
torch.set_num_threads(1)  # threads that wait for each other on few processors make it slower


def version() -> str:
    return f"{version_of('torchrl')} with torch {torch.__version__}"


def cycle(rows: int) -> Iterator[Measure]:
    """`ReplayBuffer.sample(return_info=True)` and `update_priority`, over a `LazyTensorStorage` with one float a row. Draws with replacement."""
    buffer, _, _ = filled(rows)
    new = torch.as_tensor(work.priorities(CYCLE), dtype=torch.float32)

    def once() -> None:
        _, info = buffer.sample(return_info=True)
        buffer.update_priority(info["index"], new)

    once()
    yield lambda: {"us": work.cycle_us(once)}


def filled(rows: int) -> tuple[Any, Any, Any]:
    storage = LazyTensorStorage(rows)
    sampler = PrioritizedSampler(rows, alpha=ALPHA, beta=BETA)
    buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=CYCLE)
    buffer.extend(TensorDict({"x": torch.zeros(rows, 1)}, batch_size=[rows]))
    buffer.update_priority(torch.arange(rows), torch.as_tensor(work.priorities(rows), dtype=torch.float32))
    return buffer, storage, sampler


def packed(groups: int) -> Iterator[Measure]:
    """A `ListStorage`, which keeps the packed groups as they are, and a `collate_fn` that packs the sample with numpy. The writer goes round: new groups replace the oldest."""
    given = work.make_groups(work.VARIED, groups)
    buffer = ReplayBuffer(storage=ListStorage(groups), collate_fn=work.pack, batch_size=BATCH)
    buffer.extend(given)

    def add() -> None:
        for group in given[:BATCH]:
            buffer.add(group)

    buffer.sample()
    yield lambda: {"insert": work.rate(add, BATCH), "batch": work.rate(buffer.sample, 1)}


def replay(groups: int) -> Iterator[Measure]:
    """A `ListStorage` with a `PrioritizedSampler`; groups share their arrays, as those of reroll here do. Draws with replacement."""
    group = work.make_groups(work.Shape(8, 4096, 256), 1)[0]
    sampler = PrioritizedSampler(groups, alpha=ALPHA, beta=BETA)
    buffer = ReplayBuffer(
        storage=ListStorage(groups), sampler=sampler, batch_size=BATCH, collate_fn=lambda items: items
    )
    buffer.extend([group._replace() for _ in range(groups)])
    buffer.update_priority(
        torch.arange(groups), torch.as_tensor(work.priorities(groups), dtype=torch.float32)
    )
    new = torch.as_tensor(work.priorities(BATCH), dtype=torch.float32)

    def once() -> None:
        _, info = buffer.sample(return_info=True)
        buffer.update_priority(info["index"], new)

    yield lambda: {"cycle": work.repeated(once)}


def memory(groups: int) -> Iterator[Measure]:
    """Packed groups, as tensors, in a `ListStorage`; resident memory of the process."""

    def start(room: int) -> work.Keep:
        buffer = ReplayBuffer(storage=ListStorage(room), batch_size=1)
        return lambda given: buffer.extend([tuple(map(torch.from_numpy, group)) for group in given])

    yield lambda: work.memory_of(start, groups)
