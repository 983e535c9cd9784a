"""Shard: one whole ReplayBuffer inside of an actor, that comes back with its store when it is killed.

It carries out calls of handles, each once; it decides nothing that the buffer does not decide. What it hands out is lent
until the handle says that it has arrived, so a reply that is lost on its way loses no group.
"""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from reroll.buffer.batch import Batch
from reroll.buffer.buffer import ReplayBuffer, runtime_of
from reroll.buffer.groups import Groups
from reroll.buffer.reservations import Reservation
from reroll.config import ReplayBufferConfig
from reroll.engine.task import STATUS_CODE
from reroll.errors import Closed, LeaseExpired, StoreLocked
from reroll.ray.books import Books, Record, ledgers_of, steps_of, write_off
from reroll.ray.calls import Calls
from reroll.ray.drawing import Drawn
from reroll.ray.holders import Holders, Thing
from reroll.ray.metrics import Export
from reroll.ray.wire import (
    Bare,
    Blob,
    Draw,
    Holder,
    Lent,
    Reply,
    Request,
    hand_in,
    put_out,
)
from reroll.remote.malloc import keep_freed_memory
from reroll.rollout import Status
from reroll.sample import Sample, SampleInfo
from reroll.telemetry.stats import Stats
from reroll.waiting import LoopWaits

_LOCKED_S: Final = 30.0
"""How long a new process waits for the one before it to let go of the store."""
_TELL_S: Final = 10.0
"""How often metrics are told."""
_PATIENCE_S: Final = 0.02
_AFTER_LOSS: Final = 1 << 40
"""Numbers of leases and reservations that each loss of a shard leaves out, so that none is used twice."""
_LOOK: Final = frozenset(
    (
        *(
            "count",
            "count_statuses",
            "count_where",
            "query",
            "peek",
            "to_arrow",
            "ledger",
            "stats",
            "report",
            "interval",
            "save",
        ),
        *("is_ready", "wait_ready", "version", "wait_version", "wait_overdue"),
        *("available", "grown", "weight", "out", "printed", "knows_put"),
    )
)
"""Verbs that change nothing."""
_UNBOOKED: Final = frozenset(
    ("lend", "draw", "claim", "nack", "trim", "end", "reserve", "release", "settle", "update_priorities")
)
"""Verbs that change nothing which counts when the shard is lost: what was lent is lost as what was not."""
"""Verbs that give groups, which may stay bytes."""
_HELD: Final = frozenset(("lend", "draw", "reserve"))
"""Verbs whose results somebody holds."""


class Place(NamedTuple):
    """Which shard of which buffer this is."""

    key: str
    """What its books are kept under."""
    buffer: str
    """What the whole is known by, with its namespace."""
    shard: int
    shards: int
    life: str
    """Of the buffer; another one of the same name has another."""
    holder_ttl_s: float


class Shard:
    """The actor. Its methods are for handles only."""

    def __init__(
        self, config: ReplayBufferConfig, place: Place, about: Any, setup: Callable[[], None] | None = None
    ) -> None:
        keep_freed_memory()
        self._config, self._place, self._about, self._setup = config, place, about, setup
        self._changes = Changes()
        self._draws: dict[int, Batch] = {}
        self._losses = 0
        self._groups: Groups | None = None
        self._buffer: ReplayBuffer | None = None
        self._opening: asyncio.Task[ReplayBuffer] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._closed = False
        self._calls = Calls(self._carry_out, self._take_back)
        self._holders = Holders(self._give_back, self._is_open, place.holder_ttl_s)
        self._books = Books(place.key, self._record)

    # --- calls

    async def call(self, request: Request) -> Reply:
        """Carry out a call, once however often it comes."""
        reply = await self._calls.reply(request)
        if request.verb not in _LOOK and request.verb not in _UNBOOKED:
            await self._books.written()
        return reply

    async def calls(self, requests: Sequence[tuple[Any, ...]]) -> list[list[Any] | None]:
        """Carry out several calls, given as parts; return what replies are made of. Those of calls that wait: by `late`."""
        replies = await self._calls.replies([Request(*parts) for parts in requests], _PATIENCE_S)
        await self._books.written()
        return [None if reply is None else list(reply) for reply in replies]

    async def late(self, numbers: Sequence[str]) -> dict[str, Reply | None]:
        """Wait for calls that were asked for before; None for those that another process was asked for."""
        replies = await self._calls.late(numbers)
        await self._books.written()
        return replies

    async def cancel(self, number: str) -> None:
        """Let a call not have happened."""
        await self._calls.cancel(number)

    async def beat(self, holder: str) -> bool:
        """Hear that a holder lives; return whether it has anything of this shard."""
        return self._holders.heard(holder)

    async def ready(self) -> Exception | None:
        """Return why the buffer cannot be, or None."""
        try:
            await self._open()
        except Exception as error:  # noqa: BLE001  (raised by whoever made it)
            return error
        return None

    async def about(self) -> Any:
        """Return what a handle is made of."""
        return self._about

    async def size(self) -> int:
        """Return how many groups are here."""
        return len(await self._open())

    async def pid(self) -> int:
        """Return the process of this shard."""
        return os.getpid()

    async def _carry_out(self, request: Request) -> Reply:
        try:
            buffer = await self._open()
            verb = getattr(self, f"_do_{request.verb}", None) or getattr(buffer, request.verb)
            held = {"holder": request.holder} if request.verb in _HELD else {}
            value = await verb(**held, **request.arguments)
        except Exception as error:  # noqa: BLE001  (the caller raises it)
            return Reply(error=error, load=self._load(), steps=self._steps())
        if request.verb not in _LOOK:
            self._changes.note()
            if request.verb not in _UNBOOKED and not self._closed:
                self._books.note()
        return Reply(value, load=self._load(), steps=self._steps())

    async def _take_back(self, request: Request, reply: Reply) -> None:
        """Give back what a caller will never see."""
        if isinstance(reply.value, Lent | Draw) and request.verb in _HELD:
            await self._do_nack(reply.value.lease)
        elif isinstance(reply.value, Reservation):
            await self._do_release(reply.value)

    def _load(self) -> dict[str, int] | None:
        if self._groups is None or self._place.shards == 1:
            return None
        return {name: sum(map(len, task.pools)) for name, task in self._groups.engine.tasks.items()}

    def _steps(self) -> dict[str, int] | None:
        if self._groups is None or self._place.shards == 1:
            return None
        return steps_of(self._groups.engine)

    # --- life

    async def _open(self) -> ReplayBuffer:
        if self._closed:
            raise Closed("the buffer was closed")
        if self._buffer is not None:
            return self._buffer
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._build())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, opening: "asyncio.Task[ReplayBuffer]") -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._buffer = opening.result()

    async def _build(self) -> ReplayBuffer:
        if self._setup is not None:
            self._setup()
        deadline = time.monotonic() + _LOCKED_S
        while True:
            try:
                groups, buffer = self._config.build_with(self._make)
                break
            except StoreLocked:  # by the process that was here before, and is about to end
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)
        record = await self._books.read()
        if record is not None and record.life == self._place.life:
            self._losses = record.losses
            if groups.engine.version is None:
                groups.engine.version = record.version
            if groups.engine.last_uid < record.last_uid and not groups.engine.last_uid:
                write_off(groups.engine, record)
                runtime_of(buffer).start_intervals()
                self._losses += 1
        self._groups = groups
        self._books.note()
        await self._books.written()
        self._telling = asyncio.ensure_future(self._tell(buffer))
        return buffer

    async def _tell(self, buffer: ReplayBuffer) -> None:
        """Tell Ray's metrics what the shard is like, until it is closed."""
        export = Export(self._place.buffer, self._place.shard)
        with contextlib.suppress(Closed):
            while True:
                export.tell(await buffer.stats())
                await asyncio.sleep(_TELL_S)

    def _make(self, groups: Groups, options: dict[str, Any]) -> tuple[Groups, ReplayBuffer]:
        groups.engine.uid_shard = (self._place.shard, self._place.shards)
        return groups, ReplayBuffer(groups, LoopWaits(), **options)

    def _record(self) -> Record:
        engine = self._here.engine
        return Record(
            *(self._place.life, self._losses, engine.last_uid),
            *(ledgers_of(engine), steps_of(engine), engine.version),
        )

    @property
    def _here(self) -> Groups:
        assert self._groups is not None  # noqa: S101  (every call opens it first)
        return self._groups

    async def _do_close(self) -> None:
        buffer = await self._open()
        self._holders.stop()
        if self._telling is not None:
            self._telling.cancel()
        await buffer.close()
        self._closed = True

    async def drain(self) -> None:
        """Return when all calls have ended; after `close`."""
        await self._calls.end()
        await self._books.written()

    # --- verbs whose arguments or results travel in another form

    async def _do_put(
        self,
        items: Blob | Bare,
        task_name: Any,
        model_step: Any = None,
        reservation: Any = None,
        **options: Any,
    ) -> int | None:
        group = put_out(items)
        own = self._local(reservation)
        return await (await self._open()).put(
            group, task_name, model_step=model_step, reservation=own, **options
        )

    async def _do_peek(self, uids: Iterable[int]) -> list[Blob]:
        return list(map(hand_in, await (await self._open()).peek(uids)))

    async def _do_sample(self, **arguments: Any) -> list[tuple[Blob, SampleInfo]]:
        return [(hand_in(group), info) for group, info in await (await self._open()).sample(**arguments)]

    async def _do_take_batch(self, **arguments: Any) -> tuple[dict[str, list[Blob]], dict[str, int]]:
        groups, counts = await (await self._open()).take_batch(**arguments)
        return {task: list(map(hand_in, taken)) for task, taken in groups.items()}, counts

    async def _lend(self, holder: Holder | None, arguments: Mapping[str, Any]) -> tuple[int, Batch]:
        batch = await (await self._open()).lease(**arguments)
        lease = self._abroad(batch.id)
        self._holders.hold(holder, ("lease", lease))
        return lease, batch

    async def _do_lend(self, holder: Holder | None, **arguments: Any) -> Lent:
        lease, batch = await self._lend(holder, arguments)
        return Lent(lease, _packed(batch.samples))

    async def _do_draw(self, holder: Holder | None, **arguments: Any) -> Draw:
        """Lend groups that are asked of several shards: which of them are kept is decided by the whole."""
        await (await self._open()).is_ready({})  # time passes: what is weighed is what is drawn from
        status = arguments.get("group_status", Status.COMPLETED)
        weights = {task: (await self._do_weight(task, status)) for task in arguments["task_batch_sizes"]}
        others = list(self._draws.values())
        lease, batch = await self._lend(holder, arguments)
        self._draws[lease] = batch
        parts = {
            task: Drawn(*weights[task], [s.info for s in given]) for task, given in batch.samples.items()
        }
        return Draw(
            lease, parts, frozenset(task for task in parts if any(other.counts.get(task) for other in others))
        )

    async def _do_claim(self, lease: int, uids: list[int]) -> Lent:
        """Keep these of what was drawn, and give the rest back."""
        batch, kept = self._draws.pop(lease, None), set(uids)
        if batch is None:
            raise LeaseExpired("the shard was away meanwhile, and what it had drawn is back", uids)
        await self._do_trim(lease, uids)
        samples = {task: [s for s in given if s.info.uid in kept] for task, given in batch.samples.items()}
        return Lent(lease, _packed(samples))

    async def _do_weight(
        self, task_name: str, group_status: Status | str = Status.COMPLETED
    ) -> tuple[float, int, float]:
        """Return the weight of all groups of a task and status, how many there are, and the sampler's beta."""
        task = self._here.engine.named(task_name)
        sampler = task.pools[STATUS_CODE[Status.of(group_status)]].sampler
        weigh = getattr(sampler, "total_weight", None)
        weight = float(len(sampler)) if weigh is None else weigh(task.step)
        return weight, len(sampler), getattr(task.settings.sampler, "beta", 0.0)

    async def _do_known_tasks(self) -> list[str]:
        """Return the names of tasks that have or had groups here, or that the configuration names."""
        await self._open()
        return self._here.engine.known_tasks()

    async def _do_available(
        self, task_batch_sizes: Mapping[str, int], group_status: Any
    ) -> dict[str, tuple[int, float]]:
        """Return how many of these groups can be had now, and how many ever at once, as far as limiters go; by task."""
        await (await self._open()).is_ready({})  # time passes
        engine, status = self._here.engine, Status.of(group_status)
        tasks = {name: engine.named(name) for name in task_batch_sizes}
        return {
            name: (
                engine.available(tasks[name], STATUS_CODE[status], n),
                tasks[name].settings.largest if status is Status.COMPLETED else math.inf,
            )
            for name, n in task_batch_sizes.items()
        }

    async def _do_grown(self, task_batch_sizes: Mapping[str, int], group_status: Any, timeout: float) -> None:
        """Return when as many groups of one of these tasks can be had, or after a while."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            held, version = await self._do_available(task_batch_sizes, group_status), self._changes.version
            if any(held[task][0] >= n for task, n in task_batch_sizes.items()):
                return
            await self._changes.after(version, left)

    async def _do_out(self, uids: list[int]) -> list[int]:
        """Return which of these groups wait to be put again."""
        return [uid for uid in uids if self._here.is_waiting(uid)]

    async def _do_printed(self, prompt: bytes, task_name: str, group_id: Any, size: int) -> list[int]:
        """Return the groups that rollouts without a checkout may continue."""
        await self._open()
        return list(self._here.printed(prompt, task_name, group_id, size))

    async def _do_knows_put(self, put_id: Any) -> bool:
        return put_id in runtime_of(await self._open()).put_ids

    async def _do_settle(self, reservation: Any, put_id: Any) -> None:
        """Learn that a group for which something was reserved here went to another shard."""
        runtime_of(await self._open()).consume_reservation(self._local(reservation), put_id)

    async def _do_report(self) -> Stats:
        runtime = runtime_of(await self._open())
        runtime.check_open()
        return runtime.stats()

    async def _do_interval(self, reader: str) -> tuple[Stats, Stats]:
        runtime = runtime_of(await self._open())
        runtime.check_open()
        return runtime.interval(reader)

    async def _do_ack(self, lease: int, train_step: int | None = None) -> None:
        self._holders.settle(("lease", lease))
        if lease // _AFTER_LOSS != self._losses:
            raise LeaseExpired("the groups of this lease were lost with their shard, and are counted as lost")
        await (await self._open()).ack_lease(lease % _AFTER_LOSS, train_step=train_step)

    async def _do_nack(self, lease: int) -> None:
        self._holders.settle(("lease", lease))
        self._draws.pop(lease, None)
        if lease // _AFTER_LOSS == self._losses:
            await (await self._open()).nack_lease(lease % _AFTER_LOSS)

    async def _do_reserve(self, holder: Holder | None, **arguments: Any) -> Reservation:
        granted = await (await self._open()).reserve(**arguments)
        mine = granted._replace(id=self._abroad(granted.id) * self._place.shards + self._place.shard)
        self._holders.hold(holder, ("reservation", mine))
        return mine

    async def _do_release(self, reservation: Any) -> int:
        self._holders.settle(("reservation", reservation))
        return await (await self._open()).release(self._local(reservation))

    async def _do_wait_overdue(self, running: Any, timeout: float | None = None) -> str | None:
        return await (await self._open()).wait_overdue(self._local(running), timeout)

    async def _do_end(self, lease: int) -> None:
        await self._give_back(("lease", lease))

    async def _do_trim(self, lease: int, uids: list[int]) -> None:
        if lease // _AFTER_LOSS == self._losses:
            await (await self._open()).trim_lease(lease % _AFTER_LOSS, uids)

    async def _give_back(self, thing: Thing) -> None:
        kind, which = thing
        if self._closed:
            return
        buffer = await self._open()
        if kind == "reservation":
            await buffer.release(self._local(which))
        elif which // _AFTER_LOSS == self._losses:
            await buffer.end_lease(which % _AFTER_LOSS)
        self._changes.note()
        self._books.note()
        await self._books.written()

    def _is_open(self, thing: Thing) -> bool:
        """Return whether a lease or a reservation has not ended."""
        if self._buffer is None:
            return True
        kind, which = thing
        runtime = runtime_of(self._buffer)
        leases, reservations = runtime.leases, runtime.reservations
        if kind == "reservation":
            return self._local(which).id in reservations
        return which // _AFTER_LOSS == self._losses and which % _AFTER_LOSS in leases

    def _abroad(self, number: int) -> int:
        return number + self._losses * _AFTER_LOSS

    def _local(self, reservation: Any) -> Any:
        """Return a reservation as this shard's buffer knows it; one of before a loss has ended."""
        if not isinstance(reservation, Reservation):
            return reservation
        number = reservation.id // self._place.shards
        return reservation._replace(id=number % _AFTER_LOSS if number // _AFTER_LOSS == self._losses else 0)


class Changes:
    """How often a shard has changed, and who waits for the next time."""

    def __init__(self) -> None:
        self.version = 0
        self._next: asyncio.Event | None = None

    def note(self) -> None:
        """Wake whoever waits."""
        self.version += 1
        if self._next is not None:
            self._next.set()
            self._next = None

    async def after(self, since: int, timeout: float) -> None:
        """Return when it has changed since it had this version, or after a while."""
        if self.version == since:
            self._next = self._next or asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._next.wait(), timeout)


def _packed(samples: Mapping[str, list[Sample]]) -> dict[str, list[tuple[Blob, SampleInfo]]]:
    return {task: [(hand_in(group), info) for group, info in given] for task, given in samples.items()}
