"""A configuration in parts: each shard is a whole buffer with its share of capacity, limiter and window."""

from dataclasses import replace
from typing import Any, TypeVar

from reroll.config import ReplayBufferConfig, TaskConfig
from reroll.engine.limits import MinSize, Queue, SampleToInsertRatio, Stack, StalenessWindow
from reroll.errors import InvalidConfig

C = TypeVar("C", bound=TaskConfig)


def divided(config: ReplayBufferConfig, shards: int) -> list[ReplayBufferConfig]:
    """Return the configuration of each shard. Raises InvalidConfig for what cannot be divided."""
    return [_part(config, index, shards) for index in range(shards)] if shards > 1 else [config]


def limiter_part(limiter: Any, index: int, shards: int) -> Any:
    """Return a shard's part of a limiter or window; one of a class of your own holds for each shard as it is."""
    if shards == 1:
        return limiter
    match limiter:
        case Queue(size):
            return Queue(_share("Queue", size, index, shards))
        case Stack(size):
            return Stack(_share("Stack", size, index, shards))
        case MinSize(size):
            return MinSize(max(1, _of(size, index, shards)))
        case SampleToInsertRatio(ratio, size, _):
            window, least = limiter.window, max(1, _of(size, index, shards))
            low, high = window.min_diff / shards, window.max_diff / shards
            return SampleToInsertRatio(ratio, least, (min(low, ratio * least), high))
        case StalenessWindow():
            return replace(limiter, batch=_share("StalenessWindow: batch", limiter.batch, index, shards))
    return limiter


def _part(config: ReplayBufferConfig, index: int, shards: int) -> ReplayBufferConfig:
    own: dict[str, Any] = {
        "tasks": {
            name: _task(task, index, shards, task.model_fields_set) for name, task in config.tasks.items()
        },
        "max_bytes": config.max_bytes and _share("max_bytes", config.max_bytes, index, shards),
        "max_resident_bytes": config.max_resident_bytes and _of(config.max_resident_bytes, index, shards),
        "seed": None if config.seed is None else config.seed * shards + index,
        "store": config.store and config.store / f"shard-{index}-of-{shards}",
    }
    return _task(config, index, shards, type(config).model_fields.keys()).model_copy(update=own)


def _task(config: C, index: int, shards: int, fields: Any) -> C:
    own: dict[str, Any] = {}
    if config.capacity is not None:
        own["capacity"] = _share("capacity", config.capacity, index, shards)
    if config.min_size is not None:
        own["min_size"] = max(1, _of(config.min_size, index, shards))
    if config.rejected_capacity:
        own["rejected_capacity"] = max(1, _of(config.rejected_capacity, index, shards))
    if isinstance(config.rate_limiter, list):
        own["rate_limiter"] = [limiter_part(part, index, shards) for part in config.rate_limiter]
    elif config.rate_limiter is not None:
        own["rate_limiter"] = limiter_part(config.rate_limiter, index, shards)
    return config.model_copy(update={name: value for name, value in own.items() if name in fields})


def _of(whole: int, index: int, shards: int) -> int:
    return whole // shards + (index < whole % shards)


def _share(what: str, whole: int, index: int, shards: int) -> int:
    if whole < shards:
        raise InvalidConfig(
            f"{what} {whole} cannot be divided among {shards} shards: some would have none; raise it, or take fewer shards"
        )
    return _of(whole, index, shards)
