"""`VersionRuns` against the list it stands for."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.errors import InvalidArgument
from reroll.rollout import VersionRuns

versions = st.lists(st.tuples(st.integers(-2, 4), st.integers(0, 3)), max_size=6).map(
    lambda runs: [value for value, length in runs for _ in range(length)]
)


@given(versions, st.sampled_from([list, tuple, np.array]))
def test_round_trip(expected, container):
    runs = VersionRuns.of(container(expected))
    assert runs.tolist() == expected
    assert list(runs) == expected
    assert len(runs) == len(expected)
    assert runs == expected
    assert runs == tuple(expected)
    assert runs == VersionRuns.of(expected)
    assert np.asarray(runs).tolist() == expected
    assert [runs[i] for i in range(-len(expected), len(expected))] == expected * 2
    assert runs.oldest == min(expected, default=None)
    assert runs.newest == max(expected, default=None)
    assert runs.counts() == {value: expected.count(value) for value in set(expected)}
    assert pickle.loads(pickle.dumps(runs)) == runs  # noqa: S301  (our own bytes)
    assert VersionRuns(runs.runs()) == runs
    neighbours = [value for value, _ in runs.runs()]
    assert all(one != two for one, two in pairwise(neighbours))


@given(versions, versions)
def test_comparison_and_sum(left, right):
    assert (VersionRuns.of(left) == VersionRuns.of(right)) == (left == right)
    assert (VersionRuns.of(left) == right) == (left == right)
    assert VersionRuns.of(left) + right == left + right


@given(versions, st.integers(-2, 4), st.integers(0, 3))
def test_extending_makes_a_new_object(held, version, count):
    runs = VersionRuns.of(held)
    assert runs.extended(version, count) == held + [version] * count
    assert runs.extended(version, count) == VersionRuns.of(held + [version] * count)  # neighbours are merged
    assert runs == held


@given(versions, st.slices(12))
def test_slices(held, part):
    assert VersionRuns.of(held)[part] == held[part]


@pytest.mark.parametrize("index", [2, -3])
def test_an_index_out_of_range(index):
    with pytest.raises(IndexError):
        VersionRuns.of([1, 2])[index]


@pytest.mark.parametrize("bad", [[1.5], ["1"], [None], [[1]], [1, "2"], 3, "12", [True], [[1], [1, 2]]])
def test_what_is_no_list_of_integers_is_refused(bad):
    with pytest.raises(InvalidArgument, match="response_model_steps"):
        VersionRuns.of(bad)


def test_small_things():
    runs = VersionRuns.of([3, 3, 4])
    assert repr(runs) == "VersionRuns([(3, 2), (4, 1)])"
    assert runs != "334"
    assert runs != [3, 3]
    assert runs.nbytes == 32
    assert np.asarray(runs, dtype=np.int16).dtype == np.int16
    assert VersionRuns.of(runs) is runs
    with pytest.raises(InvalidArgument, match="-1"):
        VersionRuns([(1, -1)])
    with pytest.raises(TypeError):
        hash(runs)
    runs += [4]
    assert runs == [3, 3, 4, 4]


def test_a_large_list_costs_its_runs():
    assert VersionRuns.of([7] * 50_000 + [8] * 50_000).nbytes == 32
