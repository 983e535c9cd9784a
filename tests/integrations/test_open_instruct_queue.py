"""ResultsQueue, in place of a queue of inference results: order, filter, staleness, priority, the end."""

import queue
import threading

import pytest

from integrations.open_instruct_results import processed, their_group, their_result
from reroll import Closed, InvalidArgument, InvalidConfig
from reroll.integrations.open_instruct import ResultsQueue
from reroll.prepare import GenerationResult


def taken(results):
    """Return the numbers of all results that are there."""
    found = []
    while not results.empty():
        item = results.get(timeout=0)
        found.append(getattr(item, "result", item).index)
    return found


def test_results_come_out_as_they_were_put():
    results, theirs, both = ResultsQueue(), their_result(1), processed(2)
    assert results.put(theirs)
    assert results.put(both)
    assert results.qsize() == 2
    assert results.get() is theirs
    assert results.get(timeout=1) is both
    assert results.empty()
    for waits in ({"block": False}, {"timeout": 0.01}, {"timeout": 0}):
        with pytest.raises(queue.Empty):
            results.get(**waits)


def test_a_full_queue_waits_or_tells():
    results = ResultsQueue(maxsize=1)
    results.put(their_result(1))
    with pytest.raises(queue.Full):
        results.put(their_result(2), block=False)
    with pytest.raises(queue.Full):
        results.put(their_result(2), timeout=0.01)
    engine = threading.Thread(target=results.put, args=(their_result(3),))
    engine.start()
    assert results.get(timeout=10).index == 1
    engine.join(10)
    assert taken(results) == [3]


def test_one_who_waits_is_woken():
    results, found = ResultsQueue(), []
    waiting = threading.Thread(target=lambda: found.append(results.get(timeout=10)))
    waiting.start()
    results.put(their_result(1))
    waiting.join(10)
    assert found[0].index == 1


def test_what_teaches_nothing_is_filtered():
    results = ResultsQueue(filter_zero_std=True, predicates=[lambda group: group[0].group_id != "0_4"])
    kept = [
        results.put(processed(number, rewards))
        for number, rewards in enumerate([(0, 0), (1, 0), (1, 1), (0, 1)], 1)
    ]
    assert kept == [False, True, False, False]
    assert taken(results) == [2]
    assert results.buffer.count("train", "filtered") == 3
    unfiltered = ResultsQueue()
    assert unfiltered.put(their_result(1, (0, 0)))


def test_failed_and_aborted_results_are_not_handed_out():
    results = ResultsQueue(filter_zero_std=True)
    assert not results.put(their_result(1, (0, 0), reason="error"))
    assert not results.put(their_result(2, reason="abort"))
    assert results.put(their_result(3, reason="length"))
    assert taken(results) == [3]
    assert results.buffer.count_statuses(["train"], ["failed", "aborted"])["train"] == {
        "failed": 1,
        "aborted": 1,
    }


def test_what_is_too_stale_goes():
    results = ResultsQueue(replay_buffer={"max_staleness": 1})
    for number in range(4):
        assert results.put(their_result(number, model_step=number))
    results.advance(3)  # staleness 2, 1, 0, -1
    assert taken(results) == [1, 2, 3]
    assert not results.put(their_result(0), model_step=0)
    assert results.put(their_result(5))  # of no known version
    assert results.buffer.ledger()["train"]["expired"].groups == 2


@pytest.mark.parametrize("given", [False, True])
def test_the_sampler_decides_who_comes_next(given):
    options = {"sampler": "max_heap"} if given else {"sampler": "max_heap", "priority_signal": "reward_std"}
    results = ResultsQueue(replay_buffer=options)
    for number, rewards in enumerate([(0.5, 0.5), (1.0, 0.0), (0.75, 0.5)], start=1):
        results.put(their_result(number, rewards), priority=(3.0, 2.0, 1.0)[number - 1] if given else None)
    assert taken(results) == ([1, 2, 3] if given else [2, 3, 1])


def test_our_verbs_see_what_is_in_it():
    results = ResultsQueue()
    results.put(processed(7, (1.0, 0.0), model_step=3))
    (row,) = results.buffer.query({"version": 3, "group_id": "0_7"})
    assert (row.num_rollouts, row.num_tokens, row.reward_mean) == (2, 3, 0.5)


def test_results_of_ours_are_results():
    results = ResultsQueue(filter_zero_std=True)
    mine = GenerationResult(
        prompt_id="1",
        prompt_ids=[1],
        responses=[[2], [3]],
        finish_reasons=["stop"] * 2,
        rewards=[0.0, 1.0],
        model_step=4,
    )
    assert results.put(mine)
    assert results.get() is mine


class TestTheEnd:
    def test_what_is_there_is_still_taken(self):
        results = ResultsQueue(sentinel="the end")
        results.put(their_result(1))
        results.put("the end")
        with pytest.raises(Closed):
            results.put(their_result(2))
        assert results.get(timeout=1).index == 1
        assert [results.get(), results.get(block=False), results.get(timeout=1)] == ["the end"] * 3
        assert results.qsize() == 0
        results.shutdown()

    @pytest.mark.parametrize("config", [None, {"min_size": 3}])
    def test_all_who_wait_are_told(self, config):
        results, found = ResultsQueue(replay_buffer=config), []
        if config is not None:
            results.put(their_result(1))
        threads = [threading.Thread(target=lambda: found.append(results.get(timeout=10))) for _ in range(3)]
        for thread in threads:
            thread.start()
        results.shutdown()
        for thread in threads:
            thread.join(10)
        assert found == [None] * 3

    def test_one_gets_the_last_and_the_others_are_told(self):
        results, found = ResultsQueue(), []
        threads = [threading.Thread(target=lambda: found.append(results.get(timeout=10))) for _ in range(3)]
        for thread in threads:
            thread.start()
        last = their_result(1)
        results.put(last)
        results.shutdown()
        for thread in threads:
            thread.join(10)
        assert sorted(found, key=lambda one: one is None) == [last, None, None]

    def test_a_closed_buffer_is_no_end(self):
        results = ResultsQueue()
        results.buffer.close()
        with pytest.raises(Closed):
            results.get()


@pytest.mark.parametrize(
    "item",
    [
        "text",
        object(),
        their_result(1, ()),
        their_result(1, (1.0,)).__class__([[1]], ["stop"], [], 1, "1", None, [1, 2]),
    ],
)
def test_what_is_no_result_is_refused(item):
    results = ResultsQueue()
    with pytest.raises(InvalidArgument):
        results.put(item)
    assert results.empty()


def test_wrong_configurations_are_refused():
    with pytest.raises(InvalidConfig, match="not both"):
        ResultsQueue(3, replay_buffer={"capacity": 4})
    with pytest.raises(ValueError, match="nonsense"):
        ResultsQueue(replay_buffer={"nonsense": 4})


def test_only_the_newest_aborted_results_stay():
    results = ResultsQueue(2, replay_buffer={"rejected_capacity": 3})
    for number in range(9):
        assert not results.put(their_result(number, reason="abort"))
    assert [row.group_id for row in results.buffer.query({"status": "aborted"})] == ["0_6", "0_7", "0_8"]
    assert results.buffer.ledger()["train"]["deleted"].groups == 6
    assert results.put(their_result(9))
    assert results.qsize() == 1


@pytest.mark.parametrize("age", [1, 2, 3])
def test_max_staleness_is_max_result_age_steps_minus_one(age):
    results = ResultsQueue(replay_buffer={"max_staleness": age - 1})
    for step in range(6):
        results.put(their_group(step, model_step=step))
    results.advance(5)
    left = [results.get(block=False).index for _ in range(results.qsize())]
    assert left == [step for step in range(6) if not 5 - step > age]


def test_a_group_is_as_old_as_its_oldest_response():
    results = ResultsQueue(replay_buffer={"max_staleness": 1})
    results.put(their_group(1, model_steps=[4, 1]))
    results.put(their_group(2, model_steps=[4, 3]))
    results.advance(5)
    assert results.get(block=False).index == 2
    assert results.buffer.ledger()["train"]["expired"].groups == 1
