"""`allow_pickle`: objects of unregistered classes are stored and come back, only where both sides said so."""

from dataclasses import dataclass

import pytest

from durable_errors.samples import TASK, group
from reroll import NotStorable, UnsupportedFormat


@dataclass(frozen=True)
class World:
    """Not registered."""

    seed: int


def put_worlds(buffer, *, ids):
    for number in (1, 2):
        items = group(number, extra_fields={"world": World(number)})
        if ids:
            for item in items:
                item.group_id = World(number)
        buffer.put(items, TASK, put_id=World(number) if ids else None)


@pytest.mark.parametrize("ids", [False, True])
def test_saved_and_resumed(make, tmp_path, ids):
    buffer = make(allow_pickle=True)
    put_worlds(buffer, ids=ids)
    buffer.save(tmp_path)
    again = make(allow_pickle=True)
    again.resume(tmp_path)
    check(again, ids=ids)
    strict = make()
    with pytest.raises(UnsupportedFormat, match=r"replay_buffer.sqlite.*pickled.*allow_pickle=True"):
        strict.resume(tmp_path)
    with pytest.raises(UnsupportedFormat, match="allow_pickle=True"):
        strict.resume(tmp_path, on_corrupt="skip")
    assert strict.put(group(1), TASK) == 1


@pytest.mark.parametrize("ids", [False, True])
def test_kept_and_reopened(make, tmp_path, ids):
    buffer = make(allow_pickle=True, store=tmp_path / "store")
    put_worlds(buffer, ids=ids)
    buffer.patch(1, late=[World(7)] * 4)
    buffer.save(tmp_path / "saved")
    buffer.close()
    message = r"replay_buffer.sqlite.*pickled.*allow_pickle=True"
    if ids:
        with pytest.raises(UnsupportedFormat, match=message):
            make(store=tmp_path / "store")
    else:
        strict = make(store=tmp_path / "store")
        for call in (lambda: strict.get(1, TASK, "completed"), lambda: strict.peek([1])):
            before = strict.ledger()
            with pytest.raises(UnsupportedFormat, match=rf"group 1 in .*{message}"):
                call()
            assert strict.ledger() == before
        with pytest.raises(NotStorable, match="World is not registered"):
            put_worlds(strict, ids=ids)
        strict.close()
    again = make(allow_pickle=True, store=tmp_path / "store")
    assert again.peek([1])[0][0].extra_fields["late"] == World(7)
    check(again, ids=ids)
    other = make(allow_pickle=True, store=tmp_path / "other")
    other.resume(tmp_path / "saved")
    check(other, ids=ids)


def check(buffer, *, ids):
    if ids:
        assert buffer.put(group(9), TASK, put_id=World(2)) == 2, "seen before"
        assert [row.group_id for row in buffer.query({})] == [World(1), World(2)]
    taken = buffer.get(10, TASK, "completed")
    assert [items[0].extra_fields["world"] for items in taken] == [World(1), World(2)]
