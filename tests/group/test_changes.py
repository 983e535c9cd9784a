"""Changed groups beside the same change of a list of Rollouts: stamps, staleness, expiry, statuses, columns, uids."""

import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from group.cases import alike, groups
from reroll import InvalidArgument, Rollout, RolloutGroup, Status
from reroll.rollout import expire, stamp, summarize
from reroll.rollout.rules import find_invalid, write_same_staleness, write_staleness


def reopened(group):
    return RolloutGroup.open(*(None if part is None else bytes(part) for part in group.frames()))


def same(group, rollouts):
    """Tell whether a group is that of these rollouts, as it is and through its bytes."""
    made = RolloutGroup.of(rollouts)
    return (
        all(map(alike, copy.copy(group), rollouts))
        and all(map(alike, reopened(group), rollouts))
        and (bytes(group.head), bytes(group.body)) == (made.head, made.body)
    )


@settings(max_examples=100)
@given(groups(), st.integers(0, 99), st.booleans())
def test_stamped(rollouts, step, is_looked_at):
    group = RolloutGroup.of(rollouts)
    if is_looked_at:
        list(group)
    found = group.stamped(step)
    assert is_looked_at or found.body is group.body
    for rollout in rollouts:
        stamp(rollout, step)
    assert same(found, rollouts)
    assert found.stamped(step + 1) is found


def test_a_group_without_open_tokens_is_its_own_stamped_group():
    group = RolloutGroup.pack([1], [[2, 3], []], model_step=4)
    assert group.stamped(9) is group
    assert RolloutGroup.of([Rollout()]).stamped(3).version is None
    with pytest.raises(InvalidArgument, match="must be an integer"):
        group.stamped("a")


@settings(max_examples=100)
@given(groups(), st.data())
def test_with_staleness(rollouts, data):
    group = RolloutGroup.of(rollouts)
    size = len(rollouts)
    each = data.draw(st.lists(st.none() | st.integers(-1, 3), min_size=size, max_size=size))
    first = group.with_staleness(each)
    write_staleness(rollouts, each)
    assert first.body is group.body
    assert same(first, rollouts)
    for value in (data.draw(st.integers(-1, 9)), 5):
        write_same_staleness(rollouts, value)
        assert same(first.with_staleness(value), rollouts)
        assert same(group.with_staleness([value] * size), rollouts)
    assert first.stamped(1).with_staleness(5).summary().member_staleness == (5,) * size


@settings(max_examples=100)
@given(groups(), st.data())
def test_expired(rollouts, data):
    group = RolloutGroup.of(rollouts)
    group.task_name = "math"
    members = data.draw(st.sets(st.integers(0, len(rollouts) - 1)) | st.just(range(len(rollouts))))
    staleness = {member: data.draw(st.integers(0, 3)) for member in members}
    found = group.expired(staleness)
    for member, value in staleness.items():
        expire(rollouts[member])
        rollouts[member].seq_staleness = value
    assert found.task_name == "math"
    found.task_name = None
    assert same(found, rollouts)


@settings(max_examples=100)
@given(groups())
def test_a_summary_is_made_once_and_follows_changes(rollouts):
    group = RolloutGroup.of(rollouts, model_step=3)
    first = group.summary()
    assert group.summary() is first
    list(group)
    assert repr(group.summary()) == repr(first)
    group[0].reward = 12.0
    assert group.summary().measure.score == summarize(list(group)).measure.score


def test_bytes_of_a_summary_count_objects():
    picture = np.zeros(1000, np.uint8)
    plain, rich = (RolloutGroup.of([Rollout(response_ids=[1], mm_info=info)]) for info in (None, picture))
    assert plain.summary().num_bytes == plain.nbytes == len(plain.head) + len(plain.body)
    assert rich.summary().num_bytes >= rich.nbytes + 1000


def test_members_fail_with_a_reason():
    group = RolloutGroup.pack([1], [[2], [3]], rewards=[1.0, 0.0], model_step=3)
    failed = group.replaced(
        status=["completed", "failed"], rewards=[1.0, None], fields={"error_msg": [None, "no end"]}
    )
    assert failed.body is group.body
    assert [(r.status, r.error_msg, r.reward) for r in failed] == [
        (Status.COMPLETED, None, 1.0),
        (Status.FAILED, "no end", None),
    ]
    assert (failed.status, group.status) == (Status.FAILED, Status.COMPLETED)


def test_select():
    experts, values = np.arange(6, dtype=np.uint8).reshape(3, 2), np.arange(3) / 2
    group = RolloutGroup.pack(
        [1],
        [[2, 3], [4]],
        columns={"routed_experts": experts, "values": values, "ids": np.arange(3)},
        group_id="g",
    )
    group.uid = 4
    assert group.select(None) is group
    assert group.select(["routed_experts", "values", "ids", "other"]) is group
    one = reopened(group.select(["values"]))
    assert (one.column_names, one.uid, one.group_id) == (["values"], 4, "g")
    assert one.column("values").tolist() == values.tolist()
    assert one[0].routed_experts is None
    none = reopened(group.select([]))
    assert (none.column_names, none[0].columns) == ([], None)
    assert len(none.body) < len(one.body) < len(group.body)


@settings(max_examples=60)
@given(groups(), st.booleans())
def test_assign(rollouts, is_looked_at):
    group = RolloutGroup.of(rollouts)
    made = list(group) if is_looked_at else []
    group.assign(9)
    for rollout in rollouts:
        rollout.group_uid, rollout.checkout = 9, None
    assert all(map(alike, made, rollouts))
    assert same(group, rollouts)
    assert (group.uid, group.checkout) == (9, None)


def test_assigning_a_uid_to_a_group_that_was_looked_at_keeps_its_body():
    group = RolloutGroup.pack([1], [[2], [3]])
    body, first = group.body, group[0]
    group.assign(7)
    assert (first.group_uid, group.uid) == (7, 7)
    assert group.body is body
    group.checkout = "b.7.1"
    assert (first.checkout, group[0] is first, group.body is body) == ("b.7.1", True, True)


@settings(max_examples=100)
@given(groups(), st.data())
def test_invalid_members_are_those_of_the_rules(rollouts, data):
    for rollout in rollouts:
        if data.draw(st.booleans()):
            rollout.reward = data.draw(
                st.sampled_from([math.nan, math.inf, -math.inf, 1.0, {"score": math.nan}, np.float32("nan")])
            )
        if rollout.logprobs is not None and len(rollout.logprobs) and data.draw(st.booleans()):
            rollout.logprobs[data.draw(st.integers(0, len(rollout.logprobs) - 1))] = math.nan
    group = RolloutGroup.of(rollouts)
    assert reopened(group).find_invalid() == group.find_invalid() == find_invalid(rollouts)


@settings(max_examples=60)
@given(groups())
def test_copies_are_independent(rollouts):
    before = copy.deepcopy(rollouts)
    group = RolloutGroup.of(rollouts)
    copies = [copy.deepcopy(group), pickle.loads(pickle.dumps(group, 5))]  # noqa: S301
    for made in copies:
        assert all(map(alike, made, before))
        for rollout in made:
            rollout.reward, rollout.response = 77.0, "other"
            if type(rollout.extra_fields) is dict:
                rollout.extra_fields["x"] = 1
            if type(rollout.mm_info) is list:
                rollout.mm_info.append(1)
        made.assign(99)
    assert all(map(alike, group, before))


def test_rollouts_of_two_groups_share_no_value_that_can_change():
    group = RolloutGroup.of([Rollout(response_ids=[1], extra_fields={"n": [1]})])
    for other in (copy.copy(group), group.with_staleness(3), group.stamped(4), group.replaced(rewards=[1.0])):
        other[0].extra_fields["n"].append(2)
        assert other.with_staleness(1)[0].extra_fields == {"n": [1, 2]}
    assert group[0].extra_fields == {"n": [1]}
