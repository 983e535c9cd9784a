"""The soak, short: producers, a trainer and the owner of a durable buffer are killed, and nothing is lost or doubled.

What it asserts depends on no clock: it trains so many steps, kills after each few, and ends when all is trained.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch):
    """Import what the soak is made of, as it does itself."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import soak  # noqa: PLC0415
    import soak_trainer  # noqa: PLC0415

    return soak, soak_trainer


@pytest.mark.timeout(300)  # a dozen processes are started, which takes long where others are at work
def test_nothing_is_lost_or_doubled_when_everyone_is_killed():
    command = [sys.executable, str(BENCHMARKS / "soak.py"), "--steps", "18", "--every", "6", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "18 steps" in done.stdout
    assert "killed: owner 1, producer 1, trainer 1\n" in done.stdout
    assert "lost 0, trained twice 0" in done.stdout
    assert "books: closed" in done.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        {"lost": ["producer 0/7"]},
        {"doubled": ["producer 1/3"]},
        {"unclosed": ["math"]},
        {"grown_bytes": 100_000_000, "passed_bytes": 200_000_000},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_run_with_a_fault_does_not_pass(modules, wrong):
    soak, _ = modules
    good = {"steps": 9, "groups": 90, "kills": Counter(), "lost": [], "doubled": [], "unclosed": []}
    assert soak.Verdict(**good, grown_bytes=1_000_000, passed_bytes=200_000_000).holds
    assert not soak.Verdict(**{**good, "grown_bytes": 0, "passed_bytes": 0, **wrong}).holds


def test_what_follows_the_last_checkpoint_was_trained_by_nobody(modules, tmp_path):
    _, trainer = modules
    file = tmp_path / "trained"
    assert trainer.restart(file) == 0
    file.write_text("1 a\ncheckpoint 1\n2 b\n2 c\ncheckpoint 2\n3 d\ncheck")
    assert trainer.restart(file) == 2
    assert trainer.history(file) == [(1, "a"), (2, "b"), (2, "c")]
