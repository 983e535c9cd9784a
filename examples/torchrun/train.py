"""A rank of a torchrun trainer without Ray: it fetches its part of each step from `reroll serve --prepare`.

    torchrun --nproc-per-node 2 --max-restarts 5 train.py ADDRESS DIRECTORY STEPS

Rank 0 writes a checkpoint after each step: the weights, and the state of the preparer. Any error ends the rank. torchrun then
starts all ranks again, and they continue from the last checkpoint.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from reroll import connect_blocking
from reroll.prepare import StepData
from reroll.prepare.service import RemotePreparer

LEARNING_RATE = 1e-4


def join_ranks() -> None:
    """Connect to the other ranks of this attempt; the addresses of ranks that died are still in torchrun's store."""
    env = os.environ
    store = dist.TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), is_master=False)
    attempt = dist.PrefixStore(f"attempt {env['TORCHELASTIC_RESTART_COUNT']}", store)
    rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
    dist.init_process_group("gloo", store=attempt, rank=rank, world_size=size)


def train(model: torch.nn.Parameter, data: StepData) -> list[int]:
    """Train one step; return the prompts that this rank saw. The gradient is the mean of the tokens of all ranks."""
    model.grad = torch.zeros_like(model)
    seen: set[int] = set()
    for micro_batch in data:
        if not micro_batch.is_empty:
            tokens = micro_batch.to_torch()
            trained = tokens["input_ids"][tokens["response_mask"].bool()]
            (model * trained.sum() / data.batch.counts.trainable_tokens).backward()
            seen |= set(trained.tolist())
    dist.all_reduce(model.grad)
    with torch.no_grad():
        model -= LEARNING_RATE * model.grad
    return sorted(seen)


def save(path: Path, checkpoint: dict[str, Any]) -> None:
    """Replace the checkpoint in one step: a crash leaves the old file or the new one."""
    path.with_suffix(".tmp").write_text(json.dumps(checkpoint))
    path.with_suffix(".tmp").replace(path)


def main(address: str, directory: str, steps: int) -> None:
    join_ranks()
    rank, path = dist.get_rank(), Path(directory) / "checkpoint.json"
    with connect_blocking(address, patience_s=20) as client:
        preparer = RemotePreparer(client)
        if rank == 0:
            if not path.exists():  # also a crash in the first step needs a state to continue from
                save(path, {"weights": 0.0, "trained": [], "preparer": preparer.state(step=0)})
            preparer.restore(json.loads(path.read_text())["preparer"])
        dist.barrier()
        checkpoint = json.loads(path.read_text())
        model = torch.nn.Parameter(torch.tensor(checkpoint["weights"], dtype=torch.float64))
        for step in range(checkpoint["preparer"]["step"] + 1, steps + 1):
            data = preparer.get_data(rank, step, timeout=60)
            parts: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(parts, train(model, data))
            if rank == 0:
                checkpoint["trained"] += sorted({prompt for part in parts for prompt in part})
                checkpoint |= {"weights": model.item(), "preparer": preparer.state(step=step)}
                save(path, checkpoint)
                preparer.commit(step)  # the checkpoint is on disk
                print(f"trained step {step} as process {os.getpid()}", flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
