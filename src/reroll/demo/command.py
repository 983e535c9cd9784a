"""The command: all runs, one after the other, with live progress; then the table and the report."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from reroll import InvalidArgument
from reroll.demo.crash import CRASHING, survive
from reroll.demo.measuring import Measured
from reroll.demo.modes import MODES
from reroll.demo.progress import Progress
from reroll.demo.report import Report
from reroll.demo.running import TARGET, held_out_reward, run
from reroll.demo.warmup import warmed_up
from reroll.demo.wording import HEADINGS, table_rows


def demo(
    *,
    modes: Sequence[str] = (),
    seeds: int = 3,
    out: Path,
    crash: bool = False,
    console: Console | None = None,
) -> Report:
    """Run modes (all, if none is named) with so many seeds, and write the report into a directory.

    With `crash`, instead, trainer, producer and buffer are processes, and each is killed once.

    An interrupt ends it with a report of what there is. Raises InvalidArgument for a mode that cannot be run.
    """
    chosen = _chosen(modes, CRASHING if crash else tuple(MODES))
    console = console or Console()
    torch.set_num_threads(1)  # the model is too small for more, and the producer needs the other core
    report = Report(planned=len(chosen) * (1 if crash else seeds))
    try:
        if crash:
            for mode in chosen:
                report.crash.append(survive(mode, console))
        else:
            _run_all(report, chosen, seeds, console)
    except KeyboardInterrupt:
        console.print("Ended early; the report is of what there is.")
    path = report.write(out)
    _print(report, console)
    console.print(f"Report: {path}", soft_wrap=True, highlight=False)
    return report


def _chosen(modes: Sequence[str], possible: Sequence[str]) -> list[str]:
    unknown = [mode for mode in modes if mode not in possible]
    if unknown:
        raise InvalidArgument(f"{unknown[0]!r} is no mode for this; choose from: {', '.join(possible)}")
    return list(modes or possible)


def _run_all(report: Report, modes: Sequence[str], seeds: int, console: Console) -> None:
    with Progress(console, report.planned) as progress:
        for seed in range(seeds):
            progress.warming_up(seed)
            policy = warmed_up(seed)
            before = held_out_reward(policy, seed)
            for mode in modes:
                measured = Measured(mode=mode, seed=seed, reward_before=before, target=TARGET)
                report.runs.append(measured)
                run(MODES[mode], seed, policy, measured, progress.on_step)
                progress.is_over(measured)


def _print(report: Report, console: Console) -> None:
    if not report.runs:
        return
    table = Table(title=f"To reward {TARGET}: median over the seeds, and range")
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=heading == HEADINGS[0])
    for row in table_rows(report.summaries):
        table.add_row(*row)
    console.print(table)
    for sentence in report.findings:
        console.print(f"- {sentence}", highlight=False)
