"""The cursor: no prompt skipped, none doubled, whenever its state was taken."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepare_loops.results import result
from reroll import InvalidArgument
from reroll.prepare import PromptCursor


def answered(asked):
    return [result(int(one.prompt_id)) for one in asked]


def test_prompts_come_in_order_epoch_after_epoch():
    cursor = PromptCursor("abc", epochs=2)
    taken = cursor.take(10)
    assert [one.prompt for one in taken] == list("abcabc")
    assert [one.index for one in taken] == [0, 1, 2, 0, 1, 2]
    assert len({one.prompt_id for one in taken}) == 6
    assert cursor.take(1) == []


def test_shuffled_epochs_are_permutations_and_repeatable():
    cursors = [PromptCursor(range(20), seed=3) for _ in range(2)]
    first, second = (cursor.take(40) for cursor in cursors)
    assert first == second
    epochs = [[one.prompt for one in first[:20]], [one.prompt for one in first[20:]]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(20))] * 2
    assert epochs[0] != epochs[1] != sorted(epochs[1])


@given(st.lists(st.tuples(st.integers(1, 4), st.sets(st.integers(0, 30))), max_size=8), st.integers(0, 8))
def test_a_restored_cursor_asks_for_exactly_what_was_not_settled(rounds, moment):
    cursor, open_, settled, state, then = PromptCursor(range(7), epochs=3), {}, [], None, []
    for number, (count, chosen) in enumerate([*rounds, (0, set())]):
        if number == min(moment, len(rounds)):
            state, then = json.loads(json.dumps(cursor.state())), list(settled)
        open_.update({int(one.prompt_id): one for one in cursor.take(count)})
        done = sorted(chosen & open_.keys())
        cursor.on_stored(answered([open_.pop(one) for one in done]))
        settled += done
    again = PromptCursor(range(7), epochs=3)
    again.restore(state)
    asked = [int(one.prompt_id) for one in again.take(100)]
    assert sorted([*asked, *then]) == list(range(21))


def test_one_that_never_comes_does_not_let_the_state_grow():
    cursor = PromptCursor(range(100))
    cursor.take(1)
    sizes = []
    for _ in range(2):
        for _ in range(10):
            cursor.on_stored(answered(cursor.take(50)))
        sizes.append(len(json.dumps(cursor.state())))
    assert sizes[1] - sizes[0] <= 1  # a digit of the next number
    again = PromptCursor(range(100))
    again.restore(cursor.state())
    assert [one.prompt_id for one in again.take(2)] == ["0", "1001"]


def test_excluded_prompts_are_not_asked_again():
    cursor = PromptCursor("ab", epochs=3)
    cursor.on_solved(answered(cursor.take(1)))
    assert [one.prompt for one in cursor.take(9)] == ["b", "b", "b"]


def test_prompts_that_are_owed():
    cursor = PromptCursor("abcd")
    cursor.take(1)
    cursor.on_replacement_needed(2)
    assert cursor.owed == 2
    assert [one.prompt for one in cursor.take_owed()] == ["b", "c"]
    assert cursor.take_owed() == []


def test_results_of_others_are_refused():
    with pytest.raises(InvalidArgument, match="not of this cursor"):
        PromptCursor("a").on_stored([result("x")])
    with pytest.raises(InvalidArgument):
        PromptCursor([])


def test_results_of_the_last_epoch_cost_no_shuffle_each(monkeypatch):
    seeds = []
    make = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: seeds.append(seed) or make(seed))
    cursor = PromptCursor(range(20), seed=3)
    late = cursor.take(20)
    for one in late[:5]:
        cursor.on_solved(answered([one]))
        cursor.take(1)
    assert seeds == [[3, 0], [3, 1]]
