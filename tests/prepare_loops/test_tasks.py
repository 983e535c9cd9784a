"""Steps of several tasks: taken at once, each with its own size, limits and metrics."""

import json

import pytest

from prepare_loops.results import TIMEOUT, config, prompts_of, result, same_in
from reroll import InvalidArgument, WaitTimeout
from reroll.prepare import BlockingPreparer
from reroll.testing.probe import probe

MIX = {"math": 2, "code": 1}


def mixed(**options):
    return config(3, task_batch_sizes=MIX, **options)


def math(*numbers, rewards=(1.0, 0.0), **fields):
    return [result(number, rewards, task="math", **fields) for number in numbers]


def code(*numbers, rewards=(1.0, 0.0), **fields):
    return [result(number, rewards, task="code", **fields) for number in numbers]


def test_a_step_has_all_tasks_or_waits():
    with BlockingPreparer(mixed(num_ranks=2)) as preparer:
        preparer.put(math(1, 2, 3))
        with pytest.raises(WaitTimeout, match=r"1 of 3 groups are missing for step 1 \(1 of task 'code'\)"):
            preparer.get_data(0, 1, 0.1)
        assert preparer.buffer.ledger()["math"]["leased"].groups == 0
        preparer.put(code(11))
        parts = [preparer.get_data(rank, 1, TIMEOUT) for rank in (0, 1)]
        assert prompts_of(*parts) == [1, 2, 11]
        assert parts[0].batch.counts.groups == 3
        preparer.done(1)
        assert preparer.buffer.ledger()["code"]["consumed"].groups == 1


def test_metrics_of_each_task_and_of_all():
    """More math comes than a step takes: what is counted for it is what it takes."""
    options = mixed(filter_zero_std=True)
    with BlockingPreparer(options) as preparer:
        preparer.put([*math(1, 2, 3, 4), *code(11, rewards=(1.0, 1.0))])
        preparer.put([*code(12, rewards=(0.0, 4.0)), *code(13)])
        metrics = [preparer.get_data(0, step, TIMEOUT).metrics for step in (1, 2)]
    assert metrics[0]["gen/groups"] == 4  # math 1 and 2, code 11, which was filtered, and 12
    assert metrics[0]["gen/math/groups"] == metrics[0]["train/math/groups"] == 2
    assert metrics[0]["gen/code/filtered/groups"] == 1
    assert metrics[0]["train/code/score_mean"] == 2.0
    assert metrics[0]["train/score_mean"] == (1 + 0 + 1 + 0 + 0 + 4) / 6
    assert same_in(metrics[1], "gen", "train", ["groups", "score_mean", "math/groups", "code/tokens"])


def test_a_step_of_what_passed_of_each_task():
    options = mixed(filter_zero_std=True, when_filtered="yield")
    with BlockingPreparer(options) as preparer:
        preparer.put([*math(1, 2), *code(11, rewards=(1.0, 1.0))])
        data = preparer.get_data(0, 1, TIMEOUT)
        assert prompts_of(data) == [1, 2]
        assert data.metrics["train/code/groups"] == 0
        preparer.put([*math(3, 4, rewards=(0.0, 0.0)), *code(12, rewards=(1.0, 1.0))])
        assert prompts_of(preparer.get_data(0, 2, TIMEOUT)) == []


def test_limits_by_task():
    options = mixed(max_staleness={"code": 0}, async_steps=0, replay_buffer={"capacity": 9})
    with BlockingPreparer(options) as preparer:
        preparer.put([*math(1, 2, 3, 4), *code(11, 12)])
        preparer.get_data(0, 1, TIMEOUT)
        preparer.done(1)
        preparer.put(code(13, version=1))
        assert prompts_of(preparer.get_data(0, 2, TIMEOUT)) == [3, 4, 13]
    built = mixed(replay_buffer={"tasks": {"code": {"capacity": 5}}}).build_buffer()
    capacities = {name: probe(built).engine.task(name).settings.capacity for name in MIX}
    assert capacities == {"math": 2 * 3, "code": 5}


def test_a_result_names_its_task():
    with BlockingPreparer(mixed()) as preparer:
        for task in (None, "chess"):
            with pytest.raises(InvalidArgument, match=r"prompt '1' is of task .*; name one of: math, code"):
                preparer.put(result(1, task=task))
    with (
        BlockingPreparer(config(1)) as preparer,
        pytest.raises(InvalidArgument, match="'chess'; name one of: train"),
    ):
        preparer.put(result(1, task="chess"))


def test_sizes_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="3 groups in a step, not global_batch_size=4"):
        config(4, task_batch_sizes=MIX)
    with pytest.raises(ValueError, match=r"unknown tasks: \['chess'\]"):
        mixed(max_staleness={"chess": 1})


def test_a_restart(tmp_path):
    with BlockingPreparer(mixed()) as preparer:
        preparer.put([*math(1, 2, 3, 4), *code(11, 12)])
        preparer.get_data(0, 1, TIMEOUT)
        state = json.loads(json.dumps(preparer.state(step=1, save_to=tmp_path)))
    again = BlockingPreparer(mixed())
    again.restore(state)
    with again:
        data = again.get_data(0, 2, TIMEOUT)
    assert prompts_of(data) == [3, 4, 12]
    assert same_in(data.metrics, "gen", "train", ["groups", "math/tokens", "code/tokens"])
