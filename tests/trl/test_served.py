"""TRL's own worker, in its own process, over HTTP: out of order, whole groups, each once, also after kill -9."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

if tuple(map(int, version("trl").split(".")[:2])) < (1, 16):
    pytest.skip("the trainer packs samples in a way that is new in TRL 1.16", allow_module_level=True)

from rolling import trace, train_served
from serving import chats, serving, tokenizer

GROUP = 4
OPTIONS = {
    "per_device_train_batch_size": 2 * GROUP,
    "max_steps": 7,
    "max_staleness": 100,
    "save_strategy": "steps",
    "save_steps": 2,
}


TOKENS, DATA = tokenizer(), chats()


def prompt_ids(position):
    """Return the tokens of the prompt at a position of the data."""
    return TOKENS.apply_chat_template(DATA[position]["prompt"], return_dict=False, add_generation_prompt=True)


def trained_groups(where):
    """Return how many samples of each group were trained in the end; each begins with the prompt of its position."""
    samples = [tuple(sample) for step in trace(where).values() for sample in step]
    for position, *ids in samples:
        prompt = prompt_ids(position)
        assert ids[: len(prompt)] == prompt
        assert len(prompt) < len(ids) <= len(prompt) + 6
    return Counter(position for position, *_ in samples)


def whole_but_one(groups):
    """Return whether all are whole, but one that may go on in the next step."""
    return max(groups.values()) == GROUP and sum(size < GROUP for size in groups.values()) <= 1


def test_what_trls_own_worker_makes_is_trained_whole_and_once(tmp_path):
    with serving() as server:
        worker = train_served(tmp_path, url=server.url, **OPTIONS)
    groups = trained_groups(tmp_path)
    # How many fit into a step depends on their lengths, and on what has come by then.
    assert sum(groups.values()) >= OPTIONS["max_steps"]
    assert whole_but_one(groups), groups
    assert len(server.asked) >= GROUP * len(groups)

    trainer = worker._trainer
    assert trainer.args.token_budget == 32
    logged = [row for row in trainer.state.log_history if "ratio" in row]
    assert logged[0]["ratio"] == pytest.approx(1, abs=1e-4), (
        "the log-probs of the server are those of the policy"
    )
    assert any("rollout/duration_s" in row for row in logged), "the worker's own measurements arrive"
    ledger = worker.replay_buffer.ledger()["train"]
    assert ledger["leased"].groups == 0
    assert ledger["expired"].groups == ledger["filtered"].groups == 0


def test_after_kill_9_trls_own_worker_goes_on_with_what_is_missing(tmp_path):
    with serving() as server:
        options = {**OPTIONS, "url": server.url}
        script = Path(__file__).parent / "rolling.py"
        process = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), "6", json.dumps(options)],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        code = process.wait(timeout=200)
        os.killpg(process.pid, signal.SIGKILL)  # TRL's worker outlives its trainer
        assert code == -9, process.stderr.read()[-3000:]
        process.stderr.close()
        assert sorted(trace(tmp_path)) == [1, 2, 3, 4, 5]
        asked_before = len(server.asked)

        worker = train_served(tmp_path, resume=True, **options)
    groups = trained_groups(tmp_path)
    assert whole_but_one(groups), groups
    first = worker._worker._loop_kwargs["dataset_start_index"]
    assert first > 0, "it begins with the first prompt that is neither trained nor in the buffer"
    asked_again = set(map(tuple, server.asked[asked_before:]))
    assert tuple(prompt_ids(first)) in asked_again
    assert not asked_again & {tuple(prompt_ids(position)) for position in range(first)}
