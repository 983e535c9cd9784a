"""One shard of several: its part of a configuration, and the verbs that a sharded buffer asks of it.

A shard is a whole buffer with its share of capacity, limiter, window and bytes. Its uids are those of its index, modulo the
number of shards. What the shards are asked for together is decided by the client (`sharded`).
"""

import hashlib
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, Self, TypeVar

from reroll.buffer.arguments import checked_count, checked_sizes, checked_step, checked_task, checked_uids
from reroll.buffer.buffer import ReplayBuffer, runtime_of
from reroll.codec import register
from reroll.config import ReplayBufferConfig, TaskConfig
from reroll.engine.limits import MinSize, Queue, SampleToInsertRatio, Stack, StalenessWindow
from reroll.engine.task import STATUS_CODE, Task
from reroll.errors import InvalidConfig
from reroll.rollout import Status
from reroll.telemetry.stats import Stats
from reroll.waiting import LoopWaits

C = TypeVar("C", bound=TaskConfig)
_PLACE: Final = re.compile(r"(\d{1,6})/(\d{1,6})")


class ShardPlace(NamedTuple):
    """Which shard of how many."""

    shard: int = 0
    shards: int = 1

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the place that a text such as "0/2" names. Raises InvalidConfig."""
        found = _PLACE.fullmatch(text)
        if found is None or not int(found[1]) < int(found[2]):
            raise InvalidConfig(f"invalid shard {text!r}; the first of two is 0/2, the second 1/2")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.shard}/{self.shards}"


class Offer(NamedTuple):
    """What a shard can deliver of one task and status."""

    available: int
    """Groups that can be delivered now, at most as many as are wanted."""
    size: int
    """Groups in the pool."""
    largest: float
    """Most groups that the shard can ever deliver at once."""
    weight: float | None
    """Weight of all groups in the pool, if the sampler draws at random."""
    beta: float | None
    """Exponent of the importance weights, if the sampler has one."""
    step: int | None
    """Training step of the task, if the task bounds the staleness."""
    is_used_once: bool
    """Whether a group leaves with its first use."""


register(Offer, name="reroll.Offer")


# --- a configuration in parts


def build_shard(config: ReplayBufferConfig, place: ShardPlace) -> tuple[ReplayBufferConfig, ReplayBuffer]:
    """Return a shard's part of a configuration, and its buffer. Raises InvalidConfig for what cannot be divided."""
    part = divide(config, place)

    def make(groups: Any, options: dict[str, Any]) -> ReplayBuffer:
        groups.engine.uid_shard = tuple(place)
        return ReplayBuffer(groups, LoopWaits(), **options)

    return part, part.build_with(make)


def fingerprint_of(config: ReplayBufferConfig) -> str:
    """Return a text that is the same for equal configurations, wherever their store is."""
    shown = repr(config.model_copy(update={"store": config.store is not None, "on_drop": None}))
    return hashlib.sha256(re.sub(r" at 0x\w+", "", shown).encode()).hexdigest()[:16]


def divide(config: ReplayBufferConfig, place: ShardPlace) -> ReplayBufferConfig:
    """Return a shard's part of a configuration. Raises InvalidConfig for what cannot be divided."""
    if place.shards == 1:
        return config
    index, shards = place
    own: dict[str, Any] = {
        "tasks": {
            name: _divide_task(task, place, task.model_fields_set) for name, task in config.tasks.items()
        },
        "max_bytes": config.max_bytes and _share("max_bytes", config.max_bytes, place),
        "max_resident_bytes": config.max_resident_bytes and _part(config.max_resident_bytes, place),
        "seed": None if config.seed is None else config.seed * shards + index,
        "store": config.store and config.store / f"shard-{index}-of-{shards}",
    }
    return _divide_task(config, place, type(config).model_fields.keys()).model_copy(update=own)


def divide_limiter(limiter: Any, place: ShardPlace) -> Any:
    """Return a shard's part of a limiter or window; one of a class of your own holds for each shard as it is."""
    if place.shards == 1:
        return limiter
    match limiter:
        case Queue(size):
            return Queue(_share("Queue", size, place))
        case Stack(size):
            return Stack(_share("Stack", size, place))
        case MinSize(size):
            return MinSize(max(1, _part(size, place)))
        case SampleToInsertRatio(ratio, size, _):
            window, least = limiter.window, max(1, _part(size, place))
            low, high = window.min_diff / place.shards, window.max_diff / place.shards
            return SampleToInsertRatio(ratio, least, (min(low, ratio * least), high))
        case StalenessWindow():
            return replace(limiter, batch=_share("StalenessWindow: batch", limiter.batch, place))
    return limiter


def _divide_task(config: C, place: ShardPlace, fields: Any) -> C:
    own: dict[str, Any] = {}
    if config.capacity is not None:
        own["capacity"] = _share("capacity", config.capacity, place)
    if config.min_size is not None:
        own["min_size"] = max(1, _part(config.min_size, place))
    if config.rejected_capacity:
        own["rejected_capacity"] = max(1, _part(config.rejected_capacity, place))
    if isinstance(config.rate_limiter, list):
        own["rate_limiter"] = [divide_limiter(part, place) for part in config.rate_limiter]
    elif config.rate_limiter is not None:
        own["rate_limiter"] = divide_limiter(config.rate_limiter, place)
    return config.model_copy(update={name: value for name, value in own.items() if name in fields})


def _part(whole: int, place: ShardPlace) -> int:
    return whole // place.shards + (place.shard < whole % place.shards)


def _share(what: str, whole: int, place: ShardPlace) -> int:
    if whole < place.shards:
        raise InvalidConfig(
            f"{what} {whole} cannot be divided among {place.shards} shards: some would have none; raise it, or use fewer shards"
        )
    return _part(whole, place)


# --- verbs


class ShardVerbs:
    """What a sharded buffer asks of a shard, besides the verbs of a buffer."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self._runtime = runtime_of(buffer)
        self.verbs: dict[str, Callable[..., Awaitable[Any]]] = {
            "offers": self.offers,
            "returning": self.returning,
            "printed": self.printed,
            "knows_put": self.knows_put,
            "consume_reservation": self.consume_reservation,
            "known_tasks": self.known_tasks,
            "totals": self.totals,
            "interval": self.interval,
        }

    async def offers(
        self, task_batch_sizes: Mapping[str, int], group_status: Any, steps: Mapping[str, int] | None = None
    ) -> dict[str, Offer]:
        """Learn the training steps of tasks; return what can be delivered of each task."""
        sizes, status = checked_sizes(task_batch_sizes), Status.of(group_status)
        for task, step in (steps or {}).items():
            await self._buffer.take_batch({task: 0}, train_step=checked_step("step", step))
        await self._buffer.is_ready({})  # leases may have ended
        engine = self._runtime.engine
        return {name: self._offer(engine.named(name), status, n) for name, n in sizes.items()}

    def _offer(self, task: Task, status: Status, n: int) -> Offer:
        code, settings = STATUS_CODE[status], task.settings
        sampler = task.pools[code].sampler
        largest = math.inf
        if status is Status.COMPLETED:
            largest = min(settings.largest, math.inf if settings.capacity is None else settings.capacity)
        elif status in (Status.FAILED, Status.FILTERED):
            largest = settings.rejected_capacity
        weigh = getattr(sampler, "total_weight", None)
        return Offer(
            available=self._runtime.engine.available(task, code, n),
            size=len(sampler),
            largest=largest,
            weight=None if weigh is None else weigh(task.step),
            beta=getattr(settings.sampler, "beta", None),
            step=task.step if self._runtime.groups.rules_of(task.name).max_staleness is not None else None,
            is_used_once=status is not Status.COMPLETED or settings.max_times_sampled == 1,
        )

    async def returning(self, uids: Any) -> list[int]:
        """Return which of these groups wait to be put again."""
        self._runtime.check_open()
        return [uid for uid in checked_uids(uids) if self._runtime.groups.is_waiting(uid)]

    async def printed(self, prompt: bytes, task_name: Any, group_id: Any, size: int) -> list[int]:
        """Return the groups that rollouts without a checkout may continue."""
        self._runtime.check_open()
        size = checked_count("size", size)
        return list(self._runtime.groups.printed(bytes(prompt), checked_task(task_name), group_id, size))

    async def knows_put(self, put_id: Any) -> bool:
        """Return whether a put of this id was stored here."""
        self._runtime.check_open()
        return put_id in self._runtime.put_ids

    async def consume_reservation(self, reservation: Any, put_id: Any) -> None:
        """Consume one group of a reservation whose group was put to another shard."""
        self._runtime.check_open()
        self._runtime.reservations.check(reservation, getattr(reservation, "task_name", ""))
        self._runtime.consume_reservation(reservation, put_id)

    async def known_tasks(self) -> list[str]:
        """Return the tasks that have or had groups, or that the configuration names."""
        self._runtime.check_open()
        return self._runtime.engine.known_tasks()

    async def totals(self) -> Stats:
        """Return the stats without warnings."""
        self._runtime.check_open()
        return self._runtime.stats()

    async def interval(self, reader: str) -> tuple[Stats, Stats]:
        """Return the stats, and those of the interval since the previous call of this reader."""
        self._runtime.check_open()
        return self._runtime.interval(reader)
