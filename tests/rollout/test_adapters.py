"""What holds only for classes that are not ours: absent attributes, own enums, frozen objects, dicts, tensors."""

import copy
import enum
import pickle
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pydantic
import pytest

from reroll.errors import InvalidArgument
from reroll.rollout import (
    DictRollout,
    Status,
    check,
    count_tokens,
    expire,
    read_score,
    read_status,
    release,
    stamp,
    summarize,
    tally_versions,
    write_status,
)


class BareSlots:
    __slots__ = ("response_ids", "response_model_steps", "seq_staleness", "status")

    def __init__(self):
        self.status, self.seq_staleness = "completed", 0
        self.response_ids, self.response_model_steps = [1, 2], None


class BareModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    status: str = "completed"
    seq_staleness: int = 0
    response_ids: list[int] = [1, 2]
    response_model_steps: list[int] | None = None


BARE_DICT = {"status": "completed", "seq_staleness": 0, "response_ids": [1, 2], "response_model_steps": None}


@pytest.mark.parametrize("build", [BareSlots, BareModel, lambda: DictRollout(dict(BARE_DICT))])
def test_absent_attributes_are_never_added(build):
    rollout = build()
    check([rollout], model_step=3)
    assert summarize([rollout], model_step=3).version == 3
    stamp(rollout, 3)
    assert rollout.response_model_steps == [3, 3]
    expire(rollout)
    release(rollout)
    assert rollout.status == "expired"
    assert (rollout.response_ids, rollout.response_model_steps) == ([], [])
    if isinstance(rollout, DictRollout):
        assert rollout.data.keys() == BARE_DICT.keys()


def test_a_dict_is_read_and_written_in_place():
    data = dict(BARE_DICT)
    rollout = DictRollout(data)
    assert rollout.data is data
    stamp(rollout, 4)
    assert data["response_model_steps"] == [4, 4]
    data["reward"] = 2
    assert rollout.reward == 2
    with pytest.raises(AttributeError, match="logprobs"):
        _ = rollout.logprobs
    assert pickle.loads(pickle.dumps(rollout)) == rollout  # noqa: S301  (our own bytes)
    twin = copy.copy(rollout)
    twin.status = "failed"
    assert data["status"] == "completed"
    assert rollout != twin
    assert rollout != data
    assert "completed" in repr(rollout)


def test_a_plain_dict_is_refused_with_the_remedy():
    with pytest.raises(InvalidArgument, match=r"rollout 0: .*DictRollout"):
        check([BARE_DICT])


class Theirs(enum.Enum):
    COMPLETED = "completed"
    EXPIRED = "expired"


class TheirText(str, enum.Enum):  # noqa: UP042  (as older code has it)
    COMPLETED = "completed"
    EXPIRED = "expired"


class TheirFew(enum.Enum):
    COMPLETED = "completed"


@pytest.mark.parametrize(
    ("held", "written"),
    [
        (Theirs.COMPLETED, Theirs.EXPIRED),
        (TheirText.COMPLETED, TheirText.EXPIRED),
        ("completed", "expired"),
        (Status.COMPLETED, Status.EXPIRED),
        (TheirFew.COMPLETED, Status.EXPIRED),
    ],
)
def test_a_status_is_written_in_the_form_it_was_held_in(held, written):
    rollout = DictRollout({"status": held})
    assert read_status(held) is Status.COMPLETED
    write_status(rollout, Status.EXPIRED)
    assert rollout.status == written
    assert type(rollout.status) is type(written)


def test_missing_attributes_are_named():
    class Half:
        status, response_ids = "completed", []

    with pytest.raises(InvalidArgument, match="rollout 0: Half has no seq_staleness, response_model_steps"):
        check([Half()])


@pytest.mark.parametrize("status", [None, 0, 1, "COMPLETED", "done", object(), ["completed"]])
def test_a_wrong_status_is_refused(status):
    with pytest.raises(InvalidArgument, match="rollout 0: status"):
        check([DictRollout(BARE_DICT | {"status": status})])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"seq_staleness": "1"}, "seq_staleness"),
        ({"seq_staleness": 1.5}, "seq_staleness"),
        ({"seq_staleness": True}, "seq_staleness"),
        ({"reward": "good"}, "reward"),
        ({"reward": [1.0]}, "reward"),
        ({"reward": {"score": "1"}}, "reward"),
        ({"num_tokens": 1.5}, "num_tokens"),
        ({"response_ids": 5}, "response_ids"),
        ({"response_ids": np.ones((1, 2))}, "response_ids"),
        ({"logprobs": object()}, "logprobs"),
        ({"response_model_steps": 3}, "response_model_steps"),
    ],
)
def test_wrong_types_are_refused_and_nothing_is_changed(fields, named):
    data = BARE_DICT | fields
    before = dict(data)
    with pytest.raises(InvalidArgument, match=f"rollout 1: {named}"):
        check([DictRollout(dict(BARE_DICT)), DictRollout(data)])
    assert all(data[name] is before[name] for name in before)


@pytest.mark.parametrize(
    "versions", [["1", "1"], [1, "2"], [1, None], [1.5, 1.5], [[1], [2]], np.array([1.5, 2]), [True, True]]
)
def test_versions_that_are_no_integers_are_refused_by_the_summary(versions):
    with pytest.raises(InvalidArgument, match="rollout 0: response_model_steps"):
        summarize([DictRollout(BARE_DICT | {"response_model_steps": versions})])


def test_a_model_step_that_is_no_integer_is_refused():
    with pytest.raises(InvalidArgument, match="model_step"):
        check([BareSlots()], model_step="3")


@dataclass(frozen=True)
class Frozen:
    status: str = "completed"
    seq_staleness: int = 0
    response_ids: tuple[int, ...] = (1,)
    response_model_steps: tuple[int, ...] = (1,)


class FrozenTuple(NamedTuple):
    status: str = "completed"
    seq_staleness: int = 0
    response_ids: tuple[int, ...] = (1,)
    response_model_steps: tuple[int, ...] = (1,)


@pytest.mark.parametrize("rollout", [Frozen(), FrozenTuple()])
def test_frozen_objects_are_refused_before_anything_is_stored(rollout):
    with pytest.raises(InvalidArgument, match=r"rollout 1: status of Frozen.* cannot be assigned"):
        check([BareSlots(), rollout])


def test_a_read_only_property_is_left_to_its_class():
    @dataclass
    class WithProperty:
        status: str = "completed"
        seq_staleness: int = 0
        prompt_ids: list[int] = field(default_factory=lambda: [1])
        response_ids: list[int] = field(default_factory=lambda: [2])
        response_model_steps: list[int] = field(default_factory=lambda: [3])

        @property
        def num_tokens(self):
            return len(self.prompt_ids) + len(self.response_ids)

    rollout = replace(WithProperty())
    expire(rollout)
    assert count_tokens(rollout) == 1


class FakeTensor:
    """As much of a tensor as may be relied upon: len, shape, slices, tolist, any, clone, nbytes, __array__."""

    def __init__(self, values, dtype=np.int64):
        self.values = np.array(values, dtype=dtype)

    shape = property(lambda self: self.values.shape)
    nbytes = property(lambda self: self.values.nbytes)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return FakeTensor(self.values[index])

    def __array__(self, dtype=None, copy=None):
        return self.values if dtype is None else self.values.astype(dtype)

    def __bool__(self):
        raise RuntimeError("ambiguous")

    def any(self):
        return self.values.any()

    def tolist(self):
        return self.values.tolist()

    def clone(self):
        return FakeTensor(self.values.copy())


def test_tensors_work_by_length_and_shape():
    rollout = DictRollout(
        {
            "status": "completed",
            "seq_staleness": 0,
            "prompt_ids": FakeTensor([1]),
            "tokens": None,
            "response_ids": FakeTensor([2, 3, 4]),
            "response_mask": FakeTensor([0, 1, 0]),
            "response_model_steps": FakeTensor([1, 2]),
        }
    )
    check([rollout], model_step=3)
    assert tally_versions(rollout, 3).newest_trainable == 2
    summary = summarize([rollout], model_step=3)
    assert (summary.version, summary.newest_version, summary.num_tokens) == (1, 3, 4)
    assert summary.num_bytes == 8 * (1 + 3 + 3 + 2)
    stamp(rollout, 3)
    assert rollout.response_model_steps == [1, 2, 3]
    expire(rollout)
    assert rollout.tokens.tolist() == [1]
    assert rollout.tokens is not rollout.prompt_ids
    assert (len(rollout.response_ids), rollout.response_model_steps) == (0, [])
    rollout.response_ids = FakeTensor([[1, 2]])
    with pytest.raises(InvalidArgument, match=r"response_ids must have one dimension, not shape \(1, 2\)"):
        check([rollout])


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_a_reset_keeps_the_kind_of_container(kind):
    rollout = DictRollout(BARE_DICT | {"response_ids": kind([1, 2]), "response_model_steps": kind([1, 1])})
    expire(rollout)
    for emptied in (rollout.response_ids, rollout.response_model_steps):
        assert type(emptied) is type(kind([1]))
        assert len(emptied) == 0


def test_log_probs_may_cover_the_whole_prepared_sequence():
    fields: dict[str, Any] = {"input_ids": [9, 1, 2], "logprobs": [0.0, -0.1, -0.2]}
    check([DictRollout(BARE_DICT | fields)])
    with pytest.raises(InvalidArgument, match="logprobs"):
        check([DictRollout(BARE_DICT | fields | {"input_ids": None})])


@pytest.mark.parametrize(
    ("reward", "score"),
    [
        (None, None),
        (1, 1.0),
        (True, 1.0),
        (0.25, 0.25),
        ({"score": 2}, 2.0),
        ({"score": None}, None),
        ({"acc": 1}, None),
        (np.float32(0.5), 0.5),
        (np.array(3), 3.0),
    ],
)
def test_scores(reward, score):
    assert read_score(reward) == score


def test_tokens_of_a_rollout_without_prompt_ids_are_those_of_the_whole_sequence():
    assert count_tokens(DictRollout(BARE_DICT)) == 2
    assert count_tokens(DictRollout(BARE_DICT | {"tokens": [1, 2, 3]})) == 3
    assert count_tokens(DictRollout(BARE_DICT | {"response_ids": None, "input_ids": [1]})) == 1


def test_bytes_count_nested_payload():
    pixels = np.zeros(100, np.uint8)
    rollout = DictRollout(BARE_DICT | {"mm_info": {"images": [{"pixels": pixels}]}, "response": "abc"})
    assert summarize([rollout]).num_bytes == 2 * 8 + 3 + (16 + 8 + 16 + 100)
