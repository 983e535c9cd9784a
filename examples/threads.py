"""The blocking twin: the same verbs without `await`, for producers and a trainer that are threads.

Producers put, and wait when the buffer is full; the trainer takes, and waits until its batch exists. `close()` ends
everybody who waits.

    python examples/threads.py
"""

import itertools
import random
import threading

from reroll import BlockingReplayBuffer, Closed, Rollout, Status, SyncReplayBufferConfig

TASK = "math"
STEPS = 5
BATCH = 16
PRODUCERS = 4


class Weights:
    """What the trainer publishes and producers read."""

    version = 0


def generate(rng: random.Random, prompt: str) -> Rollout:
    """Stand in for an inference engine: random tokens, of random length."""
    length = 4 + int(rng.lognormvariate(3, 0.7))
    return Rollout(
        group_id=prompt,
        prompt_ids=[1, 2, 3],
        response_ids=[rng.randrange(32_000) for _ in range(length)],
        reward=float(rng.random() < 0.5),
        status=Status.COMPLETED,
    )


def produce(buffer: BlockingReplayBuffer, weights: Weights, producer: int) -> None:
    rng = random.Random(producer)
    for number in itertools.count():
        version = weights.version
        group = [generate(rng, f"{producer}/{number}") for _ in range(4)]
        try:
            buffer.put(group, TASK, model_step=version)
        except Closed:
            return


def main() -> None:
    weights = Weights()
    buffer = SyncReplayBufferConfig(capacity=2 * BATCH).build_blocking()
    producers = [
        threading.Thread(target=produce, args=(buffer, weights, number)) for number in range(PRODUCERS)
    ]
    for producer in producers:
        producer.start()

    seen = set()
    for step in range(1, STEPS + 1):
        batches, counts = buffer.take_batch({TASK: BATCH}, wait=True, timeout=30, train_step=step)
        seen.update(group[0].group_uid for group in batches[TASK])
        print(f"step {step}: trained {counts[TASK]} groups")
        weights.version = step

    books = buffer.ledger()[TASK]
    print(f"{len(seen)} different groups trained, {books['consumed'].groups} by the ledger")
    print(f"at most {2 * BATCH} wait: {buffer.count(TASK, Status.COMPLETED) <= 2 * BATCH}")
    buffer.close()
    for producer in producers:
        producer.join()
    print("closed, and all producers have ended")


if __name__ == "__main__":
    main()
