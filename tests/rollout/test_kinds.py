"""The rules of the group, the same for every kind of object."""

import numpy as np
import pytest

from reroll.errors import InvalidArgument
from reroll.rollout import (
    Rollout,
    Status,
    check,
    count_tokens,
    effective_response_mask,
    expire,
    expires,
    group_staleness,
    group_status,
    read_status,
    release,
    reset,
    rollout_staleness,
    stamp,
    summarize,
    tally_versions,
)


def test_two_tokens_from_version_3_at_step_5_have_staleness_1(make, as_list):
    rollout = make(response_ids=[11, 12], seq_staleness=99)
    check([rollout], model_step=3)
    assert rollout_staleness(rollout, 5, model_step=3) == 1
    assert not as_list(rollout.response_model_steps)  # planned, not yet done
    stamp(rollout, 3)
    assert as_list(rollout.response_model_steps) == [3, 3]
    assert rollout_staleness(rollout, 5) == 1


def test_a_continued_rollout_keeps_its_old_versions(make, as_list):
    rollout = make(response_ids=[1, 2, 3, 4], response_model_steps=[5, 6])
    assert tally_versions(rollout, 4).counts == {5: 1, 6: 1, 4: 2}
    stamp(rollout, 4)
    stamp(rollout, 9)
    assert as_list(rollout.response_model_steps) == [5, 6, 4, 4]
    assert tally_versions(rollout).oldest == 4
    assert tally_versions(rollout).newest == 6


def test_stamping_leaves_a_list_alone_that_others_may_share(make):
    held = [1]
    rollout = make(response_ids=[1, 2], response_model_steps=held)
    stamp(rollout, 2)
    assert held == [1]


def test_versions_keep_their_container():
    class Bare:
        status, seq_staleness, response_ids = "completed", 0, [1, 2]

    rollout = Bare()
    for versions in (None, [1], (1,), np.array([1], np.int16)):
        rollout.response_model_steps = versions
        stamp(rollout, 2)
        assert type(rollout.response_model_steps) is (list if versions is None else type(versions))
        assert list(rollout.response_model_steps) == ([2, 2] if versions is None else [1, 2])
    rollout.response_model_steps = np.array([1], np.int16)
    stamp(rollout, 2)
    assert rollout.response_model_steps.dtype == np.int16


@pytest.mark.parametrize("empty", [None, []])
def test_without_a_response_nothing_is_stamped_stale_or_expired(make, as_list, empty):
    rollout = make(response_ids=empty, response_model_steps=empty)
    check([rollout], model_step=1)
    stamp(rollout, 1)
    assert not as_list(rollout.response_model_steps)
    assert rollout_staleness(rollout, 50) == 0
    assert not expires(rollout, 50, stale_threshold=1, token_stale_threshold=1)
    assert as_list(effective_response_mask(rollout, 50, 1)) == []


def test_staleness_of_a_group_is_that_of_its_stalest_member(make):
    old, new = (make(response_ids=[1], response_model_steps=[v]) for v in (2, 5))
    assert group_staleness([new, old], 6) == 3
    assert group_staleness([new], 5) == -1
    assert group_staleness([], 5) == 0


def test_expiry_by_threshold_counts_from_the_oldest_token(make):
    rollout = make(response_ids=[1, 2], response_model_steps=[1, 4])
    assert expires(rollout, 5, stale_threshold=3)
    assert not expires(rollout, 5, stale_threshold=4)
    assert not expires(rollout, 5)


def test_expiry_before_stamping_tells_what_stamping_would_give(make):
    rollout = make(response_ids=[1, 2])
    assert expires(rollout, 5, stale_threshold=3, model_step=1)
    assert expires(rollout, 5, token_stale_threshold=3, model_step=1)
    assert not expires(rollout, 5, token_stale_threshold=3, model_step=2)


def test_without_a_step_the_stated_staleness_decides(make):
    rollout = make(response_ids=[1], response_model_steps=[0], seq_staleness=3)
    assert expires(rollout, None, stale_threshold=3)
    assert not expires(rollout, None, stale_threshold=4, token_stale_threshold=1)


def test_expiry_by_token_needs_every_trainable_token_to_be_stale(make):
    fields = {"response_ids": [1, 2, 3], "response_model_steps": [1, 1, 4]}
    assert not expires(make(**fields), 5, token_stale_threshold=3)
    assert expires(make(**fields, response_mask=[1, 1, 0]), 5, token_stale_threshold=3)
    assert not expires(make(**fields, response_mask=[0, 0, 1]), 5, token_stale_threshold=1)
    assert expires(make(**fields, response_mask=[0, 0, 1]), 6, token_stale_threshold=1)


def test_a_masked_tail_does_not_count_as_trainable_when_it_is_stamped(make):
    rollout = make(response_ids=[1, 2], response_model_steps=[1], response_mask=[1, 0])
    assert expires(rollout, 5, token_stale_threshold=3, model_step=4)
    assert tally_versions(rollout, 4).counts == {1: 1, 4: 1}
    tail = make(response_ids=[1, 2], response_model_steps=[1], response_mask=[0, 1])
    assert tally_versions(tail, 4).newest_trainable == 4
    assert not expires(tail, 5, token_stale_threshold=3, model_step=4)


@pytest.mark.parametrize("exempt", ["input_ids", "labels"])
def test_members_prepared_for_training_are_exempt_from_expiry_by_token(make, exempt):
    rollout = make(response_ids=[1], response_model_steps=[0], **{exempt: [5, 1]})
    assert not expires(rollout, 9, token_stale_threshold=1)
    assert expires(rollout, 9, stale_threshold=1)
    unstamped = make(response_ids=[1], **{exempt: [5, 1]})
    assert not expires(unstamped, 9, token_stale_threshold=1, model_step=0)
    assert expires(unstamped, 9, stale_threshold=1, model_step=0)


def test_a_mask_that_never_kept_a_token_does_not_expire_by_token(make):
    for versions in ([0, 1], [0, 0], [0], []):
        rollout = make(response_ids=[1, 2], response_model_steps=versions, response_mask=[0, 0])
        assert not expires(rollout, 9, token_stale_threshold=1, model_step=0)


def test_long_responses_are_counted_whole(make):
    versions = [3] * 300 + [4] * 500 + [3] * 10 + [5] * 5
    mask = [1] * 810 + [0] * 5
    rollout = make(response_ids=[0] * 815, response_model_steps=versions, response_mask=mask)
    assert tally_versions(rollout) == ({3: 310, 4: 500, 5: 5}, 4)


def test_effective_mask_is_mask_and_fresh(make, as_list):
    rollout = make(response_ids=[1, 2, 3], response_model_steps=[0, 4, 4], response_mask=[1, 0, 1])
    assert as_list(effective_response_mask(rollout, 5, 4)) == [0, 0, 1]
    assert as_list(effective_response_mask(rollout, 5, 5)) == [1, 0, 1]
    assert as_list(effective_response_mask(rollout, 50, None)) == [1, 0, 1]


@pytest.mark.parametrize("threshold", [0, -1, 1.5, True, "2"])
def test_effective_mask_refuses_a_bad_threshold(make, threshold):
    with pytest.raises(InvalidArgument, match="token_stale_threshold"):
        effective_response_mask(make(response_ids=[1], response_model_steps=[1]), 5, threshold)


def test_reset_empties_the_response_and_keeps_the_rest(make, as_list):
    mm_info = {"pixel_values": np.ones((2, 3), np.float32)}
    message = [{"role": "user", "content": "q"}]
    rollout = make(
        group_id=7,
        rollout_id=8,
        message=message,
        prompt_ids=[101, 102],
        tokens=[999],
        response="stale",
        response_ids=[11, 12],
        response_model_steps=[1, 1],
        logprobs=[-0.2, -0.3],
        response_mask=[1, 1],
        reward={"score": 1.0},
        finish_reason="stop",
        error_msg="old",
        routed_experts=np.ones(2),
        tool_calls=[{"name": "f"}],
        num_tokens=4,
        input_ids=[101, 102, 11, 12],
        labels=[-100, -100, 11, 12],
        mm_info=mm_info,
        extra_fields={"a": 1},
        seq_staleness=3,
        status="completed",
    )
    expire(rollout)
    assert read_status(rollout.status) is Status.EXPIRED
    assert as_list(rollout.tokens) == [101, 102]
    assert rollout.tokens is not rollout.prompt_ids
    assert rollout.response == ""
    for empty in ("response_ids", "logprobs", "response_model_steps"):
        assert len(getattr(rollout, empty)) == 0, empty
    cleared = ("response_mask", "reward", "finish_reason", "error_msg", "routed_experts", "tool_calls")
    for name in (*cleared, "input_ids", "labels"):
        assert getattr(rollout, name) is None, name
    assert (rollout.group_id, rollout.rollout_id, rollout.message) == (7, 8, message)
    assert as_list(rollout.prompt_ids) == [101, 102]
    assert rollout.mm_info is mm_info
    assert rollout.extra_fields == {"a": 1}
    assert rollout.seq_staleness == 3
    assert count_tokens(rollout) == 2
    check([rollout])


def test_reset_leaves_the_status(make):
    rollout = make(response_ids=[1], status="aborted")
    reset(rollout)
    assert read_status(rollout.status) is Status.ABORTED
    assert rollout.tokens is None


def test_release_lets_go_of_the_prompt_too(make):
    rollout = make(prompt_ids=[1], response_ids=[2], mm_info={"a": 1}, extra_fields={"b": 2})
    release(rollout)
    assert (rollout.prompt_ids, rollout.tokens, rollout.mm_info) == (None, None, None)
    assert rollout.extra_fields == {}
    assert count_tokens(rollout) == 0


def test_group_status_of_members(make):
    done, failed = make(status="completed"), make(status="failed")
    assert group_status([done, done]) is Status.COMPLETED
    assert group_status([done, failed, make(status="aborted")]) is Status.FAILED
    assert group_status([done, make(status="init")]) is Status.INIT


def test_a_rollout_is_rolled_again_after_its_reset(make, as_list):
    rollout = make(
        prompt_ids=[1], response_ids=[2, 3], response_model_steps=[1, 1], num_tokens=3, status="completed"
    )
    expire(rollout)
    rollout.response_ids = [4, 5, 6]
    check([rollout], model_step=6)
    stamp(rollout, 6)
    assert as_list(rollout.response_model_steps) == [6, 6, 6]
    assert count_tokens(rollout) == 4


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"logprobs": [0.1]}, "logprobs"),
        ({"logprobs": [0.1] * 3}, "logprobs"),
        ({"response_mask": [1]}, "response_mask"),
        ({"response_model_steps": [1] * 3}, "response_model_steps"),
    ],
)
@pytest.mark.parametrize("model_step", [None, 3])
def test_check_names_the_rollout_and_the_field(make, fields, named, model_step):
    good = make(response_ids=[1, 2], status="completed")
    bad = make(response_ids=[1, 2], status="completed")
    for name, value in fields.items():
        setattr(bad, name, value)
    with pytest.raises(InvalidArgument, match=f"rollout 1: {named}"):
        check([good, bad], model_step=model_step)


def test_only_a_stamp_excuses_missing_versions(make):
    rollout = make(response_ids=[1, 2], response_model_steps=[1])
    check([rollout], model_step=2)
    with pytest.raises(InvalidArgument, match=r"rollout 0: response_model_steps.*model_step"):
        check([rollout])
    check([make(response_ids=[1, 2], response_model_steps=[])])


def test_summary_of_a_group(make):
    rollouts = [
        make(
            group_id="g",
            prompt_ids=[1, 2],
            response_ids=[3, 4, 5],
            response_model_steps=[2, 3, 3],
            response_mask=[1, 1, 0],
            reward=1,
            status="completed",
            seq_staleness=2,
        ),
        make(prompt_ids=[1, 2], response_ids=[3], reward={"score": 0.0}, status="completed", seq_staleness=4),
        make(prompt_ids=[1, 2], num_tokens=9, status="aborted"),
    ]
    before = summarize(rollouts)
    assert (before.version, before.member_versions) == (2, (2, None, None))
    summary = summarize(rollouts, model_step=1)
    assert summary.status is Status.ABORTED
    assert summary.group_id == "g"
    assert (summary.version, summary.newest_version) == (1, 3)
    assert summary.version_tokens == {2: 1, 3: 2, 1: 1}
    assert summary.member_versions == (2, 1, None)
    assert summary.member_newest_trainable == (3, 1, None)
    assert summary.member_tokens == (5, 3, 9)
    assert (summary.staleness, summary.num_rollouts, summary.num_tokens) == (4, 3, 17)
    assert (summary.reward_mean, summary.reward_std) == (0.5, 0.5)
    assert summary.num_bytes > 0


def test_what_an_empty_group_would_be():
    summary = summarize([])
    assert (summary.version, summary.reward_mean, summary.reward_std, summary.num_tokens) == (
        None,
        None,
        None,
        0,
    )
    assert summary.status is Status.INIT


def test_arrays_in_arrays_out():
    mask = effective_response_mask(Rollout(response_ids=[1, 2], response_model_steps=[0, 3]), 4, 2)
    assert isinstance(mask, np.ndarray)
    assert mask.dtype == np.uint8
    assert mask.tolist() == [0, 1]
