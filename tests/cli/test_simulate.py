"""reroll simulate: a run, a sweep, a fit."""

import json

import pytest

from server.program import run

TEXT = """
buffer: {sampler: stalest, rate_limiter: {type: staleness_window, max_staleness: 1, batch: 4}}
engines: {count: 2, max_running: 32}
lengths: {median: 200, sigma: 0.5}
group: {members: 2}
trainer: {batch: 4, seconds_per_step: 3, sync_s: 0.1}
steps: 14
warm_up: 2
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(TEXT)
    return path


def test_a_run_is_printed_and_reported(file, tmp_path):
    done = run("simulate", str(file), "--report", str(tmp_path / "run.html"))
    assert done.exit_code == 0, done.stderr
    assert "mean staleness" in done.stdout
    assert "trained tokens/s" in done.stdout
    assert "<svg" in (tmp_path / "run.html").read_text()
    plain = json.loads(run("simulate", "run", str(file), "--set", "engines=4", "--json").stdout)
    assert plain["imbalance"] == 0
    assert len(plain["points"]) == 14


def test_a_sweep_gives_a_table_and_advice(file):
    done = run("simulate", str(file), "--sweep", "max_staleness=0..1", "--sweep", "engines=1,2")
    assert done.exit_code == 0, done.stderr
    head, *rows, last = done.stdout.strip().splitlines()
    assert head.split()[:2] == ["max_staleness", "engines"]
    assert [row.split()[:2] for row in rows] == [["0", "1"], ["0", "2"], ["1", "1"], ["1", "2"]]
    assert last.startswith("Take max_staleness=")


def test_a_fit_of_a_simulated_trace(file, tmp_path):
    trace = tmp_path / "trace.jsonl"
    assert run("simulate", str(file), "--trace", str(trace), "--set", "steps=40").exit_code == 0
    done = run("simulate", "calibrate", str(trace))
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["trainer"]["seconds_per_step"] == pytest.approx(3.0)
    assert "engines: off by" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "enginez.count=2"], "enginez"),
        (["--sweep", "engines"], "is not a name with values"),
        (["--sweep", "engines=0,2"], "engines.count"),
        (["--sweep", "engines=1,2", "--trace", "x.jsonl"], "leave --sweep out"),
    ],
)
def test_a_wrong_option_is_one_line(file, options, message):
    done = run("simulate", str(file), *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
