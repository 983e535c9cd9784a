"""PrepareConfig: from code, dicts, files and arguments; what can never proceed is refused."""

import pytest
from pydantic import ValidationError

from prepare_loops.results import config
from reroll import Fifo, InvalidConfig, ReplayBufferConfig
from reroll.prepare import PrepareConfig
from reroll.testing.probe import probe

FROM_THE_ISSUE = {
    "capacity": 50,
    "sampler": "lifo",
    "remover": "prioritized",
    "max_times_sampled": 5,
    "min_size": 10,
}


def test_the_default_is_plain_training():
    made = config(8)
    assert made.is_in_order
    assert not made.filter_zero_std
    assert made.replay_buffer.max_times_sampled == 1
    assert isinstance(made.replay_buffer.sampler, Fifo)


def test_a_mapping_leaves_the_order_as_it_is_by_default():
    assert config(8, replay_buffer={"capacity": 50}).is_in_order
    assert not config(8, replay_buffer=ReplayBufferConfig(capacity=50)).is_in_order  # uniform, as it says


@pytest.mark.filterwarnings("ignore::UserWarning")  # evicting the best first is wasteful, and asked for
def test_from_files(tmp_path):
    expected = PrepareConfig(global_batch_size=8, pack_length=64, replay_buffer=FROM_THE_ISSUE)
    texts = {
        "yaml": "global_batch_size: 8\npack_length: 64\nreplay_buffer: {capacity: 50, sampler: lifo, "
        "remover: prioritized, max_times_sampled: 5, min_size: 10}\n",
        "toml": 'global_batch_size = 8\npack_length = 64\n[replay_buffer]\ncapacity = 50\nsampler = "lifo"\n'
        'remover = "prioritized"\nmax_times_sampled = 5\nmin_size = 10\n',
        "json": expected.model_dump_json(exclude_unset=True),
    }
    for ending, text in texts.items():
        path = tmp_path / f"prepare.{ending}"
        path.write_text(text)
        assert PrepareConfig.from_file(path) == expected
    made = PrepareConfig.from_args(
        ["--num_ranks=2", "replay_buffer.capacity=60", "task=math"], file=tmp_path / "prepare.yaml"
    )
    assert (made.num_ranks, made.task, made.replay_buffer.capacity) == (2, "math", 60)
    assert made.replay_buffer.max_times_sampled == 5


@pytest.mark.parametrize("args", [["num_ranks"], ["task.x=1", "task=3"], ["unknown=1"], ["num_ranks=two"]])
def test_wrong_arguments_are_refused(args):
    with pytest.raises(ValueError):
        PrepareConfig.from_args(["global_batch_size=2", "pack_length=8", *args])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"advantage": "unknown"}, "grpo, centered, leave_one_out"),
        ({"short_after_s": 1.0}, "allow_short"),
        ({"mini_batch_size": 5}, "mini_batch_size=5 is more than global_batch_size=4"),
        ({"groups_per_micro_batch": 1, "rows_per_micro_batch": 2}, "exclude each other"),
        ({"replay_buffer": {"capacity": 3}}, "no step would ever be full"),
    ],
)
def test_what_can_never_proceed_is_refused(options, message):
    with pytest.raises((ValidationError, InvalidConfig), match=message):
        config(4, **options)


@pytest.mark.parametrize(
    ("buffer", "capacity"),
    [
        ({}, 12),
        ({"capacity": 5}, 5),
        ({"max_times_sampled": 2}, None),
        ({"tasks": {"train": {"max_attempts": 2}}}, 12),
        ({"tasks": {"train": {"capacity": 7}}}, 7),
    ],
)
def test_the_buffer_of_its_own_holds_what_async_steps_need(buffer, capacity):
    built = config(4, async_steps=1, replay_buffer=buffer).build_buffer()
    assert probe(built).engine.task("train").settings.capacity == capacity


def test_numbers_in_files_may_be_whole():
    assert config(4, max_possible_score=10).max_possible_score == 10.0
