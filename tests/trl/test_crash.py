"""kill -9 in the middle of a step, and a resume from the trainer's checkpoint: as if nothing had happened."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from crashing import trace, train
from tiny import parameters
from watched import run

from reroll import CannotRewind


def killed(where, kind, step):
    """Train in another process, which is killed at this step."""
    script = Path(__file__).parent / "crashing.py"
    done = subprocess.run(
        [sys.executable, str(script), str(where), kind, str(step)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == -9, done.stderr[-3000:]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_nothing_is_lost_nothing_twice_and_in_the_same_order(tmp_path, kind):
    whole = train(tmp_path / "whole", kind)
    killed(tmp_path / "killed", kind, 7)  # the checkpoint is that of step 6
    again = train(tmp_path / "killed", kind, resume=True)

    assert trace(tmp_path / "killed") == trace(tmp_path / "whole")
    assert torch.equal(parameters(again), parameters(whole))
    one, other = (trainer.replay_buffer.ledger()["train"] for trainer in (whole, again))
    for place in ("resident", "leased", "uncommitted", "consumed"):
        assert one[place] == other[place]
    made_again = other["deleted"].groups
    assert (made_again > 0) == (kind == "disk"), (
        "what was made after the checkpoint was on disk, and is made again"
    )
    assert other["put"].groups == one["put"].groups + made_again


def test_a_crash_before_the_first_checkpoint_begins_anew(tmp_path):
    whole = train(tmp_path / "whole", "disk")
    killed(tmp_path / "killed", "disk", 2)
    again = train(tmp_path / "killed", "disk")
    assert torch.equal(parameters(again), parameters(whole))
    assert again.replay_buffer.query({})
    assert [row.version for row in again.replay_buffer.query({})] == [
        row.version for row in whole.replay_buffer.query({})
    ]


def test_a_store_that_is_ahead_of_the_checkpoint_for_good_is_refused(tmp_path):
    first = train(tmp_path / "run", "disk")
    first.replay_buffer.close()
    with pytest.raises(CannotRewind):
        train(tmp_path / "run", "disk")


def test_a_checkpoint_without_a_buffer_begins_with_nothing_and_says_so(tmp_path):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    run(tmp_path, replay_buffer=None, **options)
    with pytest.warns(UserWarning, match="has no replay_buffer"):
        trainer = run(tmp_path, resume=str(tmp_path / "checkpoint-2"), **options)
    assert all(row.version >= 2 for row in trainer.replay_buffer.query({}))
