"""A buffer on Ray: three producers and a trainer of two ranks, each an actor; the buffer's actor is killed on purpose.

The buffer has a store, so its actor comes back with all that was put. Producers and ranks notice nothing but a pause: their
calls are repeated, each is carried out once, and every prompt is trained exactly once.

    python examples/ray_grpo.py
"""

import os
import random
import tempfile
import warnings
from collections import Counter

os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import ray

from reroll import Rollout, SyncReplayBufferConfig
from reroll.ray import RayReplayBuffer

TASK = "math"
PRODUCERS, RANKS = 3, 2
STEPS = 6
BATCH = 8  # groups a step, over both ranks
RESPONSES = 4


@ray.remote(num_cpus=0)
class Producer:
    """Stands in for an inference engine: answers its share of the prompts."""

    def __init__(self, buffer: RayReplayBuffer, number: int) -> None:
        self.buffer = buffer.blocking()
        self.number = number
        self.random = random.Random(number)

    def run(self) -> int:
        prompts = range(self.number, STEPS * BATCH, PRODUCERS)
        for prompt in prompts:
            group = [
                Rollout(
                    group_id=prompt,
                    prompt_ids=[prompt] * 4,
                    response_ids=[self.random.randrange(32_000) for _ in range(20)],
                    reward=float(self.random.random() < 0.5),
                    status="completed",
                )
                for _ in range(RESPONSES)
            ]
            self.buffer.put(group, TASK, model_step=0, timeout=60)  # waits while the buffer is full
        return len(prompts)


@ray.remote(num_cpus=0)
class Rank:
    """One data-parallel trainer: takes its part of each step."""

    def __init__(self, buffer: RayReplayBuffer) -> None:
        self.buffer = buffer.blocking()

    def train(self, step: int) -> list[int]:
        groups, _ = self.buffer.take_batch({TASK: BATCH // RANKS}, wait=True, timeout=60, train_step=step)
        for group in groups[TASK]:
            mean = sum(rollout.reward for rollout in group) / len(group)
            _advantages = [rollout.reward - mean for rollout in group]  # an optimizer step would follow
        return [group[0].group_id for group in groups[TASK]]


def main(directory: str) -> None:
    config = SyncReplayBufferConfig(capacity=16, store=f"{directory}/buffer")
    buffer = RayReplayBuffer.create(config, name="grpo")
    producers = [Producer.remote(buffer, number) for number in range(PRODUCERS)]
    ranks = [Rank.remote(buffer) for _ in range(RANKS)]
    running = [producer.run.remote() for producer in producers]
    trained: Counter[int] = Counter()
    for step in range(1, STEPS + 1):
        if step == 3:
            ray.kill(buffer.actors[0], no_restart=False)
            print("the buffer's actor is killed; it comes back with its store")
        parts = ray.get([rank.train.remote(step) for rank in ranks], timeout=120)
        trained.update(prompt for part in parts for prompt in part)
        print(f"step {step}: {' + '.join(str(len(part)) for part in parts)} groups trained")
    put = sum(ray.get(running, timeout=120))
    blocking = buffer.blocking()
    books = blocking.ledger()[TASK]
    print(f"{put} prompts, {len(trained)} trained, the most often {max(trained.values())} time")
    print(
        f"ledger: {books['put'].groups} put = {books['uncommitted'].groups + books['consumed'].groups} trained"
    )
    blocking.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as where:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's own
            ray.init(
                "local",
                num_cpus=4,
                include_dashboard=False,
                object_store_memory=100_000_000,
                log_to_driver=False,
                configure_logging=False,
            )
        try:
            main(where)
        finally:
            ray.shutdown()
