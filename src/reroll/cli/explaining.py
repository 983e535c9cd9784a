"""What a configuration will do, in sentences; and what about it wastes, or waits for ever."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from reroll.cli.ending import in_words
from reroll.config import ReplayBufferConfig, TaskConfig, read_config
from reroll.engine.limits import Limiter
from reroll.engine.selectors.specs import Mixture, Prioritized
from reroll.errors import InvalidConfig
from reroll.prepare import PrepareConfig

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


@dataclass(slots=True)
class Explanation:
    """What a configuration does, by task; "" is every task that is not named. And what it wastes."""

    kind: str
    tasks: dict[str, list[str]] = field(default_factory=dict)
    whole: list[str] = field(default_factory=list)
    """What holds for the buffer as a whole."""
    waste: list[str] = field(default_factory=list)


class _Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


def explain(path: str | PathLike[str]) -> Explanation:
    """Read the configuration of a buffer, or of its preparation, and return what it does.

    Raises InvalidConfig, which names the key, for what is wrong or can never proceed; OSError, ImportError.
    """
    try:
        keys = read_config(_Anything, path).model_extra or {}
        if "global_batch_size" not in keys:
            return _explain_buffer("buffer", read_config(ReplayBufferConfig, path))
        prepare = read_config(PrepareConfig, path)
        told = _explain_buffer("preparation", prepare.buffer_config())
    except ValidationError as error:
        raise InvalidConfig(in_words(error)) from None
    except ValueError as error:
        raise InvalidConfig(str(error)) from error
    step = (
        f"A step is {prepare.global_batch_size} groups for {prepare.num_ranks} ranks, packed into rows of "
        f"{prepare.pack_length} tokens; {prepare.async_steps} steps are prepared ahead."
    )
    told.whole.insert(0, step)
    return told


def _explain_buffer(kind: str, config: ReplayBufferConfig) -> Explanation:
    told = Explanation(kind, whole=list(_whole(config)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Checked as it would be built, without making its store.
        memory = {"store": None, "sync": "os", "max_resident_bytes": None}
        config.model_copy(update=memory).build_with(lambda groups, _options: groups)
    told.waste += dict.fromkeys(str(warning.message) for warning in caught)
    for name in ("", *config.tasks):
        task = config if name == "" else config.for_task(name)
        told.tasks[name] = list(_sentences(task))
        found = [text for text in _waste(task, config) if text not in told.waste]
        told.waste += [f"task {name!r}: {text}" if name else text for text in found]
    return told


def _sentences(config: TaskConfig) -> Iterator[str]:
    capacity, uses = config.capacity, config.max_times_sampled
    if capacity is None:
        yield "Holds any number of COMPLETED groups."
    elif config.remover is None:
        yield f"Holds {capacity} COMPLETED groups; when they are there, a put waits for room."
    else:
        yield f"Holds {capacity} COMPLETED groups; then one is evicted for each that comes: {_order(config.remover)}."
    yield f"Hands out {_order(config.sampler)}."
    if uses is None:
        yield "A group is trained any number of times, until it is evicted, deleted or too old."
    else:
        yield "A group is trained once." if uses == 1 else f"A group is trained {uses} times at most."
    yield from _limiter(config.limiter(1))
    window = config.window()
    if window is not None:
        yield (
            f"Producers that reserve before they start have {window.largest} groups under way at most, so that none has to wait "
            f"until its staleness is above {window.max_staleness}."
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
        yield f"Failed rollouts are left out, as long as {config.min_group_size} of a group stay."
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
        yield f"Nothing is handed out before {min_size} groups are there."
    if high < math.inf:
        yield (
            f"A put waits while samples lag: when inserts x {spi:g} would be more than {high:g} ahead of samples "
            f"({limiter.type})."
        )
    if low > -math.inf:
        yield f"A sample waits when it would bring inserts x {spi:g} to less than {low:g} ahead of samples ({limiter.type})."


def _whole(config: ReplayBufferConfig) -> Iterator[str]:
    if config.store is None:
        yield "Groups are in memory only: they are gone with the process, unless you save, or serve them with --store."
    else:
        safe = "the end of the process" if config.sync == "os" else "a power loss"
        yield f"Every change is in {config.store} before a call returns, and survives {safe}."
    if config.max_bytes is not None:
        yield f"All tasks together hold {config.max_bytes} bytes of rollouts."
    if config.max_resident_bytes is not None:
        yield f"{config.max_resident_bytes} bytes of them stay in memory; the rest is read when it is handed out."


def _waste(task: TaskConfig, config: ReplayBufferConfig) -> Iterator[str]:
    held_back = task.limiter(1).window.max_diff < math.inf or task.window() is not None
    if task.capacity is None and config.max_bytes is None and not held_back:
        yield (
            "nothing holds producers back: memory grows while they are faster than the trainer; set capacity, max_bytes or "
            "a rate_limiter"
        )
    if task.remover is not None and task.max_times_sampled == 1 and not held_back:
        yield "groups are evicted that were never trained, when producers are faster; name no remover, or a rate_limiter"
    parts = [task.sampler.replay, task.sampler.fresh] if isinstance(task.sampler, Mixture) else [task.sampler]
    if task.priority_signal is None and any(isinstance(part, Prioritized) for part in parts):
        yield (
            "all priorities are 1 until update_priorities or put(priority=...) says otherwise, and draws are uniform; set "
            "priority_signal"
        )
