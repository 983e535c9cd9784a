"""What is left out is counted, told to whoever has the prompts, and replaced or not, as configured."""

import time

import pytest

from prepare_loops.results import TIMEOUT, config, filled, prompts_of, result
from reroll import SourceEnded, WaitTimeout
from reroll.prepare import BlockingPreparer, GenerationResult, Prompts

SAME = (1.0, 1.0)


class Noted(Prompts):
    """Notes what it is told."""

    def __init__(self):
        self.done, self.wanted, self.solved = [], 0, []

    def on_stored(self, results):
        self.done += [one.index for one in results]

    def on_replacement_needed(self, count):
        self.wanted += count

    def on_solved(self, results):
        self.solved += [one.index for one in results]


def test_a_step_waits_for_groups_in_place_of_those_that_were_filtered():
    noted, source = Noted(), filled([result(1, SAME), result(2), result(3, (0.0, 0.0))])
    with BlockingPreparer(config(2, filter_zero_std=True), source, prompts=noted) as preparer:
        with pytest.raises(WaitTimeout, match="1 of 2 groups are missing"):
            preparer.get_data(0, 1, 0.2)
        assert noted.wanted == 2
        source.put(result(4))
        data = preparer.get_data(0, 1, TIMEOUT)
    assert prompts_of(data) == [2, 4]
    assert noted.done == [1, 2, 3, 4]
    assert data.metrics["gen/groups"] == 4
    assert data.metrics["gen/filtered/groups"] == 2
    assert data.metrics["gen/filtered/all_solved"] == 1
    assert data.metrics["gen/filtered/none_solved"] == 1
    assert data.metrics["gen/real_batch_size_ratio"] == 0.5
    assert data.metrics["train/groups"] == 2


def test_a_step_in_which_all_was_filtered_waits_for_more():
    source = filled(result(n, SAME) for n in range(1, 5))
    with BlockingPreparer(config(2, filter_zero_std=True), source) as preparer:
        with pytest.raises(WaitTimeout, match="2 of 2 groups"):
            preparer.get_data(0, 1, 0.2)
        source.put([result(5), result(6)])
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [5, 6]


def test_or_is_empty_as_configured():
    noted = Noted()
    source = filled([result(1, SAME), result(2, SAME), result(3), result(4, SAME), result(5), result(6)])
    options = config(2, filter_zero_std=True, when_filtered="yield", num_ranks=2)
    with BlockingPreparer(options, source, prompts=noted) as preparer:
        steps = [[preparer.get_data(rank, step, TIMEOUT) for rank in (0, 1)] for step in (1, 2, 3)]
    assert [prompts_of(*parts) for parts in steps] == [[], [3], [5, 6]]
    assert [parts[0].batch.counts.groups for parts in steps] == [0, 1, 2]
    assert all(len(left) == len(right) for left, right in steps)
    assert [parts[0].metrics["gen/groups"] for parts in steps] == [2, 2, 2]
    assert [parts[0].metrics["gen/real_batch_size_ratio"] for parts in steps] == [0, 0.5, 1]
    assert [parts[0].metrics["train/groups"] for parts in steps] == [0, 1, 2]
    assert noted.wanted == 0  # a step is what passed: nothing is to be replaced


def test_or_is_short_but_never_empty():
    """All of the first two results were filtered: the step takes two more, and as many prompts are asked for."""
    noted = Noted()
    options = config(2, filter_zero_std=True, when_filtered="shorten", num_ranks=2)
    with BlockingPreparer(options, prompts=noted) as preparer:
        preparer.put([result(1, SAME), result(2, SAME)])
        with pytest.raises(WaitTimeout, match="2 of 2 results are missing for step 1"):
            preparer.get_data(0, 1, 0.2)
        assert noted.wanted == 2
        preparer.put([result(3), result(4, SAME), result(5), result(6)])
        steps = [[preparer.get_data(rank, step, TIMEOUT) for rank in (0, 1)] for step in (1, 2)]
    assert [prompts_of(*parts) for parts in steps] == [[3], [5, 6]]
    assert [parts[0].metrics["gen/groups"] for parts in steps] == [4, 2]
    assert [parts[0].metrics["gen/filtered/groups"] for parts in steps] == [3, 0]
    assert noted.wanted == 2


def test_a_short_step_skips_groups_that_expired():
    options = {"when_filtered": "shorten", "max_staleness": 0, "async_steps": 0}
    with BlockingPreparer(config(1, **options, replay_buffer={"capacity": 9})) as preparer:
        preparer.put([result(1), result(2)])
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [1]
        preparer.put(result(3, version=1))
        assert prompts_of(preparer.get_data(0, 2, TIMEOUT)) == [3]  # 2 is too stale


def test_short_steps_at_the_end_of_a_source():
    results = [result(1, SAME), result(2), result(3), result(4, SAME), result(5, SAME)]
    options = {"filter_zero_std": True, "when_filtered": "shorten", "allow_short": True}
    with BlockingPreparer(config(2, **options), iter(results)) as preparer:
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [2]
        assert prompts_of(preparer.get_data(0, 2, TIMEOUT)) == [3]
        with pytest.raises(SourceEnded):
            preparer.get_data(0, 3, TIMEOUT)


def test_what_failed_counts_for_no_step_and_is_replaced():
    noted = Noted()
    with BlockingPreparer(config(2, when_filtered="yield", on_invalid="drop"), prompts=noted) as preparer:
        preparer.put([result(1), failed(2, ["stop", "error"]), result(3, (float("nan"), 0.0))])
        assert noted.wanted == 2
        preparer.put([result(4), result(5)])
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [1, 4]


def test_empty_steps_are_done_like_any_other():
    source = filled([result(1, SAME), result(2, SAME)])
    with BlockingPreparer(config(1, filter_zero_std=True, when_filtered="yield"), source) as preparer:
        preparer.get_data(0, 1, TIMEOUT)
        preparer.get_data(0, 2, TIMEOUT)
        preparer.done(2)
        assert preparer.buffer.ledger() == {} or preparer.buffer.ledger()["train"]["leased"].groups == 0


def test_the_end_of_a_source_that_was_filtered():
    results = [result(n, SAME) for n in (1, 2, 3)]
    options = {"filter_zero_std": True, "allow_short": True}
    with (
        BlockingPreparer(config(2, **options), iter(results)) as preparer,
        pytest.raises(SourceEnded, match="2 of 2 groups"),
    ):
        preparer.get_data(0, 1, TIMEOUT)
    with BlockingPreparer(config(2, when_filtered="yield", **options), iter(results)) as preparer:
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == []
        assert preparer.get_data(0, 2, TIMEOUT).metrics["gen/groups"] == 1
        with pytest.raises(SourceEnded):
            preparer.get_data(0, 3, TIMEOUT)


def test_filtered_groups_can_be_kept_to_be_looked_at():
    with BlockingPreparer(config(1, filter_zero_std=True, keep_filtered=True)) as preparer:
        assert preparer.put([result(1, SAME), result(2)]) == 1
        assert preparer.buffer.count("train", "filtered") == 1


def test_prompts_that_are_solved_too_often_are_reported():
    noted = Noted()
    with BlockingPreparer(config(1, no_resampling_pass_rate=0.75), prompts=noted) as preparer:
        preparer.put([result(1, (1, 1, 1, 0)), result(2, (1, 0, 0, 0))])
        assert noted.solved == [1]


def test_predicates():
    options = config(1, predicates=[lambda group: group[0].extra_fields["dataset"] == "math"])
    with BlockingPreparer(options) as preparer:
        assert preparer.put([result(1, dataset="code"), result(2, dataset="math")]) == 1
        data = preparer.get_data(0, 1, TIMEOUT)
        assert prompts_of(data) == [2]
        assert data.metrics["gen/filtered/custom"] == 1


def failed(number, reasons):
    return GenerationResult(
        prompt_id=str(number),
        index=number,
        prompt_ids=[7],
        responses=[[number]] * len(reasons),
        finish_reasons=reasons,
        rewards=[0.5 * place for place in range(len(reasons))],
        model_step=0,
    )


def test_failed_groups_are_counted_and_replaced_unless_their_failed_members_are_dropped():
    noted = Noted()
    with BlockingPreparer(config(1), prompts=noted) as preparer:
        assert preparer.put([failed(1, ["stop", "error"]), result(2)]) == 1
        data = preparer.get_data(0, 1, TIMEOUT)
        assert prompts_of(data) == [2]
        assert data.metrics["gen/failed"] == 1
        assert noted.wanted == 1
        assert preparer.buffer.count("train", "failed") == 1
    with BlockingPreparer(config(1, on_failed="drop_member", group_size=3)) as preparer:
        assert preparer.put(failed(1, ["stop", "error", "stop"])) == 1
        data = preparer.get_data(0, 1, TIMEOUT)
        assert data.batch.counts.sequences == 2
        assert data.metrics["gen/dropped_members"] == 1
        with pytest.raises(WaitTimeout, match="1 of 1 results failed: finish_reason 'error'"):
            preparer.get_data(0, 2, 0.05)


def test_what_comes_twice_is_stored_once():
    with BlockingPreparer(config(2)) as preparer:
        assert preparer.put([result(1), result(1), result(2)]) == 3
        data = preparer.get_data(0, 1, TIMEOUT)
        assert prompts_of(data) == [1, 2]
        assert data.metrics["gen/groups"] == 2
        preparer.put(result(2))
        with pytest.raises(WaitTimeout, match="2 results had a prompt_id that had come before"):
            preparer.get_data(0, 2, 0.1)
    with BlockingPreparer(config(2, unique_prompt_ids=False)) as preparer:
        preparer.put([result(1), result(1)])
        assert len(preparer.get_data(0, 1, TIMEOUT).uids) == 2


def test_a_prompt_that_failed_may_come_again():
    with BlockingPreparer(config(1)) as preparer:
        assert preparer.put(failed(1, ["stop", "error"])) == 0
        assert preparer.put(failed(1, ["stop", "stop"])) == 1
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [1]


def test_what_was_filtered_and_comes_again_is_replaced_once():
    noted = Noted()
    with BlockingPreparer(config(1, filter_zero_std=True), prompts=noted) as preparer:
        assert preparer.put([result(1, SAME), result(1, SAME)]) == 0
        assert noted.wanted == 1


def test_predicates_are_not_asked_about_what_is_not_complete():
    with BlockingPreparer(
        config(1, predicates=[lambda group: all(one.reward > 0 for one in group)])
    ) as preparer:
        unrewarded = failed(1, ["stop", "error"])
        unrewarded.rewards = None
        assert preparer.put(unrewarded) == 0
        assert preparer.buffer.count("train", "failed") == 1


def test_an_aborted_group_is_continued():
    with BlockingPreparer(config(1)) as preparer:
        assert preparer.put(failed(1, ["stop", "abort"])) == 0
        ((taken, _),) = preparer.buffer.get(1, "train", "aborted")
        continued = failed(1, ["stop", "stop"])
        continued.group_uid = taken.group_uid
        assert preparer.put(continued) == 1
        assert preparer.get_data(0, 1, TIMEOUT).uids == [taken.group_uid]


def test_a_group_that_became_too_stale_is_rolled_again():
    options = {"max_staleness": 0, "retry_expired": True, "async_steps": 0}
    with BlockingPreparer(config(1, **options)) as preparer:
        preparer.put([result(1), result(2)])
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [1]
        with pytest.raises(WaitTimeout):
            preparer.get_data(0, 2, 0.05)  # 2 is too stale for it
        ((taken, _),) = preparer.buffer.get(1, "train", "expired")
        rolled = result(2, version=1, group_uid=taken.group_uid)
        assert preparer.put(rolled) == 1
        while not preparer.buffer.ledger()["train"]["leased"].groups:
            time.sleep(0.005)
        assert preparer.put(rolled) == 1  # which changes nothing
        assert preparer.get_data(0, 2, TIMEOUT).uids == [taken.group_uid]
        assert preparer.buffer.ledger()["train"]["put"].groups == 2


def test_what_passed_and_became_too_stale_is_not_waited_for():
    options = {"when_filtered": "yield", "max_staleness": 0, "async_steps": 0}
    with BlockingPreparer(config(1, **options, replay_buffer={"capacity": 9})) as preparer:
        preparer.put([result(1), result(2), result(3)])
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [1]
        assert prompts_of(preparer.get_data(0, 2, TIMEOUT)) == []
        preparer.put(result(4, version=2))
        assert prompts_of(preparer.get_data(0, 3, TIMEOUT)) == [4]


def test_priorities_come_from_the_advantages_if_asked_for():
    with BlockingPreparer(
        config(1, async_steps=0, advantage="centered", priorities_from_advantages=True)
    ) as preparer:
        preparer.put([result(1, (4.0, 0.0)), result(2, (1.0, 0.0))])
        assert [row.priority for row in preparer.buffer.query({}, order_by="uid")] == [2.0, 0.5]


def test_without_advantages_no_rewards_are_needed():
    unrewarded = result(1)
    unrewarded.rewards = None
    with BlockingPreparer(config(1, advantage=None), filled([unrewarded])) as preparer:
        data = preparer.get_data(0, 1, TIMEOUT)
        assert not any(micro.advantages.any() for micro in data)
