"""Status, stamping, masks and expiry against naive loops written from the rules, on generated rollouts."""

import enum
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.errors import InvalidArgument
from reroll.rollout import (
    Rollout,
    Status,
    can_expire,
    combine_statuses,
    effective_response_mask,
    expires,
    register_finish_reason,
    rollout_staleness,
    stamp,
    status_from_finish_reason,
    tally_versions,
)


class TheirText(str, enum.Enum):  # noqa: UP042  (as older code has it)
    FAILED = "failed"


@st.composite
def responses(draw, *, complete=False):
    """Fields of a response: tokens, versions for the first of them, perhaps a mask."""
    count = draw(st.integers(0, 12))
    stamped = count if complete else draw(st.integers(0, count))
    values = st.integers(0, draw(st.sampled_from([0, 2, 9])))
    return {
        "response_ids": list(range(count)),
        "response_model_steps": draw(st.lists(values, min_size=stamped, max_size=stamped)),
        "response_mask": draw(st.none() | st.lists(st.integers(0, 1), min_size=count, max_size=count)),
    }


def lists(fields):
    return SimpleNamespace(status="completed", seq_staleness=0, **fields)


def arrays(fields):
    given = {
        name: None if value is None else np.array(value, dtype=np.int64) for name, value in fields.items()
    }
    return SimpleNamespace(status="completed", seq_staleness=0, **given)


def ours(fields):
    return Rollout(status="completed", **fields)


kinds = st.sampled_from([lists, arrays, ours])
steps = st.integers(0, 12)


def naive_stamp(fields, model_step):
    held = fields["response_model_steps"]
    return [held[i] if i < len(held) else model_step for i in range(len(fields["response_ids"]))]


@given(responses(), kinds, steps, steps)
def test_stamping_and_its_plan(fields, kind, model_step, train_step):
    rollout = kind(fields)
    expected = naive_stamp(fields, model_step)
    tally = tally_versions(rollout, model_step)
    stale = rollout_staleness(rollout, train_step, model_step=model_step)
    assert list(rollout.response_model_steps) == fields["response_model_steps"]
    stamp(rollout, model_step)
    assert list(rollout.response_model_steps) == expected
    assert tally_versions(rollout) == tally
    assert tally.counts == {version: expected.count(version) for version in set(expected)}
    assert (tally.oldest, tally.newest) == (min(expected, default=None), max(expected, default=None))
    assert stale == (train_step - min(expected) - 1 if expected else 0)


@given(responses(), kinds, steps, st.integers(1, 6))
def test_effective_mask(fields, kind, train_step, threshold):
    expected = []
    for i in range(len(fields["response_ids"])):
        kept = fields["response_mask"] is None or fields["response_mask"][i] == 1
        has_version = i < len(fields["response_model_steps"])
        fresh = not has_version or train_step - fields["response_model_steps"][i] - 1 < threshold
        expected.append(int(kept and fresh))
    assert list(effective_response_mask(kind(fields), train_step, threshold)) == expected


@given(responses(complete=True), kinds, steps, st.none() | st.integers(1, 6), st.none() | st.integers(1, 6))
def test_expiry(fields, kind, train_step, threshold, token_threshold):
    rollout = kind(fields)
    versions = fields["response_model_steps"]
    expected = threshold is not None and bool(versions) and train_step - min(versions) - 1 >= threshold
    if token_threshold is not None:
        mask = [1] * len(versions) if fields["response_mask"] is None else fields["response_mask"]
        left = effective_response_mask(rollout, train_step, token_threshold)
        expected = expected or (any(mask) and not any(left))
    got = expires(rollout, train_step, stale_threshold=threshold, token_stale_threshold=token_threshold)
    assert got == expected


@given(st.lists(st.sampled_from(Status), max_size=5))
def test_group_status(statuses):
    if statuses and all(status == "completed" for status in statuses):
        expected = "completed"
    else:
        bad = [name for name in ("failed", "aborted", "expired", "filtered") if name in statuses]
        expected = bad[0] if bad else "init"
    assert combine_statuses(statuses) == expected


@pytest.mark.parametrize(
    ("reason", "status"),
    [("stop", "completed"), ("length", "completed"), ("tool_calls", "completed"), ("abort", "aborted")]
    + [(reason, "failed") for reason in ("error", None, "", "content_filter", 3, ["stop"])],
)
@pytest.mark.filterwarnings("ignore:finish_reason")
def test_finish_reasons(reason, status):
    assert status_from_finish_reason(reason) is Status(status)


@pytest.mark.parametrize("status", Status)
def test_which_groups_expire(status):
    assert can_expire(status) == (status in {"completed", "aborted"})
    assert can_expire(status, "member") == (status in {"completed", "aborted", "expired"})


def test_a_status_is_never_guessed():
    assert Status.of("failed") is Status.of(Status.FAILED) is Status.of(TheirText.FAILED) is Status.FAILED
    for wrong in ("FAILED", "", None, 0, True, b"failed"):
        with pytest.raises(InvalidArgument, match="is not a status; use"):
            Status.of(wrong)


def test_a_mask_of_another_length_is_refused():
    rollout = Rollout(response_ids=[1, 2])
    rollout.response_mask = [1]
    with pytest.raises(InvalidArgument, match="response_mask has 1 entries"):
        effective_response_mask(rollout, 1, 1)


def test_a_mask_for_a_response_known_only_by_its_versions():
    rollout = lists({"response_ids": None, "response_model_steps": [1, 3]})
    assert effective_response_mask(rollout, 4, 2) == [0, 1]


def test_finish_reasons_of_engines_in_any_case():
    for reason in (
        "stop",
        "Length",
        "TOOL_CALLS",
        "tool_use",
        "eos",
        "eos_token",
        "end_turn",
        "stop_sequence",
        "max_tokens",
    ):
        assert status_from_finish_reason(reason) is Status.COMPLETED
    for reason in ("abort", "ABORTED", "cancelled"):
        assert status_from_finish_reason(reason) is Status.ABORTED
    for reason in ("error", None, 5):
        assert status_from_finish_reason(reason) is Status.FAILED


def test_an_unknown_finish_reason_warns_once_and_can_be_registered():
    with pytest.warns(UserWarning, match=r"'halted' is unknown.*register_finish_reason"):
        assert status_from_finish_reason("halted") is Status.FAILED
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert status_from_finish_reason("halted") is Status.FAILED
    register_finish_reason("Halted", "aborted")
    assert status_from_finish_reason("halted") is Status.ABORTED
    for reason, status in (("x", "expired"), ("", "aborted"), (5, "aborted"), ("x", "done")):
        with pytest.raises(InvalidArgument):
            register_finish_reason(reason, status)
