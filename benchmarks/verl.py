"""Puts and gets of TransferQueue with its own backend and with reroll's, and how long the sampler for verl takes to decide.

Needs the environment of `make test-verl`: .venv-verl/bin/python benchmarks/verl.py
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.pop(0)  # else `import verl` would find this file
os.environ.update(RAY_AUTH_MODE="disabled", TQ_LOGGING_LEVEL="ERROR", OMP_NUM_THREADS="1")
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1] / "src")

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict

import reroll.integrations.transfer_queue  # noqa: F401  (registers the backend)
from reroll.integrations.verl.options import ReplayOptions
from reroll.rollout import Rollout

ROWS, ROUNDS = 64, 15


def fields(num_bytes):
    """Return rows of about this size, half of it token ids and half of it numbers of four bytes, with a tenth of jitter."""
    generator = torch.Generator().manual_seed(0)
    sizes = (num_bytes / 16 * (0.95 + 0.1 * torch.rand(ROWS, generator=generator))).int().tolist()

    def jagged(dtype, times):
        rows = [torch.randint(0, 99, (times * size,), generator=generator).to(dtype) for size in sizes]
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    columns = {"input_ids": jagged(torch.int64, 1), "log_probs": jagged(torch.float32, 1)}
    return TensorDict({**columns, "response_mask": jagged(torch.int32, 1)}, batch_size=ROWS)


def timed(call):
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def measure(num_bytes):
    """Return the best times of a put and of a get, in milliseconds."""
    data, puts, gets = fields(num_bytes), [], []
    for number in range(ROUNDS):
        keys = [f"{number}_{row}_0" for row in range(ROWS)]
        tags = [{"status": "success", "seq_len": 5}] * ROWS
        puts.append(timed(lambda: tq.kv_batch_put(keys=keys, partition_id="train", fields=data, tags=tags)))  # noqa: B023
        gets.append(timed(lambda: tq.kv_batch_get(keys=keys, partition_id="train")))  # noqa: B023
        tq.kv_clear(keys=keys, partition_id="train")
    return min(puts), min(gets)


def backends():
    found = {}
    directory = tempfile.mkdtemp()
    for name in ("SimpleStorage", "Reroll"):
        section = {"num_data_storage_units": 2, "path": directory}
        tq.init(OmegaConf.create({"backend": {"storage_backend": name, name: section}}))
        measure(40_000)  # the first calls connect
        for num_bytes in (40_000, 256_000):
            found[name, num_bytes] = measure(num_bytes)
        tq.close()
    shutil.rmtree(directory)
    for num_bytes in (40_000, 256_000):
        for what, own, ours in zip(
            ("put", "get"), found["SimpleStorage", num_bytes], found["Reroll", num_bytes], strict=True
        ):
            print(
                f"{what} of {ROWS} rows of {num_bytes // 1000} KB: {own:7.1f} ms, reroll {ours:7.1f} ms, ratio {ours / own:.2f}"
            )


def decisions(groups=10_000, batch=512):
    options = ReplayOptions(fresh_share=0.5, max_uses=4, max_staleness=8, half_life=4, seed=0)
    buffer = options.buffer_config().build_blocking()

    def put(number):
        for _ in range(number):
            buffer.put([Rollout(response_ids=[0], status="completed")], "train", model_step=0)

    put(groups)
    buffer.sample(groups // 2, "train", train_step=1, timeout=0)
    times = []
    for _ in range(20):
        times.append(timed(lambda: buffer.sample(batch, "train", train_step=1, timeout=0)))
        put(groups - len(buffer) + batch // 2)
    print(
        f"sample of {batch} groups from {groups}: best {min(times):.1f} ms, median {sorted(times)[10]:.1f} ms"
    )


if __name__ == "__main__":
    decisions()
    ray.init(
        address="local", num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    backends()
    ray.shutdown()
