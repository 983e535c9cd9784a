"""Classes of the user: their state comes back, and neither constructors nor validators run."""

import enum
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pydantic
import pytest

from codec.exactness import assert_kept, back
from reroll import InvalidArgument, NotStorable, UnsupportedFormat, register
from reroll.codec import decode, encode
from reroll.codec.registry import BY_NAME

T = TypeVar("T")


class Their(enum.Enum):
    DONE = "done"
    ALSO = [1, 2]  # noqa: RUF012  (a value that nothing can hash)
    ALIAS = "done"  # noqa: PIE796  (on purpose)


class Level(enum.IntEnum):
    LOW = 1


class Marks(enum.Flag):
    A = enum.auto()
    B = enum.auto()


@dataclass
class Plain:
    status: str
    tokens: list[int] = field(default_factory=list)
    derived: int = field(init=False)
    reward: Any = None

    def __post_init__(self):
        self.derived = len(self.tokens)
        CALLS.append(self)


@dataclass(frozen=True)
class Frozen:
    a: Any
    b: Any = 2


@dataclass(frozen=True, slots=True)
class Slots:
    a: Any
    b: Any = 2


@dataclass(frozen=True, slots=True)
class MoreSlots(Slots):
    c: Any = 3


@dataclass
class Parent:
    x: int
    y: list[Any]


@dataclass
class Child(Parent, Generic[T]):
    z: T = None

    @cached_property
    def doubled(self):
        return self.x * 2


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", validate_assignment=True)

    status: Their = Their.DONE
    ids: list[int]
    score: float | None = None

    @pydantic.field_validator("ids")
    @classmethod
    def count(cls, ids):
        CALLS.append(ids)
        return ids


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", arbitrary_types_allowed=True)

    array: Any = None
    _private: dict[str, int] = pydantic.PrivateAttr(default_factory=dict)
    _unset: int

    @cached_property
    def long(self):
        return [1] * 3


class Root(pydantic.RootModel[list[int]]):
    pass


class Pair(NamedTuple):
    left: Any
    right: Any = None


CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def registered():
    for cls in (Their, Level, Marks, Plain, Frozen, Slots, MoreSlots, Child, Strict, Loose, Root, Pair):
        register(cls)


def test_dataclasses():
    plain = Plain("done", list(range(100)), reward={"score": 1})
    plain.added = (1, 2)
    CALLS.clear()
    restored = assert_kept([plain, Frozen((1,), {2}), Slots([3]), MoreSlots(1), Child(1, [2], "z")])
    assert restored[0].derived == 100
    assert restored[0].added == (1, 2)
    assert not CALLS, "restoring ran __post_init__"


def test_the_state_is_what_it_was_not_what_a_constructor_makes():
    plain = Plain("done", [1, 2])
    plain.derived = "anything"
    del plain.reward
    restored = back(plain)
    assert restored.derived == "anything"
    assert "reward" not in vars(restored)
    partial = Slots.__new__(Slots)
    object.__setattr__(partial, "b", 5)
    restored = back(partial)
    assert restored.b == 5
    assert not hasattr(restored, "a")


def test_cached_properties_come_along():
    child = Child(4, [])
    assert child.doubled == 8
    vars(child)["doubled"] = 9
    assert back(child).doubled == 9


def test_objects_as_keys_and_members():
    assert_kept({Frozen(1): "a", Pair(1, Level.LOW): "b", Their.DONE: "c"})
    assert_kept({Slots(1, 2), Slots(2, 3)})


def test_pydantic_models():
    strict = Strict(ids=[1, 2, 3])
    strict.__dict__["score"] = "no number"  # what validation would not let pass comes back all the same
    models = [strict, Strict(ids=list(range(99)), score=1.0), Strict.model_construct(ids=(1,))]
    CALLS.clear()
    restored = back(models)
    assert not CALLS, "restoring ran a validator"
    assert restored[0].score == "no number"
    assert restored[0].status is Their.DONE
    assert [model.model_fields_set for model in restored] == [{"ids"}, {"ids", "score"}, {"ids"}]
    assert restored[2].ids == (1,)
    with pytest.raises(pydantic.ValidationError):
        restored[1].score = "x"
    assert restored[1] == Strict(ids=list(range(99)), score=1.0)


def test_pydantic_extras_and_private_attributes():
    loose = Loose(array=np.arange(3), more=(1, 2), other={"a": 1})
    loose._private["n"] = 1
    assert loose.long == [1, 1, 1]
    restored = back(loose)
    assert restored.more == (1, 2)
    assert restored.model_extra == {"more": (1, 2), "other": {"a": 1}}
    assert restored._private == {"n": 1}
    assert vars(restored)["long"] == [1, 1, 1]
    assert restored.array.tolist() == [0, 1, 2]
    with pytest.raises(AttributeError):
        _ = restored._unset
    loose._unset = 4
    assert back(loose)._unset == 4
    assert back(Root([1, 2])) == Root([1, 2])


def test_enums():
    assert_kept([Their.DONE, Their.ALSO, Their.ALIAS, Level.LOW, Marks.A, Marks.A | Marks.B, Marks(0)])
    assert back(Their.ALSO) is Their.ALSO


def test_named_tuples():
    restored = back([Pair(1, (2,)), (1, (2,))])
    assert [type(each) for each in restored] == [Pair, tuple]
    assert restored[0] == Pair(1, (2,))


class Environment:
    def __init__(self, seed, state):
        self.seed = seed
        self.state = state


def test_any_class_with_functions_of_its_own():
    register(Environment, encode=lambda env: (env.seed, env.state), decode=lambda state: Environment(*state))
    (restored,) = back([Environment(3, {"x": np.arange(2)})])
    assert restored.seed == 3
    assert restored.state["x"].tolist() == [0, 1]


def test_functions_of_the_user_that_fail():
    register(Environment, encode=lambda env: env.nothing, decode=lambda state: 1 / state)
    with pytest.raises(NotStorable, match=r"^value\['env'\]: .*AttributeError.*nothing") as caught:
        encode({"env": Environment(1, 2)})
    assert isinstance(caught.value.__cause__, AttributeError)
    register(Environment, encode=lambda env: 0, decode=lambda state: 1 / state)
    blob = encode(Environment(1, 2))
    with pytest.raises(
        ValueError, match="decode function of Environment failed: ZeroDivisionError"
    ) as caught:
        decode(blob)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    register(Environment, encode=lambda env: {"e": object()}, decode=lambda state: state)
    with pytest.raises(
        NotStorable, match=r"returned by its encode function.*\['e'\]: object is not registered"
    ):
        encode([Environment(1, 2)])


# --- classes that change between writing and reading


def changed(before, after):
    """Return what reading gives after a class was replaced by another of the same name."""
    BY_NAME.pop("changing", None)
    register(type(before), name="changing")
    blob = encode([before])
    del BY_NAME["changing"]
    register(after, name="changing")
    return decode(blob)[0]


def test_a_new_field_gets_its_default():
    @dataclass
    class After:
        status: str
        tokens: list[int]
        derived: int
        reward: Any
        new: int = 7
        list_of: list[int] = field(default_factory=lambda: [1])

    restored = changed(Plain("done", [1]), After)
    assert (restored.tokens, restored.derived, restored.new, restored.list_of) == ([1], 1, 7, [1])


def test_a_new_field_without_default_is_an_error():
    @dataclass
    class After:
        a: Any
        b: Any
        new: Any

    with pytest.raises(UnsupportedFormat, match="without 'new', which has no default"):
        changed(Frozen(1), After)


def test_a_field_that_is_gone_is_an_error():
    @dataclass
    class After:
        a: Any

    with pytest.raises(UnsupportedFormat, match="stored with b, which it does not have any more"):
        changed(Frozen(1), After)


def test_pydantic_models_that_changed():
    class After(pydantic.BaseModel):
        status: Their
        ids: list[int]
        score: float | None
        new: list[int] = pydantic.Field(default_factory=lambda: [5])
        _private: int = 3

    restored = changed(Strict(ids=[1]), After)
    assert restored.new == [5]
    assert restored._private == 3
    assert restored.model_fields_set == {"ids"}

    class Less(pydantic.BaseModel):
        ids: list[int]

    with pytest.raises(UnsupportedFormat, match="score, status"):
        changed(Strict(ids=[1]), Less)

    class Closed(pydantic.BaseModel):
        array: Any = None

    with pytest.raises(UnsupportedFormat, match=r"does not allow any more.*more"):
        changed(Loose(more=1), Closed)


def test_members_and_fields_that_are_gone():
    class After(enum.Enum):
        OTHER = 1

    with pytest.raises(UnsupportedFormat, match="no member 'DONE'"):
        changed(Their.DONE, After)

    class Triple(NamedTuple):
        left: Any
        right: Any
        third: Any = 3

    assert changed(Pair(1, 2), Triple) == (1, 2, 3)


def test_a_class_that_became_another_kind():
    with pytest.raises(ValueError, match="never had"):
        changed(Pair(1, 2), Frozen)


def test_registration_by_attributes_needs_a_plain_object():
    @dataclass
    class Odd(dict):
        a: int = 1

    with pytest.raises(InvalidArgument, match="encode= and decode="):
        register(Odd)
