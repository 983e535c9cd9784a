"""Ray references inside values: numbers in the blob, kept by somebody else. A stand-in for ray serves here."""

import sys
import types

import pytest

from codec.exactness import back
from reroll import CorruptData, NotStorable, Rollout, UnsupportedFormat
from reroll.codec import decode, encode, find_unstorable


class ObjectRef:
    def __init__(self, name):
        self.name = name


class Table:
    """Keeps references in a list."""

    def __init__(self):
        self.refs = []

    def store(self, ref):
        self.refs.append(ref)
        return len(self.refs) - 1

    def load(self, number):
        return self.refs[number]


@pytest.fixture(autouse=True)
def fake_ray(monkeypatch):
    ray = types.ModuleType("ray")
    ray.ObjectRef = ObjectRef
    monkeypatch.setitem(sys.modules, "ray", ray)


def test_references_go_through_the_table():
    table = Table()
    pixels, other = ObjectRef("pixels"), ObjectRef("other")
    group = [Rollout(mm_info={"pixels": pixels}) for _ in range(3)] + [Rollout(mm_info=(other,))]
    restored = decode(encode(group, refs=table), refs=table)
    assert table.refs == [pixels, other], "a reference that is shared is stored once"
    assert [member.mm_info for member in restored[:3]] == [{"pixels": pixels}] * 3
    assert restored[3].mm_info[0] is other


def test_a_second_attempt_stores_nothing_again():
    table = Table()
    assert decode(encode([ObjectRef("a"), 2**80], refs=table), refs=table)[1] == 2**80
    assert len(table.refs) == 1


def test_without_a_table():
    ref = ObjectRef("a")
    with pytest.raises(NotStorable, match=r"^rollouts\[0\].mm_info: a Ray ObjectRef .* ray.get .* refs="):
        encode([Rollout(mm_info=ref)], root="rollouts")
    with pytest.raises(NotStorable, match="ObjectRef"):
        encode(ref, allow_pickle=True)
    blob = encode(ref, refs=Table())
    with pytest.raises(UnsupportedFormat, match="refs="):
        decode(blob)
    with pytest.raises(CorruptData, match="no reference with the number 0"):
        decode(blob, refs=Table())


def test_looking_stores_nothing():
    table = Table()
    assert find_unstorable([ObjectRef("a")], refs=table) is None
    assert not table.refs
    assert find_unstorable([ObjectRef("a")]).path == "value[0]"


def test_a_table_that_gives_no_numbers():
    class Wrong(Table):
        def store(self, ref):
            return "first"

    with pytest.raises(NotStorable, match=r"refs\.store returned 'first'"):
        encode([ObjectRef("a")], refs=Wrong())


def test_without_ray_nothing_is_a_reference(monkeypatch):
    monkeypatch.delitem(sys.modules, "ray")
    with pytest.raises(NotStorable, match="ObjectRef is not registered"):
        encode([ObjectRef("a")], refs=Table())
    assert back([1]) == [1]
