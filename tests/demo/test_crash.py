"""`reroll demo --crash`: trainer, producer and buffer are killed once each, and the training goes on."""

import json
import subprocess
import sys
import tempfile
from io import StringIO

import pytest
from rich.console import Console

from reroll.demo.command import demo
from reroll.demo.measuring import closes
from reroll.demo.processes import KILLS


@pytest.mark.parametrize("mode", [pytest.param("on-policy", marks=pytest.mark.slow), "async"])
@pytest.mark.timeout(300)
def test_a_training_survives(mode, tmp_path):
    printed = StringIO()
    report = demo(modes=[mode], crash=True, out=tmp_path, console=Console(file=printed, width=200))
    (survived,) = report.crash
    assert survived.holds, printed.getvalue()
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
    assert "Killed, and gone on" in (tmp_path / "report.html").read_text()


def test_the_processes_end_with_the_one_that_started_them():
    with tempfile.TemporaryDirectory(prefix="reroll-") as directory:
        command = [sys.executable, "-m", "reroll.demo.lives", "buffer", directory, "async", "0", "1"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with child:
            assert json.loads(child.stdout.readline()) == {"event": "ready"}
            child.stdin.close()  # what the end of the parent does
            assert child.wait(60) == 1
