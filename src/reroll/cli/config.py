"""`reroll config check`: what a configuration does, what it wastes, and what waits for ever."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from pydantic import BaseModel, ConfigDict, ValidationError

from reroll.cli.options import AsJson, config_error, one_line_errors, print_json
from reroll.config import ReplayBufferConfig, TaskConfig, read_config
from reroll.engine.limits import Limiter
from reroll.engine.selectors.specs import Mixture, Prioritized
from reroll.errors import InvalidConfig

if TYPE_CHECKING:
    from reroll.prepare import PrepareConfig

config_app = typer.Typer(no_args_is_help=True, help="Configurations of buffers and preparations.")

_ORDERS: Final = {
    "fifo": "the oldest group first",
    "lifo": "the newest group first",
    "uniform": "any group, all with the same chance",
    "prioritized": "groups by chance, in proportion to priority^alpha",
    "min_heap": "the lowest priority first",
    "max_heap": "the highest priority first",
    "least_used": "the least used group first",
    "stalest": "the stalest group first",
    "freshest": "the freshest group first",
}


@config_app.callback()
def config() -> None:
    """Check configurations of buffers and preparations."""


@config_app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A .yaml, .toml or .json file of a buffer or a preparation.")],
    as_json: AsJson = False,
) -> None:
    """Explain what a configuration does, and name what wastes, or waits for ever (exit code 2).

    Example: reroll config check buffer.yaml

    Example: reroll config check prepare.yaml --json
    """
    with one_line_errors():
        found = explain(file)
    if as_json:
        from reroll.observe.plain import plain  # noqa: PLC0415  (slow to import)

        print_json(plain(found))
        return
    typer.echo(f"{file}: a {found.kind}")
    for sentence in (*found.preparation, *found.whole):
        typer.echo(f"  {sentence}")
    for name, sentences in found.tasks.items():
        others = "Every other task" if len(found.tasks) > 1 else "Every task"
        of_buffer = " of its buffer" if found.preparation else ""
        typer.echo(f"{f'Task {name!r}' if name else others}{of_buffer}:")
        for sentence in sentences:
            typer.echo(f"  {sentence}")
    for text in found.waste:
        typer.echo(f"Waste: {text}")
    typer.echo("Nothing in it waits for ever.")


@dataclass(slots=True)
class Explanation:
    """What a configuration does and wastes."""

    kind: str
    preparation: list[str] = field(default_factory=list)
    """How results become steps; empty for a buffer alone."""
    whole: list[str] = field(default_factory=list)
    """What holds for all tasks together."""
    tasks: dict[str, list[str]] = field(default_factory=dict)
    """By task; "" is every task that is not named."""
    waste: list[str] = field(default_factory=list)


class _Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


def explain(path: str | PathLike[str]) -> Explanation:
    """Read the configuration of a buffer or of a preparation, and return what it does.

    Raises InvalidConfig, which names the key, for an option that is wrong or can never proceed; OSError, ImportError.
    """
    try:
        keys = read_config(_Anything, path).model_extra or {}
        if "global_batch_size" not in keys:
            return _explain("buffer", read_config(ReplayBufferConfig, path))
        from reroll.prepare import PrepareConfig  # noqa: PLC0415  (slow to import)

        prepare = read_config(PrepareConfig, path)
        found = _explain("preparation", prepare.buffer_config())
    except ValidationError as error:
        raise InvalidConfig(config_error(error)) from None
    except ValueError as error:
        raise InvalidConfig(str(error)) from error
    found.preparation = list(_preparation(prepare))
    return found


def _preparation(config: "PrepareConfig") -> Iterator[str]:
    tasks = ", ".join(f"{count} of {task!r}" for task, count in (config.task_batch_sizes or {}).items())
    yield (
        f"A step is {config.global_batch_size} groups{f' ({tasks})' if tasks else ''} for {config.num_ranks} rank{'s' * (config.num_ranks != 1)}, packed "
        f"into rows of {config.pack_length} tokens; steps prepared ahead: {config.async_steps}."
    )
    if config.group_size is None:
        yield "A result may have any number of responses."
    else:
        fewer = "" if config.min_group_size is None else f", or at least {config.min_group_size}"
        yield f"A result has {config.group_size} responses{fewer}."
    if config.filter_zero_std:
        yield "Groups whose rewards do not differ are filtered."
    if config.predicates:
        yield f"{len(config.predicates)} predicates filter groups."
    if config.filter_zero_std or config.predicates:
        yield (
            f"A step waits until {config.global_batch_size} groups have passed."
            if config.when_filtered == "wait"
            else f"A step has the groups that passed of {config.global_batch_size} results, which may be none."
        )
    advantage = config.advantage if isinstance(config.advantage, str) else "of your function"
    yield "Advantages are 0." if config.advantage is None else f"Advantages: {advantage}."


def _explain(kind: str, config: ReplayBufferConfig) -> Explanation:
    found = Explanation(kind, whole=list(_whole(config)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Checked as it would be built, without making its store.
        memory = {"store": None, "sync": "os", "max_resident_bytes": None}
        config.model_copy(update=memory).build_with(lambda groups, _options: groups)
    found.waste += dict.fromkeys(str(warning.message) for warning in caught)
    # A preparation uses its own tasks only.
    others = () if kind == "preparation" and config.tasks else ("",)
    for name in (*others, *config.tasks):
        task = config if name == "" else config.for_task(name)
        found.tasks[name] = list(_sentences(task))
        texts = [text for text in _waste(task, config) if text not in found.waste]
        found.waste += [f"task {name!r}: {text}" if name else text for text in texts]
    return found


def _sentences(config: TaskConfig) -> Iterator[str]:
    capacity, uses = config.capacity, config.max_times_sampled
    if capacity is None:
        yield "Holds any number of COMPLETED groups."
    elif config.remover is None:
        yield f"Holds {capacity} COMPLETED groups; when it is full, a put waits."
    else:
        yield f"Holds {capacity} COMPLETED groups; when it is full, a put evicts one: {_order(config.remover)}."
    yield f"Delivers {_order(config.sampler)}."
    if uses is None:
        yield "A group is trained any number of times, until it is evicted, deleted or too old."
    else:
        yield "A group is trained once." if uses == 1 else f"A group is trained {uses} times at most."
    yield from _limiter(config.limiter(1))
    window = config.window()
    if window is not None:
        yield (
            f"Producers that reserve have at most {window.largest} groups under way, so that none waits until its staleness is "
            f"above {window.max_staleness}."
        )
    if config.max_staleness is not None:
        fate = (
            "is dropped"
            if config.on_stale == "drop"
            else "expires, to be rolled again, or is dropped if it was trained"
        )
        yield f"No group is trained with a staleness above {config.max_staleness}: one that passes it {fate}."
    stale = "its whole group" if config.expire == "group" else "only itself"
    yield f"A rollout that is too stale, by the threshold of put or refresh_staleness, expires {stale}."
    if config.on_failed == "drop_member":
        yield f"Failed rollouts are dropped, as long as {config.min_group_size} of a group stay."
    if config.max_attempts is not None:
        yield f"A group that is still not COMPLETED after {config.max_attempts} attempts is FAILED."


def _order(spec: object) -> str:
    if isinstance(spec, Mixture):
        return f"batches of which {spec.fresh_share:.0%} are fresh ({spec.fresh.type}) and the rest replayed ({spec.replay.type})"
    name = getattr(spec, "type", type(spec).__name__)
    return f"{_ORDERS.get(name, 'groups in an order of its own')} ({name})"


def _limiter(limiter: Limiter) -> Iterator[str]:
    spi, min_size, low, high = limiter.window
    if min_size > 1:
        yield f"Delivers nothing before {min_size} groups are resident."
    if high < math.inf:
        yield (
            f"A put waits while samples lag: when inserts x {spi:g} would be more than {high:g} ahead of samples "
            f"({limiter.type})."
        )
    if low > -math.inf:
        yield f"A sample waits when it would bring inserts x {spi:g} to less than {low:g} ahead of samples ({limiter.type})."


def _whole(config: ReplayBufferConfig) -> Iterator[str]:
    if config.store is None:
        yield "Groups are in memory only: they end with the process, unless you save them or serve them with --store."
    else:
        safe = "the end of the process" if config.sync == "os" else "a power loss"
        yield f"Every change is in {config.store} before a call returns, and survives {safe}."
    if config.max_bytes is not None:
        yield f"All tasks together hold {config.max_bytes} bytes of rollouts."
    if config.max_resident_bytes is not None:
        yield f"{config.max_resident_bytes} bytes of them stay in memory; the rest is read from disk on delivery."


def _waste(task: TaskConfig, config: ReplayBufferConfig) -> Iterator[str]:
    is_limited = task.limiter(1).window.max_diff < math.inf or task.window() is not None
    if task.capacity is None and config.max_bytes is None and not is_limited:
        yield (
            "nothing limits producers: memory grows while they are faster than the trainer; set capacity, max_bytes or "
            "a rate_limiter"
        )
    if task.remover is not None and task.max_times_sampled == 1 and not is_limited:
        yield "groups are evicted before they are trained, when producers are faster; set no remover, or a rate_limiter"
    parts = [task.sampler.replay, task.sampler.fresh] if isinstance(task.sampler, Mixture) else [task.sampler]
    if task.priority_signal is None and any(isinstance(part, Prioritized) for part in parts):
        yield (
            "all priorities are 1 until update_priorities or put(priority=...) says otherwise, and draws are uniform; set "
            "priority_signal"
        )
