"""Sweeps, calibration and reports."""

import io
import re

import pytest

from reroll import InvalidArgument, InvalidConfig
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", r"trace\.jsonl:1 is not a line of a trace"),
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
