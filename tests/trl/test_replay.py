"""Replay in TRL's GRPOTrainer, one rank: what is off changes nothing; what is replayed is what it was, token by token."""

import random

import pytest
import torch
from datasets import Dataset
from tiny import is_even, parameters
from trl import GRPOTrainer
from watched import Watched, run

from reroll import InvalidArgument, InvalidConfig, Prioritized, ReplayBufferConfig
from reroll.integrations.trl import ReplayGRPOTrainer, ReplayMixin

SHAPES = {
    "plain": {},
    "accumulated": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "two generations a step": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 1,
    },
    "two steps a generation": {"per_device_train_batch_size": 4, "steps_per_generation": 2},
    "two iterations": {"num_iterations": 2},
    "with a reference": {"beta": 0.1},
    "groups of four": {"num_generations": 4, "per_device_train_batch_size": 16},
    "cut ones masked": {"mask_truncated_completions": True},
    "padded to multiples": {"pad_to_multiple_of": 8},
    "by sequence": {"importance_sampling_level": "sequence", "loss_type": "grpo"},
}


@pytest.mark.parametrize("shape", ["plain", "accumulated", "two iterations", "with a reference"])
def test_without_replay_the_weights_are_those_of_trl_bit_by_bit(tmp_path, shape):
    plain = run(tmp_path / "plain", GRPOTrainer, **SHAPES[shape])
    off = run(tmp_path / "off", ReplayGRPOTrainer, replay_buffer=None, **SHAPES[shape])
    assert torch.equal(parameters(plain), parameters(off))
    assert off.replay_buffer is None


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return what gives the trainer that was trained in a shape."""
    made = {}

    def of(shape):
        if shape not in made:
            made[shape] = run(tmp_path_factory.mktemp("run"), **SHAPES[shape])
        return made[shape]

    return of


def replayed_rows(trainer):
    """Compare every trained row with what was generated, name by name and token by token; return the replayed ones.

    Each prompt is there once, so it tells the group.
    """
    known, size, replayed = {}, trainer.num_generations, []
    for fresh, (trained, total) in zip(trainer.generated, trainer.trained, strict=True):
        for start in range(0, len(fresh), size):
            group = trained[start : start + size]
            prompt = tuple(group[0]["prompt"])
            is_fresh = prompt == tuple(fresh[start]["prompt"])
            was = fresh[start : start + size] if is_fresh else known[prompt]
            for row, before in zip(group, was, strict=True):
                told = before.keys() - {"expected_logprobs"}
                assert {name: row[name] for name in told} == {name: before[name] for name in told}
                if not is_fresh:
                    replayed.append(row)
                    if any(row["completion_mask"]):  # else TRL shows the model nothing of it
                        expected = pytest.approx(before["expected_logprobs"], abs=1e-4)
                        assert row["old_per_token_logps"] == expected
        known |= {
            tuple(row["prompt"]): fresh[at : at + size] for at, row in enumerate(fresh) if at % size == 0
        }
        assert total == sum(sum(trained_tokens(row)) for row in trained)
    return replayed


def trained_tokens(row):
    tool = row.get("tool_mask", [1] * len(row["completion_mask"]))
    return [one * other for one, other in zip(row["completion_mask"], tool, strict=True)]


def test_the_check_of_rows_finds_one_that_was_changed(tmp_path):
    trainer = run(tmp_path)
    assert replayed_rows(trainer)
    row = next(row for row in trainer.trained[-1][0])
    row["advantages"] += 0.5
    with pytest.raises(AssertionError):
        replayed_rows(trainer)


@pytest.mark.parametrize("shape", SHAPES)
def test_replayed_rows_are_what_they_were(trained, shape):
    replayed = replayed_rows(trained(shape))
    assert len(replayed) >= 4
    assert len({len(row["completion_ids"]) for row in replayed}) > 1, "of unequal length"
    if shape == "with a reference":
        assert all("ref_per_token_logps" in row for row in replayed)
    if shape == "cut ones masked":
        assert any(not any(row["completion_mask"]) for row in replayed)


@pytest.mark.parametrize(
    "shape", [name for name in SHAPES if "iterations" not in name and "steps" not in name]
)
def test_the_ratio_differs_from_1_exactly_on_replayed_rows(trained, shape):
    trainer = trained(shape)
    generated = {
        tuple(row["prompt"]): number for number, rows in enumerate(trainer.generated) for row in rows
    }
    a_step = len(trainer.generated) // trainer.state.global_step
    seen = {True: 0, False: 0}
    for step, rows in trainer.losses:
        for row in rows:
            is_fresh = generated[tuple(row["prompt"])] // a_step == step
            ratios = [ratio for ratio, mask in zip(row["ratio"], row["completion_mask"], strict=True) if mask]
            seen[is_fresh] += 1
            assert is_fresh == all(ratio == 1.0 for ratio in ratios) or not ratios
    assert seen[True] > 0
    assert seen[False] > 0


def with_tools(prompts, trainer):
    """Roll prompts without a model; every second token comes from a tool."""
    tokens, chance = trainer.processing_class, random.Random(str(prompts))
    lengths = [chance.randrange(2, 7) for _ in prompts]
    return {
        "prompt_ids": [tokens(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": [[chance.randrange(2, 16) for _ in range(length)] for length in lengths],
        "logprobs": [[-1.0 / length] * length for length in lengths],
        "env_mask": [[1, 0, 1, 0, 1, 0][:length] for length in lengths],
    }


def test_masks_of_tools_and_sampled_logprobs_go_along(tmp_path):
    trainer = run(tmp_path, rollout_func=with_tools)
    replayed = replayed_rows(trainer)
    assert len(replayed) >= 4
    for row in replayed:
        length = len(row["completion_ids"])
        assert row["tool_mask"] == [1, 0, 1, 0, 1, 0][:length]
        assert row["sampling_per_token_logps"] == pytest.approx([-1.0 / length] * length)


def test_a_fixed_share_of_each_batch_is_replayed_and_what_it_replaces_is_kept(tmp_path):
    trainer = run(tmp_path, replay_share=0.5, replay_buffer={"max_times_sampled": 1, "sampler": "fifo"})
    replayed = replayed_rows(trainer)
    fresh_groups = [
        sum(row["prompt"] == now["prompt"] for row, now in zip(trained, fresh, strict=True)) // 2
        for fresh, (trained, _) in zip(trainer.generated, trainer.trained, strict=True)
    ]
    assert fresh_groups[0] == 4, "there is nothing to replay yet"
    assert fresh_groups[2:] == [2] * 4
    prompts = [tuple(row["prompt"]) for row in replayed[::2]]
    assert len(set(prompts)) == len(prompts), "each once"
    assert trainer.replay_buffer.ledger()["train"]["consumed"].groups == len(prompts)


def test_ties_are_replaced_as_soon_as_there_is_something_else(tmp_path):
    trainer = run(tmp_path, replay_buffer={"max_times_sampled": None})
    for fresh, (trained, _) in list(zip(trainer.generated, trainer.trained, strict=True))[1:]:
        for at in range(0, len(fresh), 2):
            is_tied = len(set(is_even([row["completion_ids"] for row in fresh[at : at + 2]]))) == 1
            assert is_tied == (trained[at]["prompt"] != fresh[at]["prompt"])
    tied = sum(row["replay/without_signal"] for row in trainer.state.log_history[:-1])
    ledger = trainer.replay_buffer.ledger()["train"]
    assert ledger["put"].groups == 24 - tied
    assert trainer.state.log_history[-2]["replay/staleness"] >= 1


def two_rewards():
    def first(completion_ids, **_):
        return [float(sum(ids) % 3 == 0) for ids in completion_ids]

    def second(completion_ids, **_):
        return [None if sum(ids) % 5 == 0 else float(sum(ids) % 3 != 0) for ids in completion_ids]

    return [first, second]


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_several_rewards_and_such_that_are_missing(tmp_path, aggregation):
    trainer = run(tmp_path, rewards=two_rewards(), multi_objective_aggregation=aggregation)
    replayed = replayed_rows(trainer)
    assert all(any(row["advantages"] for row in replayed[at : at + 2]) for at in range(0, len(replayed), 2))


def test_versions_priorities_and_uses_are_those_of_the_buffer(tmp_path):
    config = ReplayBufferConfig(
        capacity=5, remover="fifo", sampler=Prioritized(), max_times_sampled=2, max_staleness=3, seed=1
    )
    trainer = run(tmp_path, replay_buffer=config)
    rows = trainer.replay_buffer.query({})
    assert 0 < len(rows) <= 5
    assert all(0 <= row.version <= 5 and row.priority > 0 and row.times_sampled <= 2 for row in rows)
    (group,) = trainer.replay_buffer.peek([rows[0].uid])
    assert [len(rollout.logprobs) for rollout in group] == [len(rollout.response_ids) for rollout in group]


def test_evaluation_is_left_alone(tmp_path):
    trainer = run(tmp_path, max_steps=2)
    held = len(trainer.replay_buffer)
    trainer.eval_dataset = trainer.train_dataset.select(range(8))
    trainer.args.per_device_eval_batch_size = 8
    assert trainer.evaluate()["eval_reward"] >= 0
    assert len(trainer.replay_buffer) == held


class MyTrainer(GRPOTrainer):
    """What a user has."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        return {**batch, "hardness": torch.arange(len(inputs), dtype=torch.float32)}


class Mine(ReplayMixin, MyTrainer):
    pass


def test_the_mixin_takes_along_what_a_trainer_of_your_own_adds(tmp_path):
    trainer = run(tmp_path, Mine)
    assert trainer.replay_buffer.query({})
    (group,) = trainer.replay_buffer.peek([trainer.replay_buffer.query({})[0].uid])
    first, second = (float(rollout.extra_fields["hardness"]) for rollout in group)
    assert second == first + 1


def test_what_cannot_be_replayed_is_refused_when_the_trainer_is_made(tmp_path):
    pictures = Dataset.from_dict({"prompt": ["ab"] * 8, "image": ["picture"] * 8})
    with pytest.raises(InvalidConfig, match="image"):
        run(tmp_path, train=False, data=pictures)
    with pytest.raises(InvalidConfig, match="sync_ref_model"):
        run(tmp_path, train=False, beta=0.1, sync_ref_model=True)
    with pytest.raises(InvalidConfig, match="remover"):
        run(tmp_path, train=False, replay_buffer={"remover": None})
    with pytest.raises(InvalidConfig, match="replay_share"):
        run(tmp_path, train=False, replay_share=1.5)


def test_values_that_belong_to_no_row_are_refused(tmp_path):
    class Pixels(Watched):
        def _with_replay(self, batch, *scored):
            return ReplayMixin._with_replay(self, {**batch, "pixel_values": torch.zeros(3, 2, 2)}, *scored)

    with pytest.raises(InvalidArgument, match="pixel_values"):
        run(tmp_path, Pixels)


def test_groups_of_a_run_with_other_settings_are_refused(tmp_path):
    first = run(tmp_path / "one", max_steps=1)
    (group,) = first.replay_buffer.peek([first.replay_buffer.query({})[0].uid])
    for rollout in group:
        rollout.group_uid = None
    second = run(tmp_path / "two", train=False, max_steps=1, beta=0.1, replay_share=1.0)
    second.replay_buffer.put(group, "train")
    with pytest.raises(InvalidArgument, match="ref_per_token_logps"):
        second.train()
