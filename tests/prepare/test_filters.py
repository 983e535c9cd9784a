"""Which groups teach nothing, and how often prompts are solved."""

import pytest

from prepare.batches import group_of
from reroll import InvalidArgument
from reroll.prepare import Verdict, judge, screen, solve_rate

NAN = float("nan")


@pytest.mark.parametrize(
    ("rewards", "verdict"),
    [
        ([0.0, 1.0], Verdict.KEPT),
        ([0.0, 0.0], Verdict.NONE_SOLVED),
        ([-1.0, -1.0], Verdict.NONE_SOLVED),
        ([1.0, 1.0, 1.0], Verdict.ALL_SOLVED),
        ([0.3, 0.3, 0.3], Verdict.SAME_SCORE),
        ([0.3, 0.3 + 1e-9], Verdict.SAME_SCORE),
        ([1.0], Verdict.KEPT),
        ([None, None], Verdict.KEPT),
        ([0.0, None], Verdict.KEPT),
        ([], Verdict.KEPT),
    ],
)
def test_verdicts(rewards, verdict):
    assert judge(group_of(rewards)) == verdict


def test_what_counts_as_the_same_and_as_solved_can_be_said():
    assert judge(group_of([0.1, 0.2]), eps=0.05) == Verdict.SAME_SCORE
    assert judge(group_of([10.0, 10.0]), max_possible_score=10.0) == Verdict.ALL_SOLVED
    assert judge(group_of([1.0, 1.0]), max_possible_score=10.0) == Verdict.SAME_SCORE


def test_predicates_have_the_last_word():
    short = group_of([0.0, 1.0], [2, 2])
    assert judge(short, predicates=[lambda group: len(group) == 2]) == Verdict.KEPT
    assert judge(short, predicates=[lambda group: len(group[0].response_ids) > 2]) == Verdict.CUSTOM
    assert judge(group_of([0.0, 0.0]), predicates=[lambda group: False]) == Verdict.NONE_SOLVED


def test_solve_rates():
    assert solve_rate(group_of([0.0, 1.0, 1.0, None])) == 0.5
    assert solve_rate(group_of([0.0, 7.0]), 10.0) == 0.0
    assert solve_rate([]) == 0.0


@pytest.mark.parametrize("ask", [judge, solve_rate, lambda group: screen([group])])
def test_rewards_that_are_no_numbers_are_refused_with_their_prompt(ask):
    with pytest.raises(InvalidArgument, match=r"algebra-7.*rollout 1 is nan"):
        ask(group_of([0.0, NAN], group_id="algebra-7"))


def test_screening():
    rewards = {"a": [0.0, 1.0], "b": [1.0, 1.0], "c": [0.0, 0.0], "d": [0.5, 0.5]}
    groups = [group_of(found, group_id=name) for name, found in rewards.items()]
    screened = screen(groups, no_resampling_pass_rate=0.5)
    assert screened.verdicts == [Verdict.KEPT, Verdict.ALL_SOLVED, Verdict.NONE_SOLVED, Verdict.SAME_SCORE]
    assert screened.kept == [groups[0]]
    assert screened.excluded == ["a", "b"]


def test_screening_can_keep_what_teaches_nothing():
    groups = [group_of([1.0, 1.0]), group_of([0.0, 0.0]), group_of([0.0, 1.0])]
    screened = screen(groups, filter_zero_std=False, predicates=[lambda group: group[0].reward == 0.0])
    assert screened.verdicts == [Verdict.CUSTOM, Verdict.NONE_SOLVED, Verdict.KEPT]
    assert screened.kept == groups[1:]
    assert screened.excluded == []
