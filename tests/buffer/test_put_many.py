"""`put_many` gives what that many puts give, one after another."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll import ReplayBufferConfig, Rollout, RolloutGroup, WaitTimeout
from reroll.testing.buffer.builders import group, picture


class Own:
    """A class of the caller's own."""

    def __init__(self, name: Any, status: str, tokens: int) -> None:
        self.group_id, self.status, self.reward = name, status, 0.5
        self.prompt_ids, self.response_ids = [1], list(range(tokens))
        self.seq_staleness, self.response_model_steps = 0, None


def made(kind: str, name: int, status: str, version: int) -> Any:
    if kind == "own":
        return [Own(name, status, 2)]
    rollouts = group(name, 2, status=status, versions=version, reward=float(name))
    return RolloutGroup.of(rollouts) if kind == "group" else rollouts


PUT = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["rollouts", "group", "own"]),
        "status": st.sampled_from(["completed"] * 4 + ["failed", "aborted", "filtered"]),
        "version": st.integers(0, 4),
        "priority": st.one_of(st.none(), st.floats(0, 8)),
        "put_id": st.one_of(st.none(), st.integers(0, 3)),
    }
)


@given(
    calls=st.lists(st.lists(PUT, max_size=6), min_size=1, max_size=4),
    room=st.sampled_from([(None, None), (5, None), (2, "fifo"), (5, "lifo"), (5, "stalest")]),
    initial=st.sampled_from([1.0, "max"]),
    on_stale=st.sampled_from(["reroll", "drop"]),
)
async def test_put_many_gives_what_single_puts_give(calls, room, initial, on_stale):
    capacity, remover = room
    config = ReplayBufferConfig(
        capacity=capacity,
        remover=remover,
        sampler="prioritized",
        initial_priority=initial,
        max_staleness=3,
        on_stale=on_stale,
        seed=1,
    )
    one, many = config.build(), config.build()
    for step, puts in enumerate(calls, 3):
        options = {"current_train_step": step, "stale_threshold": 4}
        wanted = [made(put["kind"], place, put["status"], put["version"]) for place, put in enumerate(puts)]
        rooms = capacity is None or remover is not None
        completed = sum(put["status"] == "completed" for put in puts)
        if not rooms and completed + await many.count("t", "completed") > capacity:
            continue  # one by one, the first ones enter
        uids = await many.put_many(
            wanted,
            "t",
            priorities=[put["priority"] for put in puts],
            put_ids=[put["put_id"] for put in puts],
            **options,
        )
        expected = []
        for place, put in enumerate(puts):
            items = made(put["kind"], place, put["status"], put["version"])
            uid = await one.put(items, "t", priority=put["priority"], put_id=put["put_id"], **options)
            expected.append(uid)
            if put["kind"] == "rollouts":  # both callers see the same
                assert wanted[place] == items
        gone = {uid for uid in expected if uid is not None} - {row.uid for row in await one.query({})}
        # A group that a later group of the call evicts has no uid: it left with the call.
        assert [None if uid in gone else uid for uid in uids] == [
            None if uid in gone else uid for uid in expected
        ]
        assert await picture(many) == await picture(one)
    for name, stats in (await one.stats()).tasks.items():
        assert (await many.stats()).tasks[name].puts == stats.puts


async def test_groups_of_put_many_are_rollouts_again():
    buffer = ReplayBufferConfig().build()
    groups = [group(name, 3) for name in "ab"]
    uids = await buffer.put_many(groups, "t", model_step=2)
    for uid, rollouts, stored in zip(uids, groups, await buffer.peek(uids), strict=True):
        assert list(stored) == rollouts
        assert [rollout.group_uid for rollout in rollouts] == [uid] * 3
        assert all(isinstance(rollout, Rollout) for rollout in stored)


async def test_put_many_that_waits_is_overtaken_by_no_put():
    buffer = ReplayBufferConfig(capacity=2, sampler="fifo").build()
    await buffer.put_many([group("a"), group("b")], "t")
    many = asyncio.ensure_future(buffer.put_many([group("c"), group("d")], "t"))
    await asyncio.sleep(0)
    single = asyncio.ensure_future(buffer.put(group("e"), "t"))
    await asyncio.sleep(0)
    await buffer.get(1, "t", "completed")
    await asyncio.sleep(0)
    assert not single.done()
    await buffer.get(1, "t", "completed")
    assert len(await many) == 2
    assert not single.done()
    single.cancel()
    with pytest.raises(WaitTimeout):
        await buffer.put_many([group("f")], "t", timeout=0)
