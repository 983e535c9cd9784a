"""The report: complete, self-contained, and there also when the demo is interrupted."""

import re
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from demo import __main__ as command
from demo import producer
from demo.compare import break_evens, summarise
from demo.modes import MODES
from demo.report import Report
from demo.run import closes
from reroll import InvalidArgument

pytestmark = pytest.mark.timeout(400)  # the whole demo is in a fixture, and machines are slow


@pytest.fixture(scope="module")
def html(quick):
    return (quick[1] / "report.html").read_text()


def body_of(html):
    """Return the page without the script that draws the charts."""
    return html[html.index("<body>") :]


def test_the_report_has_every_part(html):
    body = body_of(html)
    for title in (
        "What it took to reach the target",
        "Reward against generated tokens",
        "Reward against seconds",
        "How stale trained groups were",
        "How often a group had been trained",
        "Generation and training over time",
        "The ledger: where every token went",
        "Configuration",
    ):
        assert title in body
    assert body.count("Plotly.newPlot") == 6
    for mode in MODES.values():
        assert mode.name in body
        assert mode.about.replace("'", "&#x27;") in body
    assert "ended early" not in body


def test_the_report_needs_nothing_else(html):
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']?https?:", html)
    assert "Plotly" in html[: html.index("<body>")]


def test_the_report_says_how_much_replay_saved(quick, html):
    (found,) = [
        one
        for one in break_evens(summarise(quick[0].runs))
        if (one.mode, one.baseline) == ("replay-uniform", "on-policy")
    ]
    assert f"replay-uniform generated {found.saved_share:.0%} fewer tokens than on-policy" in body_of(html)
    assert f"more than {found.ratio:.1f} trained ones" in body_of(html)


def test_the_numbers_are_there_as_json(quick_json):
    assert quick_json["is_whole"]
    assert [run["mode"] for run in quick_json["runs"]] == list(MODES)
    for run in quick_json["runs"]:
        assert closes(run["ledger"])
        assert run["reached"]["reward"] >= run["target"]
        assert run["curve"][-1]["generated_tokens"] > 0
    assert {summary["mode"] for summary in quick_json["summaries"]} == set(MODES)
    assert quick_json["token_price"] > 0


def test_what_is_printed(quick):
    printed = quick[2]
    for mode in MODES:
        assert mode in printed
    assert "fewer tokens than on-policy" in printed
    *lines, last = printed.splitlines()[-4:]
    assert [line.split(":")[0] for line in lines] == ["Replay", "Async", "Ledger"]
    assert last.startswith("Report: ")
    assert last.endswith("report.html")


def test_an_interrupt_leaves_a_report_of_what_there_is(tmp_path, monkeypatch):
    """Ctrl-C is raised in the main thread, wherever it is; here it is when the third step has been shown."""
    steps, measure = [], command.measure

    def interrupted(mode, run, warm, on_step):
        def interrupt(run, buffer):
            on_step(run, buffer)
            steps.append(run.curve[-1].step)
            if len(steps) == 3:
                raise KeyboardInterrupt

        measure(mode, run, warm, interrupt)

    monkeypatch.setattr(command, "measure", interrupted)
    console = Console(file=StringIO(), width=160, force_terminal=True, color_system=None)
    report = command.demo(modes=["async"], seeds=1, out=tmp_path, console=console)
    assert steps == [1, 2, 3]
    assert not report.is_whole
    (run,) = report.runs
    assert len(run.curve) == 3
    assert closes(run.ledger)
    body = body_of((tmp_path / "report.html").read_text())
    assert "ended early" in body
    printed = console.file.getvalue()
    assert "Ended early" in printed
    for shown in (
        "1 of 1: async, seed 0, step 3",
        "groups by status",
        "groups by staleness",
        "generated,",
        "put ",
    ):
        assert shown in printed


def test_an_error_of_the_producer_ends_the_demo(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise ZeroDivisionError("in the engine")

    monkeypatch.setattr(producer, "generate", fail)
    with pytest.raises(ZeroDivisionError, match="in the engine"):
        command.demo(modes=["on-policy"], seeds=1, out=tmp_path, console=Console(file=StringIO()))


def test_an_unknown_mode_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="mode is unknown: 'of-policy'; choose from on-policy"):
        command.demo(modes=["of-policy"], out=tmp_path)


def test_text_in_the_report_is_text(tmp_path):
    check = SimpleNamespace(name="<script>alert(1)</script>", holds=False, evidence="&")
    report = Report(planned=0)
    report.crash.append(SimpleNamespace(mode="async", checks=[check], events=["<b>"]))
    body = body_of(report.html())
    assert "<script>alert" not in body
    assert "&lt;script&gt;alert(1)" in body
    assert "NO" in body
