"""`Rollout` itself: fields, conversion, refusal, equality, size."""

import copy
import gc
import pickle
import tracemalloc
import weakref

import numpy as np
import pytest

from reroll.errors import InvalidArgument
from reroll.rollout import Rollout, Status, VersionRuns, check, count_bytes

FULL = {
    "group_uid": 3,
    "group_id": "g",
    "rollout_id": 1,
    "session_id": "s",
    "message": [{"role": "user", "content": "hi"}],
    "prompt_ids": [1, 2],
    "tokens": [1, 2, 3, 4],
    "response": "yes",
    "response_ids": [3, 4],
    "logprobs": [-0.5, -1.0],
    "response_mask": [1, 0],
    "response_model_steps": [5, 6],
    "seq_staleness": 2,
    "reward": {"score": 1.0},
    "status": "completed",
    "finish_reason": "stop",
    "error_msg": "none",
    "routed_experts": [[1]],
    "mm_info": {"a": 1},
    "tool_calls": [],
    "num_tokens": 9,
    "input_ids": [1, 2, 3, 4],
    "labels": [-100, -100, 3, 4],
    "extra_fields": {"k": "v"},
    "columns": {"ref_logprobs": [-0.25, -0.5]},
}


def test_every_field_goes_in_and_comes_back_as_plain_lists():
    rollout = Rollout(**FULL)
    assert rollout.to_dict() == FULL
    assert Rollout.from_dict(rollout.to_dict()) == rollout
    assert rollout.to_dict()["mm_info"] is FULL["mm_info"]


def test_all_is_optional():
    rollout = Rollout()
    assert rollout.to_dict() == {"status": "init", "seq_staleness": 0, "response_model_steps": []}
    assert rollout.status is Status.INIT
    assert rollout.num_tokens == 0
    assert rollout.response_ids is None
    assert rollout.tokens is None


def test_token_fields_are_compact_arrays():
    rollout = Rollout(**FULL)
    kinds = {"prompt_ids": np.int32, "response_ids": np.int32, "tokens": np.int32, "input_ids": np.int32}
    for name, dtype in (
        kinds | {"labels": np.int32, "logprobs": np.float32, "response_mask": np.uint8}
    ).items():
        assert getattr(rollout, name).dtype == dtype, name
    assert isinstance(rollout.response_model_steps, VersionRuns)
    rollout.response_ids = range(3)
    assert rollout.response_ids.tolist() == [0, 1, 2]
    rollout.response_mask = [True, False, True]
    assert rollout.response_mask.tolist() == [1, 0, 1]
    rollout.response_mask = np.array([1.0, 0.0])
    assert rollout.response_mask.dtype == np.uint8
    rollout.logprobs = [-1e300, 0]
    assert rollout.logprobs.tolist() == [-np.inf, 0]
    rollout.prompt_ids = []
    assert (len(rollout.prompt_ids), rollout.prompt_ids.dtype) == (0, np.int32)
    rollout.response_model_steps = None
    assert rollout.response_model_steps == []


@pytest.mark.parametrize("field", ["prompt_ids", "tokens", "response_ids", "input_ids", "labels"])
@pytest.mark.parametrize(
    "value", [[1.5], [2**31], [-(2**31) - 1], ["a"], [None], [[1]], 7, "abc", [True], [[1], [1, 2]]]
)
def test_ids_that_are_no_int32_are_refused(field, value):
    with pytest.raises(InvalidArgument, match=field):
        Rollout(**{field: value})
    rollout = Rollout(**{field: [1]})
    with pytest.raises(InvalidArgument, match=field):
        setattr(rollout, field, value)
    assert getattr(rollout, field).tolist() == [1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logprobs", ["a"]),
        ("logprobs", [None]),
        ("logprobs", [[1.0]]),
        ("response_mask", [2]),
        ("response_mask", [0.5]),
        ("response_mask", ["1"]),
        ("response_model_steps", [1.5]),
        ("response_model_steps", ["1"]),
        ("response_model_steps", 3),
        ("seq_staleness", 1.5),
        ("seq_staleness", None),
        ("num_tokens", "3"),
        ("status", "done"),
        ("status", 1),
    ],
)
def test_wrong_values_are_refused(field, value):
    with pytest.raises(InvalidArgument):
        Rollout(**{field: value})


@pytest.mark.parametrize("field", ["logprobs", "response_mask", "response_model_steps"])
def test_wrong_lengths_are_refused_at_construction(field):
    with pytest.raises(InvalidArgument, match=f"{field} has 3 entries, but response_ids has 2"):
        Rollout(response_ids=[1, 2], **{field: [1, 1, 1]})
    Rollout(response_ids=[1, 2], response_model_steps=[1])


def test_a_misspelt_field_is_refused():
    with pytest.raises(AttributeError):
        Rollout().respons = 1
    with pytest.raises(InvalidArgument, match="respons"):
        Rollout.from_dict({"respons": ""})


def test_derivable_tokens_are_not_stored_and_do_not_follow_later_changes():
    rollout = Rollout(prompt_ids=[1, 2], response_ids=[3], tokens=[1, 2, 3])
    assert count_bytes(rollout) == count_bytes(Rollout(prompt_ids=[1, 2], response_ids=[3]))
    assert rollout.tokens.tolist() == [1, 2, 3]
    for part in ("prompt_ids", "response_ids"):
        changed = copy.copy(rollout)
        setattr(changed, part, [9, 9])
        assert changed.tokens.tolist() == [1, 2, 3]
    for tokens in ([9, 2], [1, 9], [1], [1, 2, 3]):
        assert Rollout(prompt_ids=[1], response_ids=[2], tokens=tokens).tokens.tolist() == tokens
    assert Rollout(tokens=[]).tokens.tolist() == []


def test_num_tokens_is_prompt_and_response_unless_given():
    rollout = Rollout(prompt_ids=[1, 2], response_ids=[3])
    assert rollout.num_tokens == 3
    rollout.num_tokens = 7
    assert rollout.num_tokens == 7
    rollout.num_tokens = None
    assert rollout.num_tokens == 3


def test_a_view_is_copied_and_an_own_array_is_kept():
    batch = np.arange(1000, dtype=np.int32)
    assert Rollout(prompt_ids=batch).prompt_ids is batch
    assert Rollout(prompt_ids=batch[:3]).prompt_ids.base is None


def test_equality_sees_every_field():
    rollout = Rollout(**FULL)
    assert rollout == Rollout(**FULL)
    assert rollout != "x"
    for name in FULL:
        other = Rollout(**FULL)
        changed = {"status": "failed", "seq_staleness": 5, "num_tokens": 5}.get(name)
        setattr(other, name, changed)
        assert rollout != other, name
    nan = {"logprobs": [np.nan], "response_ids": [1], "mm_info": {"x": [np.ones(2)]}}
    assert Rollout(**nan) == Rollout(**nan)
    assert Rollout(**nan) != Rollout(**(nan | {"mm_info": {"x": [np.zeros(2)]}}))
    assert Rollout(mm_info=np.ones(2)) != Rollout(mm_info=[1, 1])


def pickled(rollout):
    return pickle.loads(pickle.dumps(rollout))  # noqa: S301  (our own bytes)


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, pickled])
def test_copies_are_equal(twin):
    rollout = Rollout(**FULL)
    other = twin(rollout)
    assert other == rollout
    assert count_bytes(other) == count_bytes(rollout)
    other.status = "failed"
    assert rollout.status is Status.COMPLETED


def test_repr_is_short():
    assert repr(Rollout(**FULL)) == (
        "<Rollout completed, group_id='g', rollout_id=1, 2 prompt, 2 response tokens, versions 5 to 6, "
        "reward={'score': 1.0}>"
    )
    assert repr(Rollout()) == "<Rollout init, 0 prompt, 0 response tokens>"


def test_rollouts_can_be_watched():
    rollout = Rollout()
    assert weakref.ref(rollout)() is rollout


def test_memory_is_at_most_ten_bytes_a_token_and_one_kilobyte_a_group():
    groups, members, prompt, response = 50, 8, 256, 1024
    rng = np.random.default_rng(0)

    prompt_ids = rng.integers(0, 150_000, prompt).tolist()
    response_ids = rng.integers(0, 150_000, response).tolist()
    fields = {
        "prompt_ids": prompt_ids,
        "tokens": prompt_ids + response_ids,
        "response_ids": response_ids,
        "logprobs": (-rng.random(response)).tolist(),
        "response_mask": [1] * response,
        "response_model_steps": [1000] * (response // 2) + [1001] * (response // 2),
        "status": Status.COMPLETED,
    }

    def build() -> Rollout:
        return Rollout(**fields, group_id=rng.integers(10**9), reward=float(rng.random()))

    build()
    gc.collect()
    tracemalloc.start()
    try:
        buffer = [[build() for _ in range(members)] for _ in range(groups)]
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tokens = groups * members * (prompt + response)
    assert used <= 10 * tokens + 1024 * groups
    # Well inside: what is not token data stays below one and a half kilobytes a rollout.
    payload = groups * members * (4 * prompt + 9 * response)
    assert used - payload <= 1536 * groups * members
    check(buffer[0])


def test_an_unset_rollout_is_small():
    gc.collect()
    tracemalloc.start()
    try:
        rollouts = [Rollout() for _ in range(1000)]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / len(rollouts) < 400
