"""The charts of the report, as pieces of HTML that need nothing but the script that plotly ships."""

from collections.abc import Callable, Iterable, Sequence

import plotly.graph_objects as go
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from reroll.demo.measuring import Measured, Point
from reroll.demo.modes import MODES

_COLOURS = dict(zip(MODES, ("#4477aa", "#66ccee", "#228833", "#ee6677", "#aa3377"), strict=True))
_TIMELINE_S = 0.6


def script() -> str:
    """Return the script that draws the charts."""
    return str(get_plotlyjs())


def rewards_by_tokens(runs: Sequence[Measured]) -> str:
    """Return the learning curves against what was generated."""
    return _curves(runs, "generated tokens", lambda point: point.generated_tokens)


def rewards_by_seconds(runs: Sequence[Measured]) -> str:
    """Return the learning curves against time."""
    return _curves(runs, "seconds", lambda point: point.seconds)


def _curves(runs: Sequence[Measured], title: str, x: Callable[[Point], float]) -> str:
    figure = go.Figure()
    seen: set[str] = set()
    for run in runs:
        figure.add_scatter(
            x=[x(point) for point in run.curve],
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
    return _html(figure)


def staleness(runs: Sequence[Measured]) -> str:
    """Return how stale trained groups were."""
    return _histogram(runs, lambda run: run.staleness, "staleness, in training steps")


def uses(runs: Sequence[Measured]) -> str:
    """Return how often groups had been trained."""
    return _histogram(runs, lambda run: run.uses, "which use of its group")


def _histogram(runs: Sequence[Measured], counts: Callable[[Measured], dict[int, int]], title: str) -> str:
    figure = go.Figure()
    for mode, group in _by_mode(runs):
        total: dict[int, int] = {}
        for run in group:
            for value, count in counts(run).items():
                total[value] = total.get(value, 0) + count
        values = sorted(total)
        shares = [total[value] / sum(total.values()) for value in values]
        figure.add_bar(x=values, y=shares, name=mode, marker_color=_COLOURS[mode])
    figure.update_layout(xaxis_title=title, yaxis_title="share of trained groups", yaxis_tickformat=".0%")
    figure.update_xaxes(dtick=1)
    return _html(figure)


def ledger(runs: Sequence[Measured]) -> str:
    """Return where the tokens of each mode went: from put to the bucket that has them, to trained or not."""
    figure = go.Figure()
    modes = list(_by_mode(runs))
    for place, (mode, group) in enumerate(modes):
        buckets: dict[str, list[int]] = {}
        for run in group:
            for name, amount in run.ledger.items():
                if name != "put" and amount["tokens"]:
                    trained = amount["trained_tokens"]
                    had = buckets.setdefault(name, [0, 0])
                    had[0] += trained
                    had[1] += amount["tokens"] - trained
        names = [f"put ({mode})", *buckets, "trained", "never trained"]
        ends = (len(names) - 2, len(names) - 1)
        links = [(0, 1 + row, sum(parts)) for row, parts in enumerate(buckets.values())]
        links += [
            (1 + row, end, part)
            for row, parts in enumerate(buckets.values())
            for end, part in zip(ends, parts, strict=True)
            if part
        ]
        source, target, value = zip(*links, strict=True) if links else ((), (), ())
        bottom = 1 - (place + 1) / len(modes)
        figure.add_sankey(
            domain={"y": [bottom + 0.02, bottom + 1 / len(modes) - 0.02]},
            node={"label": names, "color": _COLOURS[mode], "pad": 12, "thickness": 12},
            link={"source": source, "target": target, "value": value},
            valueformat=",d",
            valuesuffix=" tokens",
        )
    return _html(figure, height=190 * max(1, len(modes)))


def timeline(runs: Sequence[Measured]) -> str:
    """Return who works when, for a moment in the middle of the first run of each mode."""
    figure = go.Figure()
    for name, colour in (("generating", "#ccbb44"), ("training", "#4477aa")):
        rows: list[str] = []
        starts: list[float] = []
        lengths: list[float] = []
        for mode, group in _by_mode(runs):
            middle = group[0].curve[-1].seconds / 2 if group[0].curve else 0.0
            for start, end in getattr(group[0], name):
                if end > middle and start < middle + _TIMELINE_S:
                    rows.append(f"{mode}, {name}")
                    starts.append(max(0.0, start - middle))
                    lengths.append(min(end - middle, _TIMELINE_S) - starts[-1])
        figure.add_bar(
            y=rows,
            x=lengths,
            base=starts,
            orientation="h",
            name=name,
            marker={"color": colour, "line": {"color": "white", "width": 1}},
        )
    order = [f"{mode}, {name}" for mode, _ in _by_mode(runs) for name in ("generating", "training")]
    figure.update_layout(xaxis_title="seconds, from the middle of the run", barmode="overlay")
    figure.update_yaxes(categoryorder="array", categoryarray=order[::-1])
    return _html(figure, height=120 + 34 * len(order))


def _by_mode(runs: Iterable[Measured]) -> Iterable[tuple[str, list[Measured]]]:
    grouped: dict[str, list[Measured]] = {}
    for run in runs:
        grouped.setdefault(run.mode, []).append(run)
    return grouped.items()


def _html(figure: go.Figure, height: int = 380) -> str:
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 60, "r": 20, "t": 60, "b": 50},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        font_family="system-ui, sans-serif",
    )
    options = {"displaylogo": False, "responsive": True, "displayModeBar": False}
    return str(to_html(figure, full_html=False, include_plotlyjs=False, config=options))
