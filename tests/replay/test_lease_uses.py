"""Leases where groups are used several times: they draw as sample() does and hide nothing from others."""

from collections import Counter

import pytest

from engine.chances import assert_fits
from replay.buffers import (
    LONG_S,
    TASK,
    books,
    drawn,
    fill,
    group,
    infos,
    replay,
    row_of,
    rows,
    timed,
    uids_of,
)
from reroll import MinSize, Mixture, Prioritized, ReplayBufferConfig, Status, Uniform
from reroll.testing.probe import probe


async def test_a_lease_hides_nothing_from_others():
    buffer = replay()
    uids = await fill(buffer, 2)
    async with buffer.lease({TASK: 2}) as mine, buffer.lease({TASK: 2}) as yours:
        assert {*drawn(mine.samples[TASK])} == {*drawn(yours.samples[TASK])} == {*uids}
        assert len(buffer) == 2
        assert await buffer.is_ready({TASK: 2})
        await mine.ack()
        await yours.ack()
    assert [row.times_sampled for row in (await rows(buffer)).values()] == [2, 2]
    ledger = await books(buffer)
    assert (ledger["resident"].trained_groups, ledger["leased"].groups) == (2, 0)


async def test_ack_counts_the_use_and_nack_gives_it_back():
    buffer = replay(max_times_sampled=3)
    (uid,) = await fill(buffer, 1)
    async with buffer.lease({TASK: 1}) as batch:
        assert infos(batch.samples[TASK])[0].times_sampled == 1
        await batch.ack()
    async with buffer.lease({TASK: 1}) as batch:
        assert infos(batch.samples[TASK])[0].times_sampled == 2
    row = await row_of(buffer, uid)
    assert (row.times_sampled, row.deliveries) == (1, 2)
    for _ in range(2):
        async with buffer.lease({TASK: 1}) as batch:
            await batch.ack()
    assert len(buffer) == 0
    assert (await books(buffer))["consumed"][:3] == (1, 4, 1)


async def test_infos_of_a_lease_are_those_of_the_definition():
    buffer = replay(sampler=Prioritized(alpha=0.5, beta=0.5, half_life=2.0, reuse_decay=0.8))
    await fill(buffer, 4, priorities=[1.0, 4.0, 9.0, 2.0], versions=[0, 1, 2, 3])
    for step in range(4, 30):
        found = await rows(buffer)
        weights = {
            uid: row.priority**0.5 * 0.5 ** ((step - 1 - row.version) / 2) * 0.8**row.times_sampled
            for uid, row in found.items()
        }
        async with buffer.lease({TASK: 2}, train_step=step) as batch:
            samples = infos(batch.samples[TASK])
            shares = {info.uid: weights[info.uid] / sum(weights.values()) for info in samples}
            raw = {uid: (4 * share) ** -0.5 for uid, share in shares.items()}
            for info in samples:
                assert info.probability == pytest.approx(shares[info.uid])
                assert info.weight == pytest.approx(raw[info.uid] / max(raw.values()))
                assert info.staleness == step - 1 - found[info.uid].version
                assert info.table_size == 4
            if step % 3:
                await batch.ack()


async def test_a_lease_draws_by_the_chances_of_the_sampler():
    buffer = replay(sampler=Prioritized())
    uids = await fill(buffer, 3, priorities=[1.0, 2.0, 5.0])
    seen = Counter()
    for _ in range(1_000):
        async with buffer.lease({TASK: 1}) as batch:
            seen.update(drawn(batch.samples[TASK]))
    assert_fits(seen, {uids[0]: 1 / 8, uids[1]: 2 / 8, uids[2]: 5 / 8})


async def test_a_use_that_was_given_back_makes_a_group_fresh_again():
    buffer = replay(sampler=Mixture(1.0, replay=Uniform()))
    (uid,) = await fill(buffer, 1)
    for _ in range(3):
        async with buffer.lease({TASK: 1}) as batch:
            assert drawn(batch.samples[TASK]) == [uid]
    async with buffer.lease({TASK: 1}) as batch:
        await batch.ack()
    async with buffer.lease({TASK: 1}) as batch:
        assert batch.counts == {TASK: 0}


async def test_pending_uses_count_against_the_use_limit():
    buffer = replay(max_times_sampled=2)
    (uid,) = await fill(buffer, 1)
    first = await buffer.lease({TASK: 1})
    second = await buffer.lease({TASK: 1})
    assert len(buffer) == 0  # no use is left
    assert (await books(buffer))["leased"].groups == 1
    assert await buffer.sample(1, TASK, allow_short=True) == []
    await first.nack()
    assert (await row_of(buffer, uid)).times_sampled == 1
    third = await buffer.lease({TASK: 1})
    await second.ack()
    await third.ack()
    assert (await books(buffer))["consumed"].groups == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("ends", [("ack", "ack"), ("ack", "nack"), ("nack", "ack"), ("nack", "nack")])
async def test_two_leases_on_the_last_uses_end_in_any_order(order, ends):
    buffer = replay(max_times_sampled=2)
    (uid,) = await fill(buffer, 1)
    leases = [await buffer.lease({TASK: 1}) for _ in range(2)]
    for which in order:
        await getattr(leases[which], ends[which])()
        await books(buffer)
    acked = ends.count("ack")
    ledger = await books(buffer)
    assert ledger["leased"].groups == 0
    if acked == 2:
        assert ledger["consumed"][:3] == (1, 4, 1)
    else:
        assert (await row_of(buffer, uid)).times_sampled == acked
        assert ledger["resident"].trained_groups == min(acked, 1)


async def test_a_sample_on_the_last_use_waits_for_the_lease_to_end():
    buffer = replay(max_times_sampled=2)
    (uid,) = await fill(buffer, 1)
    batch = await buffer.lease({TASK: 1})
    assert drawn(await buffer.sample(1, TASK)) == [uid]
    assert len(buffer) == 0
    assert (await books(buffer))["leased"].groups == 1
    await batch.nack()
    assert (await row_of(buffer, uid)).times_sampled == 1


async def test_the_use_limit_holds_under_leases_that_come_and_go():
    buffer = replay(max_times_sampled=3, seed=1)
    acked, open_leases = Counter(), []
    for turn in range(300):
        if turn % 4 == 0:
            await fill(buffer, 1)
        batch = await buffer.lease({TASK: 2})
        open_leases.append(batch)
        if len(open_leases) > 3:
            ending = open_leases.pop(turn % 3)
            if turn % 5:
                await ending.ack()
                acked.update(drawn(ending.samples[TASK]))
            else:
                await ending.nack()
        if turn % 7 == 0:
            acked.update(drawn(await buffer.sample(1, TASK, allow_short=True)))
        await books(buffer)
    for batch in open_leases:
        await batch.ack()
        acked.update(drawn(batch.samples[TASK]))
    assert max(acked.values()) == 3
    ledger = await books(buffer)
    assert ledger["consumed"].groups == sum(uses == 3 for uses in acked.values())
    assert {u: r.times_sampled for u, r in (await rows(buffer)).items()} == {
        u: acked[u] for u in await rows(buffer)
    }


async def test_get_and_take_consume_whatever_is_lent():
    buffer = replay(max_times_sampled=5)
    uids = await fill(buffer, 2)
    batch = await buffer.lease({TASK: 2})
    assert {*uids_of(await buffer.get(5, TASK, "completed"))} == {*uids}
    assert (await books(buffer))["consumed"].groups == 2
    await batch.ack()
    assert (await books(buffer))["consumed"].groups == 2


async def test_an_eviction_under_a_lease():
    buffer = replay(capacity=1, remover="fifo")
    await fill(buffer, 1)
    for end in ("ack", "nack"):
        batch = await buffer.lease({TASK: 1})
        await fill(buffer, 1)
        await books(buffer)
        await getattr(batch, end)()
        await books(buffer)
    assert len(buffer) == 1


async def test_a_delete_under_a_lease():
    buffer = replay()
    uids = await fill(buffer, 2)
    for end in ("ack", "nack"):
        batch = await buffer.lease({TASK: 1})
        await buffer.delete(drawn(batch.samples[TASK]))
        await getattr(batch, end)()
        await books(buffer)
    assert len(buffer) == len(uids) - 2


@pytest.mark.parametrize("end", ["ack", "nack"])
@pytest.mark.parametrize("retryable", [True, False])
async def test_a_refresh_that_expires_under_a_lease(end, retryable):
    buffer = replay(max_times_sampled=3)
    (uid,) = await fill(buffer, 1, versions=[0])
    batch = await buffer.lease({TASK: 1})
    await buffer.refresh_staleness(
        task_stale_thresholds={TASK: 2},
        current_train_step=9,
        expired_groups_retryable_by_task={TASK: retryable},
    )
    await books(buffer)
    await getattr(batch, end)()
    ledger = await books(buffer)
    assert ledger["resident"].groups == retryable
    if retryable:
        assert (await row_of(buffer, uid)).status is Status.EXPIRED


@pytest.mark.parametrize("end", ["ack", "nack"])
async def test_an_old_lease_says_nothing_of_what_was_rolled_again(end):
    buffer = replay(max_times_sampled=2)
    (uid,) = await fill(buffer, 1, versions=[0])
    old = await buffer.lease({TASK: 1})
    await buffer.refresh_staleness(task_stale_thresholds={TASK: 2}, current_train_step=9)
    (items,) = await buffer.get(1, TASK, "expired")
    for item in items:
        item.response_ids, item.status = [1, 2], "completed"
    assert await buffer.put(items, TASK, model_step=8) == uid
    new = await buffer.lease({TASK: 1})
    assert (await row_of(buffer, uid)).times_sampled == 1
    await getattr(old, end)()  # of data that is no more
    assert (await row_of(buffer, uid)).times_sampled == 1
    await new.nack()
    assert (await row_of(buffer, uid)).times_sampled == 0
    await books(buffer)


async def test_a_ttl_gives_the_use_back_and_a_late_ack_counts_it():
    buffer, clock = timed(ReplayBufferConfig(max_times_sampled=3, seed=1))
    (uid,) = await fill(buffer, 1)
    batch = await buffer.lease({TASK: 1}, ttl_s=LONG_S)
    clock.advance(2 * LONG_S)
    assert (await row_of(buffer, uid)).times_sampled == 0
    await batch.ack()
    row = await row_of(buffer, uid)
    assert (row.times_sampled, row.deliveries) == (1, 1)
    assert (await books(buffer))["resident"].trained_groups == 1


async def test_close_gives_uses_back():
    buffer = replay(max_times_sampled=1_000)
    await fill(buffer, 2)
    await buffer.lease({TASK: 2})
    await buffer.close()
    assert probe(buffer).engine.columns.uses[:2].tolist() == [0, 0]


async def test_a_nack_over_two_tasks_that_evicts_in_the_other():
    probe = replay()
    size = (await row_of(probe, await probe.put(group(100), "a"))).num_bytes
    tasks = {
        "a": {"max_times_sampled": 1, "remover": "fifo", "sampler": "fifo"},
        "b": {"max_times_sampled": None, "remover": "fifo", "sampler": "uniform"},
    }
    with pytest.warns(UserWarning, match="never evicts anything"):
        buffer = ReplayBufferConfig(tasks=tasks, max_bytes=4 * size, seed=1).build()
    for name, n in (("a", 1), ("b", 3)):
        for _ in range(n):
            await buffer.put(group(100), name)
    batch = await buffer.lease({"a": 1, "b": 3})
    await buffer.put(group(100), "b")
    await batch.nack()
    ledger = await buffer.ledger()
    assert ledger["a"]["evicted"].groups + ledger["b"]["evicted"].groups == 1
    await books(buffer, "a")
    assert [row.times_sampled for row in (await rows(buffer, task_name="b")).values()] == [0] * 3


async def test_min_size_counts_groups_not_leases():
    buffer = replay(rate_limiter=MinSize(2))
    await fill(buffer, 2)
    async with buffer.lease({TASK: 2}) as one, buffer.lease({TASK: 2}) as two:
        assert (one.counts, two.counts) == ({TASK: 2}, {TASK: 2})
