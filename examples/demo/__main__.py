"""The command: all trainings, one after the other, with live progress; then the table, the report, and three lines."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from demo.compare import HEADINGS, headlines, summarise
from demo.crash import CRASHING, survive
from demo.modes import MODES, TASK
from demo.policy import warmed_up
from demo.report import Report
from demo.run import TARGET, Run, held_out_reward, measure
from reroll import InvalidArgument


def demo(
    *,
    modes: Sequence[str] = (),
    seeds: int = 3,
    out: Path,
    crash: bool = False,
    console: Console | None = None,
) -> Report:
    """Run modes (by default all) with this many seeds, and write the report into a directory.

    With `crash`, trainer, producer and buffer are processes instead, and each is killed once. An interrupt ends the
    demo with a report of the runs so far. Raises InvalidArgument for an unknown mode.
    """
    possible = CRASHING if crash else tuple(MODES)
    unknown = sorted(set(modes) - set(possible))
    if unknown:
        raise InvalidArgument(f"mode is unknown: {unknown[0]!r}; choose from {', '.join(possible)}")
    chosen, console = list(modes or possible), console or Console()
    torch.set_num_threads(1)  # the model is too small for more, and the producer needs the other core
    report = Report(planned=len(chosen) * (1 if crash else seeds))
    try:
        if crash:
            for mode in chosen:
                report.crash.append(survive(mode, console))
        else:
            _run_all(report, chosen, seeds, console)
    except KeyboardInterrupt:
        console.print("Ended early; the report has the runs so far.")
    path = report.write(out)
    _print(report, console)
    console.print(f"Report: {path}", soft_wrap=True, highlight=False)
    return report


def _run_all(report: Report, modes: Sequence[str], seeds: int, console: Console) -> None:
    live = Live(console=console, refresh_per_second=8, transient=True, auto_refresh=console.is_terminal)

    def show(run: Run, buffer: Any) -> None:
        if console.is_terminal:
            live.update(_progress(report, run, buffer))

    with live:
        for seed in range(seeds):
            live.update(f"seed {seed}: supervised warm-up ...")
            policy = warmed_up(seed)
            before = held_out_reward(policy, seed)
            for mode in modes:
                run = Run(mode=mode, seed=seed, reward_before=before)
                report.runs.append(run)
                measure(MODES[mode], run, policy, show)
                end = run.curve[-1]
                outcome = f"reward {TARGET} reached" if run.reached else f"ended at reward {end.reward:.2f}"
                console.print(
                    f"{mode:<19} seed {seed}: {outcome} in {end.seconds:.1f} s, {end.step} updates, "
                    f"{end.generated_tokens:,} generated and {end.trained_tokens:,} trained tokens",
                    highlight=False,
                )


def _progress(report: Report, run: Run, buffer: Any) -> Group:
    point, stats = run.curve[-1], buffer.stats().tasks[TASK]
    ledger = {name: amount.groups for name, amount in buffer.ledger()[TASK].items() if amount.groups}
    put = ledger.pop("put", 0)
    staleness = sorted(stats.trained_staleness["oldest"].histogram.items())
    facts = {
        "run": f"{len(report.runs)} of {report.planned}: {run.mode}, seed {run.seed}, step {point.step}",
        "reward": f"{point.reward:.2f} of {run.target}, over the newest responses",
        "tokens": f"{point.generated_tokens:,} generated, {point.trained_tokens:,} trained",
        "staleness": f"trained groups by staleness: {', '.join(f'{age}: {n}' for age, n in staleness)}",
        "buffer": f"groups by status: {', '.join(f'{name}: {n}' for name, n in stats.statuses.items() if n)}",
        "ledger": f"put {put} = {' + '.join(f'{n} {name}' for name, n in ledger.items())}",
    }
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(f"[bold]{name}", value)
    return Group(grid, ProgressBar(total=run.target, completed=min(point.reward, run.target), width=60))


def _print(report: Report, console: Console) -> None:
    """Print the table and the findings, then the lines that matter."""
    lines = [
        f"{run.mode}: {sum(check.holds for check in run.checks)} of {len(run.checks)} checks hold after "
        "kill -9 of producer, trainer and buffer"
        for run in report.crash
    ]
    if report.runs:
        table = Table(title=f"To reward {TARGET}: median over the seeds, and range")
        for heading in HEADINGS:
            table.add_column(heading, no_wrap=heading == HEADINGS[0])
        for summary in summarise(report.runs):
            table.add_row(*summary.row())
        console.print(table)
        for sentence in report.findings:
            console.print(f"- {sentence}", highlight=False)
        lines = headlines(report.runs)
    console.print("", *lines, sep="\n", highlight=False, soft_wrap=True)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="make demo ARGS=...",
        description="Train a small language model with GRPO through reroll, in several modes, and write a report.",
    )
    parser.add_argument(
        "--modes", default="", help=f"separated by commas; default: all of {', '.join(MODES)}"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each mode")
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--crash", action="store_true", help="kill trainer, producer and buffer once each")
    parser.add_argument("--out", type=Path, default=Path("demo-report"), help="directory of the report")
    options = parser.parse_args()
    modes = [mode for mode in options.modes.split(",") if mode]
    seeds = 1 if options.quick else max(1, options.seeds)
    try:
        report = demo(modes=modes, seeds=seeds, out=options.out, crash=options.crash)
    except InvalidArgument as error:
        parser.error(str(error))
    if not report.is_whole:
        return 130  # interrupted
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
