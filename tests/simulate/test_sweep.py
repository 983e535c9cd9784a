"""Sweeps, calibration and reports."""

import io
import re

import pytest
from typer.testing import CliRunner

from reroll import InvalidArgument, InvalidConfig, Rollout, SyncReplayBufferConfig
from reroll.cli.commands import app
from reroll.simulate import (
    Scenario,
    calibrate,
    parse_sweep,
    read_trace,
    run_report,
    run_sweep,
    simulate,
    sweep_report,
)
from reroll.simulate.report import advice
from simulate.scenarios import small


def test_words_of_a_sweep():
    assert parse_sweep(
        ["max_staleness=0..3", "engines=8, 16", "trainer.colocated=true", "lengths.sigma=0.5"]
    ) == {
        "max_staleness": [0, 1, 2, 3],
        "engines": [8, 16],
        "trainer.colocated": [True],
        "lengths.sigma": [0.5],
    }


@pytest.mark.parametrize("word", ["max_staleness", "=3", "engines=", "engines=8,", "a=4..1"])
def test_wrong_words_are_refused(word):
    with pytest.raises(InvalidArgument, match="sweep"):
        parse_sweep([word])


def test_a_sweep_marks_the_settings_that_no_other_beats(tmp_path):
    data = small().model_dump()

    def run(changes):
        limiter = {**data["buffer"]["rate_limiter"], "max_staleness": changes["max_staleness"]}
        engines = {**data["engines"], "count": changes["engines"]}
        return simulate(
            Scenario.of(
                {
                    **data,
                    "buffer": {"sampler": "stalest", "rate_limiter": limiter},
                    "engines": engines,
                    "steps": 15,
                }
            )
        )

    trials = run_sweep({"max_staleness": [0, 1, 3], "engines": [2, 3]}, run)
    assert [trial.changes for trial in trials][:2] == [
        {"max_staleness": 0, "engines": 2},
        {"max_staleness": 0, "engines": 3},
    ]
    best = [trial for trial in trials if trial.is_best]
    assert 0 < len(best) < len(trials)
    fastest = max(trial.result.trained_tokens_per_s for trial in trials)
    assert any(trial.result.trained_tokens_per_s >= 0.99 * fastest for trial in best)
    page = sweep_report("A sweep", trials)
    assert page.count("<circle") == len(trials)
    assert page.count("class=best") == len(best)
    assert re.match(r"Take max_staleness=\d, engines=\d: [\d,]+ trained tokens/s", advice(trials))
    assert advice(trials) in page


def test_the_report_of_a_run_shows_every_figure():
    result = simulate(small(buffer={"sampler": "stalest", "max_staleness": 0, "on_stale": "drop"}))
    page = run_report("A <run>", result)
    assert "A &lt;run&gt;" in page
    assert f"{result.wasted['expired']:,}" in page
    assert page.count("<svg") == 3


def test_calibration_finds_the_parameters_of_a_simulated_run(tmp_path):
    trace = io.StringIO()
    scenario = small(trainer={"seconds_per_step": 3.0, "seconds_per_token": 0.0005}, steps=60)
    simulate(scenario, trace=trace)
    file = tmp_path / "trace.jsonl"
    file.write_text(trace.getvalue())
    fit = calibrate(read_trace(file))
    assert fit.parameters["engines"]["tokens_per_s"] == pytest.approx(100, rel=0.15)
    assert fit.parameters["engines"]["half_speed_at"] == pytest.approx(16, rel=0.25)
    assert fit.parameters["lengths"]["median"] == pytest.approx(400, rel=0.15)
    assert fit.parameters["trainer"]["seconds_per_step"] == pytest.approx(3.0, rel=0.01)
    assert fit.parameters["trainer"]["seconds_per_token"] == pytest.approx(0.0005, rel=0.01)
    assert fit.engine_error < 0.1
    assert fit.trainer_error < 0.001


GROUPS = [[1, 2, 300], [40] * 3, [900, 20, 60]]


def saved_run(path):
    """Save a buffer with responses of these lengths, and return its directory."""
    buffer = SyncReplayBufferConfig(store=path).build_blocking()
    for lengths in GROUPS * 4:
        buffer.put(
            [Rollout(response_ids=[7] * tokens, prompt_ids=[1], status="completed") for tokens in lengths],
            "math",
        )
    buffer.close()
    return path


@pytest.mark.parametrize("kind", ["store", "parquet", "jsonl", "csv"])
def test_a_scenario_takes_its_lengths_from_a_store_or_an_export(tmp_path, kind):
    trace = saved_run(tmp_path / "store")
    if kind != "store":
        pytest.importorskip("pyarrow")
        trace = tmp_path / f"run.{kind}"
        assert CliRunner().invoke(app, ["export", str(tmp_path / "store"), str(trace)]).exit_code == 0
    file = tmp_path / "run.yaml"
    file.write_text(f"trace: {trace.name}\ntrainer: {{batch: 4}}\nengines: {{count: 2}}\n")
    scenario = Scenario.load(file)
    assert sorted(scenario.lengths.measured) == sorted(n for lengths in GROUPS * 4 for n in lengths)
    assert scenario.lengths.cap == 900
    assert scenario.engines.count == 2
    assert calibrate(read_trace(trace)).parameters["lengths"]["median"] == 40


def test_a_scenario_takes_speeds_from_a_trace_unless_it_says_otherwise(tmp_path):
    with (tmp_path / "trace.jsonl").open("w") as lines:
        simulate(small(trainer={"seconds_per_step": 3.0}), trace=lines)
    file = tmp_path / "run.yaml"
    file.write_text("trace: trace.jsonl\nengines: {half_speed_at: 99}\nlengths: {median: 10}\n")
    scenario = Scenario.load(file)
    assert scenario.trainer.seconds_per_step == pytest.approx(3.0, rel=0.01)
    assert scenario.engines.tokens_per_s == pytest.approx(100, rel=0.15)
    assert scenario.engines.half_speed_at == 99
    assert (scenario.lengths.median, scenario.lengths.measured) == (10, None)


def test_rows_of_groups_alone_give_mean_lengths_with_a_warning(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("uid,num_rollouts,num_tokens\n1,2,30\n2,4,40\n")
    with pytest.warns(UserWarning, match="rows-only"):
        assert [tokens for tokens, _, _ in read_trace(file).responses] == [15, 15, 10, 10, 10, 10]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", r"a fit needs 10"),
        ("[]x", r"trace\.jsonl:1 is not a line of JSON"),
        ('{"kind": "response"}', r"trace\.jsonl:1 is not a line of a trace"),
        ('{"kind": "step", "tokens": 1, "seconds": 1}\n{"kind": "x", "tokens": 1, "seconds": 1}', "jsonl:2"),
        ('{"kind": "response", "tokens": 1, "seconds": 1}', "running"),
        ('{"kind": "step", "tokens": 1, "seconds": 0}', "seconds are above 0"),
        ('{"kind": "step", "tokens": 1, "seconds": 1}', "a fit needs 10"),
    ],
)
def test_a_wrong_trace_names_its_line(tmp_path, text, message):
    file = tmp_path / "trace.jsonl"
    file.write_text(text)
    with pytest.raises(InvalidConfig, match=message):
        calibrate(read_trace(file))
