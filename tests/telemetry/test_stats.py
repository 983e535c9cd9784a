"""stats() and metrics() against numbers worked out by hand, through the buffer's own verbs."""

import math
import pickle
from collections import Counter

import msgspec
import numpy as np
import pytest

from reroll import ReplayBufferConfig, Rollout
from reroll.buffer.buffer import ReplayBuffer
from reroll.engine.rows import LEASED
from reroll.engine.task import COMPLETED, STATUS_CODE
from reroll.rollout import Status
from reroll.telemetry import stats as telemetry_stats
from reroll.telemetry.counters import WaitStats
from reroll.telemetry.metrics import NUMBERS
from reroll.telemetry.stats import Lengths, Stats
from reroll.testing.probe import probe
from reroll.waiting import LoopWaits

ABORTED = STATUS_CODE[Status.ABORTED]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def built(**options):
    """Return a buffer and its clock, which stands still."""
    config = ReplayBufferConfig(**{"sampler": "fifo", **options})
    clock = Clock()
    groups = probe(config.build()).groups
    buffer = ReplayBuffer(groups, LoopWaits(), clock=clock)
    groups.counters.started = clock.now
    return buffer, clock


def rollout(versions, *, reward=None, status="completed", prompt=2):
    return Rollout(
        prompt_ids=[7] * prompt,
        response_ids=range(len(versions)),
        response_model_steps=versions,
        reward=reward,
        status=status,
    )


async def scenario():
    """Two tasks, mixed versions, one group continued, one failed, one expired in place, one dropped; one trained."""
    buffer, clock = built()
    mixed = [rollout([1, 1, 2, 2], reward=1.0), rollout([2] * 8, reward=0.0)]  # 6 + 10 tokens
    fresh = [rollout([3], reward=1.0), rollout([3] * 3, reward=1.0)]  # 3 + 5
    await buffer.put(mixed, "math")
    await buffer.put(fresh, "math")
    await buffer.put([rollout([1] * 3, status="aborted")], "math")  # 5
    await buffer.put([rollout([], status="failed")], "math")  # 2
    ((partial,),) = await buffer.get(1, "math", "aborted")
    partial.response_ids, partial.response_model_steps = range(5), [1, 1, 1, 3, 3]  # 7
    partial.status, partial.reward = "completed", {"score": 0.0}
    await buffer.put([partial], "math")
    await buffer.get(1, "math", "completed", train_step=4)
    await buffer.put([rollout([0] * 4, prompt=1)], "code")  # 5
    await buffer.put(
        [rollout([0] * 6, prompt=1, reward=1.0)],
        "code",
        current_train_step=5,
        stale_threshold=3,
        expired_groups_retryable=False,
    )
    await buffer.refresh_staleness(task_stale_thresholds={"code": 3}, current_train_step=5)
    clock.now += 10.0
    return buffer


# --- stats


async def test_what_is_there():
    stats = await (await scenario()).stats()
    math_, code = stats.tasks["math"], stats.tasks["code"]
    none = dict.fromkeys(("init", "completed", "aborted", "expired", "failed", "filtered", "archived"), 0)
    assert math_.statuses == none | {"completed": 2, "failed": 1}
    assert code.statuses == none | {"expired": 1}
    assert stats.total.statuses == none | {"completed": 2, "failed": 1, "expired": 1}
    assert (math_.step, code.step, stats.total.step) == (4, 5, 5)
    assert (math_.num_tokens, code.num_tokens) == (3 + 5 + 7 + 2, 1)
    assert stats.num_bytes == math_.num_bytes + code.num_bytes == stats.total.num_bytes
    # versions 3 and 1 to 3, at step 4
    assert math_.staleness.histogram == {0: 1, 2: 1}
    assert math_.age.histogram == {0: 2}
    assert math_.uses.histogram == {0: 2}
    # 8 tokens over 2 rollouts, and 7
    assert math_.lengths == Lengths(count=2, total=11.0, histogram={4: 2})
    assert code.staleness.count == 0
    assert code.staleness.mean is None
    assert stats.total.staleness == math_.staleness


async def test_what_is_there_in_a_large_buffer(monkeypatch):
    """Against the simple way, over several chunks of rows, with gaps, other statuses, and values far apart."""
    buffer, _ = built()
    monkeypatch.setattr(telemetry_stats, "_CHUNK", 256)
    rng = np.random.default_rng(0)
    engine = probe(buffer).engine
    tasks = [engine.task("math"), engine.task("code")]
    rows = []
    for n in range(2_000):
        version = int(rng.integers(0, 9)) if n % 7 else 1_000_000_000 * (n % 2)
        row = {
            "version": version,
            "newest": version + 1,
            "num_tokens": int(rng.integers(0, 999)),
            "num_rollouts": 2 if n % 11 else 999,
        }
        slot = engine.insert(tasks[n % 2], row, COMPLETED if n % 5 else ABORTED).slot
        if n % 5 and n % 3:
            rows.append((tasks[n % 2].name, version, row["num_tokens"] / row["num_rollouts"]))
        elif n % 5:
            engine.delete(np.array([slot]))
    for step, task in enumerate(tasks, 20):
        task.step = step
    stats = await buffer.stats()
    for step, name in enumerate(("math", "code"), 20):
        mine = [(version, length) for task, version, length in rows if task == name]
        found = stats.tasks[name]
        assert found.staleness.histogram == Counter(step - version - 1 for version, _ in mine)
        assert found.age.histogram == Counter(step - version - 2 for version, _ in mine)
        assert found.uses.histogram == {0: len(mine)}
        assert found.lengths.histogram == Counter(1 << int(length).bit_length() >> 1 for _, length in mine)
        assert found.lengths.total == pytest.approx(sum(length for _, length in mine))
    assert stats.total.staleness.count == len(rows)
    assert stats.total.lengths.count == len(rows)


async def test_groups_that_are_leased_are_not_there():
    buffer, _ = built()
    for _ in range(2):
        await buffer.put([rollout([1])], "t")
    probe(buffer).engine.columns.place[0] = LEASED
    assert (await buffer.stats()).tasks["t"].staleness.count == 1


async def test_groups_without_versions_have_no_age():
    buffer, _ = built()
    await buffer.put([rollout([])], "t")
    await buffer.put([rollout([1])], "t")
    before = (await buffer.stats()).tasks["t"]
    assert (before.staleness.histogram, before.age.histogram) == ({0: 2}, {})
    await buffer.refresh_staleness(task_stale_thresholds={"t": 9}, current_train_step=4)
    after = (await buffer.stats()).tasks["t"]
    assert (after.staleness.histogram, after.age.histogram) == ({0: 1, 2: 1}, {2: 1})


async def test_what_was_put():
    stats = await (await scenario()).stats()
    math_, code = stats.tasks["math"], stats.tasks["code"]
    assert {status: n for status, n in math_.puts.items() if n} == {"completed": 3, "aborted": 1, "failed": 1}
    assert {status: n for status, n in code.puts.items() if n} == {"completed": 1, "expired": 1}
    assert (math_.put.groups, math_.put.tokens) == (4, 16 + 8 + 7 + 2)
    produced = math_.produced
    assert (produced.groups, produced.rollouts) == (3, 5)  # not the aborted 3 tokens, but all 5 in the end
    assert produced.lengths == Lengths(count=5, total=21, histogram={1: 1, 2: 1, 4: 2, 8: 1})
    assert produced.reward_mean == 3 / 5
    assert produced.solved_share == 3 / 5
    assert produced.zero_variance_share == 1 / 2  # of the two groups that have two
    assert code.produced.lengths == Lengths(count=2, total=10, histogram={4: 2})
    assert stats.total.produced.lengths == Lengths(count=7, total=31, histogram={1: 1, 2: 1, 4: 4, 8: 1})
    assert stats.total.produced.reward_mean == 4 / 6


async def test_what_was_trained():
    stats = await (await scenario()).stats()
    trained = stats.tasks["math"].trained
    assert (trained.groups, trained.rollouts) == (1, 2)
    assert trained.lengths == Lengths(count=2, total=12, histogram={4: 1, 8: 1})
    assert (trained.reward_mean, trained.solved_share, trained.zero_variance_share) == (0.5, 0.5, 0.0)
    staleness = {key: d.histogram for key, d in stats.tasks["math"].trained_staleness.items()}
    assert staleness == {"oldest": {2: 1}, "newest": {1: 1}, "tokens": {1: 10, 2: 2}}
    assert stats.tasks["math"].trained_uses.histogram == {1: 1}
    assert stats.tasks["code"].trained.groups == 0
    assert stats.tasks["code"].trained.reward_mean is None
    assert stats.total.trained == trained


async def test_tokens_lost_by_reason():
    stats = await (await scenario()).stats()
    none = dict.fromkeys(("expired", "evicted", "filtered", "failed", "deleted", "lost"), 0)
    assert stats.tasks["math"].lost_tokens == none
    assert stats.tasks["code"].lost_tokens == none | {"expired": 4 + 7}
    assert stats.tasks["code"].lost_share == 11 / 12
    assert stats.total.lost_share == 11 / (33 + 12)


async def test_trained_tokens_are_not_lost():
    buffer, _ = built(max_times_sampled=None, capacity=1, sampler="uniform", remover="fifo")
    await buffer.put([rollout([1])], "t")
    probe(buffer).engine.draw(probe(buffer).engine.task("t"), 1)
    await buffer.put([rollout([1] * 5)], "t")
    await buffer.put([rollout([1] * 9)], "t")
    stats = await buffer.stats()
    assert stats.tasks["t"].lost_tokens["evicted"] == 7  # of the second; the first was used


async def test_groups_that_are_out():
    buffer, _ = built()
    await buffer.put([rollout([1], status="aborted")], "math")
    await buffer.get(1, "math", "aborted")
    stats = await buffer.stats()
    assert (stats.out, stats.tasks["math"].out, stats.tasks["math"].num_groups) == (1, 1, 0)


async def test_waits():
    buffer, _ = built()
    for name in ("math", "code"):
        await buffer.put([rollout([1])], name)
    counters = probe(buffer).groups.counters
    counters.count_wait("take", "math", 2.0)
    counters.count_wait("take", "code", 3.0)
    stats = await buffer.stats()
    waits = {
        "put": WaitStats(),
        "reserve": WaitStats(),
        "take": WaitStats(1, 2.0, 2.0),
        "sample": WaitStats(),
    }
    assert stats.tasks["math"].waits == waits
    assert stats.total.waits["take"] == WaitStats(2, 5.0, 3.0)
    assert (await buffer.metrics(detail=True))["buffer/wait_max_s/take"] == 3.0


async def test_rates_count_from_the_start():
    stats = await (await scenario()).stats()
    assert stats.tasks["math"].produced.groups_per_s == pytest.approx(0.3)
    assert stats.tasks["math"].produced.tokens_per_s == pytest.approx(2.1)
    assert stats.total.trained.groups_per_s == pytest.approx(0.1)
    assert stats.total.trained.tokens_per_s == pytest.approx(1.2)


async def test_rates_after_a_resume_leave_out_what_was_before():
    buffer, clock = built()
    counters = probe(buffer).groups.counters
    await buffer.put([rollout([1] * 4)], "t")
    counters.restore(counters.state())
    await buffer.put([rollout([1] * 6)], "t")
    clock.now += 2.0
    produced = (await buffer.stats()).tasks["t"].produced
    assert (produced.groups, produced.groups_per_s, produced.tokens_per_s) == (2, 0.5, 3.0)


async def test_rates_are_left_out_while_no_time_has_passed():
    buffer, _ = built()
    await buffer.put([rollout([1])], "t")
    assert (await buffer.stats()).tasks["t"].produced.groups_per_s is None
    probe(buffer).groups.counters.started = None
    assert (await buffer.stats()).tasks["t"].produced.groups_per_s is None


async def test_an_empty_buffer():
    buffer, _ = built()
    stats = await buffer.stats()
    assert (stats.tasks, stats.warnings, stats.num_bytes) == ({}, [], 0)
    assert stats.total.produced.lengths == Lengths()
    assert all(math.isfinite(value) for value in (await buffer.metrics(detail=True)).values())


async def test_stats_can_be_sent():
    stats = await (await scenario()).stats()
    assert pickle.loads(pickle.dumps(stats)) == stats  # noqa: S301  (our own)
    assert msgspec.json.decode(msgspec.json.encode(stats), type=Stats) == stats


def test_lengths_are_estimated_inside_their_power_of_two():
    lengths = Lengths(count=10, total=0, histogram={0: 2, 1: 2, 4: 4, 64: 2})
    assert lengths.p50 == 4 + 1 / 4 * 3
    assert lengths.p90 == 64 + 1 / 2 * 63
    assert Lengths(count=3, total=0, histogram={0: 3}).p90 == 0
    assert (Lengths().p50, Lengths().max) == (None, None)


# --- warnings


async def test_a_healthy_buffer_warns_of_nothing():
    buffer, _ = built()
    for _ in range(18):
        await buffer.put([rollout([1] * 8)], "t", current_train_step=2)
    for _ in range(2):
        await buffer.put([rollout([1] * 8, status="failed")], "t")
    await buffer.get(10, "t", "completed")
    assert (await buffer.stats()).warnings == []


@pytest.mark.parametrize(("puts", "is_enough"), [(19, False), (20, True)])
async def test_many_failures_are_warned_of(puts, is_enough):
    buffer, _ = built()
    for n in range(puts):
        await buffer.put([rollout([1], status="failed" if n < 3 else "completed")], "t")
    warnings = list(map(str, (await buffer.stats()).warnings))
    assert len(warnings) == is_enough
    assert all("'t'" in text and "15%" in text and "error_msg" in text for text in warnings)


async def test_much_expiry_is_warned_of():
    buffer, _ = built()
    for n in range(20):
        await buffer.put([rollout([1 if n < 7 else 5], prompt=0)], "t")
    assert (await buffer.stats()).warnings == []
    await buffer.refresh_staleness(task_stale_thresholds={"t": 2}, current_train_step=6)
    (warning,) = (await buffer.stats()).warnings
    assert (warning.kind, warning.task) == ("expiring", "t")
    assert "35%" in warning.found
    assert "stale threshold" in warning.change


async def test_a_length_bias_is_warned_of():
    buffer, _ = built()
    for n in range(60):
        await buffer.put([rollout([1] * (2 if n < 30 else 8))], "t")
    await buffer.get(19, "t", "completed")
    assert (await buffer.stats()).warnings == []
    await buffer.get(1, "t", "completed")
    (warning,) = (await buffer.stats()).warnings
    assert warning.kind == "length_bias"
    assert "2 tokens" in warning.found
    assert "produced ones 5" in warning.found
    await buffer.get(20, "t", "completed")
    assert (await buffer.stats()).warnings == []


# --- metrics


async def test_metrics():
    metrics = await (await scenario()).metrics(detail=True)
    expected = {
        "gen/groups": 6, "gen/math/groups": 4, "gen/code/groups": 2,
        "gen/puts": 7, "gen/math/puts": 5, "gen/math/puts/aborted": 1, "gen/code/puts/expired": 1,
        "gen/tokens": 45, "gen/finished": 5, "gen/math/rollouts": 5, "gen/response_tokens": 31,
        "gen/math/length_mean": 21 / 5, "gen/math/length_p50": 4 + 0.5 / 2 * 3, "gen/math/reward_mean": 0.6,
        "gen/math/zero_variance_share": 0.5, "gen/solved_share": 4 / 6, "gen/groups_per_s": 0.5,
        "train/groups": 1, "train/math/groups": 1, "train/code/groups": 0, "train/tokens": 16,
        "train/math/length_mean": 6, "train/reward_mean": 0.5, "train/response_tokens_per_s": 1.2,
        "train/staleness_oldest_mean": 2, "train/staleness_newest_mean": 1,
        "train/math/staleness_tokens_mean": 14 / 12, "train/staleness_tokens_max": 2, "train/uses_mean": 1,
        "buffer/groups": 4, "buffer/math/groups/completed": 2, "buffer/groups/expired": 1, "buffer/out": 0,
        "buffer/tokens": 18, "buffer/staleness_mean": 1, "buffer/math/staleness_max": 2, "buffer/age_max": 0,
        "buffer/lost_tokens/expired": 11, "buffer/code/lost_tokens/expired": 11, "buffer/lost_tokens/lost": 0,
        "buffer/code/lost_share": 11 / 12, "buffer/waits/take": 0, "buffer/math/wait_s/put": 0,
    }  # fmt: skip
    assert {name: metrics.get(name) for name in expected} == pytest.approx(expected)


async def test_metrics_are_plain_finite_numbers():
    buffer = await scenario()
    await buffer.put([rollout([1], reward=np.float32(0.5)), rollout([1], reward=None)], "math")
    await buffer.get(9, "math", "completed")
    metrics = await buffer.metrics(detail=True)
    assert {type(value) for value in metrics.values()} <= {int, float}
    assert all(math.isfinite(value) for value in metrics.values())


async def test_what_is_not_known_is_left_out():
    metrics = await (await scenario()).metrics(detail=True)
    assert "train/code/reward_mean" not in metrics
    assert "train/code/staleness_oldest_mean" not in metrics
    assert "buffer/code/staleness_mean" not in metrics


async def test_every_name_is_listed_and_every_listed_name_is_given():
    metrics = await (await scenario()).metrics(detail=True)
    given = {name.replace("/math/", "/").replace("/code/", "/") for name in metrics}
    counts = {f"total/{name}" for name, (metric, _) in NUMBERS.items() if metric.kind == "counter"}
    assert given == set(NUMBERS) | counts
    assert set(NUMBERS) <= set(metrics)
    assert all(metric.help for metric, _ in NUMBERS.values())
    assert {name.split("/")[0] for name in NUMBERS} == {"gen", "train", "buffer"}


def test_no_task_name_can_make_two_metrics_one():
    # "buffer/lost_tokens/x" would be both if "buffer/x" were a metric, and a task were called lost_tokens
    for name in NUMBERS:
        prefix, *rest = name.split("/")
        assert all(f"{prefix}/{'/'.join(rest[n:])}" not in NUMBERS for n in range(1, len(rest)))


async def test_leases_and_reservations_can_be_seen():
    buffer, _ = built()
    await buffer.put([rollout([1])], "math")
    await buffer.reserve(2, "math")
    async with buffer.lease({"math": 1}):
        stats = await buffer.stats()
        assert (stats.leases, stats.reservations, stats.tasks["math"].leased) == (1, 1, 1)
    assert (await buffer.stats()).leases == 0
