"""What passes is counted once, on the right side, and survives as plain values."""

import json
from math import inf, nan
from types import SimpleNamespace

import numpy as np
import pytest

from reroll.buffer.group import Group
from reroll.rollout import Rollout, Status, summarize
from reroll.telemetry.counters import FlowCounters, ResponseCounters, TaskCounters, WaitStats


def rollout(length=4, *, versions=(), reward=None, staleness=0, status="completed"):
    return Rollout(
        prompt_ids=[7, 8],
        response_ids=range(length),
        response_model_steps=list(versions),
        reward=reward,
        seq_staleness=staleness,
        status=status,
    )


def put(flow, items, status=None, task="math"):
    summary = summarize(items)
    flow.count_put(task, summary, summary.status if status is None else status)


def train(flow, items, step, task="math", use=1):
    staleness = max(item.seq_staleness for item in items)
    flow.count_trained(task, [Group(1, items, summarize(items))], step, [use], [staleness])


def foreign(**fields):
    return SimpleNamespace(status="completed", seq_staleness=0, response_model_steps=[], **fields)


def responses_of(items):
    responses = ResponseCounters()
    responses.add([summarize(items).measure])
    return responses


def lengths(responses):
    return {bits: count for bits, count in enumerate(responses.bits) if count}


# --- the two sides


def test_a_put_counts_as_put_only():
    flow = FlowCounters()
    put(flow, [rollout(4), rollout(9)])
    assert flow.tasks["math"].puts == {"completed": 1}
    assert (flow.tasks["math"].produced.groups, flow.tasks["math"].produced.tokens) == (1, 13)
    assert flow.tasks["math"].trained == ResponseCounters()
    assert flow.tasks["math"].uses == {}


def test_what_is_trained_counts_as_trained_only():
    flow = FlowCounters()
    train(flow, [rollout(4), rollout(9)], 1)
    assert (flow.tasks["math"].trained.groups, flow.tasks["math"].trained.tokens) == (1, 13)
    assert flow.tasks["math"].trained.rollouts == 2
    assert flow.tasks["math"].produced == ResponseCounters()
    assert flow.tasks["math"].puts == {}


def test_a_batch_counts_as_its_groups_one_by_one():
    groups = [
        [rollout(4, versions=[1] * 4, reward=1.0), rollout(0)],
        [rollout(9, versions=[1] * 4 + [3] * 5, reward=0.5), rollout(1, versions=[2], reward=0.25)],
        [rollout(4, staleness=2)],
        [rollout(4, versions=[3] * 4, reward=inf)],
    ]
    for step, batch in ((5, groups), (None, groups), (5, groups[:1]), (5, groups[2:3]), (5, [])):
        singly, together = FlowCounters(), FlowCounters()
        known = [Group(1, items, summarize(items)) for items in batch]
        for use, items in enumerate(batch, start=1):
            train(singly, items, step, use=use)
        told = [max(item.seq_staleness for item in items) for items in batch]
        together.count_trained("math", known, step, range(1, len(known) + 1), told)
        assert together.tasks.get("math") == singly.tasks.get("math", TaskCounters())


def test_tasks_are_counted_apart():
    flow = FlowCounters()
    put(flow, [rollout(4)], task="math")
    put(flow, [rollout(5)], task="code")
    train(flow, [rollout(5)], 1, task="code")
    assert (flow.tasks["math"].produced.tokens, flow.tasks["math"].trained.tokens) == (4, 0)
    assert (flow.tasks["code"].produced.tokens, flow.tasks["code"].trained.tokens) == (5, 5)


@pytest.mark.parametrize(
    ("put_as", "came_to", "is_finished"),
    [
        ("completed", Status.COMPLETED, True),
        ("completed", Status.EXPIRED, True),  # too stale on arrival, but its responses are whole
        ("filtered", Status.FILTERED, True),
        ("aborted", Status.ABORTED, False),
        ("aborted", Status.FAILED, False),
        ("aborted", Status.EXPIRED, False),
        ("expired", Status.EXPIRED, False),
        ("failed", Status.FAILED, False),
        ("init", Status.INIT, False),
    ],
)
def test_only_whole_responses_are_measured(put_as, came_to, is_finished):
    flow = FlowCounters()
    put(flow, [rollout(4, reward=1.0, status=put_as)], came_to)
    assert flow.tasks["math"].puts == {came_to.value: 1}
    assert flow.tasks["math"].produced.groups == is_finished
    assert flow.tasks["math"].produced.scored == is_finished


# --- lengths and rewards


def test_lengths_are_counted_by_their_bits():
    responses = responses_of([rollout(n) for n in (0, 1, 2, 3, 4, 7, 8)])
    assert lengths(responses) == {0: 1, 1: 1, 2: 2, 3: 2, 4: 1}
    assert responses.tokens == 25


def test_a_rollout_without_a_response_has_length_0():
    responses = responses_of([foreign(response_ids=None), foreign(response_ids=(1, 2, 3))])
    assert lengths(responses) == {0: 1, 2: 1}


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1.0, 0.0, 1.0, -2.0], (4, 0.0, 2, 1, 0)),
        ([1, 0, True], (3, 2.0, 2, 1, 0)),
        ([1.0, 1.0], (2, 2.0, 2, 1, 1)),
        ([0.0, 0.0], (2, 0.0, 0, 1, 1)),
        ([-1.0, -1.0], (2, -2.0, 0, 1, 1)),
        ([3.0], (1, 3.0, 1, 0, 0)),
        ([{"score": 1.0}, {"score": 0.5}], (2, 1.5, 2, 1, 0)),
        ([{"score": 1.0}, 0.5], (2, 1.5, 2, 1, 0)),
        ([0.5, {"score": 1.0}, {"score": None}, {}], (2, 1.5, 2, 1, 0)),
        ([None, None], (0, 0.0, 0, 0, 0)),
        ([None, 2.0], (1, 2.0, 1, 0, 0)),
        ([nan, 2.0, inf, 4.0], (2, 6.0, 2, 1, 0)),
        ([inf, -inf], (0, 0.0, 0, 0, 0)),
        ([np.float32(1.5), np.float64(0.5), np.int64(1)], (3, 3.0, 3, 1, 0)),
    ],
)
def test_rewards(rewards, expected):
    # scored, sum of scores, solved, groups compared, groups without variance
    responses = responses_of([foreign(response_ids=[1], reward=reward) for reward in rewards])
    found = (responses.scored, responses.score, responses.solved, responses.compared, responses.uniform)
    assert found == expected
    assert {type(number) for number in found} <= {int, float}
    assert responses.rollouts == len(rewards)


def test_rollouts_that_have_no_reward_at_all():
    responses = responses_of([foreign(response_ids=[1]), foreign(response_ids=[1], reward=1.0)])
    assert (responses.scored, responses.score) == (1, 1.0)


# --- staleness and uses


def test_staleness_by_oldest_newest_and_token():
    flow = FlowCounters()
    train(flow, [rollout(4, versions=[1, 1, 2, 2]), rollout(3, versions=[4, 4, 4])], 6)
    train(flow, [rollout(2, versions=[5, 5])], 6)
    train(flow, [rollout(1, versions=[6])], 6)  # of weights newer than this step asks for
    staleness = flow.tasks["math"].staleness
    assert staleness.oldest == {4: 1, 0: 1, -1: 1}
    assert staleness.newest == {1: 1, 0: 1, -1: 1}
    assert staleness.tokens == {4: 2, 3: 2, 1: 3, 0: 2, -1: 1}


@pytest.mark.parametrize(("versions", "step"), [((), 6), ((), None), ((1, 1), None)])
def test_without_versions_or_step_staleness_is_what_the_rollouts_state(versions, step):
    flow = FlowCounters()
    train(flow, [rollout(2, versions=versions, staleness=n) for n in (0, 3, 2)], step)
    staleness = flow.tasks["math"].staleness
    assert (staleness.oldest, staleness.newest, staleness.tokens) == ({3: 1}, {}, {})


def test_uses():
    flow = FlowCounters()
    train(flow, [rollout()], 1)
    train(flow, [rollout()], 1, use=2)
    train(flow, [rollout()], 1, use=2)
    assert flow.tasks["math"].uses == {1: 1, 2: 2}
    assert flow.tasks["math"].trained.groups == 3


# --- waits, state


def test_waits_are_counted_by_verb_and_task():
    flow = FlowCounters()
    flow.count_wait("put", "math", 1.5)
    flow.count_wait("put", "math", 0.5)
    flow.count_wait("take", "math", 4.0)
    flow.count_wait("put", "code", 8.0)
    assert flow.tasks["math"].waits == {"put": WaitStats(2, 2.0, 1.5), "take": WaitStats(1, 4.0, 4.0)}
    assert flow.tasks["code"].waits == {"put": WaitStats(1, 8.0, 8.0)}


def test_the_state_is_plain_and_comes_back():
    flow = FlowCounters()
    put(flow, [rollout(4, reward=np.float32(1.5))])
    train(flow, [rollout(4, versions=[1, 1, 2, 2], reward=True)], 6, use=3)
    flow.count_wait("put", "math", 1.5)
    state = flow.state()
    saved = json.loads(json.dumps(state))
    assert saved == state
    restored = FlowCounters()
    restored.restore(saved)
    assert restored.tasks == flow.tasks
    put(restored, [rollout(4)])
    assert restored.tasks["math"].puts == {"completed": 2}
    assert restored.earlier == flow.tasks  # stays what it was
    assert flow.state() == state
