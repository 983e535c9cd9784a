"""Commit and rewind: consumption follows the trainer's own checkpoints, in memory and on disk."""

import warnings

import pytest

from durable.stores import crashed, fifo, picture
from replay.buffers import TASK, books, drawn, fill, group, row_of, rows, uids_of
from reroll import (
    CannotRewind,
    InvalidArgument,
    Queue,
    ReplayBufferConfig,
    StalenessWindow,
    UncommittedWarning,
)
from reroll.testing.probe import probe


@pytest.fixture(params=["memory", "disk", "disk only"])
async def make(request, tmp_path):
    """Return what makes a FIFO buffer that keeps the uses of eight steps, unless told otherwise."""
    made = []

    def build(**options):
        options = {"sampler": "fifo", "seed": 1, "max_uncommitted_steps": 8, **options}
        if request.param != "memory":
            options["store"] = tmp_path / str(len(made))
        if request.param == "disk only":
            options["max_resident_bytes"] = 0
        made.append(ReplayBufferConfig(**options).build())
        return made[-1]

    yield build
    for buffer in made:
        await buffer.close()


async def train(buffer, step, n=1):
    """Take a batch for a step, end the step, and return the uids."""
    taken = uids_of(await buffer.get(n, TASK, "completed", train_step=step))
    await buffer.advance(step)
    return taken


async def test_all_that_was_consumed_after_the_step_is_back_at_its_old_place(make):
    buffer = make()
    uids = await fill(buffer, 5)
    before = await rows(buffer)
    assert [await train(buffer, step) for step in (1, 2, 3)] == [[1], [2], [3]]
    assert (await books(buffer))["uncommitted"].groups == 3
    assert await buffer.rewind(1) == 2
    after = await rows(buffer)
    assert after == {uid: before[uid] for uid in uids[1:]}, "as if those steps had never been"
    amounts = await books(buffer)
    assert amounts["uncommitted"] == (1, 4, 1, 4)
    assert amounts["resident"] == (4, 16, 0, 0)
    assert [await train(buffer, step) for step in (2, 3, 4)] == [[2], [3], [4]]
    await buffer.close()


async def test_what_was_put_since_stays(make):
    buffer = make()
    await fill(buffer, 2)
    await train(buffer, 1, 2)
    await fill(buffer, 1)
    assert await buffer.rewind(0) == 2
    assert uids_of(await buffer.get(9, TASK, "completed")) == [1, 2, 3]


async def test_steps_may_count_from_0(make, tmp_path):
    buffer = make()
    await fill(buffer, 4, versions=[0] * 4)
    assert [await train(buffer, step) for step in (0, 1)] == [[1], [2]]
    assert await buffer.rewind(-1, newer="expire") == 2
    await buffer.save(tmp_path / "saved")
    again = make()
    await again.resume(tmp_path / "saved")
    assert [await train(again, step) for step in (0, 1, 2)] == [[1], [2], [3]]
    await again.commit(0)
    with pytest.raises(CannotRewind):
        await again.rewind(-1)
    assert await again.rewind(0) == 2


async def test_rollouts_come_back_as_they_were_put(make):
    buffer = make()
    await buffer.put(group(3, version=0, rewards=(1.0, 0.0)), TASK, priority=2.0, tags={"x": 1})
    (first,) = await buffer.get(1, TASK, "completed", train_step=1)
    await buffer.rewind(0)
    (second,) = await buffer.get(1, TASK, "completed", train_step=1)
    for one, other in zip(first, second, strict=True):
        assert list(one.response_ids) == list(other.response_ids) == [7, 7, 7]
        assert (one.reward, one.seq_staleness) == (other.reward, other.seq_staleness)


async def test_uses_are_undone_and_priorities_stay(make):
    buffer = make(max_times_sampled=3, sampler="max_heap")
    await fill(buffer, 2, priorities=[2.0, 1.0])
    assert drawn(await buffer.sample(1, TASK, train_step=1)) == [1]
    assert drawn(await buffer.sample(2, TASK, train_step=2)) == [1, 2]
    await buffer.update_priorities({1: 0.5})
    assert drawn(await buffer.sample(1, TASK, train_step=3)) == [2]
    assert await buffer.rewind(1) == 0, "none was used up"
    found = await rows(buffer)
    assert {uid: (row.times_sampled, row.priority) for uid, row in found.items()} == {
        1: (1, 0.5),
        2: (0, 1.0),
    }
    assert (await books(buffer))["resident"].trained_groups == 1


async def test_a_group_that_was_used_up_after_the_step_has_its_last_uses_again(make):
    buffer = make(max_times_sampled=2)
    await fill(buffer, 1)
    await buffer.sample(1, TASK, train_step=1)
    await buffer.sample(1, TASK, train_step=2)
    assert len(buffer) == 0
    assert (await books(buffer))["uncommitted"].groups == 1
    assert await buffer.rewind(1) == 1
    assert (await row_of(buffer, 1)).times_sampled == 1
    await buffer.sample(1, TASK, train_step=2)
    assert len(buffer) == 0


async def test_draws_with_replacement_are_undone_as_often_as_they_were_drawn(make):
    buffer = make(max_times_sampled=9, sampler="uniform")
    await fill(buffer, 2)
    await buffer.sample(5, TASK, replace=True, train_step=1)
    await buffer.sample(6, TASK, replace=True, train_step=2)
    assert sum(row.times_sampled for row in (await rows(buffer)).values()) == 11
    await buffer.rewind(1)
    assert sum(row.times_sampled for row in (await rows(buffer)).values()) == 5
    await buffer.rewind(0)
    assert [row.times_sampled for row in (await rows(buffer)).values()] == [0, 0]
    assert (await books(buffer))["resident"] == (2, 8, 0, 0)


async def test_a_lease_counts_for_the_step_it_was_taken_for(make):
    buffer = make()
    await fill(buffer, 2)
    first = await buffer.lease({TASK: 1}, train_step=1)
    second = await buffer.lease({TASK: 1}, train_step=2)
    await second.ack()
    await first.ack()
    assert await buffer.rewind(1) == 1
    assert list(await rows(buffer)) == [2]
    assert await buffer.rewind(0) == 1
    assert list(await rows(buffer)) == [1, 2]


async def test_a_lease_counts_for_the_step_that_has_trained_it_if_that_is_told(make):
    buffer = make()
    await fill(buffer, 2)
    ahead = await buffer.lease({TASK: 1}, train_step=1)  # by a loader that reads ahead
    at_once = await buffer.lease({TASK: 1}, train_step=1)
    await at_once.ack()
    await ahead.ack(train_step=2)
    assert await buffer.rewind(1) == 1
    assert list(await rows(buffer)) == [1]
    with pytest.raises(InvalidArgument, match="train_step"):
        await (await buffer.lease({TASK: 1})).ack(train_step=-1)


async def test_an_open_lease_survives_a_rewind(make):
    buffer = make(max_times_sampled=2)
    await fill(buffer, 1)
    await buffer.sample(1, TASK, train_step=1)
    batch = await buffer.lease({TASK: 1}, train_step=2)
    assert len(buffer) == 0
    await buffer.rewind(0)
    assert (await row_of(buffer, 1)).times_sampled == 1, "the pending one"
    await batch.ack()
    assert (await row_of(buffer, 1)).times_sampled == 1
    assert (await books(buffer))["leased"].groups == 0


async def test_commit_is_for_good(make):
    buffer = make()
    await fill(buffer, 4)
    for step in (1, 2, 3):
        await train(buffer, step)
    assert await buffer.commit(2) == 2
    assert await buffer.commit(2) == 0
    amounts = await books(buffer)
    assert (amounts["consumed"].groups, amounts["uncommitted"].groups) == (2, 1)
    before = await picture(buffer)
    with pytest.raises(CannotRewind, match=r"step 1.*step 2"):
        await buffer.rewind(1)
    assert await picture(buffer) == before
    assert await buffer.rewind(2) == 1
    assert list(await rows(buffer)) == [3, 4]


async def test_the_oldest_step_is_let_go_with_a_warning(make):
    buffer = make(max_uncommitted_steps=2)
    await fill(buffer, 4)
    await train(buffer, 1)
    await train(buffer, 2)
    with pytest.warns(UncommittedWarning, match=r"step 1 can no longer be rewound.*more than 2.*commit"):
        await train(buffer, 3)
    amounts = await books(buffer)
    assert (amounts["consumed"].groups, amounts["uncommitted"].groups) == (1, 2)
    with pytest.raises(CannotRewind):
        await buffer.rewind(0)
    assert await buffer.rewind(1) == 2


async def test_a_step_counts_once_however_often_it_takes(make):
    buffer = make(max_uncommitted_steps=1)
    await fill(buffer, 3)
    for _ in range(3):
        await buffer.get(1, TASK, "completed", train_step=1)
    assert await buffer.rewind(0) == 3


async def test_without_kept_steps_nothing_that_was_used_can_be_undone():
    buffer = ReplayBufferConfig(sampler="fifo").build()
    await fill(buffer, 3)
    assert await buffer.rewind(5) == 0, "nothing was used after that"
    await train(buffer, 2)
    amounts = await books(buffer)
    assert (amounts["consumed"].groups, amounts["uncommitted"].groups) == (1, 0)
    with pytest.raises(CannotRewind, match="max_uncommitted_steps"):
        await buffer.rewind(1)
    assert await buffer.rewind(2) == 0


async def test_a_durable_buffer_keeps_many_steps_by_itself(tmp_path):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(1, 65):
            await train(buffer, step)
    again = crashed(buffer)
    assert await again.rewind(0) == 64
    assert uids_of(await again.get(99, TASK, "completed")) == list(range(1, 65))
    await buffer.close()
    await again.close()


async def test_newer_groups_are_kept_with_their_distance(make):
    buffer = make()
    await fill(buffer, 4, versions=[0, 2, 4, 6])
    await buffer.advance(6)
    await buffer.refresh_staleness(task_stale_thresholds={TASK: 99}, current_train_step=7)
    assert [row.staleness for row in (await rows(buffer)).values()] == [6, 4, 2, 0]
    await buffer.rewind(2)
    found = await rows(buffer)
    assert [row.staleness for row in found.values()] == [2, 0, 2, 4], "|3 - 1 - version|"
    await buffer.refresh_staleness(task_stale_thresholds={TASK: 2}, current_train_step=3)
    assert list(await rows(buffer, status="expired")) == [1], "only the older side expires"
    taken = await buffer.get(9, TASK, "completed", train_step=3)
    assert [items[0].seq_staleness for items in taken] == [0, 2, 4]


async def test_what_is_put_after_a_rewind_is_not_from_lost_weights(make):
    buffer = make()
    await train(buffer, 5)
    await fill(buffer, 1, versions=[4])
    await buffer.rewind(2)
    await fill(buffer, 1, versions=[3])
    found = await rows(buffer)
    assert (found[1].staleness, found[2].staleness) == (2, -1)


async def test_newer_groups_expire_if_asked(make):
    buffer = make()
    await fill(buffer, 4, versions=[0, 2, 3, None])
    await buffer.put(group(version=3, status="aborted"), TASK)
    await train(buffer, 4)
    assert await buffer.rewind(2, newer="expire") == 1
    found = await rows(buffer)
    assert {uid: row.status.value for uid, row in found.items()} == {
        1: "completed",
        2: "completed",
        3: "expired",
        4: "completed",
        5: "expired",
    }
    assert (await books(buffer))["expired"].tokens == 4
    taken = await buffer.get(9, TASK, "expired")
    assert uids_of(taken) == [3, 5]
    assert all(len(items[0].response_ids) == 0 for items in taken)


async def test_groups_that_come_back_expire_too_if_they_are_newer(make):
    buffer = make()
    await fill(buffer, 2, versions=[0, 3])
    await train(buffer, 4, 2)
    assert await buffer.rewind(2, newer="expire") == 2
    found = await rows(buffer)
    assert [row.status.value for row in found.values()] == ["completed", "expired"]
    await books(buffer)


async def test_the_limiter_forgets_the_undone_samples(make):
    buffer = make(rate_limiter=Queue(2))
    await fill(buffer, 2)
    await train(buffer, 1, 2)
    await fill(buffer, 2)
    await train(buffer, 2, 2)
    task = probe(buffer).engine.tasks[TASK]
    assert (task.counters.inserts, task.counters.samples, task.counters.deletes) == (4, 4, 4)
    assert await buffer.rewind(1) == 2
    assert (task.counters.inserts, task.counters.samples, task.counters.deletes) == (4, 2, 2)
    assert await buffer.is_ready({TASK: 2})
    assert not task.can_insert(1), "the queue is full again"
    await train(buffer, 2, 2)
    assert task.can_insert(2)


async def test_the_window_goes_back(make):
    buffer = make(rate_limiter=StalenessWindow(1, 2))
    await fill(buffer, 4, versions=[0] * 4)
    for step in (1, 2):
        await train(buffer, step, 2)
    task = probe(buffer).engine.tasks[TASK]
    assert (task.done_step, task.serving_version, task.consumed, task.may_start()) == (2, 2, 0, 4)
    await buffer.rewind(1)
    assert (task.done_step, task.serving_version, task.consumed) == (1, 1, 0)
    assert task.may_start() == 2, "the two that came back count again"
    assert uids_of(await buffer.get(2, TASK, "completed", train_step=2)) == [3, 4]
    assert task.consumed == 2
    assert task.may_start() == 2


async def test_tasks_that_come_later_start_from_the_rewound_step(make):
    buffer = make(rate_limiter=StalenessWindow(1, 2))
    await buffer.advance(5)
    await buffer.rewind(2)
    await fill(buffer, 1)
    task = probe(buffer).engine.tasks[TASK]
    assert (task.done_step, task.serving_version) == (2, 2)


@pytest.mark.parametrize("remover", [None, "fifo"])
async def test_groups_that_come_back_may_be_more_than_fit(make, remover):
    buffer = make(capacity=2, remover=remover)
    await fill(buffer, 2)
    await train(buffer, 1, 2)
    await fill(buffer, 2)
    assert await buffer.rewind(0) == 2
    amounts = await books(buffer)
    if remover is None:  # nothing untrained is dropped: puts wait until it fits again
        assert list(await rows(buffer)) == [1, 2, 3, 4]
        assert not probe(buffer).engine.tasks[TASK].can_insert(1)
    else:
        assert list(await rows(buffer)) == [3, 4]
        assert amounts["evicted"].groups == 2
    assert amounts["put"].groups == 4


async def test_groups_that_left_otherwise_do_not_come_back(make):
    buffer = make(max_times_sampled=3)
    await fill(buffer, 3, versions=[0, 0, 5])
    await buffer.sample(3, TASK, train_step=6)
    await buffer.delete([1])
    await buffer.refresh_staleness(task_stale_thresholds={TASK: 3}, current_train_step=6)
    (items,) = await buffer.get(1, TASK, "expired")
    items[0].status, items[0].response_ids, items[0].response_model_steps = "completed", [1], [5]
    await buffer.put(items, TASK)
    await buffer.sample(1, TASK, train_step=6)
    await buffer.rewind(5)
    found = await rows(buffer)
    assert {uid: (row.times_sampled, row.attempts) for uid, row in found.items()} == {2: (0, 2), 3: (0, 1)}
    await books(buffer)


async def test_nothing_is_trained_twice_on_the_way_that_counts(make):
    buffer = make()
    await fill(buffer, 12)
    trained, step, restarts = {}, 1, iter([(3, 1), (5, 4), (6, 2)])
    restart = next(restarts)
    while await buffer.count(TASK, "completed"):
        trained[step] = await train(buffer, step, 2)
        if restart is not None and step == restart[0]:
            step = restart[1]
            await buffer.rewind(step)
            trained = {done: uids for done, uids in trained.items() if done <= step}
            restart = next(restarts, None)
        step += 1
    assert sorted(uid for uids in trained.values() for uid in uids) == list(range(1, 13))


@pytest.mark.parametrize(("arguments", "options"), [((-2,), {}), ((None,), {}), ((1,), {"newer": "drop"})])
async def test_wrong_arguments(make, arguments, options):
    with pytest.raises(InvalidArgument):
        await make().rewind(*arguments, **options)


async def test_uncommitted_steps_survive_a_save(make, tmp_path):
    buffer = make()
    await fill(buffer, 4)
    for step in (1, 2, 3):
        await train(buffer, step)
    await buffer.commit(1)
    await buffer.save(tmp_path / "saved")
    again = make()
    await again.resume(tmp_path / "saved")
    assert await picture(again) == await picture(buffer)
    with pytest.raises(CannotRewind):
        await again.rewind(0)
    assert await again.rewind(1) == await buffer.rewind(1) == 2
    assert await picture(again) == await picture(buffer)
    assert uids_of(await again.get(9, TASK, "completed")) == [2, 3, 4]


@pytest.mark.parametrize("acks", [True, False])
@pytest.mark.parametrize("rewinds_first", [True, False])
async def test_a_group_that_is_taken_while_it_is_lent_keeps_both_uses_apart(make, acks, rewinds_first):
    buffer = make(max_times_sampled=3)
    await fill(buffer, 1)
    batch = await buffer.lease({TASK: 1}, train_step=1)
    await buffer.get(1, TASK, "completed", train_step=2)
    if rewinds_first:
        assert await buffer.rewind(1) == 1
        assert (await row_of(buffer, 1)).times_sampled == 1, "the pending one"
        assert (await books(buffer))["resident"].trained_groups == 0
    await (batch.ack() if acks else batch.nack())
    if not rewinds_first:
        assert await buffer.rewind(1) == 1
    assert (await row_of(buffer, 1)).times_sampled == int(acks)
    assert (await books(buffer))["resident"].trained_groups == int(acks)
    await buffer.rewind(0)
    assert (await row_of(buffer, 1)).times_sampled == 0
    assert probe(buffer).engine.tasks[TASK].counters.samples == 0


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("ttl_s", [None, 0], ids=["in time", "late"])
@pytest.mark.parametrize("newer", ["sample", "lease"])
async def test_a_group_is_used_up_by_its_newest_step_whoever_acknowledges_last(make, newer, ttl_s, commits):
    buffer = make(max_times_sampled=2)
    await fill(buffer, 1)
    first = await buffer.lease({TASK: 1}, train_step=1, ttl_s=ttl_s)
    if newer == "sample":
        await buffer.sample(1, TASK, train_step=3)
    else:
        await (await buffer.lease({TASK: 1}, train_step=3)).ack()
    await first.ack()
    assert len(buffer) == 0
    if commits:
        assert await buffer.commit(1) == 0, "what step 3 has used may still be undone"
    assert await buffer.rewind(1) == 1
    assert (await row_of(buffer, 1)).times_sampled == 1
    assert drawn(await buffer.sample(1, TASK, train_step=2)) == [1]
    assert await buffer.commit(2) == 1
    await books(buffer)


async def test_a_lease_of_a_step_that_was_rewound_counts_for_it_all_the_same(make):
    buffer = make(max_times_sampled=3)
    await fill(buffer, 1)
    lost = await buffer.lease({TASK: 1}, train_step=5)
    await buffer.rewind(1)
    await buffer.get(1, TASK, "completed", train_step=2)
    await lost.ack()
    assert await buffer.rewind(2) == 0, "step 2 has consumed it"
    assert await buffer.commit(2) == 1
    await books(buffer)
