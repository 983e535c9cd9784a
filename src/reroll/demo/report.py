"""The report: one HTML file that needs nothing else, and the same numbers as JSON beside it."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from os import cpu_count
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import reroll
from reroll.demo import charts, grpo, warmup
from reroll.demo.comparing import BreakEven, Summary, break_evens, summarise, token_price
from reroll.demo.measuring import WINDOW, Measured, closes
from reroll.demo.modes import GROUP_SIZE, MODES
from reroll.demo.wording import HEADINGS, findings, table_rows

if TYPE_CHECKING:
    from reroll.demo.crash import Survived


@dataclass(slots=True, kw_only=True)
class Report:
    """All that a demo has to tell. It may be written at any time: what is missing then is said."""

    runs: list[Measured] = field(default_factory=list)
    planned: int
    """How many runs there were to be."""
    crash: list["Survived"] = field(default_factory=list)

    @property
    def summaries(self) -> list[Summary]:
        return summarise(self.runs)

    @property
    def comparisons(self) -> list[BreakEven]:
        return break_evens(self.summaries)

    @property
    def findings(self) -> list[str]:
        return findings(self.comparisons, token_price(self.runs))

    @property
    def is_whole(self) -> bool:
        return sum(run.is_whole for run in self.runs) + len(self.crash) == self.planned

    @property
    def holds(self) -> bool:
        """Whether nothing went wrong in what was to survive."""
        return all(survived.holds for survived in self.crash)

    def write(self, directory: Path) -> Path:
        """Write report.html and report.json; return the path of the former."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "report.json").write_text(json.dumps(self.as_dict(), indent=1))
        path = directory / "report.html"
        path.write_text(self._html(), encoding="utf-8")
        return path

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        runs = [
            {
                **asdict(run),
                "reached": None if run.reached is None else asdict(run.reached),
                "overlap": run.overlap,
            }
            for run in self.runs
        ]
        return {
            "is_whole": self.is_whole,
            "machine": machine(),
            "settings": settings(),
            "summaries": [asdict(summary) for summary in self.summaries],
            "comparisons": [asdict(found) for found in self.comparisons],
            "token_price": token_price(self.runs),
            "runs": runs,
            "crash": [asdict(one) for one in self.crash],
        }

    def _html(self) -> str:
        template = Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
        body = [_lead(self)]
        if not self.is_whole:
            body.append("<p class='note'>This demo was ended early: the report is of what there is.</p>")
        if self.runs:
            body.append(self._compared())
        if self.crash:
            body.append(_crash(self.crash))
        body += [
            "<h2>Configuration</h2>",
            _table(("mode", "what it is"), [(mode.name, mode.about) for mode in MODES.values()]),
            _table(
                ("setting", "value"), [(name, str(value)) for name, value in (settings() | machine()).items()]
            ),
        ]
        return template.substitute(script=charts.script(), body="\n".join(body))

    def _compared(self) -> str:
        shown = [run for run in self.runs if run.curve]
        cards = {
            "Reward against generated tokens": charts.rewards_by_tokens(shown),
            "Reward against seconds": charts.rewards_by_seconds(shown),
            "How stale trained groups were": charts.staleness(shown),
            "How often a group had been trained": charts.uses(shown),
        }
        return "\n".join(
            (
                "<h2>What it took to reach the target</h2>",
                _table(HEADINGS, table_rows(self.summaries)),
                (
                    f"<p>Medians over the seeds, and ranges. The reward is that of the newest {WINDOW} responses that were "
                    "generated. Generated tokens count all of them, also those of groups that were left out; a token that is "
                    "trained twice counts twice.</p>"
                ),
                _list(self.findings),
                "<div class='cards'>",
                *(f"<div class='card'><h3>{title}</h3>{chart}</div>" for title, chart in cards.items()),
                "</div><h2>Who works when</h2>",
                f"<div class='card'>{charts.timeline(shown)}</div>",
                "<h2>The ledger: where every token went</h2>",
                (
                    "<p>What was put is in exactly one bucket: here (resident), consumed, or how else it left; and it was "
                    "trained, or never.</p>"
                ),
                f"<div class='card'>{charts.ledger(shown)}</div>",
                "<h2>Runs</h2>",
                _table(_RUN_HEADINGS, [_run_row(run) for run in self.runs]),
                (
                    "<p>Rewards before and after are measured on prompts that are not trained on. Overlap is the share of the "
                    "training time during which something was generated.</p>"
                ),
            )
        )


_RUN_HEADINGS = (
    *("mode", "seed", "reward before", "reward after", "overlap", "largest staleness"),
    *("responses of several versions", "µs a generated token", "µs a trained token", "ledger closes"),
)


def _run_row(run: Measured) -> tuple[str, ...]:
    return (
        run.mode,
        str(run.seed),
        f"{run.reward_before:.2f}",
        "-" if run.reward_after is None else f"{run.reward_after:.2f}",
        f"{run.overlap:.0%}",
        str(max(run.staleness, default="-")),
        f"{run.mixed_responses:,}",
        f"{run.seconds_per_generated_token * 1e6:.0f}",
        f"{run.seconds_per_trained_token * 1e6:.0f}",
        "-" if not run.ledger else "yes" if closes(run.ledger) else "NO",
    )


def machine() -> dict[str, Any]:
    """Return where this runs."""
    import torch  # noqa: PLC0415

    return {
        "reroll": reroll.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cpu_count(),
    }


def settings() -> dict[str, Any]:
    """Return what all modes share."""
    return {
        "task": "4 to 8 letters in, the sorted set of them out; right or wrong",
        "warm-up": f"{warmup.STEPS} supervised steps on a teacher that is right half of the time",
        "responses of a group": GROUP_SIZE,
        "groups of a step": ", ".join(f"{mode.name}: {mode.batch}" for mode in MODES.values()),
        "learning rate": grpo.LEARNING_RATE,
        "clip of the ratio": f"{1 - grpo.CLIP_LOW:.2f} to {1 + grpo.CLIP_HIGH:.2f}",
        "groups whose rewards do not differ": "left out, and replaced",
    }


def _lead(report: Report) -> str:
    what = f"{len(report.runs)} trainings" if report.runs else f"{len(report.crash)} trainings, with crashes,"
    return (
        f"<p>{what} of a small transformer with GRPO, through reroll, on a CPU with {cpu_count()} cores. All numbers are of "
        "this run, on this machine.</p>"
    )


def _crash(found: Sequence["Survived"]) -> str:
    rows = [
        (one.mode, check.name, "yes" if check.holds else "NO", check.told)
        for one in found
        for check in one.checks
    ]
    return "\n".join(
        (
            "<h2>Killed, and gone on</h2>",
            "<p>Trainer, producer and buffer are processes, and each was killed (-9) once in mid-run.</p>",
            _table(("mode", "what has to hold", "holds", "how it is known"), rows),
            *(f"<h3>{one.mode}</h3>{_list(one.events)}" for one in found),
        )
    )


def _table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _list(sentences: Sequence[str]) -> str:
    return (
        "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"
        if sentences
        else ""
    )
