"""Puts and gets of TransferQueue with its own backend and with reroll's, and how long samplers of verl take to choose a batch.

Needs the environment of `make test-verl`: .venv-verl/bin/python benchmarks/verl.py
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

sys.path.pop(0)  # else `import verl` would find this file
os.environ.update(RAY_AUTH_MODE="disabled", TQ_LOGGING_LEVEL="ERROR", OMP_NUM_THREADS="1")
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1] / "src")

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo.v1 import replay_buffer
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

import reroll.integrations.transfer_queue  # noqa: F401  (registers the backend)
from reroll.integrations.verl import RerollSampler
from reroll.integrations.verl import sampler as reroll_sampler

ROWS, ROUNDS, TURNS = 64, 6, 5


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
    """Print how long both backends take, which run in turns: the best time of each, and the median of the turns' ratios."""
    sizes, names = (40_000, 256_000), ("SimpleStorage", "Reroll")
    found = {(name, size): [] for name in names for size in sizes}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(TURNS):
            for name in names:
                section = {"num_data_storage_units": 2, "path": directory}
                tq.init(OmegaConf.create({"backend": {"storage_backend": name, name: section}}))
                measure(1_000)  # the first calls connect
                for size in sizes:
                    found[name, size].append(measure(size))
                tq.close()
    for size in sizes:
        for place, what in enumerate(("put", "get")):
            own, ours = ([times[place] for times in found[name, size]] for name in names)
            ratios = sorted(b / a for a, b in zip(own, ours, strict=True))
            print(
                f"{what} of {ROWS} rows of {size // 1000} KB: {min(own):.1f} ms, reroll {min(ours):.1f} ms, ratio of the best "
                f"{min(ours) / min(own):.2f}, median ratio {ratios[TURNS // 2]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )


def choose(sampler, rows, groups=10_000, batch=512):
    """Return how long a sampler takes to choose a batch, in milliseconds. Calls of TransferQueue take no time: they change `rows`."""
    replay_buffer.tq = reroll_sampler.tq = SimpleNamespace(
        kv_list=lambda: {"train": rows},
        kv_clear=lambda keys, partition_id: [rows.pop(key, None) for key in keys],  # noqa: ARG005
        kv_batch_get=lambda **_: None,
        kv_batch_put=lambda keys, tags, **_: rows.update(zip(keys, tags, strict=True)),
    )
    missing = groups - sum("_" in key for key in rows)
    for name in (f"{uuid4()}" for _ in range(missing)):
        rows[name] = {"is_prompt": True, "status": "finished", "global_steps": 1}
        rows[f"{name}_0_0"] = {"status": "success", "global_steps": 1}
    sampler.wait_for_sampleable(1, "train", batch)  # takes new groups in
    chosen = []
    took = timed(lambda: chosen.append(sampler.sample(1, "train", batch)[0]))
    replay_buffer.tq.kv_clear(chosen[0].keys, "train")
    return took


def samplers():
    """Print how long verl's sampler and reroll's take to choose 512 of 10,000 groups, and reroll's buffer alone."""
    made = {"trainer_mode": "colocate_async", "trainer_config": {}, "max_off_policy_threshold": None}
    options = {"fresh_share": 0.5, "max_uses": 4, "max_staleness": 8, "half_life": 4, "seed": 0}
    verls = ReplayBufferAsync(**made, max_off_policy_strategy="drop", sampler_kwargs={})
    ours = RerollSampler(**made, max_off_policy_strategy="drop", sampler_kwargs=options)
    alone, draw = [], ours.buffer.sample

    def timed_draw(*args, **given):
        drawn = []
        alone.append(timed(lambda: drawn.extend(draw(*args, **given))))
        return drawn

    ours.buffer.sample = timed_draw
    rows = {verls: {}, ours: {}}
    times = [[choose(sampler, rows[sampler]) for sampler in rows] for _ in range(21)]
    for name, found in zip(
        ("verl", "reroll", "reroll's buffer alone"), (*zip(*times, strict=True), alone), strict=True
    ):
        print(f"512 of 10,000 groups, {name}: median {sorted(found)[10]:.1f} ms, best {min(found):.1f} ms")


if __name__ == "__main__":
    samplers()
    ray.init(
        address="local", num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    backends()
    ray.shutdown()
