"""`make demo ARGS=--crash`: trainer, producer and buffer are killed once each, and the training goes on."""

import json
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from demo.__main__ import demo
from demo.crash import KILLS
from demo.modes import MODES
from demo.run import closes

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("mode", [pytest.param("on-policy", marks=pytest.mark.slow), "async"])
@pytest.mark.timeout(300)
def test_a_training_survives(mode, tmp_path):
    printed = StringIO()
    report = demo(modes=[mode], crash=True, out=tmp_path, console=Console(file=printed, width=200))
    (survived,) = report.crash
    assert report.holds, printed.getvalue()
    assert sorted(KILLS.values()) == ["buffer", "producer", "trainer"]
    for role in KILLS.values():
        assert any(f"the {role} is killed" in event for event in survived.events)
    begun = [event for event in survived.events if "begins with step" in event]
    assert len(begun) == 3  # at first, after it was killed, and after the buffer was
    assert closes(survived.ledger)
    names = [check.name for check in survived.checks]
    assert "the ledger closes" in names
    assert any("without crashes" in name for name in names) == (mode == "on-policy")
    assert any("lost" in name for name in names) == (mode == "async")
    written = json.loads((tmp_path / "report.json").read_text())
    assert all(check["holds"] for check in written["crash"][0]["checks"])
    assert "Killed, and continued" in (tmp_path / "report.html").read_text()


def test_the_processes_end_with_the_one_that_started_them(tmp_path):
    with tempfile.TemporaryDirectory(prefix="reroll-") as directory:  # a socket's path has to be short
        config = MODES["async"].config(0, tmp_path)
        (Path(directory) / "prepare.json").write_text(config.model_dump_json(exclude_unset=True))
        command = [sys.executable, "-m", "demo.processes", "buffer", directory, "async", "0", "1"]
        child = subprocess.Popen(
            command, cwd=EXAMPLES, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with child:
            assert child.stdout.readline().startswith("ready at ipc://")
            child.stdin.close()  # as the end of the parent does
            assert child.wait(60) == 1
