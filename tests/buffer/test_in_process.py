"""What holds only in process: objects of the caller's own class come back themselves, and no others are touched."""

import asyncio
import copy
from types import SimpleNamespace

import pytest

from buffer.kinds import KINDS, fields_of, status_of
from reroll import (
    Closed,
    InvalidArgument,
    NotStorable,
    ReplayBuffer,
    ReplayBufferConfig,
    Rollout,
    Status,
    WaitTimeout,
)
from reroll.testing import ManualClock
from reroll.testing.buffer.builders import group, rollout
from reroll.waiting import LoopWaits

COMPLETED, ABORTED, EXPIRED = Status.COMPLETED, Status.ABORTED, Status.EXPIRED


@pytest.fixture(params=KINDS)
def make(request):
    return KINDS[request.param]


class Own(Rollout):
    """A class of the caller: its objects stay in the buffer as they are."""

    @classmethod
    def of(cls, rollout):
        return cls.from_state(rollout.state())


def fifo(**options):
    return ReplayBufferConfig(sampler="fifo", **options).build()


class Picture:
    """Rollouts as they were: the fields they had, and which objects and contents those were."""

    def __init__(self, items):
        self.items = items
        self.before = [fields_of(item) for item in items]
        self.contents = copy.deepcopy(self.before)

    def assert_unchanged(self):
        for item, before, contents in zip(self.items, self.before, self.contents, strict=True):
            now = fields_of(item)
            assert list(now) == list(before), "a field was added or removed"
            for name, value in now.items():
                assert value is before[name], f"{name} was assigned"
                assert repr(value) == repr(contents[name]), f"{name} was changed in place"


def is_column(make):
    """Return whether the buffer keeps columns of these rollouts, not the objects."""
    return make is Rollout


async def test_stamped_rollouts_come_back_objects_of_other_classes_as_they_are(make):
    buffer = fifo()
    items = [make(status="completed", response_ids=[5, 6]), make(status="completed", response_ids=[7])]
    names = [set(fields_of(item)) for item in items]
    uid = await buffer.put(items, "t", model_step=3, current_train_step=5)
    for item, tokens in zip(items, (2, 1), strict=True):
        assert list(item.response_model_steps) == [3] * tokens
        assert item.seq_staleness == 1
    (seen,) = await buffer.peek([uid])
    (handed,) = await buffer.get(1, "t", COMPLETED)
    for fetched in (seen, handed):
        assert list(fetched) == items
        assert all((mine is theirs) != is_column(make) for mine, theirs in zip(fetched, items, strict=True))
    assert [set(fields_of(item)) for item in items] == names, (
        "attributes that an object lacks are never added"
    )
    assert [status_of(item) for item in items] == ["completed"] * 2


async def test_objects_are_recognised_when_they_come_back(make):
    buffer = fifo()
    item = make(status="aborted", response_ids=[5], response_model_steps=[1])
    uid = await buffer.put([item], "t")
    ((taken,),) = await buffer.get(1, "t", ABORTED)
    taken.response_ids = [*taken.response_ids, 6]
    taken.status = type(taken.status)("completed")
    assert await buffer.put([taken], "t", model_step=4) == uid
    assert list(taken.response_model_steps) == [1, 4]
    assert (await buffer.query({}))[0].attempts == 2


@pytest.mark.parametrize("when", ["put", "refresh", "member"])
async def test_expired_objects_are_emptied_and_keep_what_they_were_given(make, when):
    buffer = fifo(expire="member" if when == "member" else "group")
    picture = object()
    fields = {"mm_info": picture, "prompt_ids": [1, 2]}
    item = make(status="completed", response_ids=[5, 6], response_model_steps=[1, 1], **fields)
    names = set(fields_of(item))
    if when == "put":
        await buffer.put([item], "t", current_train_step=5, stale_threshold=3)
    else:
        await buffer.put([item], "t")
        await buffer.refresh_staleness(task_stale_thresholds={"t": 3}, current_train_step=5)
    ((handed,),) = await buffer.get(1, "t", EXPIRED)
    assert (handed is item) != is_column(make)
    if when == "put":
        assert status_of(item) == "expired"
    item = handed
    assert status_of(item) == "expired"
    assert item.seq_staleness == 3
    assert len(item.response_ids) == len(item.response_model_steps) == 0
    assert set(fields_of(item)) == names
    if "mm_info" in names:
        assert item.mm_info is picture
    if "prompt_ids" in names:
        assert list(item.prompt_ids) == [1, 2]


async def test_a_dropped_group_of_own_objects_releases_their_data():
    buffer = fifo()
    items = [Own.of(rollout) for rollout in group(versions=1, mm_info={"pixels": 1}, message=["long"])]
    await buffer.put(items, "t")
    await buffer.refresh_staleness(
        task_stale_thresholds={"t": 1}, current_train_step=9, expired_groups_retryable_by_task={"t": False}
    )
    assert items[0].mm_info is None
    assert len(items[0].response_ids) == 0
    assert items[0].prompt_ids is None


WRONG = {
    "threshold": {"stale_threshold": 0},
    "token threshold": {"token_stale_threshold": -1},
    "priority": {"priority": float("inf")},
    "tags": {"tags": {"x": object()}},
    "uid": {"uid": 77},
    "timeout": {"timeout": -1},
    "step": {"current_train_step": -1},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_a_refused_put_leaves_the_objects_alone(make, wrong):
    buffer = fifo()
    picture = Picture([make(status="completed", response_ids=[5, 6]) for _ in range(2)])
    options = {"model_step": 3, "current_train_step": 9, **wrong}
    with pytest.raises(InvalidArgument):
        await buffer.put(picture.items, "t", **options)
    picture.assert_unchanged()


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "completed", "response_ids": [1, 2], "response_model_steps": [1, 1, 1]},
        {"status": "completed", "response_ids": [1, 2], "seq_staleness": "old"},
    ],
    ids=["versions", "seq_staleness"],
)
@pytest.mark.parametrize("kind", ["slots", "dict", "arrays"])
async def test_a_wrong_member_leaves_the_others_alone(kind, wrong):
    buffer = fifo()
    good, bad = KINDS[kind](status="completed", response_ids=[5, 6]), KINDS[kind](**wrong)
    picture = Picture([good, bad])
    with pytest.raises(InvalidArgument, match="rollout 1"):
        await buffer.put([good, bad], "t", model_step=3, current_train_step=9)
    picture.assert_unchanged()


async def test_an_unknown_status_is_refused():
    buffer = fifo()
    picture = Picture([KINDS["slots"](status="done", response_ids=[1])])
    with pytest.raises(InvalidArgument, match=r"rollout 0.*status"):
        await buffer.put(picture.items, "t", model_step=1)
    picture.assert_unchanged()


@pytest.mark.parametrize("end", ["timeout", "cancel", "close"])
async def test_a_put_that_waits_in_vain_leaves_the_objects_alone(make, end):
    buffer = fifo(capacity=1)
    await buffer.put(group(), "t")
    picture = Picture([make(status="completed", response_ids=[5, 6])])
    timeout = 0.01 if end == "timeout" else None
    put = buffer.put(picture.items, "t", model_step=3, current_train_step=9, timeout=timeout)
    waiting = asyncio.ensure_future(put)
    await asyncio.sleep(0)
    if end == "cancel":
        waiting.cancel()
    elif end == "close":
        await buffer.close()
    with pytest.raises({"timeout": WaitTimeout, "cancel": asyncio.CancelledError, "close": Closed}[end]):
        await waiting
    picture.assert_unchanged()


async def test_the_buffer_keeps_its_own_list():
    buffer = fifo()
    items = group("a", members=2)
    uid = await buffer.put(items, "t")
    items.pop()
    assert len((await buffer.peek([uid]))[0]) == 2
    (peeked,) = await buffer.peek([uid])
    peeked[0].reward = 5.0
    assert (await buffer.peek([uid]))[0][0].reward is None
    assert len((await buffer.get(1, "t", COMPLETED))[0]) == 2


async def test_rows_do_not_let_the_buffer_be_changed():
    buffer = fifo()
    uid = await buffer.put(group(), "t", tags={"x": 1})
    (row,) = await buffer.query({})
    row.tags["x"] = 2
    assert [found.uid for found in await buffer.query({"tags.x": 1})] == [uid]


async def test_groups_that_stay_out_too_long_are_given_up():
    clock = ManualClock()
    config = ReplayBufferConfig(sampler="fifo", out_ttl_s=10)
    buffer = ReplayBuffer(config.groups(), LoopWaits(), clock=clock)
    await buffer.put(group("a", status=ABORTED), "t")
    (early,) = await buffer.get(1, "t", ABORTED)
    clock.advance(6)
    await buffer.put(group("b", status=ABORTED), "t")
    (late,) = await buffer.get(1, "t", ABORTED)
    clock.advance(3)
    assert (await buffer.ledger())["t"]["out"].groups == 2
    clock.advance(2)
    books = (await buffer.ledger())["t"]
    assert (books["out"].groups, books["deleted"].groups) == (1, 1)
    assert await buffer.put(late, "t") == 2
    assert await buffer.put(early, "t") == 3, "it was given up, so it is new"
    clock.advance(100)
    assert (await buffer.ledger())["t"]["deleted"].groups == 1


@pytest.mark.parametrize("expire", ["group", "member"])
async def test_members_of_groups_that_are_dropped_as_too_stale_are_expired_and_empty(expire):
    buffer = fifo(expire=expire)
    terminal = {"stale_threshold": 3, "current_train_step": 9, "expired_groups_retryable": False}
    at_put, arrived, refreshed = ([rollout(versions=v) for v in (1, 8)] for _ in range(3))
    refreshed = [Own.of(member) for member in refreshed]  # of rollouts the buffer has columns of its own
    arrived[0].status = EXPIRED
    assert await buffer.put(at_put, "t", **terminal) is None
    assert await buffer.put(arrived, "t", expired_groups_retryable=False) is None
    await buffer.put(refreshed, "u")
    expired = await buffer.refresh_staleness(
        task_stale_thresholds={"u": 3}, current_train_step=9, expired_groups_retryable_by_task={"u": False}
    )
    assert expired == {"u": 1}
    for member in (*at_put, *arrived, *refreshed):
        assert (member.status, member.prompt_ids, len(member.response_ids)) == (EXPIRED, None, 0)


async def test_members_that_failed_and_were_dropped_stay_as_they_are():
    buffer = fifo(on_failed="drop_member")
    bad = rollout(status="failed")
    before = copy.deepcopy(bad)
    await buffer.put([rollout(), bad], "t", model_step=3, current_train_step=9)
    assert bad == before


async def test_a_refused_put_does_not_mark_fields_of_a_pydantic_model_as_set():
    buffer = fifo()
    item = KINDS["pydantic"](status="completed", response_ids=[5, 6])
    before = set(item.model_fields_set)
    with pytest.raises(InvalidArgument):
        await buffer.put([item], "t", priority=-1.0)
    assert item.model_fields_set == before


async def test_a_patch_that_an_object_refuses_leaves_it_as_it_was():
    class Own(SimpleNamespace):
        @property
        def length(self) -> int:
            return 2

        def state(self) -> None: ...

    def made() -> Own:
        fields = {"status": "completed", "seq_staleness": 0, "response_ids": [1], "response_model_steps": [1]}
        return Own(reward=1.0, **fields)

    buffer = ReplayBufferConfig().build()
    items = [made(), made()]
    uid = await buffer.put(items, "t")
    for refused in ("length", "state", "reward"):
        with pytest.raises(InvalidArgument):
            await buffer.patch(uid, **{"reward": [5.0, 5.0], refused: [1, "x"]})
        assert items == [made(), made()]


async def test_a_group_too_large_to_be_saved_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("reroll.buffer.snapshot.MAX_PAYLOAD_BYTES", 100_000)
    buffer = ReplayBufferConfig().build()
    await buffer.put(group(), "math")
    uid = await buffer.put([rollout(50_000)], "code")
    with pytest.raises(
        NotStorable, match=rf"group {uid} of task 'code' takes \d+ bytes.*delete\(\[{uid}\]\)"
    ):
        await buffer.save(tmp_path)
    await buffer.delete([uid])
    await buffer.save(tmp_path)
