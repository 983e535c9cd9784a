"""What cannot be stored is named, with its path and the remedy; nothing else is looked at."""

import pickle
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pydantic
import pytest
from hypothesis import given

from codec.exactness import assert_kept
from codec.strategies import values
from reroll import (
    CorruptData,
    DictRollout,
    InvalidArgument,
    NotStorable,
    Rollout,
    UnsupportedFormat,
    register,
)
from reroll.codec import decode, encode, find_unstorable


class Environment:
    def __init__(self, name="env"):
        self.name = name

    def __eq__(self, other):
        return isinstance(other, Environment) and self.name == other.name

    __hash__ = None


class Hashable:
    pass


@dataclass
class Data:
    x: Any = None


class Model(pydantic.BaseModel):
    x: Any = None


def a_group(**fields):
    return [Rollout(response_ids=[1]) for _ in range(3)] + [Rollout(response_ids=[2], **fields)]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"extra_fields": {"env": Environment()}}, ".extra_fields['env']"),
        ({"extra_fields": Environment()}, ".extra_fields"),
        ({"extra_fields": {"a": [0, {"b": (1, Environment())}]}}, ".extra_fields['a'][1]['b'][1]"),
        ({"mm_info": {7: Environment()}}, ".mm_info[7]"),
        ({"message": [{"role": "user", "content": Environment()}]}, ".message[0]['content']"),
        ({"group_id": Environment()}, ".group_id"),
        ({"reward": {"score": Environment()}}, ".reward['score']"),
        ({"tool_calls": DictRollout({"a": Environment()})}, ".tool_calls.a"),
        ({"tool_calls": Rollout(mm_info=Environment())}, ".tool_calls.mm_info"),
        ({"routed_experts": [*range(100), Environment()]}, ".routed_experts[100]"),
    ],
)
def test_the_path_is_named(fields, path):
    with pytest.raises(NotStorable) as caught:
        encode(a_group(**fields), root="rollouts")
    assert str(caught.value).startswith(
        f"rollouts[3]{path}: Environment is not registered; call reroll.register(Environment, encode=..., decode=...)"
    )
    assert isinstance(caught.value, InvalidArgument)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301


def test_the_remedy_fits_the_class():
    for value in (Data(), Model()):
        with pytest.raises(NotStorable, match=rf"call reroll.register\({type(value).__name__}\) beside"):
            encode([value])
    for value in (
        OrderedDict(),
        deque(),
        object(),
        len,
        Data,
        type,
        lambda: 0,
        1j.__class__,
        slice(1),
        range(3),
    ):
        with pytest.raises(NotStorable, match=r"encode=\.\.\., decode="):
            encode([value])


def test_paths_through_registered_objects():
    register(Data)
    register(Model)
    for value, path in (
        (Data([Environment()]), "value.x[0]"),
        (Model(x={"a": Environment()}), "value.x['a']"),
        ({Data: 1}, "value (key <class "),
        ({(1, Hashable()): 1}, "value (key "),
        ({Hashable()}, "value (item "),
    ):
        with pytest.raises(NotStorable) as caught:
            encode(value)
        assert str(caught.value).startswith(path)


def test_cycles_are_named():
    items: list[Any] = [1]
    items.append({"again": (items,)})
    with pytest.raises(
        NotStorable, match=r"^rollouts\[1\]\['again'\]\[0\]: contains itself: it is rollouts;"
    ):
        encode(items, root="rollouts")
    register(Data)
    data = Data()
    data.x = [data]
    with pytest.raises(NotStorable, match=r"^value\[0\].x\[0\]: contains itself: it is value\[0\]"):
        encode([data])
    rollout = Rollout()
    rollout.extra_fields = {"me": rollout}
    with pytest.raises(NotStorable, match=r"extra_fields\['me'\]: contains itself: it is rollouts\[0\]"):
        encode([rollout], root="rollouts")
    alone: list[Any] = []
    alone.append(alone)
    with pytest.raises(NotStorable, match=r"^value\[0\]: contains itself"):
        encode(alone)
    twice: list[Any] = []
    twice += [twice, twice]
    with pytest.raises(NotStorable, match="contains itself"):
        encode(twice)


def test_the_same_list_twice_is_no_cycle():
    shared = [1, 2]
    assert_kept([shared, shared, {"a": shared}])


@given(values)
def test_nothing_is_found_where_nothing_is_refused(value):
    assert find_unstorable(value) is None


def test_find_unstorable():
    path, cls, reason = find_unstorable(a_group(extra_fields={"env": Environment()}), root="rollouts")
    assert (path, cls) == ("rollouts[3].extra_fields['env']", Environment)
    assert "reroll.register" in reason
    assert find_unstorable(a_group()) is None
    assert find_unstorable(np.array([None])).path == "value"
    assert find_unstorable([Environment()], allow_pickle=True) is None


def test_a_class_whose_repr_fails():
    class Silent:
        def __repr__(self):
            raise RuntimeError("no")

    with pytest.raises(NotStorable, match=r"^value \(key Silent\): .*Silent is not registered|instance at"):
        encode({Silent(): 1})


# --- pickle, where it is asked for by name


def test_pickle_has_to_be_allowed_for_writing_and_for_reading():
    value = [Environment("a"), {"b": np.array([None, 1])}, 2**70]
    with pytest.raises(NotStorable):
        encode(value)
    blob = encode(value, allow_pickle=True)
    with pytest.raises(UnsupportedFormat, match="allow_pickle=True"):
        decode(blob)
    restored = decode(blob, allow_pickle=True)
    assert restored[0] == Environment("a")
    assert restored[1]["b"].tolist() == [None, 1]


def test_only_what_nobody_registered_is_pickled():
    register(Data)
    blob = encode([Data(1), (1, 2), np.arange(3)], allow_pickle=True)
    assert decode(blob)[:2] == [Data(1), (1, 2)]


def test_what_cannot_be_pickled():
    with pytest.raises(NotStorable, match=r"^value\[0\]: .*cannot be pickled"):
        encode([lambda: 0], allow_pickle=True)


def test_pickled_parts_that_are_broken():
    blob = encode(Environment("a"), allow_pickle=True)
    from codec.test_hostile import sealed  # noqa: PLC0415

    broken = sealed(blob.replace(b"Environment", b"Environmenx"))
    with pytest.raises(CorruptData, match="pickled part"):
        decode(broken, allow_pickle=True)
