"""verl's trainer, step by step, with its own sampler and with ours: real TransferQueue, real steps, engines that need no GPU."""

import ast
import inspect
import json
import sys
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest
import transfer_queue as tq

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/verl"))
from cpu_trainer import CpuTrainer, Generator, read_config
from drivers import run_driver
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

import reroll.integrations.pins
from reroll.errors import InvalidConfig
from reroll.integrations.verl import ReplayOptions, RerollSampler, sampler, seams

OURS = "trainer.v1.sampler.custom_sampler={path: pkg://reroll.integrations.verl, name: RerollSampler}"


def options(**given):
    inside = ", ".join(f"{name}: {value}" for name, value in given.items())
    return OURS, f"++trainer.v1.sampler.sampler_kwargs={{{inside}}}"


@pytest.fixture
def trainer(queue, tmp_path):
    """Make a trainer: `trainer(*overrides, mode=..., **settings of the generator)`."""
    queue()

    def made(*overrides, mode="colocate_async", batch=4, **generator):
        config = read_config(tmp_path / "checkpoints", *overrides, mode=mode, batch=batch)
        return CpuTrainer(config, Generator(**generator))

    return made


def steps_of(trainer):
    """Return the trained prompts of each step, and the step in which each prompt was submitted."""
    steps = {}
    for step, prompt in trainer.actor_rollout_wg.trained:
        steps.setdefault(step, []).append(prompt)
    return steps


def left():
    return (tq.kv_list("train") or {}).get("train", {})


@pytest.mark.parametrize("strategy", ["drop", "wait"])
def test_without_replay_it_is_verls_own(trainer, strategy):
    limits = (
        f"trainer.v1.sampler.max_off_policy_strategy={strategy}",
        "trainer.v1.sampler.max_off_policy_threshold=2",
    )
    runs = []
    for overrides in ((), (OURS,)):
        run = trainer(*limits, *overrides, failing=0.1)
        metrics = run.run(30, warm_up=2)
        runs.append((run.history, run.actor_rollout_wg.trained, run.agent_loop_manager.submitted, metrics))
        tq.get_client().clear_partition("train")
    (keys, trained, submitted, metrics), ours = runs
    assert type(run.replay_buffer).__mro__[1] is RerollSampler
    assert ours[:3] == (keys, trained, submitted)
    assert len(keys) == 30
    timing = ("timing", "perf/")
    for own, other in zip(metrics, ours[3], strict=True):
        assert {k: v for k, v in own.items() if not k.startswith(timing)} == {
            k: v for k, v in other.items() if not k.startswith(timing)
        }


@pytest.mark.parametrize("seed", range(3))
def test_with_replay_every_limit_holds(trainer, seed):
    run = trainer(
        *options(
            fresh_share=0.5,
            max_uses=3,
            max_staleness=4,
            capacity=40,
            seed=seed,
            priority_signal="reward_std",
            half_life=4,
        ),
        batch=8,
        seed=seed,
        failing=0.05,
    )
    born, submit = {}, run.agent_loop_manager._finish
    run.agent_loop_manager._finish = lambda uid, prompt, step: (
        born.setdefault(prompt, step),
        submit(uid, prompt, step),
    )
    metrics = run.run(20)
    steps, uses = steps_of(run), Counter()
    assert sorted(steps) == list(range(1, 21))
    for step, prompts in steps.items():
        assert len(prompts) == len(set(prompts)) == 8
        fresh = [prompt for prompt in prompts if not uses[prompt]]
        assert len(fresh) >= 4
        if step > 6:
            assert len(fresh) == 4, (step, prompts)
        assert all(step - born[prompt] <= 4 for prompt in prompts)
        uses.update(prompts)
    assert set(uses.values()) <= {1, 2, 3}
    assert max(uses.values()) == 3
    assert metrics[-1]["replay_buffer/train/groups"] == 8
    assert metrics[-1]["replay_buffer/train/staleness_oldest_max"] <= 4
    assert max(metric["replay_buffer/buffer/groups"] for metric in metrics) <= 40
    # Each step submits what it trains fresh: 16 to begin with, then four, and one for each group that was dropped.
    waiting = len(run.agent_loop_manager.under_way) + sum(
        bool(tag.get("is_prompt")) for tag in left().values()
    )
    dropped = run.agent_loop_manager.submitted - len(uses) - waiting
    assert waiting <= 24
    assert 0 <= dropped <= 20
    run.agent_loop_manager.finish(100)
    run.replay_buffer.clear()
    assert left() == {}
    assert len(run.replay_buffer.buffer) == 0


def test_verls_own_loop_leaves_nothing_in_the_queue(trainer, monkeypatch):
    run = trainer("trainer.val_before_train=False", *options(fresh_share=0.5, max_uses=2, seed=0))
    logged = []
    logger = SimpleNamespace(log=lambda data, step: logged.append((step, data)))
    monkeypatch.setattr(trainer_base, "Tracking", lambda **_: logger)
    monkeypatch.setattr(run, "_get_n_gpus_for_throughput", lambda: 1)
    run.total_training_steps = run.steps_per_epoch = 6
    run._init_dump_executor()  # a part of verl's set-up that needs no engine
    run.fit(run.agent_loop_manager)
    assert [step for step, _ in logged] == [1, 2, 3, 4, 5, 6]
    assert all(data["replay_buffer/train/groups"] == 4 for _, data in logged)
    assert [len(prompts) for prompts in steps_of(run).values()] == [4] * 6
    assert left() == {}
    assert len(run.replay_buffer.buffer) == 0


def test_surplus_groups_of_a_filtered_run_are_kept(trainer):
    filtered = (
        "++algorithm.filter_groups={enable: true, metric: reward}",
        *options(filter_groups_metric="reward", poll_interval=0.1),
    )
    run = trainer(*filtered, mode="sync", tied=0.4, batch=5)
    solved, finish = set(), run.agent_loop_manager._finish

    def finished(uid, prompt, step):
        finish(uid, prompt, step)
        scores = tq.kv_batch_get(
            keys=[f"{uid}_0_0", f"{uid}_1_0"], partition_id="train", select_fields=["rm_scores"]
        )
        if len({float(score.sum()) for score in scores["rm_scores"].unbind()}) > 1:
            solved.add(prompt)

    run.agent_loop_manager._finish = finished
    run.run(8, warm_up=0)
    trained = Counter(prompt for _, prompt in run.actor_rollout_wg.trained)
    assert set(trained.values()) == {1}
    waiting = len(run.replay_buffer.buffer)
    assert trained.keys() <= solved
    assert len(solved) == len(trained) + waiting  # none was thrown away


def test_kill_and_resume_trains_nothing_twice_and_skips_nothing(cluster, tmp_path):
    for kill_at in (8, 0):
        code, output = run_driver("resuming.py", cluster, tmp_path, kill_at)
        assert code == (-9 if kill_at else 0), output
    runs = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    killed, resumed = ([entry for entry in runs if entry["run"] == run] for run in (8, 0))
    assert [entry["step"] for entry in killed] == list(range(1, 8))
    assert [entry["step"] for entry in resumed] == list(range(6, 13))  # the last checkpoint is that of step 5
    kept = [entry for entry in killed if entry["step"] <= 5] + resumed
    uses = Counter(prompt for entry in kept for prompt in entry["trained"])
    assert max(uses.values()) == 2  # max_uses
    assert len(uses) >= resumed[-1]["fetched"] - resumed[-1]["waiting"]
    numbers = {int(prompt.split()[1]) for prompt in uses}
    assert set(range(1, max(numbers) + 1)) - numbers <= set(resumed[-1]["missing"])  # all others were trained
    fresh = [
        len([p for p in entry["trained"] if p not in seen])
        for entry, seen in zip(kept, seen_before(kept), strict=True)
    ]
    assert all(number >= 2 for number in fresh)
    assert resumed[-1]["left"] == 0


def seen_before(entries):
    seen = set()
    for entry in entries:
        yield set(seen)
        seen.update(entry["trained"])


def test_every_name_of_verl_that_the_sampler_uses_is_listed():
    verls = ReplayBufferAsync("colocate_async", {}, 8, "drop", {})
    tree = ast.parse(inspect.getsource(sampler))
    owners = ("self", "super()", "ReplayBufferAsync")
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in owners
    }
    named = {*used, *vars(RerollSampler), *vars(sampler.AsyncRerollSampler)}
    found = {name for name in named if hasattr(verls, name) and not hasattr(object, name)}
    assert found == {*seams.BUFFER_NAMES, *seams.BUFFER_FIELDS}


def test_the_private_names_are_there():
    for name in seams.BUFFER_NAMES:
        assert callable(getattr(ReplayBufferAsync, name)), name
    for name in (*seams.TRAINER_NAMES, "_add_prompts_to_generate", "_build_replay_buffer"):
        assert callable(getattr(PPOTrainer, name)), name
    buffer = ReplayBufferAsync("colocate_async", {}, 8, "drop", {})
    for name in seams.BUFFER_FIELDS:
        assert hasattr(buffer, name), name
    assert ReplayBufferAsync.wait_for_sampleable.__code__.co_varnames[:4] == (
        "self",
        "global_steps",
        "partition_id",
        "target_count",
    )
    assert ReplayBufferAsync._has_enough_samples.__code__.co_varnames[:5] == (
        *("self", "global_steps", "partition_id", "batch_size", "sampleable_keys"),
    )


def test_another_version_is_named(monkeypatch):
    monkeypatch.setattr(reroll.integrations.pins, "version", lambda _: "0.8.0")
    with pytest.raises(
        ImportError, match=r"works with verl 0\.9\.1, but 0\.8\.0 is installed: pip install verl==0\.9\.1"
    ):
        reroll.integrations.pins.require("verl", "0.9.1", "reroll.integrations.verl")


def test_verl_finds_the_plugin():
    (entry,) = [entry for entry in entry_points(group="verl.plugins") if entry.name == "reroll"]
    assert entry.load().__name__ == "reroll.integrations.verl_plugin"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"fresh_share": 0.5}, "fresh_share is 0.5 and max_uses 1"),
        ({"max_uses": 2}, "fresh_share is 1 and max_uses 2"),
        ({"fresh_share": 0.0, "max_uses": 2}, "greater than 0"),
        ({"uses": 2}, "uses"),
    ],
)
def test_options_that_cannot_be_right(given, text):
    with pytest.raises(InvalidConfig, match=text):
        ReplayOptions.of(given)
