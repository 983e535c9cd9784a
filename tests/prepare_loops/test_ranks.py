"""Several ranks in threads: each step whole, each part once, whatever the order in which they ask."""

import random
import threading
import time

import pytest

from prepare_loops.results import TIMEOUT, config, filled, prompts_of, result
from reroll.prepare import BlockingPreparer

RANKS, STEPS, GROUPS = 4, 12, 6


@pytest.mark.parametrize("async_steps", [0, 1, 2])
def test_ranks_in_threads_share_every_step(async_steps):
    source = filled(result(n, (1.0, 0.0, 0.5)) for n in range(1, STEPS * GROUPS + 1))
    got: list[dict[int, object]] = [{} for _ in range(RANKS)]
    failures: list[Exception] = []
    together = threading.Barrier(RANKS)

    def train(rank: int) -> None:
        luck = random.Random(rank)
        try:
            for step in range(1, STEPS + 1):
                time.sleep(luck.random() * 0.003)
                got[rank][step] = preparer.get_data(rank, step, TIMEOUT)
                if step > 1 and luck.random() < 0.3:
                    again = preparer.get_data(rank, step - 1, TIMEOUT)
                    assert again.batch is got[rank][step - 1].batch
                together.wait(TIMEOUT)  # the collective
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    with BlockingPreparer(config(GROUPS, num_ranks=RANKS, async_steps=async_steps), source) as preparer:
        threads = [threading.Thread(target=train, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures
        preparer.done(STEPS)
        ledger = preparer.buffer.ledger()["train"]
    assert ledger["consumed"].groups == STEPS * GROUPS
    for step in range(1, STEPS + 1):
        parts = [got[rank][step] for rank in range(RANKS)]
        assert prompts_of(*parts) == list(range((step - 1) * GROUPS + 1, step * GROUPS + 1))
        assert len({len(part) for part in parts}) == 1
        assert sum(micro.num_sequences for part in parts for micro in part) == GROUPS * 3
        assert all(part.metrics is parts[0].metrics for part in parts)
