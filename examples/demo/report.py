"""The report: charts and tables in one HTML file that needs nothing else, and the same numbers as JSON."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from os import cpu_count
from pathlib import Path
from string import Template
from typing import Any

import plotly.graph_objects as go
import torch
from plotly.io import to_html
from plotly.offline import get_plotlyjs

import reroll
from demo import grpo, policy
from demo.compare import HEADINGS, break_evens, findings, summarise, token_price
from demo.modes import GROUP_SIZE, MODES
from demo.run import WINDOW, Ledger, Run, closes

_COLOURS = dict(zip(MODES, ("#4477aa", "#66ccee", "#228833", "#ee6677", "#aa3377"), strict=True))
_TIMELINE_S = 0.6


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that must hold after the crashes, with the numbers that show it."""

    name: str
    holds: bool
    evidence: str


@dataclass(slots=True, kw_only=True)
class CrashRun:
    """A training in which each process was killed once."""

    mode: str
    events: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    ledger: Ledger = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Report:
    """All results of a demo. It can be written at any time, and says if runs are missing."""

    planned: int
    runs: list[Run] = field(default_factory=list)
    crash: list[CrashRun] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return sum(run.is_whole for run in self.runs) + len(self.crash) == self.planned

    @property
    def holds(self) -> bool:
        """Whether all checks after crashes hold."""
        return all(check.holds for run in self.crash for check in run.checks)

    @property
    def findings(self) -> list[str]:
        return findings(break_evens(summarise(self.runs)), token_price(self.runs))

    def write(self, directory: Path) -> Path:
        """Write report.html and report.json; return the path of the former."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "report.json").write_text(json.dumps(self._plain(), indent=1))
        path = directory / "report.html"
        path.write_text(self.html(), encoding="utf-8")
        return path

    def _plain(self) -> dict[str, Any]:
        summaries = summarise(self.runs)
        return {
            "is_whole": self.is_whole,
            "settings": _settings(),
            "summaries": [asdict(summary) for summary in summaries],
            "comparisons": [asdict(found) for found in break_evens(summaries)],
            "token_price": token_price(self.runs),
            "runs": [
                {**asdict(run), "reached": run.reached and asdict(run.reached), "overlap": run.overlap}
                for run in self.runs
            ],
            "crash": [asdict(run) for run in self.crash],
        }

    def html(self) -> str:
        """Return the page."""
        what = f"{len(self.runs)} trainings" if self.runs else f"{len(self.crash)} trainings with crashes"
        body = [
            f"<p>{what} of a small transformer with GRPO, through reroll, on a CPU with {cpu_count()} cores.</p>",
            "<p>All numbers are from this machine and this run.</p>",
        ]
        if not self.is_whole:
            body.append("<p class='note'>This demo was ended early: runs are missing.</p>")
        if self.runs:
            body += self._comparison()
        if self.crash:
            body += self._crashes()
        body += [
            "<h2>Configuration</h2>",
            _table(("mode", "description"), [(mode.name, mode.about) for mode in MODES.values()]),
            _table(("setting", "value"), [(key, str(of)) for key, of in _settings().items()]),
        ]
        template = Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
        return template.substitute(script=get_plotlyjs(), body="\n".join(body))

    def _comparison(self) -> list[str]:
        shown, rows = [run for run in self.runs if run.curve], [_run_row(run) for run in self.runs]
        cards = {
            "Reward against generated tokens": _curves(shown, "generated tokens", "generated_tokens"),
            "Reward against seconds": _curves(shown, "seconds", "seconds"),
            "How stale trained groups were": _histogram(shown, "staleness, in training steps", "staleness"),
            "How often a group had been trained": _histogram(shown, "which use of its group", "uses"),
        }
        return [
            "<h2>What it took to reach the target</h2>",
            _table(HEADINGS, [summary.row() for summary in summarise(self.runs)]),
            f"<p>Medians over the seeds, and ranges. The reward is the mean of the newest {WINDOW} responses.</p>",
            "<p>Generated tokens include filtered groups; a token that is trained twice counts twice.</p>",
            _list(self.findings),
            "<div class='cards'>",
            *(f"<div class='card'><h3>{title}</h3>{chart}</div>" for title, chart in cards.items()),
            "</div><h2>Generation and training over time</h2>",
            f"<div class='card'>{_timeline(shown)}</div>",
            "<h2>The ledger: where every token went</h2>",
            "<p>Every token is in exactly one bucket: resident, consumed, or how it left. It was trained, or never.</p>",
            f"<div class='card'>{_sankey(shown)}</div>",
            "<h2>Runs</h2>",
            _table(tuple(rows[0]), [tuple(row.values()) for row in rows]),
            "<p>Rewards before and after are those of held-out prompts.</p>",
            "<p>Overlap is the share of the training time during which the producer generated.</p>",
        ]

    def _crashes(self) -> list[str]:
        rows = [
            (run.mode, check.name, "yes" if check.holds else "NO", check.evidence)
            for run in self.crash
            for check in run.checks
        ]
        return [
            "<h2>Killed, and continued</h2>",
            "<p>Trainer, producer and buffer are processes, and each was killed (-9) once.</p>",
            _table(("mode", "condition", "holds", "evidence"), rows),
            *(f"<h3>{run.mode}</h3>{_list(run.events)}" for run in self.crash),
        ]


def _run_row(run: Run) -> dict[str, str]:
    return {
        "mode": run.mode,
        "seed": str(run.seed),
        "reward before": f"{run.reward_before:.2f}",
        "reward after": "-" if run.reward_after is None else f"{run.reward_after:.2f}",
        "overlap": f"{run.overlap:.0%}",
        "largest staleness": str(max(run.staleness, default="-")),
        "responses of several versions": f"{run.mixed_responses:,}",
        "µs a generated token": f"{run.seconds_per_generated_token * 1e6:.0f}",
        "µs a trained token": f"{run.seconds_per_trained_token * 1e6:.0f}",
        "ledger closes": "-" if not run.ledger else "yes" if closes(run.ledger) else "NO",
    }


def _settings() -> dict[str, Any]:
    return {
        "task": "4 to 8 letters in, the sorted set of them out; right or wrong",
        "warm-up": f"{policy.WARMUP_STEPS} supervised steps on a teacher that is right half of the time",
        "responses of a group": GROUP_SIZE,
        "groups of a step": ", ".join(f"{mode.name}: {mode.batch}" for mode in MODES.values()),
        "learning rate": grpo.LEARNING_RATE,
        "clip of the ratio": f"{1 - grpo.CLIP_LOW:.2f} to {1 + grpo.CLIP_HIGH:.2f}",
        "groups with equal rewards": "filtered, and replaced",
        "reroll": reroll.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cpu_count(),
    }


def _table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _list(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>" if items else ""


def _by_mode(runs: Sequence[Run]) -> dict[str, list[Run]]:
    return {
        mode: [run for run in runs if run.mode == mode] for mode in dict.fromkeys(run.mode for run in runs)
    }


def _curves(runs: Sequence[Run], title: str, x: str) -> str:
    figure, seen = go.Figure(), set[str]()
    for run in runs:
        figure.add_scatter(
            x=[getattr(point, x) for point in run.curve],
            y=[point.reward for point in run.curve],
            name=run.mode,
            legendgroup=run.mode,
            showlegend=run.mode not in seen,
            mode="lines",
            line={"color": _COLOURS[run.mode], "width": 2},
            hovertemplate=f"{run.mode}, seed {run.seed}<br>%{{x:,.1f}} {title}, reward %{{y:.2f}}<extra></extra>",
        )
        seen.add(run.mode)
    for target in {run.target for run in runs}:
        figure.add_hline(y=target, line={"color": "#888", "dash": "dot"}, annotation_text=f"target {target}")
    figure.update_layout(xaxis_title=title, yaxis_title="reward of the newest responses", yaxis_range=[0, 1])
    return _chart(figure)


def _histogram(runs: Sequence[Run], title: str, counts: str) -> str:
    figure = go.Figure()
    for mode, of_mode in _by_mode(runs).items():
        values = sorted({value for run in of_mode for value in getattr(run, counts)})
        total = [sum(getattr(run, counts).get(value, 0) for run in of_mode) for value in values]
        shares = [count / sum(total) for count in total]
        figure.add_bar(x=values, y=shares, name=mode, marker_color=_COLOURS[mode])
    figure.update_layout(xaxis_title=title, yaxis_title="share of trained groups", yaxis_tickformat=".0%")
    figure.update_xaxes(dtick=1)
    return _chart(figure)


def _sankey(runs: Sequence[Run]) -> str:
    """Draw the flow of tokens in each mode: from put to a bucket, and on to trained or never trained."""
    figure, modes = go.Figure(), _by_mode(runs)
    for place, (mode, of_mode) in enumerate(modes.items()):
        buckets: dict[str, tuple[int, int]] = {}
        for run in of_mode:
            for name, amount in run.ledger.items():
                if name != "put" and amount["tokens"]:
                    trained, never = buckets.get(name, (0, 0))
                    more = amount["trained_tokens"]
                    buckets[name] = trained + more, never + amount["tokens"] - more
        end = len(buckets) + 1
        links = [(0, row, sum(parts)) for row, parts in enumerate(buckets.values(), 1)]
        for row, parts in enumerate(buckets.values(), 1):
            links += [(row, end + side, part) for side, part in enumerate(parts) if part]
        source, target, value = zip(*links, strict=True) if links else ((), (), ())
        bottom = 1 - (place + 1) / len(modes)
        figure.add_sankey(
            domain={"y": [bottom + 0.02, bottom + 1 / len(modes) - 0.02]},
            node={
                "label": [f"put ({mode})", *buckets, "trained", "never trained"],
                "color": _COLOURS[mode],
                "pad": 12,
                "thickness": 12,
            },
            link={"source": source, "target": target, "value": value},
            valueformat=",d",
            valuesuffix=" tokens",
        )
    return _chart(figure, height=190 * max(1, len(modes)))


def _timeline(runs: Sequence[Run]) -> str:
    """Draw a moment in the middle of the first run of each mode."""
    figure = go.Figure()
    for name, colour in (("generating", "#ccbb44"), ("training", "#4477aa")):
        bars: list[tuple[str, float, float]] = []
        for mode, (first, *_) in _by_mode(runs).items():
            middle = first.curve[-1].seconds / 2
            for start, end in getattr(first, name):
                if end > middle and start < middle + _TIMELINE_S:
                    begin = max(0.0, start - middle)
                    bars.append((f"{mode}, {name}", begin, min(end - middle, _TIMELINE_S) - begin))
        rows, starts, lengths = zip(*bars, strict=True) if bars else ((), (), ())
        marker = {"color": colour, "line": {"color": "white", "width": 1}}
        figure.add_bar(y=rows, x=lengths, base=starts, orientation="h", name=name, marker=marker)
    order = [f"{mode}, {name}" for mode in _by_mode(runs) for name in ("generating", "training")]
    figure.update_layout(xaxis_title="seconds, from the middle of the run", barmode="overlay")
    figure.update_yaxes(categoryorder="array", categoryarray=order[::-1])
    return _chart(figure, height=120 + 34 * len(order))


def _chart(figure: go.Figure, height: int = 380) -> str:
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 60, "r": 20, "t": 60, "b": 50},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        font_family="system-ui, sans-serif",
    )
    options = {"displaylogo": False, "responsive": True, "displayModeBar": False}
    return str(to_html(figure, full_html=False, include_plotlyjs=False, config=options))
