"""sample(): by which chance groups are drawn, and what is said of each draw."""

from collections import Counter

import numpy as np
import pytest

from engine.chances import assert_fits
from replay.buffers import TASK, books, cancel, drawn, fifo, fill, group, infos, replay, row_of, rows, start
from reroll import (
    Fifo,
    InvalidArgument,
    InvalidConfig,
    InvalidPriority,
    Mixture,
    Prioritized,
    Queue,
    ReplayBufferConfig,
    SampleToInsertRatio,
    Uniform,
    WaitTimeout,
)

ROUNDS = 1_200
PRIORITIES = [1.0, 2.0, 4.0, 0.5, 3.0]


def chances(weights):
    """Return the definition of probability: each weight by the sum of all."""
    total = sum(weights.values())
    return {uid: weight / total for uid, weight in weights.items()}


async def draw_many(buffer, expected, *, rounds=ROUNDS, **options):
    """Draw one at a time, check what is said of each draw, and return how often each group came."""
    seen = Counter()
    for _ in range(rounds):
        (info,) = infos(await buffer.sample(1, TASK, **options))
        assert info.probability == pytest.approx(expected[info.uid])
        assert info.weight == 1
        seen[info.uid] += 1
    return seen


# --- chances


async def test_uniform_draws_each_group_with_the_same_chance():
    buffer = replay()
    uids = await fill(buffer, 6)
    expected = dict.fromkeys(uids, 1 / 6)
    assert_fits(await draw_many(buffer, expected), expected)


async def test_uniform_draws_of_several_are_distinct_and_every_pair_has_the_same_chance():
    buffer = replay()
    uids = await fill(buffer, 5)
    seen = Counter()
    for _ in range(ROUNDS):
        pair = drawn(await buffer.sample(2, TASK))
        assert len(set(pair)) == 2
        seen[frozenset(pair)] += 1
    pairs = {frozenset((a, b)) for a in uids for b in uids if a != b}
    assert_fits(seen, dict.fromkeys(pairs, 1 / len(pairs)))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
async def test_prioritized_draws_by_priority_to_the_power_of_alpha(alpha):
    buffer = replay(sampler=Prioritized(alpha=alpha))
    await fill(buffer, 5, priorities=PRIORITIES)
    expected = chances({uid: row.priority**alpha for uid, row in (await rows(buffer)).items()})
    assert_fits(await draw_many(buffer, expected), expected)


async def test_after_update_priorities_the_draws_follow():
    buffer = replay(sampler=Prioritized())
    uids = await fill(buffer, 5, priorities=PRIORITIES)
    await buffer.sample(3, TASK)
    assert await buffer.update_priorities({uids[0]: 9.0, uids[2]: 0.25, 10**9: 1.0}) == [10**9]
    expected = chances({uid: row.priority for uid, row in (await rows(buffer)).items()})
    assert expected[uids[0]] == pytest.approx(9 / 14.75 * 14.75 / (9 + 2 + 0.25 + 0.5 + 3))
    assert_fits(await draw_many(buffer, expected), expected)


async def test_a_bad_priority_changes_nothing():
    buffer = replay(sampler=Prioritized())
    uids = await fill(buffer, 2, priorities=[1.0, 3.0])
    for bad in (-1.0, float("nan"), float("inf"), "1", None):
        with pytest.raises(InvalidPriority):
            await buffer.update_priorities({uids[0]: 5.0, uids[1]: bad})
        with pytest.raises((InvalidPriority, InvalidArgument)):
            await buffer.put(group(), TASK, priority="x" if bad is None else bad)
    assert [row.priority for row in (await rows(buffer)).values()] == [1.0, 3.0]


@pytest.mark.filterwarnings("ignore:.*without versions")
async def test_decay_by_version_halves_the_weight_each_half_life():
    buffer = replay(sampler=Prioritized(half_life=2.0))
    await fill(buffer, 5, priorities=PRIORITIES, versions=[0, 1, 4, 4, None])
    await buffer.sample(1, TASK, train_step=6)  # the task learns its step: version 5 is now
    found = await rows(buffer)
    weights = {
        uid: row.priority * (1 if row.version is None else 0.5 ** ((5 - row.version) / 2))
        for uid, row in found.items()
    }
    assert [row.staleness for row in found.values()] == [5, 4, 1, 1, 0]
    assert_fits(await draw_many(buffer, chances(weights)), chances(weights))


@pytest.mark.filterwarnings("ignore:.*without versions")
async def test_decay_follows_the_steps_and_new_versions_that_come_meanwhile():
    buffer = replay(sampler=Prioritized(half_life=1.0))
    await fill(buffer, 3, versions=[0, 0, None])
    for step in (3, 8, 40):
        await buffer.refresh_staleness(task_stale_thresholds={TASK: 1_000}, current_train_step=step)
        await fill(buffer, 1, versions=[step - 1])
        found = await rows(buffer)
        weights = {u: 1 if r.version is None else 2.0 ** -(step - 1 - r.version) for u, r in found.items()}
        expected = chances(weights)
        for sample in await buffer.sample(len(found), TASK):
            assert sample.info.probability == pytest.approx(expected[sample.info.uid], rel=1e-9, abs=1e-12)


async def test_decay_by_use_counts_each_use():
    buffer = replay(sampler=Prioritized(reuse_decay=0.5), max_times_sampled=1_000_000)
    uids = await fill(buffer, 3, priorities=[1.0, 2.0, 4.0])
    uses = dict.fromkeys(uids, 0)
    seen = Counter()
    for _ in range(60):
        weights = {u: p * 0.5 ** uses[u] for u, p in zip(uids, [1.0, 2.0, 4.0], strict=True)}
        (info,) = infos(await buffer.sample(1, TASK))
        assert info.probability == pytest.approx(chances(weights)[info.uid])
        uses[info.uid] += 1
        assert info.times_sampled == uses[info.uid]
        seen[info.uid] += 1
    assert max(seen.values()) - min(seen.values()) <= 8  # who is used falls behind the others
    assert {u: r.times_sampled for u, r in (await rows(buffer)).items()} == uses


async def test_first_draws_under_decay_by_use_follow_the_chances():
    seen, second = Counter(), Counter()
    for seed in range(400):
        buffer = replay(sampler=Prioritized(reuse_decay=0.25), seed=seed)
        uids = await fill(buffer, 2, priorities=[3.0, 1.0])
        first = drawn(await buffer.sample(1, TASK))[0]
        seen[first] += 1
        if first == uids[0]:
            second[drawn(await buffer.sample(1, TASK))[0]] += 1
    assert_fits(seen, {uids[0]: 0.75, uids[1]: 0.25})
    assert_fits(second, {uids[0]: 0.75 / 1.75, uids[1]: 1 / 1.75})


# --- what is said of a draw


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
async def test_importance_weights_are_those_of_the_definition(beta):
    buffer = replay(sampler=Prioritized(alpha=0.7, beta=beta))
    await fill(buffer, 5, priorities=PRIORITIES)
    expected = chances({uid: row.priority**0.7 for uid, row in (await rows(buffer)).items()})
    for _ in range(20):
        batch = infos(await buffer.sample(3, TASK))
        raw = [(5 * expected[info.uid]) ** -beta for info in batch]
        for info, weight in zip(batch, raw, strict=True):
            assert info.probability == pytest.approx(expected[info.uid])
            assert info.weight == pytest.approx(weight / max(raw))
            assert info.table_size == 5
            assert info.priority == PRIORITIES[info.uid - 1]


async def test_deterministic_samplers_are_certain_of_what_they_draw():
    buffer = replay(sampler="least_used")
    await fill(buffer, 3)
    for info in infos(await buffer.sample(3, TASK)):
        assert (info.probability, info.weight, info.times_sampled) == (1.0, 1.0, 1)


async def test_an_info_tells_uses_staleness_and_the_size_before_the_draw():
    buffer = replay(max_times_sampled=2)
    (uid,) = await fill(buffer, 1, versions=[3])
    (first,) = infos(await buffer.sample(1, TASK, train_step=6))
    (second,) = infos(await buffer.sample(1, TASK))
    assert (first.uid, first.times_sampled, first.staleness, first.table_size) == (uid, 1, 2, 1)
    assert (second.uid, second.times_sampled, second.table_size) == (uid, 2, 1)
    assert len(buffer) == 0
    assert (await books(buffer))["consumed"].groups == 1


async def test_a_sampled_group_has_the_staleness_of_the_step():
    buffer = replay()
    items = group(version=1)
    await buffer.put(items, TASK)
    (sample,) = await buffer.sample(1, TASK, train_step=5)
    assert (sample.group[0].seq_staleness, sample.group.staleness) == (3, 3)
    assert list(sample.group[0].response_ids) == list(items[0].response_ids)


# --- zero weight


async def test_groups_of_weight_zero_come_last_and_never_blow_up_a_weight():
    buffer = replay(sampler=Prioritized(beta=1.0))
    uids = await fill(buffer, 5, priorities=[0.0, 2.0, 0.0, 1.0, 0.0])
    for _ in range(50):
        assert set(drawn(await buffer.sample(2, TASK))) == {uids[1], uids[3]}
    zeros = Counter()
    for _ in range(900):
        batch = infos(await buffer.sample(3, TASK))
        by_uid = {info.uid: info for info in batch}
        (zero,) = by_uid.keys() - {uids[1], uids[3]}
        assert (by_uid[zero].probability, by_uid[zero].weight) == (0.0, 1.0)
        assert by_uid[uids[3]].weight == pytest.approx(1.0)  # the rarer has the largest
        assert by_uid[uids[1]].weight == pytest.approx(0.5)
        zeros[zero] += 1
    assert_fits(zeros, dict.fromkeys([uids[0], uids[2], uids[4]], 1 / 3))


async def test_if_all_weigh_zero_draws_are_uniform():
    buffer = replay(sampler=Prioritized())
    uids = await fill(buffer, 4, priorities=[0.0] * 4)
    expected = dict.fromkeys(uids, 0.25)
    assert_fits(await draw_many(buffer, expected, rounds=800), expected)


async def test_consuming_calls_hand_out_weight_zero_last():
    buffer = replay(sampler=Prioritized(), max_times_sampled=1)
    uids = await fill(buffer, 6, priorities=[0.0, 1.0, 0.0, 2.0, 3.0, 0.0])
    got = [r[0].group_uid for r in await buffer.get(6, TASK, "completed")]
    assert set(got[:3]) == {uids[1], uids[3], uids[4]}
    assert set(got[3:]) == {uids[0], uids[2], uids[5]}


async def test_groups_without_variance_never_dead_lock_a_trainer():
    buffer = replay(sampler=Prioritized(), priority_signal="reward_std", max_times_sampled=1, capacity=4)
    for _ in range(20):
        for _ in range(4):
            await buffer.put(group(rewards=(1.0, 1.0, 1.0)), TASK, timeout=0)
        batch = await buffer.sample(4, TASK, timeout=0)
        assert [info.priority for info in infos(batch)] == [0.0] * 4
        assert all(np.isfinite(info.weight) for info in infos(batch))
    assert (await books(buffer))["consumed"].groups == 80


# --- priority signals


@pytest.mark.parametrize(
    ("signal", "rewards", "priority"),
    [
        ("reward_std", (1.0, 0.0, 0.0, 1.0), 0.5),
        ("reward_std", (1.0, 1.0), 0.0),
        ("solve_rate", (1.0, 0.0, 0.0, 0.0), 0.25 * 0.75),
        ("solve_rate", (1.0, 1.0), 0.0),
        ("solve_rate", (0.0, 0.0), 0.0),
        ("mean_abs_advantage", (2.0, 0.0, 1.0, 1.0), 0.5),
        ("mean_abs_advantage", (3.0,), 0.0),
        ("reward_std", ({"score": 1.0}, {"score": 0.0}), 0.5),
        (lambda rollouts: 10.0 * len(rollouts), (None, None, None), 30.0),
        (None, (1.0, 0.0), 1.0),
    ],
)
async def test_signals_set_the_priority_at_put(signal, rewards, priority):
    buffer = replay(sampler=Prioritized(), priority_signal=signal)
    uid = await buffer.put(group(rewards=rewards), TASK)
    assert (await row_of(buffer, uid)).priority == pytest.approx(priority)
    told = await buffer.put(group(rewards=rewards), TASK, priority=7.5)
    assert (await row_of(buffer, told)).priority == 7.5


async def test_update_priorities_sets_the_signal_and_decay_stays():
    buffer = replay(sampler=Prioritized(half_life=1.0), priority_signal="reward_std")
    old = await buffer.put(group(rewards=(1.0, 0.0), version=0), TASK)
    new = await buffer.put(group(rewards=(1.0, 0.0), version=2), TASK)
    await buffer.update_priorities({old: 4.0, new: 1.0})
    shares = {i.uid: i.probability for i in infos(await buffer.sample(2, TASK, train_step=3))}
    assert shares == pytest.approx({old: 0.5, new: 0.5})


async def test_signals_may_differ_by_task():
    config = ReplayBufferConfig(
        tasks={"a": {"priority_signal": "solve_rate"}, "b": {"priority_signal": "reward_std"}}
    )
    buffer = config.build()
    a = await buffer.put(group(rewards=(1.0, 0.0)), "a")
    b = await buffer.put(group(rewards=(1.0, 0.0)), "b")
    assert (await row_of(buffer, a)).priority == 0.25
    assert (await row_of(buffer, b)).priority == 0.5


@pytest.mark.parametrize("bad", [-1.0, float("nan"), "much", None])
async def test_a_signal_that_gives_no_priority_is_refused_before_anything_changes(bad):
    buffer = replay(sampler=Prioritized(), priority_signal=lambda _: bad)
    with pytest.raises(InvalidPriority):
        await buffer.put(group(), TASK)
    assert len(buffer) == 0


# --- mixture


async def test_a_mixture_takes_its_share_of_fresh_groups():
    buffer = replay(sampler=Mixture(0.3, replay=Uniform()))
    await fill(buffer, 20)
    await buffer.sample(8, TASK)  # 8 groups are no longer fresh
    fresh_counts = Counter()
    for _ in range(200):
        before = {uid for uid, row in (await rows(buffer)).items() if row.times_sampled == 0}
        batch = await buffer.sample(5, TASK)
        fresh = [uid for uid in drawn(batch) if uid in before]
        assert len(set(drawn(batch))) == 5
        fresh_counts[len(fresh)] += 1
        await fill(buffer, len(fresh))
    assert_fits(fresh_counts, {1: 0.5, 2: 0.5})  # floor(1.5), and one more half of the time


async def test_the_parts_of_a_mixture_are_drawn_by_their_own_chances():
    sampler = Mixture(0.5, replay=Prioritized(beta=1.0), fresh=Fifo())
    buffer = replay(sampler=sampler)
    uids = await fill(buffer, 3, priorities=[1.0, 2.0, 5.0])
    await buffer.sample(3, TASK)
    seen = Counter()
    for _ in range(600):
        (fresh,) = await fill(buffer, 1, priorities=[1.0])
        batch = {info.uid: info for info in infos(await buffer.sample(2, TASK))}
        assert batch.pop(fresh).probability == 1.0
        ((uid, info),) = batch.items()
        assert info.probability == pytest.approx({uids[0]: 1, uids[1]: 2, uids[2]: 5}[uid] / 8)
        seen[uid] += 1
        await buffer.delete([fresh])
    assert_fits(seen, {uids[0]: 1 / 8, uids[1]: 2 / 8, uids[2]: 5 / 8})


async def test_a_mixture_waits_for_its_fresh_part_and_fills_the_replayed_part_from_fresh():
    buffer = replay(sampler=Mixture(0.5, replay=Uniform()))
    first = await fill(buffer, 4)
    assert set(drawn(await buffer.sample(4, TASK))) == set(first)  # nothing to replay: all fresh
    waiting = await start(buffer.sample(4, TASK))
    assert not waiting.done()
    await fill(buffer, 1)
    assert not waiting.done()
    await fill(buffer, 1)
    assert len(set(drawn(await waiting)) - set(first)) == 2


async def test_a_mixture_that_must_starve_under_its_limiter_is_refused():
    # Half of each batch is fresh, so a group is sampled twice on average; the limiter wants four times.
    with pytest.raises(InvalidConfig):
        replay(sampler=Mixture(0.5), rate_limiter=SampleToInsertRatio(4.0, 1, 8.0))


# --- limits


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("sampler", [Uniform(), Prioritized(), Mixture(0.25, replay=Uniform())])
async def test_nothing_beyond_its_use_limit_is_handed_out(sampler, replace):
    buffer = replay(sampler=sampler, max_times_sampled=3)
    seen = Counter()
    for round_ in range(200):
        await fill(buffer, 2)
        how = round_ % 3
        if how == 0:
            seen.update(drawn(await buffer.sample(2, TASK, replace=replace, allow_short=True)))
        elif how == 1:
            batch = await buffer.lease({TASK: 2})
            seen.update(drawn(batch.samples[TASK]))
            await batch.ack()
        else:
            seen.update(g[0].group_uid for g in await buffer.get(1, TASK, "completed"))
        assert all(row.times_sampled < 3 for row in (await rows(buffer)).values())
    assert max(seen.values()) <= 3
    await books(buffer)


@pytest.mark.parametrize("how", ["sample", "replace", "lease", "get", "take"])
async def test_nothing_beyond_its_bound_is_handed_out(how):
    buffer = replay(max_staleness=2, on_stale="drop", sampler=Uniform())
    await fill(buffer, 6, versions=[0, 1, 2, 3, 4, 5])
    if how == "sample":
        got = [s.group for s in await buffer.sample(6, TASK, allow_short=True, train_step=6)]
    elif how == "replace":
        got = [s.group for s in await buffer.sample(40, TASK, replace=True, train_step=6)]
    elif how == "lease":
        got = (await buffer.lease({TASK: 6}, train_step=6)).groups[TASK]
    elif how == "get":
        got = await buffer.get(6, TASK, "completed", train_step=6)
    else:
        got = (await buffer.take_batch({TASK: 6}, train_step=6))[0][TASK]
    assert {g[0].seq_staleness for g in got} == {0, 1, 2}
    assert (await books(buffer))["expired"].groups == 3


async def test_groups_pass_the_bound_by_refresh_advance_and_at_put():
    buffer = replay(max_staleness=1, on_stale="drop")
    await fill(buffer, 4, versions=[0, 1, 2, 3])
    await buffer.refresh_staleness(task_stale_thresholds={TASK: 50}, current_train_step=3)
    assert await buffer.count(TASK, "completed") == 3
    await buffer.advance(4)
    assert await buffer.count(TASK, "completed") == 2
    assert await buffer.put(group(version=1), TASK) is None
    assert await buffer.put(group(version=2), TASK, current_train_step=5) is None
    assert await buffer.put(group(version=3), TASK) is not None
    assert (await books(buffer))["expired"].groups == 2 + 3  # version 2 went as step 5 was told


async def test_a_sample_that_waits_gives_n_groups_even_if_its_step_makes_some_too_stale():
    buffer = replay(max_staleness=1)
    await fill(buffer, 2, versions=[0, 0])
    waiting = await start(buffer.sample(2, TASK, train_step=9))
    assert not waiting.done()
    await fill(buffer, 2, versions=[8, 8])
    assert len(await waiting) == 2


async def test_a_take_that_waits_is_all_or_nothing_even_if_its_step_makes_groups_too_stale():
    buffer = fifo(max_staleness=1)
    await fill(buffer, 2, versions=[0, 0])
    waiting = await start(buffer.take_batch({TASK: 2}, wait=True, train_step=9))
    assert not waiting.done()
    uids = await fill(buffer, 2, versions=[8, 8])
    groups, _ = await waiting
    assert [g[0].group_uid for g in groups[TASK]] == uids


# --- how many


async def test_sample_waits_for_n_distinct_groups():
    buffer = replay()
    await fill(buffer, 2)
    waiting = await start(buffer.sample(3, TASK))
    assert not waiting.done()
    await fill(buffer, 1)
    assert sorted(drawn(await waiting)) == [1, 2, 3]
    with pytest.raises(WaitTimeout):
        await buffer.sample(4, TASK, timeout=0)


async def test_allow_short_gives_what_is_there():
    buffer = replay()
    assert await buffer.sample(3, TASK, allow_short=True) == []
    await fill(buffer, 2)
    assert sorted(drawn(await buffer.sample(3, TASK, allow_short=True))) == [1, 2]


async def test_replace_draws_independently():
    buffer = replay(sampler=Prioritized())
    uids = await fill(buffer, 3, priorities=[1.0, 2.0, 5.0])
    seen = Counter()
    for _ in range(300):
        batch = infos(await buffer.sample(10, TASK, replace=True))
        assert len(batch) == 10
        seen.update(info.uid for info in batch)
    assert_fits(seen, {uids[0]: 1 / 8, uids[1]: 2 / 8, uids[2]: 5 / 8})
    assert sum(row.times_sampled for row in (await rows(buffer)).values()) == 3_000


async def test_replace_gives_n_draws_if_there_are_enough_uses_left():
    short = []
    for seed in range(30):
        buffer = replay(max_times_sampled=2, seed=seed)
        await fill(buffer, 3)
        if len(await buffer.sample(4, TASK, replace=True, timeout=0)) != 4:
            short.append(seed)
    assert not short


async def test_replace_with_an_ordered_sampler_still_waits_for_n():
    buffer = replay(sampler="least_used")
    await fill(buffer, 2)
    with pytest.raises(WaitTimeout):
        await buffer.sample(3, TASK, replace=True, timeout=0)


@pytest.mark.parametrize("replace", [False, True])
async def test_what_the_limiter_never_allows_is_refused_at_once(replace):
    buffer = replay(max_times_sampled=1, rate_limiter=Queue(3))
    with pytest.raises(InvalidArgument, match="3"):
        await buffer.sample(4, TASK, replace=replace, timeout=0)


async def test_what_the_capacity_never_holds_is_refused_at_once():
    buffer = replay(max_times_sampled=1, capacity=3)
    with pytest.raises(InvalidArgument, match="capacity"):
        await buffer.sample(4, TASK)
    with pytest.raises(InvalidArgument, match="capacity"):
        await buffer.lease({TASK: 4}, wait=True)
    with pytest.raises(InvalidArgument, match="capacity"):
        await buffer.take_batch({TASK: 4}, wait=True)
    assert await buffer.sample(4, TASK, allow_short=True) == []


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", None, True])
async def test_n_is_a_whole_number_of_at_least_one(n):
    buffer = replay()
    await fill(buffer, 3)
    with pytest.raises(InvalidArgument):
        await buffer.sample(n, TASK)


async def test_a_trainer_that_samples_as_much_as_the_limiter_allows_is_never_dead_locked():
    buffer = replay(sampler=Uniform(), max_times_sampled=2, rate_limiter=SampleToInsertRatio(2.0, 2, 2.0))
    try:
        waiting = await start(buffer.sample(4, TASK))
        if waiting.done():
            await waiting
    except InvalidArgument:
        return  # said at once that it can never be
    puts = [await start(buffer.put(group(), TASK)) for _ in range(8)]
    done = waiting.done()
    await cancel(waiting, *puts)
    assert done, "sample(4) waits for a fourth group, and the fourth put for a sample"


# --- capacity


@pytest.mark.parametrize(
    ("remover", "stay"),
    [
        ("fifo", [3, 4, 5, 6]),
        ("lifo", [1, 2, 3, 4]),  # the newest is always the newcomer
        ("min_heap", [1, 3, 5, 6]),
        ("max_heap", [2, 3, 4, 5]),
    ],
)
async def test_removers_choose_who_goes(remover, stay):
    priorities = [5.0, 1.0, 4.0, 2.0, 3.0, 6.0]
    buffer = replay(sampler="uniform", remover=remover, capacity=4)
    got = await fill(buffer, 6, priorities=priorities)
    assert sorted(await rows(buffer)) == stay
    assert [uid for uid in got if uid in stay] == stay
    assert (got[5] is None) == (6 not in stay)
    ledger = await books(buffer)
    assert (ledger["put"].groups, ledger["evicted"].groups) == (6, 2)


async def test_removers_by_staleness_and_use():
    buffer = replay(remover="stalest", capacity=2)
    await fill(buffer, 3, versions=[5, 1, 3], current_train_step=7)
    assert [row.version for row in (await rows(buffer)).values()] == [5, 3]
    buffer = replay(remover="freshest", capacity=2)
    await fill(buffer, 3, versions=[5, 1, 3], current_train_step=7)
    assert [row.version for row in (await rows(buffer)).values()] == [1, 3]
    buffer = replay(remover="least_used", capacity=2)
    await fill(buffer, 2)
    await buffer.sample(2, TASK)
    assert await fill(buffer, 1) == [None]  # never used: it goes first


async def test_a_uniform_remover_evicts_anybody_with_the_same_chance():
    seen = Counter()
    for seed in range(400):
        buffer = replay(remover="uniform", capacity=2, seed=seed)
        await fill(buffer, 3)
        seen.update({1, 2, 3} - set(await rows(buffer)))
    assert_fits(seen, dict.fromkeys([1, 2, 3], 1 / 3))


async def test_a_prioritized_remover_warns_and_evicts_by_weight():
    seen = Counter()
    for seed in range(300):
        with pytest.warns(UserWarning, match="most valuable"):
            buffer = replay(remover="prioritized", capacity=2, seed=seed)
        await fill(buffer, 3, priorities=[1.0, 2.0, 5.0])
        seen.update({1, 2, 3} - set(await rows(buffer)))
    assert_fits(seen, {1: 1 / 8, 2: 2 / 8, 3: 5 / 8})


async def test_without_a_remover_a_put_waits_until_a_group_is_used_up():
    buffer = replay(max_times_sampled=2, capacity=2)
    await fill(buffer, 2)
    waiting = await start(buffer.put(group(), TASK))
    await buffer.sample(2, TASK)
    assert not waiting.done()
    await buffer.sample(1, TASK)
    assert await waiting == 3
    assert len(buffer) == 2


# --- the same seed


async def session(seed):
    sampler = Mixture(0.4, replay=Prioritized(half_life=3.0, reuse_decay=0.9))
    buffer = replay(sampler=sampler, remover="uniform", capacity=12, max_times_sampled=4, seed=seed)
    said = []
    for step in range(1, 25):
        await fill(buffer, 4, priorities=[1.0, 0.0, 3.0, 2.0], versions=[step - 1] * 4)
        said += infos(await buffer.sample(3, TASK, allow_short=True, train_step=step))
        await buffer.update_priorities({info.uid: info.priority * 0.7 + 0.1 for info in said[-2:]})
        batch = await buffer.lease({TASK: 2})
        said += infos(batch.samples[TASK])
        await (batch.nack() if step % 3 else batch.ack())
        said += [g[0].group_uid for g in await buffer.get(1, TASK, "completed")]
    return said


async def test_the_same_seed_and_calls_give_the_same_samples():
    assert await session(3) == await session(3)
    assert await session(3) != await session(4)


@pytest.mark.parametrize("signal", ["reward_std", "solve_rate", "mean_abs_advantage"])
async def test_a_reward_that_is_no_number_does_not_spoil_the_priority(signal):
    buffer = replay(priority_signal=signal, on_invalid="fail_member", on_failed="drop_member")
    uid = await buffer.put(group(rewards=(float("nan"), 1.0, float("inf"), 0.0)), TASK)
    assert 0 <= (await row_of(buffer, uid)).priority < float("inf")
