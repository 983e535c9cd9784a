"""Every group exactly once by default, and metrics that agree; with replay they differ, and each is right."""

import asyncio
import statistics

import pytest

from prepare_loops.results import TIMEOUT, config, filled, prompts_of, result, same_in
from reroll import Rollout, SyncReplayBufferConfig, WaitTimeout
from reroll.prepare import BlockingPreparer, Preparer, Prompts

SHARED = (
    *("groups", "rollouts", "tokens"),
    *("score_mean", "score_std", "score_min", "score_max"),
    *("response_length_mean", "response_length_std", "prompt_length_mean", "truncated_rate"),
)


def test_n_groups_in_are_n_groups_out_once():
    source = filled(result(n, (1.0, 0.0, n / 10)) for n in range(1, 13))
    with BlockingPreparer(config(4), source) as preparer:
        steps = [preparer.get_data(0, step, TIMEOUT) for step in (1, 2, 3)]
        preparer.done(3)
        assert [prompts_of(step) for step in steps] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
        assert preparer.buffer.ledger()["train"]["consumed"].groups == 12
        assert len(preparer.buffer) == 0
    for step in steps:
        assert same_in(step.metrics, "gen", "train", SHARED)
        assert step.metrics["gen/groups"] == 4
        assert step.metrics["train/replayed_share"] == 0
        assert step.metrics["train/times_used_max"] == 1
        assert step.batch.counts.groups == 4
    numbers = [score for n in (1, 2, 3, 4) for score in (1.0, 0.0, n / 10)]
    assert steps[0].metrics["gen/score_mean"] == pytest.approx(statistics.fmean(numbers))


def test_metrics_agree_however_far_the_source_is_ahead():
    """The results of later steps are there before the first is drawn, and are not counted for it."""
    source = filled([[result(n, (float(n), 0.0)) for n in range(1, 9)]])
    with BlockingPreparer(config(2, async_steps=2), source) as preparer:
        for step in range(1, 5):
            metrics = preparer.get_data(0, step, TIMEOUT).metrics
            assert same_in(metrics, "gen", "train", SHARED)
            assert metrics["train/score_max"] == 2 * step


def test_with_replay_they_differ_and_each_is_right():
    """Two new groups a step, and every group twice: the second step has the first one's again, or its own."""
    options = {"replay_buffer": {"sampler": "fifo", "max_times_sampled": 2}, "async_steps": 0}
    with BlockingPreparer(config(2, **options)) as preparer:
        preparer.put([result(1, (1.0, 0.0)), result(2, (1.0, 1.0))])
        first = preparer.get_data(0, 1, TIMEOUT)
        preparer.put([result(3, (0.0, 0.0)), result(4, (0.0, 0.0))])
        second = preparer.get_data(0, 2, TIMEOUT)  # fifo: 1 and 2 again
        third = preparer.get_data(0, 3, TIMEOUT)
    assert [prompts_of(step) for step in (first, second, third)] == [[1, 2], [1, 2], [3, 4]]

    assert same_in(first.metrics, "gen", "train", SHARED)
    assert first.metrics["gen/score_mean"] == 0.75

    assert second.metrics["gen/groups"] == 2  # 3 and 4
    assert second.metrics["gen/score_mean"] == 0.0
    assert second.metrics["gen/solve_rate"] == 0.0
    assert second.metrics["train/score_mean"] == 0.75  # 1 and 2
    assert second.metrics["train/replayed_share"] == 1.0
    assert second.metrics["train/times_used_mean"] == 2.0

    assert third.metrics["gen/groups"] == 0
    assert "gen/score_mean" not in third.metrics
    assert third.metrics["train/score_mean"] == 0.0
    assert third.metrics["train/replayed_share"] == 0.0


def test_staleness_is_that_of_the_step_being_prepared():
    """Step 2 is prepared while step 1 is trained, and its groups are one step older then."""
    with BlockingPreparer(config(1, async_steps=1)) as preparer:
        preparer.put([result(1, version=0), result(2, version=0)])
        assert preparer.get_data(0, 1, TIMEOUT).metrics["train/staleness_max"] == 0
        assert preparer.get_data(0, 2, TIMEOUT).metrics["train/staleness_max"] == 1


def test_too_stale_groups_are_not_trained_and_are_replaced():
    class Mine(Prompts):
        wanted = 0

        def on_replacement_needed(self, count):
            self.wanted += count

    mine = Mine()
    with BlockingPreparer(config(1, async_steps=0, max_staleness=0), prompts=mine) as preparer:
        preparer.put([result(1, version=0), result(2, version=0)])
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [1]
        preparer.done(1)  # makes room
        preparer.put(result(3, version=1), timeout=TIMEOUT)
        data = preparer.get_data(0, 2, TIMEOUT)
        assert prompts_of(data) == [3]
        assert data.metrics["gen/expired"] == 1
        assert preparer.put(result(4, version=0)) == 0  # too stale when it comes
        assert mine.wanted == 2


def test_what_became_too_stale_while_it_waited_for_room_is_replaced():
    class Mine(Prompts):
        wanted = 0

        def on_replacement_needed(self, count):
            self.wanted += count

    mine = Mine()
    options = {"async_steps": 0, "max_staleness": 0, "replay_buffer": {"capacity": 1}}
    with BlockingPreparer(config(1, **options), filled([result(1), result(2)]), prompts=mine) as preparer:
        preparer.get_data(0, 1, TIMEOUT)  # 2 waits for room
        preparer.done(1)
        with pytest.raises(WaitTimeout, match="1 of 1 groups are missing"):
            preparer.get_data(0, 2, 0.1)
        assert mine.wanted == 1
        preparer.put(result(3, version=1), timeout=TIMEOUT)
        assert prompts_of(preparer.get_data(0, 2, TIMEOUT)) == [3]


@pytest.mark.parametrize("own", [True, False])
async def test_stale_groups_that_others_put_while_a_step_waits_are_not_trained(own):
    mine = config(2, async_steps=0, first_step=5, max_staleness=0)
    theirs = None if own else SyncReplayBufferConfig().build()
    async with Preparer(mine, buffer=theirs) as preparer:
        waiting = asyncio.ensure_future(preparer.get_data(0, 5, TIMEOUT))
        while not waiting.done():
            for version in (0, 4):
                group = [
                    Rollout(prompt_ids=[1], response_ids=[2], reward=r, status="completed")
                    for r in (0.0, 1.0)
                ]
                await preparer.buffer.put(group, "train", model_step=version)
            await asyncio.sleep(0.01)
        assert (await waiting).metrics["train/staleness_max"] == 0


def test_time_is_told():
    with BlockingPreparer(config(1), filled([result(1)])) as preparer:
        metrics = preparer.get_data(0, 1, TIMEOUT).metrics
    names = ("waiting_for_generation_s", "waiting_for_trainer_s", "preparing_s")
    assert all(metrics[f"time/{name}"] >= 0 for name in names)


def test_several_updates_of_one_step():
    options = config(4, num_ranks=2, mini_batch_size=2, num_iterations=2, groups_per_micro_batch=1)
    with BlockingPreparer(options, filled(result(n) for n in range(1, 5))) as preparer:
        parts = [preparer.get_data(rank, 1, TIMEOUT) for rank in (0, 1)]
    assert parts[0].metrics["train/updates"] == 4
    updates = [list(part.updates()) for part in parts]
    assert [update.iteration for update in updates[0]] == [0, 0, 1, 1]
    for left, right in zip(*updates, strict=True):
        assert len(left.batch) == len(right.batch) == 1
        assert left.batch.counts.groups == 2
    assert prompts_of(updates[0][0], updates[1][0]) == prompts_of(updates[0][2], updates[1][2]) == [1, 3]
    assert prompts_of(updates[0][1], updates[1][1]) == [2, 4]
