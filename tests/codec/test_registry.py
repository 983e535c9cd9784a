"""`register`: what it takes, what it refuses, and names."""

import enum
from dataclasses import dataclass

import numpy as np
import pytest

import reroll
from codec.exactness import back
from reroll import InvalidArgument, NotStorable, Rollout, UnsupportedFormat, register
from reroll.codec import decode, encode
from reroll.codec.registry import BY_NAME, BY_TYPE


def make(name="Point", module=__name__):
    @dataclass
    class Point:
        x: int = 1

    Point.__qualname__ = name
    Point.__module__ = module
    return Point


class Bare:
    pass


def test_it_is_a_decorator():
    @register
    @dataclass
    class One:
        x: int

    @register(name="two")
    @dataclass
    class Two:
        x: int

    assert isinstance(One, type)
    assert back([One(1), Two(2)]) == [One(1), Two(2)]
    assert BY_NAME["two"].cls is Two
    assert reroll.register is register


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (3, {}, "takes a class"),
        ("text", {}, "takes a class"),
        (Bare(), {}, "takes a class"),
        (list[int], {}, "takes a class"),
        (int, {}, "needs no registration"),
        (dict, {"encode": list, "decode": dict}, "needs no registration"),
        (Rollout, {}, "needs no registration"),
        (np.float32, {}, "needs no registration"),
        (Bare, {}, "give encode= and decode="),
        (Bare, {"encode": list}, "give two functions"),
        (Bare, {"decode": list}, "give two functions"),
        (Bare, {"encode": 1, "decode": 2}, "give two functions"),
        (make(), {"name": ""}, "non-empty"),
        (make(), {"name": 5}, "non-empty"),
    ],
)
def test_what_cannot_be_registered(cls, options, message):
    before = dict(BY_TYPE), dict(BY_NAME)
    with pytest.raises(InvalidArgument, match=message):
        register(cls, **options)
    assert before == (BY_TYPE, BY_NAME)


def test_two_classes_of_one_name_are_refused():
    register(make("A"), name="point")
    with pytest.raises(InvalidArgument, match=r"already the name of .*\.A; give .*\.B another one"):
        register(make("B"), name="point")


def test_a_module_that_is_loaded_again_replaces_its_classes():
    old, new = make(), make()
    register(old)
    blob = encode(old(5))
    register(new)
    assert type(decode(blob)) is new
    assert type(back(old(6))) is new


def test_a_class_under_another_name_is_read_by_both():
    cls = make()
    register(cls, name="old")
    before = encode(cls(1))
    register(cls, name="new")
    after = encode(cls(1))
    assert b"new" in after
    assert decode(before) == decode(after) == cls(1)


def test_a_moved_class_keeps_its_name():
    old, new = make("Old", "somewhere"), make("New", "elsewhere")
    register(old)
    blob = encode(old(4))
    BY_NAME.clear()
    with pytest.raises(
        UnsupportedFormat, match=r"'somewhere.Old', which is not registered here.*name='somewhere.Old'"
    ):
        decode(blob)
    register(new, name="somewhere.Old")
    assert decode(blob) == new(4)


def test_a_subclass_is_not_its_parent():
    cls = make()
    register(cls)

    class Below(cls):
        pass

    with pytest.raises(NotStorable, match="Below is not registered"):
        encode(Below())


def test_registering_twice_is_harmless():
    cls = make()
    assert register(register(cls)) is cls


def test_an_enum_of_texts():
    @register
    class Kind(enum.StrEnum):
        A = "a"

    restored = back({"kind": Kind.A, Kind.A: 1})
    assert restored["kind"] is Kind.A
