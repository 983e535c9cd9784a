"""Live progress in the terminal: the run that is going on, and those that are over."""

from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from reroll.demo.measuring import Measured, Meter
from reroll.demo.modes import TASK


class Progress:
    """Shows runs as they go. Where nobody watches, it prints a line for each that is over."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._over: list[str] = []
        self._live = Live(console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def warming_up(self, seed: int) -> None:
        """Show that a policy is being made."""
        self._live.update(f"seed {seed}: supervised warm-up ...")

    def on_step(self, meter: Meter, buffer: Any) -> None:
        """Show a run after a step."""
        if self._console.is_terminal:
            self._live.update(self._picture(meter, buffer))

    def is_over(self, run: Measured) -> None:
        """Tell that a run has ended."""
        point, reached = run.curve[-1], run.reached
        how = f"reward {run.target} reached" if reached else f"ended at reward {point.reward:.2f}"
        self._console.print(
            f"{run.mode:<19} seed {run.seed}: {how} in {point.seconds:.1f} s, {point.step} updates, "
            f"{point.generated_tokens:,} generated and {point.trained_tokens:,} trained tokens",
            highlight=False,
        )
        self._over.append(run.mode)

    def _picture(self, meter: Meter, buffer: Any) -> Group:
        run, point, stats = meter.measured, meter.measured.curve[-1], buffer.stats().tasks[TASK]
        ledger = {name: amount.groups for name, amount in buffer.ledger()[TASK].items() if amount.groups}
        facts = Table.grid(padding=(0, 2))
        trained = stats.trained_staleness["oldest"].histogram
        for name, value in {
            "run": f"{len(self._over) + 1} of {self._total}: {run.mode}, seed {run.seed}, step {point.step}",
            "reward": f"{point.reward:.2f} of {run.target}, over the newest responses",
            "tokens": f"{point.generated_tokens:,} generated, {point.trained_tokens:,} trained",
            "staleness": _counts(trained, "trained groups by staleness"),
            "buffer": _counts({name: n for name, n in stats.statuses.items() if n}, "groups by status"),
            "ledger": f"put {ledger.pop('put', 0)} = "
            + " + ".join(f"{n} {name}" for name, n in ledger.items()),
        }.items():
            facts.add_row(f"[bold]{name}", value)
        return Group(facts, ProgressBar(total=run.target, completed=min(point.reward, run.target), width=60))


def _counts(counts: dict[Any, int], what: str) -> str:
    return f"{what}: " + ", ".join(f"{key}: {count}" for key, count in sorted(counts.items()))
