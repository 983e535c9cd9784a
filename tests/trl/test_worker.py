"""A buffer between TRL's asynchronous trainer and its worker: whole groups, each once, also after kill -9."""

import gc
import itertools
import json
import queue
import subprocess
import sys
import tracemalloc
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

if tuple(map(int, version("trl").split(".")[:2])) < (1, 16):
    pytest.skip("the trainer packs samples in a way that is new in TRL 1.16", allow_module_level=True)

from rolling import trace, train
from scripted import ScriptedWorker, async_trainer, samples_of
from watched import run

from reroll import InvalidArgument, StalenessWindow
from reroll.integrations.trl import RerollRolloutWorker

SHAPES = {
    "one batch a step": {},
    "accumulated": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3},
    "across steps": {"size": 3},  # eight samples a step: groups of three begin in one and end in the next
    "by tokens": {"token_budget": 24},
    "by tokens, accumulated": {"token_budget": 16, "gradient_accumulation_steps": 2, "size": 3},
    "of any size": {"sizes": [2, 5, 1, 3]},
}


def expected(positions, options):
    """Return the samples of groups at these positions, as the trainer should see them."""
    sizes = options.get("sizes") or [options.get("size", 4)]
    return {
        (position, *sample.input_ids.tolist())
        for position in positions
        for sample in samples_of(position, 1, size=sizes[position % len(sizes)])
    }


def trained(where):
    """Return all that was trained in the end, and that nothing was trained twice."""
    samples = [tuple(sample) for step in trace(where).values() for sample in step]
    assert len(set(samples)) == len(samples), "nothing twice"
    return set(samples)


@pytest.mark.parametrize("shape", SHAPES)
def test_groups_are_trained_whole_and_once(tmp_path, shape):
    options = SHAPES[shape]
    worker, _ = train(tmp_path, max_staleness=100, **options)
    samples = trained(tmp_path)
    whole = {position for position, *_ in samples}
    assert whole == set(range(len(whole))), "in order, none left out"
    missing = expected(whole, options) - samples
    assert {position for position, *_ in missing} <= {max(whole)}, (
        "only the last one may go on in the next step"
    )
    ledger = worker.replay_buffer.ledger()["train"]
    assert ledger["leased"].groups == 0
    assert ledger["uncommitted"].groups == len(whole) - bool(missing)


@pytest.mark.parametrize("shape", SHAPES)
def test_after_kill_9_nothing_is_lost_and_nothing_twice(tmp_path, shape):
    options = {
        **SHAPES[shape],
        "max_steps": 7,
        "max_staleness": 100,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    script = Path(__file__).parent / "rolling.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "6", json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == -9, done.stderr[-3000:]
    assert sorted(trace(tmp_path)) == [1, 2, 3, 4, 5]

    # Of the checkpoint of step 4; what step 5 had trained is trained again, and what was made since is still there.
    worker, made = train(tmp_path, resume=True, **options)
    samples = trained(tmp_path)
    whole = {position for position, *_ in samples}
    assert whole == set(range(len(whole)))
    missing = expected(whole, options) - samples
    assert {position for position, *_ in missing} <= {max(whole)}
    assert made.made[0] == 0, "this worker begins at the start, and what it makes again is not stored again"
    ledger = worker.replay_buffer.ledger()["train"]
    assert ledger["put"].groups == len({row.group_id for row in worker.replay_buffer.query({})}) + len(
        whole
    ) - bool(missing)


def test_a_worker_of_trl_goes_on_where_the_buffer_ends(tmp_path):
    options = {
        "max_steps": 2,
        "max_staleness": 100,
        "save_strategy": "steps",
        "save_steps": 1,
        "start_index": 0,
    }
    first, _ = train(tmp_path, **options)
    held = {row.group_id for row in first.replay_buffer.query({})}
    first.replay_buffer.close()
    _, again = train(tmp_path, resume=True, **{**options, "max_steps": 4})
    assert again.made[0] == max(held) + 1
    assert {position for position, *_ in trained(tmp_path)} == set(range(8))


def test_in_memory_what_was_not_trained_is_made_again(tmp_path):
    options = {
        "max_staleness": 100,
        "save_strategy": "steps",
        "save_steps": 1,
        "start_index": 0,
        "buffer": {"capacity": 8},
    }
    train(tmp_path, max_steps=2, **options)
    _, again = train(tmp_path, resume=True, max_steps=4, **options)
    assert again.made[0] == 4
    assert {position for position, *_ in trained(tmp_path)} == set(range(8))


@pytest.mark.parametrize("store", ["memory", "disk"])
def test_what_was_given_up_is_not_made_again(tmp_path, store):
    options = {
        "max_staleness": 1,
        "save_strategy": "steps",
        "save_steps": 1,
        "start_index": 0,
        "buffer": {"capacity": 64, **({"store": tmp_path / "store"} if store == "disk" else {})},
    }
    first, _ = train(tmp_path, max_steps=12, **options)
    note = first._trainer.state.stateful_callbacks["reroll"]
    done = {position for position, *_ in trained(tmp_path)}
    held = {row.group_id for row in first.replay_buffer.query({})} if store == "disk" else set()
    first.replay_buffer.close()
    given_up = set(range(note["end"])) - done - set(note["open"])
    assert given_up, "the worker was faster than the trainer"
    assert len(note["open"]) <= 64 + 2, "what is written with a checkpoint does not grow with the training"
    assert note["trained"] == len(done)

    _, again = train(tmp_path, resume=True, max_steps=14, **options)
    to_come = (n for n in itertools.count() if n not in held and (n in note["open"] or n >= note["end"]))
    assert again.made[0] == next(to_come)
    assert again.made[0] > min(given_up)
    assert not {position for position, *_ in trained(tmp_path)} & given_up


@pytest.mark.parametrize("sync", [1, 2])
def test_what_is_too_stale_is_dropped_by_whole_groups_and_trl_drops_nothing(tmp_path, sync):
    worker, _ = train(
        tmp_path, size=3, max_steps=12, max_staleness=1, weight_sync_steps=sync, buffer={"capacity": 64}
    )
    samples = trained(tmp_path)
    positions = sorted({position for position, *_ in samples})
    assert {position for position, *_ in expected(positions, {"size": 3}) - samples} <= {positions[-1]}
    ledger = worker.replay_buffer.ledger()["train"]
    assert ledger["expired"].groups > 0, "the worker was faster than the trainer"
    history = worker._trainer.state.log_history
    assert not any("sample/dropped_stale_total" in row for row in history)
    assert max(row["sample/staleness_max"] for row in history[:-1]) <= 1


def test_a_window_holds_the_worker_back(tmp_path):
    window = StalenessWindow(1, batch=2, sync_interval=1)
    worker, _ = train(tmp_path, max_steps=6, max_staleness=1, buffer={"rate_limiter": window})
    ledger = worker.replay_buffer.ledger()["train"]
    kept = ledger["put"].groups - ledger["expired"].groups
    assert 2 * 6 <= kept <= 2 * (6 + 1 + 1), "at most two batches are under way"


def started(where, made, config=None, *, group_size=4, **options):
    """Return a worker that is started, with a trainer that does not train."""
    trainer = async_trainer(where, made, **options)
    worker = RerollRolloutWorker(trainer, config, group_size)
    worker.on_train_begin(trainer.args, trainer.state, trainer.control)
    worker.update_model_version(1)
    trainer.model_version = 1
    worker.start()
    return worker


@pytest.mark.parametrize("store", ["memory", "disk"])
@pytest.mark.parametrize("form", ["lists", "arrays"])
def test_samples_come_out_as_they_went_in(tmp_path, form, store):
    config = {"store": tmp_path / "store", "max_resident_bytes": 0} if store == "disk" else {}
    worker = started(tmp_path, ScriptedWorker(form=form), config)
    try:
        for position in range(3):
            for want in samples_of(position, 1, form=form):
                got = worker.get(timeout=30)
                for name in ("prompt", "completion", "advantage", "model_version", "group_id", "metrics"):
                    assert getattr(got, name) == getattr(want, name)
                for name in ("input_ids", "completion_mask", "old_log_probs"):
                    one, other = getattr(got, name), getattr(want, name)
                    assert type(one) is type(other)
                    assert np.asarray(one).dtype == np.asarray(other).dtype
                    assert np.array_equal(one, other)
    finally:
        worker.stop()


def test_what_is_not_whole_waits(tmp_path):
    made = ScriptedWorker(stop_at=0)
    worker = started(tmp_path, made)
    try:
        *first, last = samples_of(0, 1)
        for sample in first:
            made.rollout_buffer.put(sample)
        with pytest.raises(queue.Empty):
            worker.get(timeout=0.01)
        made.rollout_buffer.put(last)
        assert worker.get(timeout=30).group_id == 0
    finally:
        worker.stop()
    assert len(worker.replay_buffer) == 1, "what was handed out and not trained is back"


def test_a_group_with_a_sample_that_trl_would_drop_is_left_out(tmp_path):
    made = ScriptedWorker()
    long = {position for position in range(40) if max(len(s.input_ids) for s in samples_of(position, 1)) > 6}
    worker = started(tmp_path, made, token_budget=6)
    try:
        positions = [worker.get(timeout=30).group_id for _ in range(12)][::4]
        assert len(positions) == 3
        assert not long & set(positions)
        assert long
    finally:
        worker.stop()


def test_errors_are_told_where_the_trainer_asks(tmp_path):
    made = ScriptedWorker(stop_at=0)
    worker = started(tmp_path, made)
    worker.replay_buffer.close()
    for sample in samples_of(0, 1):
        made.rollout_buffer.put(sample)
    assert worker._feeding.exception(timeout=60)
    with pytest.raises(Exception, match="closed"):
        worker.check_health(60)
    worker.stop()


@pytest.mark.parametrize(
    ("group_size", "order"), [(None, (0, 1, 0)), (1, (0, 0))], ids=["mixed groups", "of another size"]
)
def test_a_group_that_goes_on_after_it_was_whole_is_an_error(tmp_path, group_size, order):
    made = ScriptedWorker(stop_at=0)
    worker = started(tmp_path, made, group_size=group_size)
    for position in order:
        made.rollout_buffer.put(samples_of(position, 1)[0])
    assert worker._feeding.exception(timeout=60)
    with pytest.raises(InvalidArgument, match="group 0 continues after it was complete"):
        worker.check_health(60)
    worker.stop()


def test_a_worker_may_leave_groups_out_and_the_note_does_not_grow(tmp_path):
    made = ScriptedWorker(stop_at=0)
    trainer = async_trainer(tmp_path, made)
    worker = RerollRolloutWorker(trainer, group_size=1)
    worker.on_train_begin(trainer.args, trainer.state, trainer.control)
    worker.start()
    try:
        for number in range(1 << 20, (1 << 20) + (1 << 18), 1 << 13):
            made.rollout_buffer.put(samples_of(number, 1)[0])
            assert worker.get(timeout=60).group_id == number
            worker.on_step_end(trainer.args, trainer.state, trainer.control)
            assert len(trainer.state.stateful_callbacks["reroll"]["open"]) < 1 << 17
    finally:
        worker.stop()


def test_versions_of_old_are_forgotten_and_are_too_old(tmp_path):
    made = ScriptedWorker(stop_at=0)
    worker = started(tmp_path, made, group_size=1, max_staleness=2)
    state = worker._trainer.state
    try:
        for step in range(1, 3001):
            if step == 1000:
                tracemalloc.start()
            state.global_step = step
            worker.on_step_end(None, state, None)
            worker.update_model_version(step)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        assert held < 100_000
        for number, made_by in enumerate((1, 3000)):
            made.rollout_buffer.put(samples_of(number, made_by)[0])
        assert worker.get(timeout=60).group_id == 1  # what version 1 made is 2,999 steps old
    finally:
        tracemalloc.stop()
        worker.stop()


def test_a_trainer_that_is_not_asynchronous_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="AsyncGRPOTrainer"):
        RerollRolloutWorker(run(tmp_path, train=False))
