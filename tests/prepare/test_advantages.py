"""Advantages by hand, by formula, and all groups at once."""

import math
from statistics import fmean, pstdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll import InvalidArgument
from reroll.prepare import advantages_of, priority_of
from reroll.prepare.advantages import METHODS, advantages_by_group

rewards_of_a_group = st.lists(st.floats(-10, 10), min_size=1, max_size=6)


def by_formula(rewards, method):
    mean = fmean(rewards)
    if method == "grpo":
        return [(reward - mean) / (pstdev(rewards) + 1e-8) for reward in rewards]
    if method == "centered":
        return [reward - mean for reward in rewards]
    count = len(rewards)
    others = [(sum(rewards) - reward) / (count - 1) if count > 1 else reward for reward in rewards]
    return [reward - other for reward, other in zip(rewards, others, strict=True)]


def test_by_hand():
    assert np.allclose(advantages_of([0, 1, 1, 0]), [-1, 1, 1, -1])
    assert np.allclose(advantages_of([0, 1, 2], "centered"), [-1, 0, 1])
    assert np.allclose(advantages_of([0, 1, 2], "leave_one_out"), [-1.5, 0, 1.5])


@pytest.mark.parametrize("method", METHODS)
def test_a_single_member_has_none(method):
    assert advantages_of([5.0], method).tolist() == [0.0]
    assert advantages_of([], method).tolist() == []


@given(rewards_of_a_group, st.sampled_from(METHODS))
def test_by_formula(rewards, method):
    # Rewards that differ by less than they can be told apart make a standard deviation of noise.
    if pstdev(rewards) == 0 or pstdev(rewards) > 1e-6:
        assert np.allclose(advantages_of(rewards, method), by_formula(rewards, method), atol=1e-6)


@given(st.lists(rewards_of_a_group, max_size=5), st.sampled_from((*METHODS, lambda rewards: rewards * 2)))
def test_all_groups_at_once(groups, method):
    flat = np.array([reward for group in groups for reward in group])
    found = advantages_by_group(flat, [len(group) for group in groups], method)
    each = [advantage for group in groups for advantage in advantages_of(group, method)]
    assert np.allclose(found, each)


def test_a_function_of_ones_own():
    assert advantages_of([1.0, 3.0], lambda rewards: rewards - 2).tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("wrong", [lambda r: r[:1], lambda r: r * math.nan, lambda r: 1.0])
def test_that_returns_something_else(wrong):
    with pytest.raises(InvalidArgument, match="must return a finite advantage for each of 2"):
        advantages_of([1.0, 3.0], wrong)


@pytest.mark.parametrize(
    ("rewards", "method"), [([math.nan, 1.0], "grpo"), ([[1.0]], "centered"), ([1.0], "median")]
)
def test_what_is_refused(rewards, method):
    with pytest.raises(InvalidArgument):
        advantages_of(rewards, method)


def test_priorities():
    assert priority_of([-1.0, 1.0, 0.0, 0.0]) == 0.5
    assert priority_of([]) == 0.0
