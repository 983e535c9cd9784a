"""A simulated run: nothing gets lost, the same seed gives the same run, and closed forms hold."""

import asyncio
import itertools
import math

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from reroll import Deadlock, InvalidConfig
from reroll.simulate import Scenario, loop, simulate
from simulate.scenarios import small, window

BUFFERS = st.sampled_from(
    [
        window(0, 8),
        window(2, 8, max_staleness=1),
        window(3, 8, max_staleness=1, on_stale="drop"),
        window(1, 8, stragglers="wait"),
        window(1, 8, stragglers="resume"),
        window(1, 8, stragglers="expire", max_staleness=1),
        {"sampler": "fifo", "capacity": 16},
        {"sampler": "fifo", "capacity": 12, "remover": "fifo", "max_staleness": 2},
        {"sampler": "prioritized", "capacity": 24, "max_times_sampled": 2, "priority_signal": "reward_std"},
        {"sampler": "stalest", "max_staleness": 1, "expire": "member"},
    ]
)
GROUPS = st.fixed_dictionaries(
    {},
    optional={
        "started": st.integers(4, 6),
        "judge": st.just({"median_s": 3.0}),
        "failed_share": st.just(0.02),
        "solve_rate": st.just((2.0, 2.0)),
    },
) | st.just({"turns": 3, "tool": {"median_s": 1.0}})
ENGINES = st.fixed_dictionaries(
    {},
    optional={
        "prefill_tokens_per_s": st.just(5000.0),
        "recompute": st.booleans(),
        "failure_interval_s": st.just(200.0),
        "restart_s": st.just(10.0),
        "max_running": st.integers(4, 32),
    },
)
TRAINERS = st.fixed_dictionaries(
    {},
    optional={
        "on_sync": st.sampled_from(["continue", "abort"]),
        "colocated": st.booleans(),
        "seconds_per_token": st.just(0.0001),
        "updates": st.integers(1, 2),
        "failure_interval_s": st.just(150.0),
        "restart_s": st.just(20.0),
        "commit_interval": st.integers(1, 3),
    },
)


@pytest.mark.timeout(900)  # on a busy machine
@settings(max_examples=30, deadline=None, phases=[Phase.explicit, Phase.generate])  # shrinking takes minutes
@given(BUFFERS, GROUPS, ENGINES, TRAINERS, st.integers(0, 1000))
def test_generated_is_trained_wasted_or_in_flight(buffer, group, engines, trainer, seed):
    scenario = small(
        buffer=buffer, group=group, engines=engines, trainer=trainer, steps=12, warm_up=2, seed=seed
    )
    result = simulate(scenario)
    assert result.imbalance == 0
    assert 0 <= result.waste <= 1
    assert result.trained > 0
    assert sum(result.staleness.values()) > 0
    bound = buffer.get("max_staleness")
    assert bound is None or result.max_staleness <= bound
    assert simulate(scenario) == result


@pytest.mark.parametrize(("max_staleness", "sync_interval"), [(0, 1), (2, 1), (3, 2), (7, 4)])
def test_a_saturated_window_has_the_mean_staleness_of_the_closed_form(max_staleness, sync_interval):
    """Engines are so fast that the window is always full: groups wait as long as it lets them."""
    scenario = small(
        buffer=window(max_staleness, 8, sync_interval),
        engines={"count": 1, "tokens_per_s": 1e6, "half_speed_at": 1e6},
        trainer={"sync_interval": sync_interval, "sync_s": 0.0},
        steps=48,
        warm_up=16,
    )
    result = simulate(scenario)
    assert result.mean_staleness == pytest.approx(max_staleness - (sync_interval - 1) / 2)
    assert result.max_staleness == max_staleness
    assert result.wasted == {}


@pytest.mark.parametrize("prefill_tokens_per_s", [None, 500.0])
def test_one_engine_alone_has_the_speed_of_its_formula(prefill_tokens_per_s):
    """Responses of equal length, all started at once: processor sharing without any randomness."""
    seen = []
    scenario = small(
        buffer=window(0, 8),
        engines={
            "count": 1,
            "tokens_per_s": 100.0,
            "half_speed_at": 16.0,
            "prefill_tokens_per_s": prefill_tokens_per_s,
        },
        lengths={"median": 300, "sigma": 0.0},
        trainer={"seconds_per_step": 5.0, "sync_s": 0.5},
    )
    result = simulate(scenario, progress=lambda done, total: seen.append((done, total)))
    seconds = 300 * (1 + 32 / 16) / 100 + (32 * 100 / 500 if prefill_tokens_per_s else 0)
    assert seen == [(step, 30) for step in range(1, 31)]
    assert result.wait_s == pytest.approx(seconds)
    assert result.step_s == pytest.approx(seconds + 5.5)
    assert result.trainer_idle == pytest.approx(seconds / (seconds + 5.5))
    assert result.engine_idle == pytest.approx(5.5 / (seconds + 5.5))
    assert result.trained_tokens_per_s == pytest.approx(8 * 4 * 300 / (seconds + 5.5))


def test_more_room_ahead_never_costs_throughput():
    speeds = [
        simulate(small(buffer=window(ahead, 8), lengths={"sigma": 0.0})).trained_tokens_per_s
        for ahead in range(4)
    ]
    assert all(after >= before * 0.999 for before, after in itertools.pairwise(speeds))
    assert speeds[1] > speeds[0] * 1.1


def test_prefill_is_paid_again_where_responses_are_aborted():
    trainer = {"seconds_per_step": 5, "sync_s": 0.5}
    engines = {"prefill_tokens_per_s": 500.0}
    kept = simulate(small(buffer=window(2, 8), trainer=trainer, engines=engines))
    trainer["on_sync"] = "abort"
    aborted = simulate(small(buffer=window(2, 8), trainer=trainer, engines=engines))
    engines["recompute"] = False
    cached = simulate(small(buffer=window(2, 8), trainer=trainer, engines=engines))
    assert kept.recomputed == cached.recomputed == 0
    assert aborted.recomputed > 0
    assert aborted.trained_tokens_per_s < 0.95 * cached.trained_tokens_per_s
    assert cached.trained_tokens_per_s == pytest.approx(kept.trained_tokens_per_s, rel=0.1)


def test_stragglers_expire_are_waited_for_or_resumed(tmp_path):
    """Lengths with a long tail, and a bound that the longest groups pass."""
    file = tmp_path / "run.json"
    scenario = small(lengths={"sigma": 1.5, "cap": 12_000}, buffer=window(1, 8), steps=60)
    file.write_text(scenario.model_dump_json())
    expire, wait, resume = (
        simulate(Scenario.load(file, {"stragglers": mode})) for mode in ("expire", "wait", "resume")
    )
    assert set(expire.wasted) >= {"cancelled"}
    assert expire.max_staleness <= 1
    assert expire.late == 0
    assert wait.wasted == {}
    assert wait.max_staleness <= 1
    assert wait.wait_s > resume.wait_s
    assert resume.wasted == {}
    assert resume.recomputed > 0
    assert resume.max_staleness > 1
    assert 0 < resume.late < resume.trained
    assert expire.long_trained < wait.long_trained
    assert [run.imbalance for run in (expire, wait, resume)] == [0, 0, 0]
    with pytest.raises(InvalidConfig, match="no StalenessWindow"):
        Scenario.load(_written(file, buffer={"sampler": "fifo"}), {"stragglers": "wait"})


def _written(file, **changes):
    file.write_text(small(**changes).model_dump_json())
    return file


def test_surplus_members_are_waste_and_make_groups_short():
    plain, over = simulate(small()), simulate(small(group={"started": 8}))
    assert over.wasted["surplus"] > 0
    assert over.waste > plain.waste
    assert over.wait_s < plain.wait_s
    assert over.long_trained < plain.long_trained


def test_a_trainer_that_crashes_goes_on_from_its_checkpoint():
    result = simulate(small(trainer={"failure_interval_s": 40.0, "restart_s": 20.0, "commit_interval": 3}))
    assert result.points[-1].step == 30
    assert len(result.points) > 30, "steps after the checkpoint were trained again"
    assert result.imbalance == 0


def test_a_run_that_trains_nothing_ends_and_names_the_calls_that_wait():
    with pytest.raises(Deadlock, match=r"no step.*the trainer needs 8 completed groups.*failed.*take"):
        simulate(small(buffer={"sampler": "fifo"}, group={"failed_share": 1.0}))


def test_a_dead_lock_is_found_at_once():
    async def stuck():
        await asyncio.sleep(1000)
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match=r"waits for another part.*; because"):
        loop.run(stuck(), lambda: "because")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer": {"batch": 4}}, r"trainer.batch is 4.*batch 8.*make them equal"),
        ({"trainer": {"sync_interval": 2}}, "sync_interval"),
        ({"warm_up": 30}, "warm_up"),
        ({"group": {"started": 2}}, "group.*started must be at least members"),
        ({"group": {"turns": 2}}, "tool"),
        ({"engines": {"speed": 1}}, r"engines\.speed"),
        ({"buffer": {"capacty": 1}}, r"buffer\.capacty"),
        ({"buffer": {"capacity": 4}}, r"batch is 8.*capacity of the buffer is 4"),
        ({"buffer": {"tasks": {"math": {}}}}, "task 'default' is not configured.*: math"),
        ({"lengths": {"median": math.nan}}, r"lengths\.median"),
    ],
)
def test_a_wrong_scenario_is_refused_before_it_runs(changes, message):
    with pytest.raises(InvalidConfig, match=message):
        small(**changes)


def test_a_scenario_is_read_from_a_file_with_changes(tmp_path):
    (tmp_path / "buffer.json").write_text(
        '{"sampler": "stalest", "store": "here", "rate_limiter": {"type": "staleness_window", "max_staleness": 1, "batch": 8}}'
    )
    file = tmp_path / "run.yaml"
    file.write_text("buffer: buffer.json\ntrainer: {batch: 8}\nsteps: 12\n")
    scenario = Scenario.load(file, {"engines": 3, "max_staleness": 2, "batch": 4, "lengths.median": 100})
    assert scenario.engines.count == 3
    assert scenario.trainer.batch == 4
    assert scenario.lengths.median == 100
    found = scenario.buffer_config().for_task("default").window()
    assert (found.max_staleness, found.batch) == (2, 4)
    assert scenario.buffer_config().store is None, "a simulation writes no store"
    (tmp_path / "buffer.json").write_text(
        '{"tasks": {"math": {"sampler": "stalest", "rate_limiter": {"type": "staleness_window", "max_staleness": 1, "batch": 8}}}}'
    )
    file.write_text("buffer: buffer.json\ntask: math\ntrainer: {batch: 8}\n")
    task = Scenario.load(file, {"max_staleness": 2, "stragglers": "expire"}).buffer_config().for_task("math")
    assert (task.window().max_staleness, task.window().stragglers, task.max_staleness) == (2, "expire", 2)
    with pytest.raises(InvalidConfig, match=r"missing.yaml cannot be read"):
        Scenario.load(tmp_path / "missing.yaml")
