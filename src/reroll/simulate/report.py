"""One HTML page of a simulated run or a sweep: figures, and pictures that need no script."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Final

from reroll.simulate.result import Result
from reroll.simulate.sweep import Trial

COLUMNS: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "step_s": ("step, s", "{:.1f}".format),
    "wait_s": ("wait for a batch, s", "{:.1f}".format),
    "trained_tokens_per_s": ("trained tokens/s", "{:,.0f}".format),
    "trainer_idle": ("trainer idle", "{:.0%}".format),
    "engine_idle": ("engines idle", "{:.0%}".format),
    "mean_staleness": ("mean staleness", "{:.2f}".format),
    "max_staleness": ("largest", "{:.0f}".format),
    "waste": ("wasted", "{:.1%}".format),
    "late": ("trained late", "{:.1%}".format),
    "read_again": ("read again", "{:.1%}".format),
    "long_generated": ("long groups generated", "{:.1%}".format),
    "long_trained": ("long groups trained", "{:.1%}".format),
}
"""Title and format of each figure of `Result.row`."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 260, 70, 40
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2430;background:#fff}
table{border-collapse:collapse;margin:1rem 0;font-size:13px}th,td{padding:.3rem .7rem;text-align:right;border-bottom:1px solid #d8dee6}
th:first-child,td:first-child{text-align:left}tr.best{background:#e8f4ec;font-weight:600}svg{max-width:100%;height:auto}
text{font:12px system-ui,sans-serif;fill:#1c2430}.axis{stroke:#8a94a3}.note{color:#5a6472}
"""


def page(title: str, *parts: str) -> str:
    """Return a whole page."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>{''.join(parts)}</html>\n"
    )


def run_report(title: str, result: Result) -> str:
    """Return the page of one run."""
    figures = "".join(
        f"<tr><td>{escape(COLUMNS[name][0])}<td>{COLUMNS[name][1](value)}"
        for name, value in result.row().items()
    )
    wasted = "".join(f"<tr><td>{escape(cause)}<td>{tokens:,}" for cause, tokens in result.wasted.items())
    points = result.points
    return page(
        title,
        f"<table>{figures}</table>",
        "<h2>Staleness of trained groups</h2>",
        bars([(str(value), number) for value, number in result.staleness.items()], "groups"),
        "<h2>Tokens that were wasted</h2>",
        f"<table>{wasted}</table>" if wasted else "<p>None.</p>",
        "<h2>Groups and responses over time</h2>",
        lines(
            [point.time_s for point in points],
            {
                "groups ready": [point.ready for point in points],
                "responses running": [point.running for point in points],
            },
        ),
        "<h2>Wait for a batch</h2>",
        lines([point.time_s for point in points], {"seconds": [point.wait_s for point in points]}),
    )


def sweep_report(title: str, trials: Sequence[Trial]) -> str:
    """Return the page of a sweep: the picture of the frontier, and the table."""
    names = list(trials[0].changes)
    head = "".join(f"<th>{escape(text)}" for text in (*names, *(title for title, _ in COLUMNS.values())))
    body = "".join(
        f"<tr{' class=best' if trial.is_best else ''}>"
        + "".join(f"<td>{escape(str(value))}" for value in trial.changes.values())
        + "".join(f"<td>{COLUMNS[name][1](value)}" for name, value in trial.result.row().items())
        for trial in trials
    )
    return page(
        title,
        f"<p>{escape(advice(trials))}</p>",
        frontier(trials),
        '<p class="note">Filled points are settings that no other setting beats in throughput, staleness and waste at '
        "once.</p>",
        f"<table><tr>{head}{body}</table>",
    )


def advice(trials: Sequence[Trial]) -> str:
    """Return one sentence: which setting to take."""
    best = [trial for trial in trials if trial.is_best]
    most = max(trial.result.trained_tokens_per_s for trial in best)
    near = [trial for trial in best if trial.result.trained_tokens_per_s >= 0.95 * most]
    pick = min(near, key=lambda trial: (trial.result.mean_staleness, trial.result.waste))
    setting = ", ".join(f"{name}={value}" for name, value in pick.changes.items())
    row = pick.result
    return (
        f"Take {setting}: {row.trained_tokens_per_s:,.0f} trained tokens/s ({row.trained_tokens_per_s / most:.0%} of the "
        f"fastest setting) at mean staleness {row.mean_staleness:.2f}, with {row.waste:.1%} of the tokens wasted."
    )


def frontier(trials: Sequence[Trial]) -> str:
    """Draw throughput against mean staleness; the radius grows with the waste."""
    xs = [trial.result.mean_staleness for trial in trials]
    ys = [trial.result.trained_tokens_per_s for trial in trials]
    x_of, y_of = _scale(min(0.0, *xs), max(xs) or 1.0, _LEFT, _WIDTH - 20), _scale(0, max(ys), _HEIGHT, 20)
    marks, labelled = [], set[tuple[float, float]]()
    for trial, x, y in zip(trials, xs, ys, strict=True):
        text = ", ".join(f"{name}={value}" for name, value in trial.changes.items())
        fill = "#1f7a4d" if trial.is_best else "none"
        if trial.is_best and (x, y) not in labelled:
            labelled.add((x, y))
            place = (
                f'x="{x_of(x) - 12:.1f}" text-anchor="end"' if x > max(xs) / 2 else f'x="{x_of(x) + 12:.1f}"'
            )
            marks.append(f'<text {place} y="{y_of(y) + 4:.1f}">{escape(text)}</text>')
        marks.append(
            f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="{5 + 30 * trial.result.waste:.1f}" fill="{fill}" '
            f'stroke="#1f7a4d"><title>{escape(text)}</title></circle>'
        )
    return _picture(
        "".join(marks), (x_of, max(xs) or 1.0, "mean staleness"), (y_of, max(ys), "trained tokens/s")
    )


def bars(values: Sequence[tuple[str, float]], unit: str) -> str:
    """Draw one bar for each value."""
    if not values:
        return "<p>None.</p>"
    most = max(number for _, number in values)
    width = (_WIDTH - _LEFT - 20) / len(values)
    y_of = _scale(0, most, _HEIGHT, 20)
    marks = "".join(
        f'<rect x="{_LEFT + i * width + 2:.1f}" y="{y_of(number):.1f}" width="{width - 4:.1f}" '
        f'height="{_HEIGHT - y_of(number):.1f}" fill="#2f6fb0"><title>{number:,}</title></rect>'
        f'<text x="{_LEFT + (i + 0.5) * width:.1f}" y="{_HEIGHT + 16}" text-anchor="middle">{escape(name)}</text>'
        for i, (name, number) in enumerate(values)
    )
    return _picture(marks, None, (y_of, most, unit))


def lines(xs: Sequence[float], series: Mapping[str, Sequence[float]]) -> str:
    """Draw values over seconds; each line is labelled, and has a dash pattern of its own."""
    most = max((value for values in series.values() for value in values), default=0) or 1.0
    x_of, y_of = _scale(0, max(xs, default=0) or 1.0, _LEFT, _WIDTH - 20), _scale(0, most, _HEIGHT, 20)
    marks = []
    for i, (name, values) in enumerate(series.items()):
        colour, dash = (("#2f6fb0", "none"), ("#b0532f", "6 3"), ("#1f7a4d", "2 3"))[i % 3]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in zip(xs, values, strict=True))
        marks.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-dasharray="{dash}" stroke-width="1.5"/>'
            f'<text x="{_LEFT + 8 + 170 * i}" y="14" style="fill:{colour}">{escape(name)}</text>'
        )
    return _picture("".join(marks), (x_of, max(xs, default=0) or 1.0, "seconds"), (y_of, most, ""))


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


Axis = tuple[Callable[[float], float], float, str]


def _picture(marks: str, x: Axis | None, y: Axis) -> str:
    place, most, unit = y
    parts = [
        f'<text x="{_LEFT - 6}" y="{place(value) + 4:.1f}" text-anchor="end">{_short(value)}</text>'
        for value in (0, most / 2, most)
    ]
    parts.append(f'<text x="{_LEFT + 8}" y="14">{escape(unit)}</text>')
    if x is not None:
        place, most, unit = x
        parts += [
            f'<text x="{place(value):.1f}" y="{_HEIGHT + 16}" text-anchor="middle">{_short(value)}</text>'
            for value in (0, most / 2, most)
        ]
        parts.append(f'<text x="{_WIDTH - 20}" y="{_HEIGHT + 34}" text-anchor="end">{escape(unit)}</text>')
    axes = f'<path class="axis" fill="none" d="M{_LEFT} 20V{_HEIGHT}H{_WIDTH - 20}"/>'
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + _BOTTOM}" role="img">{axes}{"".join(parts)}{marks}</svg>'


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"


def text_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same keys as aligned text."""
    titles = list(rows[0])
    cells = [[str(row[title]) for title in titles] for row in rows]
    widths = [max(len(title), *(len(line[i]) for line in cells)) for i, title in enumerate(titles)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (titles, *cells)
    )
