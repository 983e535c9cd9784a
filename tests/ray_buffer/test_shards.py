"""Several shards: the whole is drawn from and filled as one."""

import asyncio
import os
import signal
from collections import Counter
from copy import copy

import pytest

from engine.chances import assert_fits
from ray_buffer.actors import pid_of, total
from ray_buffer.pool import buffer_of
from reroll import (
    Closed,
    InvalidArgument,
    Prioritized,
    Queue,
    ReplayBufferConfig,
    StalenessWindow,
    WaitTimeout,
)
from reroll.engine.ledger import closes
from reroll.testing.buffer.builders import group, names

pytestmark = pytest.mark.usefixtures("ray_cluster")

WEIGHTS = [5.0, 1.0, 3.0, 2.0, 0.5, 0.5]


async def put_to(buffer, shard, items, **options):
    """Put a group to one shard, as another client may have done."""
    return await (await buffer._ready())[shard].put(items, "t", **options)


async def test_priority_sampling_over_uneven_shards_has_the_global_distribution():
    config = ReplayBufferConfig(sampler=Prioritized(), max_times_sampled=None, seed=1)
    with buffer_of(config, num_shards=3) as buffer:
        shards, chosen = [0, 1, 1, 2, 2, 2], dict[int, int]()
        for index, (weight, shard) in enumerate(zip(WEIGHTS, shards, strict=True)):
            chosen[await put_to(buffer, shard, group(index), priority=weight)] = index
        seen: Counter[int] = Counter()
        for _ in range(15):
            for drawn in await asyncio.gather(*(buffer.sample(1, "t") for _ in range(10))):
                seen.update(chosen[sample.info.uid] for sample in drawn)
        expected = {index: weight / sum(WEIGHTS) for index, weight in enumerate(WEIGHTS)}
        assert_fits(seen, expected)

        (sample,) = await buffer.sample(1, "t")
        weight = WEIGHTS[chosen[sample.info.uid]]
        assert sample.info.probability == pytest.approx(weight / sum(WEIGHTS))
        assert (sample.info.table_size, sample.info.weight) == (6, 1.0)
        drawn = await buffer.sample(3_000, "t", replace=True)
        again = Counter(chosen[sample.info.uid] for sample in drawn)
        assert_fits(again, expected)


async def test_puts_go_to_the_emptiest_and_come_back_to_their_own():
    with buffer_of(ReplayBufferConfig(sampler="fifo"), num_shards=3) as buffer:
        uids = [await buffer.put(group(name, status="aborted"), "t") for name in range(9)]
        assert Counter(uid % 3 for uid in uids) == {0: 3, 1: 3, 2: 3}
        for taken in await buffer.get(9, "t", "aborted"):
            assert await buffer.put(taken, "t") == taken[0].group_uid
        stats = await buffer.shard_stats()
        assert [part.total.num_groups for part in stats] == [3, 3, 3]
        assert (await buffer.stats()).total.num_groups == 9
        assert (await buffer.metrics())["buffer/groups"] == 9


async def test_a_handle_that_knows_nothing_yet_finds_the_emptiest():
    with buffer_of(ReplayBufferConfig(sampler="fifo"), num_shards=3) as buffer:
        for name in range(9):
            await copy(buffer).put(group(name), "t")
        assert [part.total.num_groups for part in await buffer.shard_stats()] == [3, 3, 3]


async def test_a_group_comes_back_to_its_own_shard_by_any_of_its_rollouts():
    with buffer_of(ReplayBufferConfig(sampler="fifo"), num_shards=3) as buffer:
        for name in range(3):
            await buffer.put(group(name, members=2, status="aborted"), "t")
        for number, (first, second) in enumerate(reversed(await buffer.get(3, "t", "aborted"))):
            first.group_uid = [None, second.group_uid + 1_000, second.group_uid + 1_001][number]
            assert await buffer.put([first, second], "t") == second.group_uid
        assert total(await buffer.ledger(), "out") == 0


async def test_a_group_comes_back_to_its_own_shard_whoever_granted_the_reservation():
    config = ReplayBufferConfig(sampler="fifo", rate_limiter=StalenessWindow(1, 6))
    with buffer_of(config, num_shards=3) as buffer:
        uids = [await buffer.put(group(name, status="aborted"), "t") for name in range(3)]
        reservation = await buffer.reserve(2, "t")
        taken = await buffer.get(3, "t", "aborted")
        assert [await buffer.put(each, "t", reservation=reservation) for each in taken] == uids
        assert total(await buffer.ledger(), "out") == 0
        new = await buffer.put(group("new"), "t", reservation=reservation)
        assert (new - 1) % 3 == reservation.id % 3


@pytest.mark.parametrize("window", [StalenessWindow(1, 12), None])
async def test_a_put_id_is_stored_once_whoever_granted_the_reservation(window):
    config = ReplayBufferConfig(sampler="fifo", rate_limiter=window)
    with buffer_of(config, num_shards=3) as buffer:
        shards = await buffer._ready()
        granted = [await shard.reserve(2, "t") for shard in shards]
        reservations = [own._replace(id=own.id * 3 + index) for index, own in enumerate(granted)]
        for name in range(4):
            how = [*({"reservation": each} for each in reservations), {}]
            how = how[name:] + how[:name]
            uids = {await buffer.put(group(name), "t", put_id=f"id-{name}", **each) for each in how}
            assert len(uids) == 1
        assert await buffer.count("t", "completed") == 4
        assert await asyncio.gather(*map(buffer.release, reservations)) == [0, 0, 0], (
            "used up, wherever it went"
        )
        assert closes((await buffer.ledger())["t"])


async def test_a_reservation_for_another_task_is_refused_whoever_granted_it():
    with buffer_of(ReplayBufferConfig(sampler="fifo"), num_shards=3) as buffer:
        for number in range(3):
            reservation = await buffer.reserve(1, "t")
            with pytest.raises(InvalidArgument, match="for task 't', not 'u'"):
                await buffer.put(group("a"), "u", put_id=number, reservation=reservation)
        assert len(buffer) == 0


@pytest.mark.parametrize("sampler", ["fifo", "uniform"])
async def test_what_a_lease_gives_back_after_its_time_can_be_taken_at_once(sampler):
    with buffer_of(ReplayBufferConfig(sampler=sampler), num_shards=3) as buffer:
        await buffer.put(group("a"), "t")
        await buffer.lease({"t": 1}, ttl_s=0.05)
        await asyncio.sleep(0.1)  # its time is over, and nobody has looked since
        assert names(await buffer.get(1, "t", "completed")) == ["a"]


async def test_groups_without_a_weight_are_drawn_with_the_same_chance():
    config = ReplayBufferConfig(sampler=Prioritized(), max_times_sampled=None)
    with buffer_of(config, num_shards=3) as buffer:
        for name in range(4):
            await buffer.put(group(name), "t", priority=0.0)
        for replace in (False, True):
            drawn = await buffer.sample(3, "t", replace=replace)
            assert [sample.info.probability for sample in drawn] == pytest.approx([1 / 4] * 3)


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_limiter_that_was_changed_is_the_one_that_counts(shards):
    config = ReplayBufferConfig(sampler="fifo", rate_limiter=Queue(3))
    with buffer_of(config, num_shards=shards) as buffer:
        await buffer.set_rate_limiter("t", Queue(9))
        for name in range(9):
            await buffer.put(group(name), "t", timeout=60)
        await buffer.wait_ready({"t": 9}, timeout=60)
        _, counts = await buffer.take_batch({"t": 9}, wait=True, timeout=60)
        assert counts == {"t": 9}
        await buffer.set_rate_limiter("t", Queue(6))
        for verb in (buffer.take_batch, buffer.wait_ready):
            waiting = verb({"t": 9}, **({"wait": True} if verb == buffer.take_batch else {}), timeout=60)
            with pytest.raises(InvalidArgument, match=r"allow.* at most 6"):
                await waiting


async def test_limits_are_those_of_the_whole():
    config = ReplayBufferConfig(sampler="fifo", capacity=3, tasks={"q": {"rate_limiter": Queue(3)}})
    with buffer_of(config, num_shards=3) as buffer:
        for name in range(3):
            await buffer.put(group(name), "t", timeout=0)
        with pytest.raises(WaitTimeout):
            await buffer.put(group("no room"), "t", timeout=0)
        with pytest.raises(InvalidArgument, match=r"capacity.* at most 3"):
            await buffer.take_batch({"t": 4}, wait=True)
        waiting = asyncio.ensure_future(buffer.put(group(3), "t"))
        groups, _ = await buffer.take_batch({"t": 3, "q": 0}, wait=True, timeout=10)
        assert sorted(names(groups["t"])) == [0, 1, 2]
        await waiting
        assert names(await buffer.get(9, "t", "completed")) == [3]


async def test_a_batch_over_shards_and_tasks_is_all_or_nothing():
    with buffer_of(ReplayBufferConfig(sampler="fifo"), num_shards=3) as buffer:
        takers = [asyncio.ensure_future(buffer.take_batch({"t": 4, "u": 1}, wait=True)) for _ in range(2)]
        for name in range(7):
            await buffer.put(group(name), "t")
        await buffer.put(group(8), "u")
        await asyncio.wait(takers, return_when=asyncio.FIRST_COMPLETED)
        await buffer.put(group(9), "u")
        assert sum(taker.done() for taker in takers) == 1
        await buffer.put(group(7), "t")
        taken = [(await taker)[0] for taker in takers]
        assert sorted(name for groups in taken for name in names(groups["t"])) == list(range(8))
        assert sorted(name for groups in taken for name in names(groups["u"])) == [8, 9]
        assert total(await buffer.ledger(), "leased") == 0


async def test_a_window_is_divided():
    config = ReplayBufferConfig(sampler="fifo", rate_limiter=StalenessWindow(0, 4))
    with buffer_of(config, num_shards=2) as buffer:
        granted = [await buffer.reserve(1, "t", timeout=0) for _ in range(4)]
        with pytest.raises(WaitTimeout):
            await buffer.reserve(1, "t", timeout=0)
        await buffer.put(group("a"), "t", reservation=granted[0])
        assert await buffer.release(granted[1]) == 1
        await buffer.reserve(1, "t", timeout=0)


async def test_a_buffer_is_saved_and_resumed(tmp_path):
    config = ReplayBufferConfig(sampler="fifo")
    with buffer_of(config, num_shards=2) as buffer:
        for name in range(5):
            await buffer.put(group(name), "t")
        await buffer.save(tmp_path)
        await buffer.take_batch({"t": 5}, wait=True)
        await buffer.close()
    with buffer_of(config, num_shards=2) as buffer:
        await buffer.resume(tmp_path)
        assert sorted(names(await buffer.get(9, "t", "completed"))) == [0, 1, 2, 3, 4]


async def test_a_closed_buffer_wakes_whoever_waits():
    with buffer_of(ReplayBufferConfig(sampler="fifo", capacity=3), num_shards=3) as buffer:
        for name in range(3):
            await buffer.put(group(name), "t")
        waiting = [
            asyncio.ensure_future(call)
            for call in (buffer.put(group(), "t"), buffer.take_batch({"u": 1}, wait=True))
        ]
        await buffer.count("t", "completed")
        await buffer.close()
        for call in waiting:
            with pytest.raises(Closed):
                await call


async def test_a_shard_that_is_away_is_waited_for_as_long_as_the_caller_waits():
    with buffer_of(ReplayBufferConfig(sampler="fifo"), num_shards=2, unreachable_s=1.0) as buffer:
        pid = pid_of(buffer)
        os.kill(pid, signal.SIGSTOP)
        try:
            put = asyncio.ensure_future(buffer.put(group(0), "t", timeout=60))
            done, _ = await asyncio.wait([put], timeout=3)
            assert not done, "there is time left, and the group may be there already"
        finally:
            os.kill(pid, signal.SIGCONT)
        assert await put == 1


@pytest.mark.parametrize("how", ["get", "take", "sample", "replace", "lease"])
async def test_a_step_that_one_shard_was_told_binds_all(how):
    config = ReplayBufferConfig(max_staleness=2, max_times_sampled=3, seed=1)
    with buffer_of(config, num_shards=3) as buffer:
        for shard in range(3):
            for version in (0, 8):
                await put_to(buffer, shard, group(version, versions=version))
        # Only this shard knows, as after a put of another process that has just ended.
        await put_to(buffer, 1, group("new", versions=8), current_train_step=9)
        match how:
            case "get":
                given = await buffer.get(9, "t", "completed")
            case "take":
                given = (await buffer.take_batch({"t": 9}))[0]["t"]
            case "sample":
                given = [s.group for s in await buffer.sample(9, "t", allow_short=True)]
            case "replace":
                given = [s.group for s in await buffer.sample(6, "t", replace=True)]
            case _:
                given = (await buffer.lease({"t": 9})).groups["t"]
        assert set(names(given)) <= {8, "new"}
        assert await buffer.count("t", "expired") == 3


async def test_a_put_tells_its_step_to_every_shard():
    with buffer_of(ReplayBufferConfig(max_staleness=2), num_shards=3) as buffer:
        for version in (0, 0, 0, 0, 8, 8):
            await buffer.put(group(versions=version), "t")
        await buffer.put(group(versions=8), "t", current_train_step=9)
        assert await buffer.count("t", "completed") == 3
        assert await buffer.count("t", "expired") == 4
