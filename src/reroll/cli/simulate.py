"""`reroll simulate` and `reroll simulate calibrate`."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from reroll.cli.options import AsJson, one_line_errors, print_json, progress_bar

if TYPE_CHECKING:
    from reroll.simulate import Result, Trial


class _RunByDefault(TyperGroup):
    """Takes the name of a file for `run` with that file."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


simulate_app = typer.Typer(
    cls=_RunByDefault,
    no_args_is_help=True,
    help="Simulate a run: the real buffer, with models of engines and trainer, in virtual time.",
)


@simulate_app.command()
def run(
    scenario: Annotated[Path, typer.Argument(help="The run: a .yaml, .toml or .json file.")],
    *,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value: engines=16 or trainer.sync_s=2.")
    ] = None,
    sweep: Annotated[
        list[str] | None, typer.Option(help="Run for each value: max_staleness=0..4 or engines=8,16,32.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a page with pictures to this .html file.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write every response and step to this .jsonl file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a run, or one for each combination of values, and print what it costs.

    Example: reroll simulate run.yaml --report run.html

    Example: reroll simulate run.yaml --sweep max_staleness=0..4 --sweep engines=8,16 --report frontier.html
    """
    from reroll.errors import InvalidArgument  # noqa: PLC0415  (slow to import)
    from reroll.simulate import (  # noqa: PLC0415
        Scenario,
        combinations,
        parse_sweep,
        run_report,
        run_sweep,
        simulate,
        sweep_report,
    )

    with one_line_errors():
        fixed = {name: values[0] for name, values in parse_sweep(changes or []).items()}
        axes = parse_sweep(sweep or [])
        if axes and trace is not None:
            raise InvalidArgument("--trace writes one run; leave --sweep out")
        for values in combinations(axes):  # a wrong value is found before the first run
            Scenario.load(scenario, {**fixed, **values})
        with (
            progress_bar("simulating steps") as progress,
            trace.open("w", encoding="utf-8") if trace is not None else nullcontext() as lines,
        ):

            def one(values: dict[str, Any]) -> "Result":
                loaded = Scenario.load(scenario, {**fixed, **values})
                return simulate(loaded, progress=progress, trace=lines)

            if axes:
                trials = run_sweep(axes, one)
                page = sweep_report(f"Sweep of {scenario.name}", trials)
            else:
                result = one({})
                page = run_report(f"Simulation of {scenario.name}", result)
        if report is not None:
            report.write_text(page, encoding="utf-8")
    if axes:
        _print_trials(trials, as_json=as_json)
    else:
        _print_result(result, as_json=as_json)
    if report is not None and not as_json:
        typer.echo(f"report: {report}")


@simulate_app.command()
def calibrate(
    trace: Annotated[Path, typer.Argument(help="A .jsonl file with the responses and steps of a real run.")],
    as_json: AsJson = False,
) -> None:
    """Fit the models of engines, lengths and trainer to a trace, and print them as a part of a scenario.

    Example: reroll simulate calibrate trace.jsonl > fitted.json
    """
    from reroll.simulate import calibrate as fit_to, read_trace  # noqa: PLC0415, I001

    with one_line_errors():
        fit = fit_to(read_trace(trace))
    if as_json:
        print_json(fit._asdict())
        return
    typer.echo(json.dumps(fit.parameters, indent=2))
    for name, error in (("engines", fit.engine_error), ("trainer", fit.trainer_error)):
        if error is not None:
            typer.echo(f"{name}: off by {error:.1%} on held-out lines", err=True)


def _print_result(result: "Result", *, as_json: bool) -> None:
    from reroll.simulate.report import COLUMNS  # noqa: PLC0415

    if as_json:
        print_json(result.to_dict())
        return
    for name, value in result.row().items():
        title, form = COLUMNS[name]
        typer.echo(f"{title:<22} {form(value):>12}")
    for cause, tokens in result.wasted.items():
        typer.echo(f"{'wasted, ' + cause:<22} {tokens:>12,} tokens")


def _print_trials(trials: "list[Trial]", *, as_json: bool) -> None:
    from reroll.simulate.report import COLUMNS, advice, text_table  # noqa: PLC0415

    if as_json:
        found = [{**trial.changes, **trial.result.row(), "is_best": trial.is_best} for trial in trials]
        print_json({"trials": found, "advice": advice(trials)})
        return
    rows = [
        {
            **trial.changes,
            **{title: form(trial.result.row()[name]) for name, (title, form) in COLUMNS.items()},
            "best": "*" if trial.is_best else "",
        }
        for trial in trials
    ]
    typer.echo(text_table(rows))
    typer.echo(advice(trials))
