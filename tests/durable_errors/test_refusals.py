"""What a buffer refuses, by name, and without a change: what cannot be stored, and what was saved by another buffer."""

from dataclasses import dataclass

import pytest

from durable_errors.samples import TASK, check_books, filled, group, kept, saved
from reroll import InvalidArgument, Mixture, NotEmpty, NotStorable, Rollout, StalenessWindow, register


class Environment:
    """Not registered."""


@dataclass(frozen=True)
class Key:
    """Hashable, and not registered."""

    number: int


def unstorable(number=7):
    items = group(number)
    items[3].extra_fields = {"env": Environment()}
    return items


def tracked(buffer):
    """Return all that a refused call must leave as it was."""
    return buffer.ledger(), buffer.query({}), len(buffer)


# --- what cannot be stored


def test_a_put_that_cannot_be_stored(make, tmp_path):
    buffer = filled(make, store=tmp_path)
    before = tracked(buffer)
    items = unstorable()
    with pytest.raises(
        NotStorable, match=r"^rollouts\[3\].extra_fields\['env'\]: Environment is not registered"
    ):
        buffer.put(items, TASK, model_step=9, current_train_step=12, stale_threshold=1, put_id="again")
    assert tracked(buffer) == before
    assert [item.group_uid for item in items] == [None] * 4
    assert [list(item.response_model_steps) for item in items] == [[]] * 4
    assert [item.status.value for item in items] == ["completed"] * 4
    assert [item.seq_staleness for item in items] == [0] * 4
    items[3].extra_fields = {}
    assert buffer.put(items, TASK, put_id="again") == 7, "the id was not used up"
    buffer.close()
    assert make(store=tmp_path).take_all() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("name", ["put_id", "group_id"])
def test_an_id_that_cannot_be_stored(make, tmp_path, name):
    buffer = filled(make, store=tmp_path)
    before = tracked(buffer)
    items = group(7)
    options = {}
    if name == "put_id":
        options["put_id"] = Key(1)
    else:
        for item in items:
            item.group_id = Key(1)
    with pytest.raises(NotStorable, match=rf"{name}: Key is not registered"):
        buffer.put(items, TASK, **options)
    assert tracked(buffer) == before
    assert items[0].group_uid is None
    assert buffer.put(group(8), TASK, timeout=5) == 7, "and the buffer goes on"
    buffer.close()
    assert make(store=tmp_path).take_all() == [1, 2, 3, 4, 5, 6, 8]


def test_tags_that_cannot_be_stored(make, tmp_path):
    buffer = filled(make, store=tmp_path)
    before = tracked(buffer)
    for tags in ({"env": Environment()}, {1: "a"}, {"a": [1]}, "text"):
        with pytest.raises(InvalidArgument, match="tags"):
            buffer.put(group(7), TASK, tags=tags)
        with pytest.raises(InvalidArgument, match="tags"):
            buffer.patch(1, tags=tags)
    assert tracked(buffer) == before
    odd = {"nan": float("nan"), "large": 1 << 80, "half": "\ud800", "none": None, "yes": True, "": ""}
    assert buffer.put(group(7), TASK, tags=odd) == 7
    buffer.close()
    again = make(store=tmp_path)
    (row,) = again.query({"uid": 7})
    assert repr(row.tags) == repr(odd)


def test_a_patch_that_cannot_be_stored(make, tmp_path):
    buffer = filled(make, store=tmp_path)
    before = tracked(buffer)
    with pytest.raises(
        NotStorable, match=r"^rollouts\[2\].extra_fields\['env'\]: Environment is not registered"
    ):
        buffer.patch(3, reward=[9.0] * 4, env=[1, 2, Environment(), 4], tags={"part": "b"})
    with pytest.raises(NotStorable, match=r"^rollouts\[0\].message: "):
        buffer.patch(3, message=[Environment()] * 4)
    assert tracked(buffer) == before
    (items,) = buffer.peek([3])
    assert [item.reward for item in items] == [0.0, 1.0, 0.0, 1.0]
    assert not any(item.extra_fields for item in items)
    buffer.patch(3, reward=[5.0] * 4)
    buffer.close()
    again = make(store=tmp_path)
    (items,) = again.peek([3])
    assert [item.reward for item in items] == [5.0] * 4


def test_a_save_that_cannot_be_stored(make, tmp_path):
    buffer = filled(make)
    buffer.save(tmp_path)
    buffer.put(unstorable(), TASK)
    before = tracked(buffer)
    message = r"^group 7: rollouts\[3\].extra_fields\['env'\]: Environment is not registered"
    with pytest.raises(NotStorable, match=message):
        buffer.save(tmp_path)
    assert tracked(buffer) == before
    again = make()
    again.resume(tmp_path)
    assert again.take_all() == [1, 2, 3, 4, 5, 6], "the old file is as it was"
    buffer.delete([7])
    buffer.put(group(8), TASK, put_id=Key(3))
    with pytest.raises(NotStorable, match=r"^put_id: Key is not registered"):
        buffer.save(tmp_path)
    assert buffer.take_all() == [1, 2, 3, 4, 5, 6, 8]


@dataclass
class Foreign:
    """A rollout of the user's own, whose group_id its encoding leaves out."""

    status: str
    response_ids: list
    group_id: object = None
    seq_staleness: int = 0
    response_model_steps: object = None


register(Foreign, encode=lambda foreign: [foreign.status, foreign.response_ids], decode=lambda s: Foreign(*s))


def test_a_group_id_that_only_the_row_has(make, tmp_path):
    buffer = make()
    buffer.put([Foreign("completed", [1], Key(1))], TASK)
    with pytest.raises(NotStorable, match=r"^group 1: group_id: Key is not registered"):
        buffer.save(tmp_path / "saved")
    durable = make(store=tmp_path / "store")
    with pytest.raises(NotStorable, match=r"^group_id: Key is not registered"):
        durable.put([Foreign("completed", [1], Key(1))], TASK)
    assert durable.put([Foreign("completed", [1], "1")], TASK, timeout=5) == 1


# --- what another buffer saved

OTHERS = [
    ({"sampler": "fifo"}, {"sampler": "stalest"}, "sampler fifo.*configured with stalest"),
    ({"remover": None}, {"remover": "fifo", "capacity": 9}, "remover None.*configured with fifo"),
    (
        {"remover": "lifo", "capacity": 9},
        {"remover": "fifo", "capacity": 9},
        "remover lifo.*configured with fifo",
    ),
    (
        {"sampler": Mixture(0.5, replay="uniform")},
        {"sampler": Mixture(0.5, replay="prioritized")},
        "mixture.*uniform.*configured with mixture.*prioritized",
    ),
    ({"sampler": Mixture(0.5)}, {"sampler": "prioritized"}, "mixture.*configured with prioritized"),
]


@pytest.mark.parametrize(("ours", "theirs", "message"), OTHERS)
def test_another_sampler_or_remover(make, tmp_path, ours, theirs, message):
    path, store = saved(make, tmp_path / "saved", **ours), kept(make, tmp_path / "store", **ours)
    buffer = make(**theirs)
    with pytest.raises(ValueError, match=f"task 'math' was saved with.*{message}"):
        buffer.resume(path)
    assert len(buffer) == 0
    assert buffer.put(group(1), TASK) == 1
    with pytest.raises(ValueError, match=f"task 'math' was saved with.*{message}"):
        make(store=store, **theirs)
    again = make(store=store, **ours)
    check_books(again)
    assert len(again) == 6
    resumed = make(**ours)
    resumed.resume(path)
    assert len(resumed) == 6


def test_only_a_new_buffer_resumes(make, tmp_path):
    path = saved(make, tmp_path / "saved")
    for options in ({}, {"store": tmp_path / "store"}):
        buffer = make(**options)
        buffer.put(group(1), TASK)
        before = tracked(buffer)
        with pytest.raises(NotEmpty, match="build a new one") as caught:
            buffer.resume(path)
        assert isinstance(caught.value, RuntimeError)
        buffer.get(1, TASK, "completed")
        with pytest.raises(NotEmpty):
            buffer.resume(path)
        assert len(before[1]) == 1
    used = make()
    used.resume(path)
    with pytest.raises(NotEmpty):
        used.resume(path)


def test_a_bad_argument(make, tmp_path):
    with pytest.raises(InvalidArgument, match="on_corrupt"):
        make().resume(tmp_path, on_corrupt="ignore")


def test_what_a_window_has_learned_is_not_forgotten_by_a_resume_that_fails(make, tmp_path):
    window = {"sampler": "fifo", "rate_limiter": StalenessWindow(max_staleness=0, batch=4)}
    path = saved(make, tmp_path)
    buffer = make(**{**window, "sampler": "stalest"})
    buffer.advance(2)
    with pytest.raises(ValueError, match="sampler"):
        buffer.resume(path)
    assert buffer.reserve(4, TASK, timeout=0)
    buffer.put([Rollout(status="completed", response_ids=[1])], TASK)
    assert len(buffer) == 1
