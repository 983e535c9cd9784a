"""A group is what its rollouts were: every field, dtype, shape, empty and missing value, through bytes and copies."""

import copy
import pickle
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from group.cases import alike, groups
from reroll import InvalidArgument, Rollout, RolloutGroup, Status
from reroll.codec import register
from reroll.errors import CorruptData, NotStorable
from reroll.group.layout import NO_VERSION, STATUSES, Head, read_records
from reroll.rollout import count_tokens, group_status, stamp, summarize


def reopened(group, **options):
    return RolloutGroup.open(*(None if part is None else bytes(part) for part in group.frames()), **options)


def same(group, rollouts):
    return len(group) == len(rollouts) and all(map(alike, group, rollouts))


@settings(max_examples=150)
@given(groups())
def test_every_field_comes_back(rollouts):
    before = copy.deepcopy(rollouts)
    group = RolloutGroup.of(rollouts)
    # Below protocol 5, numpy itself loads arrays in the byte order of the machine.
    for found in (group, reopened(group), pickle.loads(pickle.dumps(group, 5)), copy.copy(group)):  # noqa: S301
        assert same(found, before)
    assert same(rollouts, before)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 16, 33, 64])
@settings(max_examples=8)
@given(st.data())
def test_groups_of_any_size_come_back(count, data):
    rollouts = data.draw(groups(st.just(count), fields=False))
    assert same(reopened(RolloutGroup.of(rollouts)), rollouts)


@settings(max_examples=150)
@given(groups(), st.none() | st.integers(0, 99))
def test_the_head_says_what_summarize_says(rollouts, model_step):
    stamped = copy.deepcopy(rollouts)
    if model_step is not None:
        for rollout in stamped:
            stamp(rollout, model_step)
    group = reopened(RolloutGroup.of(rollouts, model_step=model_step))
    assert same(group, stamped)
    assert same(RolloutGroup.of(rollouts).replaced(model_step=model_step), stamped)
    assert RolloutGroup.of(rollouts).replaced(model_step=model_step).head == RolloutGroup.of(stamped).head
    try:
        expected = summarize(rollouts, model_step=model_step)
    except InvalidArgument as error:
        with pytest.raises(InvalidArgument) as caught:
            group.summary()
        assert str(caught.value) == str(error)  # noqa: PT017  (the oracle's)
        return
    found = group.summary()
    assert found.num_bytes >= group.nbytes
    expected.num_bytes, expected.prompt_tokens = found.num_bytes, found.prompt_tokens
    assert repr(found) == repr(expected)  # NaN is NaN
    (record,) = read_records([group.head])
    assert record["version"] == (NO_VERSION if expected.version is None else expected.version)
    assert record["newest"] == (NO_VERSION if expected.newest_version is None else expected.newest_version)
    kept = [version for version in expected.member_newest_trainable if version is not None]
    assert record["trainable"] == min(kept, default=NO_VERSION)
    assert record["staleness"] == expected.staleness == group.staleness
    assert record["num_tokens"] == expected.num_tokens == group.num_tokens == sum(map(count_tokens, rollouts))
    assert record["members"] == len(rollouts)
    assert STATUSES[record["status"]] is expected.status is group.status is group_status(rollouts)
    assert repr(float(record["reward_mean"])) == repr(
        np.nan if expected.reward_mean is None else expected.reward_mean
    )
    assert record["response_tokens"] == len(group.response_ids) == group.lengths.sum() == found.measure.tokens


@settings(max_examples=100)
@given(groups())
def test_flat_arrays_are_the_members_joined(rollouts):
    group = reopened(RolloutGroup.of(rollouts))
    responses = [[] if r.response_ids is None else r.response_ids.tolist() for r in rollouts]
    assert group.response_ids.tolist() == [*chain.from_iterable(responses)]
    assert group.lengths.tolist() == list(map(len, responses))
    assert group.prompt_lengths.tolist() == [
        0 if r.prompt_ids is None else len(r.prompt_ids) for r in rollouts
    ]
    prompts = [r.prompt_ids.tolist() for r in rollouts if r.prompt_ids is not None]
    assert group.prompt_ids.tolist() == (
        prompts[0] if group.has_shared_prompt else [*chain.from_iterable(prompts)]
    )
    if group.logprobs is not None:
        assert group.logprobs.tolist() == [
            number for r in rollouts if r.logprobs is not None for number in r.logprobs.tolist()
        ]
    if group.response_mask is not None:
        masks = [r.response_mask.tolist() for r in rollouts if r.response_mask is not None]
        assert group.response_mask.tolist() == [*chain.from_iterable(masks)]
    for name in group.column_names:
        parts = [
            r.routed_experts if name == "routed_experts" else (r.columns or {}).get(name) for r in rollouts
        ]
        parts = [part for part in parts if part is not None]
        assert group.column(name).tobytes() == b"".join(part.tobytes() for part in parts)
        assert group.column(name).dtype == parts[0].dtype
    assert [s.value for s in group.statuses] == [r.status.value for r in rollouts]
    assert group.finish_reasons == [r.finish_reason for r in rollouts]


@settings(max_examples=50)
@given(groups(), st.data())
def test_edits_of_rollouts_are_edits_of_the_group(rollouts, data):
    group = reopened(RolloutGroup.of(rollouts))
    for rollout, own in zip(group, rollouts, strict=True):
        change = data.draw(st.sampled_from(["reward", "append", "extra", "none"]))
        for each in (rollout, own):
            if change == "reward":
                each.reward = 5.0
            elif change == "append" and each.response_ids is not None:
                each.response_ids = [*each.response_ids.tolist(), 3]
                each.logprobs = each.response_mask = each.tokens = each.columns = None
                each.response_model_steps = []
            elif change == "extra":
                each.extra_fields = {"n": [1]}
    assert same(reopened(group), rollouts)
    for rollout, own in zip(group, rollouts, strict=True):
        if type(own.extra_fields) is dict and rollout.extra_fields is not own.extra_fields:
            rollout.extra_fields["more"] = own.extra_fields["more"] = 1
    assert same(reopened(group), rollouts)


def test_an_array_that_was_assigned_may_be_written_to():
    group = RolloutGroup.pack([1], [[2, 3]], logprobs=[[-1.0, -2.0]])
    mine = np.array([0.0, 0.0], np.float32)
    group[0].logprobs = mine
    assert group.logprobs.tolist() == [0, 0]
    mine[0] = -3
    assert group.logprobs.tolist() == [-3, 0]


def test_a_prompt_is_stored_once_where_members_share_it_by_value():
    prompts = [list(range(1000)) for _ in range(8)]
    shared = RolloutGroup.of([Rollout(prompt_ids=prompt, response_ids=[1]) for prompt in prompts])
    prompts[3] = list(range(1, 1001))
    own = RolloutGroup.of([Rollout(prompt_ids=prompt, response_ids=[1]) for prompt in prompts])
    assert len(shared.body) < 4100
    assert len(own.body) > 32_000
    assert shared.num_tokens == own.num_tokens == 8008


def test_a_group_that_was_not_changed_keeps_its_bytes():
    group = RolloutGroup.pack([1], [[2, 3]], rewards=[1.0], group_id="g")
    head, body = group.head, group.body
    assert [rollout.reward for rollout in group] == [1.0]
    assert group.head is head
    assert group.body is body
    group[0].reward = 2.0
    assert group.rewards.tolist() == [2.0]
    assert group.head != head


def test_bytes_take_no_copy_and_cannot_be_written_to():
    group = RolloutGroup.pack(
        [1, 2], [[3, 4], [5]], logprobs=[[0, 0], [0]], masks=[[1, 0], [1]], columns={"a": np.ones((3, 2))}
    )
    head, body, _ = group.frames()
    memory = bytearray(bytes(16) + body)
    for source in (body, memoryview(body), memory[16:], memoryview(memory)[16:]):
        found = RolloutGroup.open(head, source)
        arrays = [
            found.response_ids,
            found.prompt_ids,
            found.logprobs,
            found.response_mask,
            found.column("a"),
            found.lengths,
        ]
        arrays += [
            found.rewards,
            found[0].response_ids,
            found[0].columns["a"],
            found[1].response_mask,
            found[0].prompt_ids,
        ]
        assert not any(array.flags.writeable for array in arrays)
        assert all(array.flags.aligned for array in arrays)
    assert np.shares_memory(RolloutGroup.open(head, body).response_ids, np.frombuffer(body, np.uint8))
    odd = memoryview(bytearray(bytes(3) + body))[3:]
    assert RolloutGroup.open(head, odd).response_ids.flags.aligned


def test_a_mask_of_ones_takes_no_bytes_and_comes_back():
    plain = RolloutGroup.pack([1], [[2] * 100, [3] * 50])
    ones = RolloutGroup.pack([1], [[2] * 100, [3] * 50], masks=[[1] * 100, np.ones(50, bool)])
    assert len(plain.body) == len(ones.body)
    assert plain.response_mask is None
    assert plain[0].response_mask is None
    assert ones.response_mask.tolist() == [1] * 150
    assert ones[1].response_mask.tolist() == [1] * 50
    large = RolloutGroup.pack([1], [np.zeros(200_000, np.int32)], masks=[np.ones(200_000, np.uint8)])
    assert large.response_mask.sum() == 200_000


def test_large_groups():
    ids = np.arange(3_000_000, dtype=np.int32)
    group = reopened(
        RolloutGroup.pack(ids, [ids, ids[::2]], logprobs=[ids.astype("f4"), ids[::2].astype("f4")])
    )
    assert np.array_equal(group[1].response_ids, ids[::2])
    assert group.num_tokens == 3 * 3_000_000 + 1_500_000


@dataclass
class Note:
    text: str


@register
@dataclass
class Kept:
    text: str


def test_values_that_are_not_plain_stay_objects_beside_the_group():
    note = Note("a")
    group = RolloutGroup.of(
        [Rollout(response_ids=[1], mm_info=note), Rollout(response_ids=[2], mm_info=note)]
    )
    assert group[0].mm_info is group[1].mm_info is note
    assert copy.copy(group)[0].mm_info is note
    with pytest.raises(NotStorable, match=r"group\[0\].mm_info"):
        group.frames()
    group = RolloutGroup.of([Rollout(response_ids=[1], mm_info=Kept("b"))])
    head, body, objects = group.frames()
    assert RolloutGroup.open(head, body, objects)[0].mm_info == Kept("b")
    with pytest.raises(CorruptData, match="objects of a group are missing"):
        RolloutGroup.open(head, body)
    other = RolloutGroup.pack([1], [[2]])
    with pytest.raises(CorruptData, match="do not belong to it"):
        RolloutGroup.open(other.head, other.body, objects)


def test_only_rollouts_make_a_group():
    class Own(Rollout):
        pass

    with pytest.raises(InvalidArgument, match="at least one rollout"):
        RolloutGroup.of([])
    for item in (Own(), object(), {"response_ids": []}):
        with pytest.raises(InvalidArgument, match="holds Rollout objects, not"):
            RolloutGroup.of([Rollout(), item])


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"logprobs": [0.0]}, "logprobs has 1 entries, but response_ids has 2"),
        ({"response_mask": [1, 1, 1]}, "response_mask has 3 entries"),
        ({"response_model_steps": [1, 2, 3]}, "response_model_steps has 3 entries"),
        ({"columns": {"a": [1]}}, "column 'a' has 1 entries"),
        ({"num_tokens": -1}, "num_tokens must be at least 0"),
        ({"reward": "good"}, "reward must be a number"),
    ],
)
def test_lengths_are_checked(fields, problem):
    rollouts = [Rollout(response_ids=[1, 2]), Rollout(response_ids=[1, 2])]
    for name, value in fields.items():
        setattr(rollouts[1], name, value)
    with pytest.raises(InvalidArgument, match=problem):
        RolloutGroup.of(rollouts)


def test_the_uid_travels_in_the_head():
    group = RolloutGroup.pack([1], [[2], [3]], group_id="g")
    assert group.uid is None
    before = group.body
    group.uid = 12
    assert group.body is before
    assert reopened(group).uid == 12
    assert [rollout.group_uid for rollout in group] == [12, 12]
    group.uid = 13
    assert [rollout.group_uid for rollout in group] == [13, 13]
    assert reopened(group).uid == 13
    group.checkout = "b.13.1"
    assert group[1].checkout == reopened(group).checkout == "b.13.1"
    fresh = reopened(group)
    fresh.checkout, fresh.task_name = None, "math"
    assert (fresh.checkout, fresh.task_name, reopened(fresh).task_name) == (None, "math", "math")
    fresh[0].reward = 1.0
    assert (fresh.task_name, fresh.rewards[0]) == ("math", 1.0)
    for wrong in (-1, "a", 2**62, True):
        with pytest.raises(InvalidArgument, match="uid must be a positive integer"):
            group.uid = wrong


def test_heads_are_read_as_one_array():
    made = [
        RolloutGroup.pack([1], [[2] * size, [3]], rewards=[size, 0.0], model_step=size)
        for size in range(1, 9)
    ]
    records = read_records([group.head for group in made])
    assert records["version"].tolist() == list(range(1, 9))
    assert records["num_tokens"].tolist() == [size + 3 for size in range(1, 9)]
    assert records["reward_mean"].tolist() == [size / 2 for size in range(1, 9)]


def test_a_head_is_written_as_it_was_read():
    group = RolloutGroup.of(
        [Rollout(response_ids=[1], extra_fields={"a": 1}, columns={"x": [2]}, status=Status.ABORTED)]
    )
    found = Head.read(group.head)
    found.derive()
    assert found.write() == group.head
