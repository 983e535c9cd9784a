"""ShardedBuffer: several remote buffers, each one shard, as one buffer.

A verb that looks or changes goes to all shards, or to the shard of a uid. A put goes to the emptiest shard. A batch is split in
proportion to what the shards offer, leased from each, topped up where other clients were faster, and given back if it must be
complete and is not. So a batch is all or nothing; samplers hold within a shard, and on average over all shards.
"""

import asyncio
import contextlib
import math
import random
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce, wraps
from itertools import accumulate, pairwise
from pathlib import PurePath
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from reroll.buffer.arguments import (
    batch_sizes,
    checked_count,
    checked_flag,
    checked_id,
    checked_reader,
    checked_sizes,
    checked_step,
    checked_task,
    checked_uids,
    unknown_task,
)
from reroll.buffer.batch import Batch, Lease
from reroll.buffer.buffer import ReplayBuffer
from reroll.buffer.reservations import Reservation
from reroll.engine.ledger import Amount
from reroll.engine.limits import limiter_of
from reroll.engine.query import parse_order, sort_rows
from reroll.errors import (
    InvalidArgument,
    LeaseExpired,
    RerollError,
    UnknownUid,
    Unreachable,
    WaitTimeout,
    shown,
)
from reroll.remote.client import Prefetch, RemoteBuffer, finish
from reroll.remote.methods import bind_arguments, bound_like
from reroll.remote.shard import Offer, ShardPlace, divide_limiter
from reroll.rollout import Status
from reroll.rollout.checkout import can_carry, fingerprint_of, read_checkouts
from reroll.rollout.summary import find_group_id
from reroll.sample import Sample, SampleInfo
from reroll.telemetry.health import HealthMonitor
from reroll.telemetry.metrics import connection_reader, metrics_dict
from reroll.telemetry.stats import Stats
from reroll.waiting import deadline_of, read_seconds

P = ParamSpec("P")
T = TypeVar("T")
Arguments = dict[str, Any]
Shards = Sequence[RemoteBuffer]

_WAIT_S: Final = 1.0
"""Seconds that a call waits for one shard before it asks the others again."""
_GRACE_S: Final = 5.0
"""Seconds after its deadline that a call waits for a shard that does not answer."""
_TRIES: Final = 3
"""How often a batch that may be incomplete is leased, while other clients take its groups."""
_NO_INFO: Final = SampleInfo(0, 1.0, 1.0, 1.0, 0, 0, 0)
_LEASE_BITS: Final = 64
"""Bits of the lease of one shard in the number of a batch."""


def _over_shards(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[
    [Callable[[Any, Shards, Arguments], Coroutine[Any, Any, T]]],
    Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
]:
    """Give a function of several shards and bound arguments the signature of `method`; one shard executes it itself."""
    name = method.__name__

    def decorate(
        own: Callable[[Any, Shards, Arguments], Coroutine[Any, Any, T]],
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
        @wraps(method)
        async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
            shards = await self._ready()
            if len(shards) > 1:
                return await own(self, shards, bind_arguments(name, args, kwargs))
            result: T = await getattr(shards[0], name)(*args, **kwargs)
            return result

        return call

    return decorate


def _merged(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], merge: Callable[[list[Any]], Any]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a verb that every shard executes, and whose results are merged."""

    async def call(_: Any, shards: Shards, arguments: Arguments) -> T:
        result: T = merge(await _each(shards, method.__name__, [arguments] * len(shards)))
        return result

    return _over_shards(method)(call)


def _in_all(lists: Sequence[list[int]]) -> list[int]:
    """Return the numbers that all lists have."""
    common = set(lists[0]).intersection(*lists[1:])
    return [number for number in lists[0] if number in common]


def _sum_by_key(parts: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    """Add numbers, amounts, or mappings of them, by key."""
    keys = dict.fromkeys(key for part in parts for key in part)
    found = {key: [part[key] for part in parts if key in part] for key in keys}
    return {
        key: _sum_by_key(values)
        if isinstance(values[0], Mapping)
        else reduce(Amount.plus, values)
        if isinstance(values[0], Amount)
        else sum(values)
        for key, values in found.items()
    }


class ShardedBuffer:
    """Several remote buffers as one; `reroll.connect([...])` creates it. Verbs, results and errors are those of a client."""

    def __init__(self, shards: Shards) -> None:
        """Use these clients; the first call of a verb checks that they are the shards of one buffer."""
        self._clients = shards
        self._is_checked = len(shards) == 1
        self._random = random.Random()
        self._underway: dict[RemoteBuffer, int] = {}
        self._reader = connection_reader(uuid.uuid4().hex)
        self._health = HealthMonitor(logs=False)  # the shards log

    async def _ready(self) -> Shards:
        """Return the shards in their order. Raises InvalidArgument if they are not all the shards of one buffer."""
        if not self._is_checked:
            facts = await asyncio.gather(*(client.health() for client in self._clients))
            places = [ShardPlace.read(fact["shard"]) for fact in facts]
            if sorted(places) != [ShardPlace(index, len(facts)) for index in range(len(facts))]:
                raise InvalidArgument(
                    f"the servers are not the {len(facts)} shards of one buffer, but {', '.join(map(str, places))}; start "
                    f"them with --shard 0/{len(facts)} and so on, and name each once"
                )
            if len({fact["config"] for fact in facts}) > 1:
                raise InvalidArgument(
                    "the servers have different configurations; start them with the same --config"
                )
            self._clients = [
                client for _, client in sorted(zip(places, self._clients, strict=True), key=lambda x: x[0])
            ]
            self._is_checked = True
        return self._clients

    def __len__(self) -> int:
        return sum(map(len, self._clients))

    def __bool__(self) -> bool:
        return True  # also when it is empty

    async def close(self) -> None:
        """Close the connections: waiting and later calls raise Closed; leases and reservations of this client return."""
        await asyncio.gather(*(client.close() for client in self._clients))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def health(self) -> dict[str, Any]:
        """Return facts about the servers: groups, and the health of each shard."""
        facts = await asyncio.gather(*(client.health() for client in await self._ready()))
        return {"groups": sum(fact["groups"] for fact in facts), "shards": facts}

    async def shard_stats(self) -> list[Stats]:
        """Return the `stats()` of each shard."""
        shards = await self._ready()
        return await _each(shards, "stats", [{}] * len(shards))

    # --- verbs that all shards execute

    advance = _merged(ReplayBuffer.advance, lambda _: None)
    version = _merged(
        ReplayBuffer.version, lambda given: min((v for v in given if v is not None), default=None)
    )
    refresh_staleness = _merged(ReplayBuffer.refresh_staleness, _sum_by_key)
    count = _merged(ReplayBuffer.count, sum)
    count_statuses = _merged(ReplayBuffer.count_statuses, _sum_by_key)
    count_where = _merged(ReplayBuffer.count_where, sum)
    update_priorities = _merged(ReplayBuffer.update_priorities, _in_all)
    delete = _merged(ReplayBuffer.delete, sum)
    forget = _merged(ReplayBuffer.forget, sum)
    set_sampler = _merged(ReplayBuffer.set_sampler, lambda _: None)
    commit = _merged(ReplayBuffer.commit, sum)
    rewind = _merged(ReplayBuffer.rewind, sum)
    ledger = _merged(ReplayBuffer.ledger, _sum_by_key)

    @_over_shards(ReplayBuffer.wait_version)
    async def wait_version(self, shards: Shards, arguments: Arguments) -> int:
        return min(await _together(shard.wait_version(**arguments) for shard in shards))

    @_over_shards(ReplayBuffer.set_rate_limiter)
    async def set_rate_limiter(self, shards: Shards, arguments: Arguments) -> None:
        limiter = limiter_of(arguments["rate_limiter"])
        places = [ShardPlace(index, len(shards)) for index in range(len(shards))]
        parts = [{**arguments, "rate_limiter": divide_limiter(limiter, place)} for place in places]
        await _each(shards, "set_rate_limiter", parts)

    @_over_shards(ReplayBuffer.save)
    async def save(self, shards: Shards, arguments: Arguments) -> None:
        await _each(shards, "save", _with_paths(shards, arguments))

    @_over_shards(ReplayBuffer.resume)
    async def resume(self, shards: Shards, arguments: Arguments) -> None:
        await _each(shards, "resume", _with_paths(shards, arguments))

    @_over_shards(ReplayBuffer.query)
    async def query(self, shards: Shards, arguments: Arguments) -> list[Any]:
        first, limit = arguments.get("offset", 0), arguments.get("limit")
        asked = arguments
        if isinstance(first, int) and first > 0:  # which shards have the first rows shows later
            asked = {**arguments, "offset": 0, "limit": first + limit if isinstance(limit, int) else limit}
        found = await _each(shards, "query", [asked] * len(shards))
        rows = sorted((row for part in found for row in part), key=lambda row: row.uid)
        order = parse_order(arguments.get("order_by"))
        last = None if limit is None else first + limit
        return (rows if order is None else sort_rows(rows, *order))[first:last]

    @_over_shards(ReplayBuffer.stats)
    async def stats(self, shards: Shards, arguments: Arguments) -> Stats:
        stats = Stats.merge(await _ask_each(shards, "totals", arguments))
        return replace(stats, warnings=self._health.evaluate(stats))

    @_over_shards(ReplayBuffer.metrics)
    async def metrics(self, shards: Shards, arguments: Arguments) -> dict[str, float]:
        reader = checked_reader(arguments.get("reader")) or self._reader
        detail = checked_flag("detail", arguments.get("detail", False))
        found = await _ask_each(shards, "interval", {"reader": reader})
        total, interval = (Stats.merge(parts) for parts in zip(*found, strict=True))
        self._health.evaluate(total)
        return metrics_dict(total, interval, detail=detail)

    @_over_shards(ReplayBuffer.to_arrow)
    async def to_arrow(self, shards: Shards, arguments: Arguments) -> Any:
        tables = await _each(shards, "to_arrow", [arguments] * len(shards))
        import pyarrow as pa  # noqa: PLC0415  (optional)

        return pa.concat_tables(tables, promote_options="default").sort_by("uid")

    @_over_shards(ReplayBuffer.to_pandas)
    async def to_pandas(self, _: Shards, arguments: Arguments) -> Any:
        from reroll.buffer import arrow  # noqa: PLC0415  (optional)

        arrow.check_pandas()
        return arrow.frame_of(await self.to_arrow(**arguments))

    # --- verbs of one group

    @_over_shards(ReplayBuffer.peek)
    async def peek(self, shards: Shards, arguments: Arguments) -> list[Any]:
        uids = checked_uids(arguments["uids"])
        if unknown := [uid for uid in uids if uid < 1]:
            raise UnknownUid(f"no group has uid {unknown[0]}")
        parts = [[uid for uid in uids if _shard_of(uid, shards) == index] for index in range(len(shards))]
        found = await _each(shards, "peek", [{"uids": part} for part in parts])
        groups = {
            uid: group
            for part, given in zip(parts, found, strict=True)
            for uid, group in zip(part, given, strict=True)
        }
        return [groups[uid] for uid in uids]

    @_over_shards(ReplayBuffer.wait_overdue)
    async def wait_overdue(self, shards: Shards, arguments: Arguments) -> str | None:
        running = arguments["running"]
        home = 0  # which refuses another type
        if isinstance(running, Reservation):
            home, arguments["running"] = _granted_by(running, shards)
        elif isinstance(running, int):
            home = _shard_of(running, shards)
        return await shards[home].wait_overdue(**arguments)

    @_over_shards(ReplayBuffer.patch)
    async def patch(self, shards: Shards, arguments: Arguments) -> None:
        uid = arguments["uid"]
        await shards[_shard_of(uid, shards) if isinstance(uid, int) else 0].patch(**arguments)

    @_over_shards(ReplayBuffer.patch_many)
    async def patch_many(self, shards: Shards, arguments: Arguments) -> list[int]:
        patches = arguments["patches"]
        if not isinstance(patches, Mapping) or not all(isinstance(uid, int) for uid in patches):
            return await shards[0].patch_many(**arguments)  # which refuses it
        parts: list[dict[int, Any]] = [{} for _ in shards]
        for uid, patch in patches.items():
            parts[_shard_of(uid, shards)][uid] = patch
        found = await _each(shards, "patch_many", [{**arguments, "patches": part} for part in parts])
        gone = {uid for part in found for uid in part}
        return [uid for uid in patches if uid in gone]

    # --- put, reserve

    @_over_shards(ReplayBuffer.put)
    async def put(self, shards: Shards, arguments: Arguments) -> int | None:
        deadline, task = deadline_of(arguments.get("timeout")), arguments["task_name"]
        reservation, put_id = arguments.get("reservation"), arguments.get("put_id")
        granted = None
        if isinstance(reservation, Reservation):
            granted, arguments["reservation"] = _granted_by(reservation, shards)
        home = await self._home(shards, arguments, granted)
        if home is None and not isinstance(task, str):
            home = 0  # which refuses it
        if home is None:
            stored = await self._put_to_emptiest(shards, arguments, deadline)
        elif granted in (None, home):
            stored = await shards[home].put(**arguments)
        else:
            own = {"reservation": arguments["reservation"], "put_id": put_id or uuid.uuid4().hex}
            stored = await shards[home].put(**{**arguments, "reservation": None, "put_id": own["put_id"]})
            await shards[granted].ask("consume_reservation", own)
        step = arguments.get("current_train_step")
        for shard in shards if step is not None else ():  # all shards learn the step before any later call
            shard.notify(
                "offers", {"task_batch_sizes": {}, "group_status": "completed", "steps": {task: step}}
            )
        return stored

    async def _put_to_emptiest(
        self, shards: Shards, arguments: Arguments, deadline: float | None
    ) -> int | None:
        """Ask all shards whether they have room, then wait at the emptiest for a while, and again.

        A shard that does not answer is waited for: it may have stored the group.
        """
        if not any(map(len, shards)):
            await asyncio.gather(
                *(shard.health() for shard in shards)
            )  # replies tell how many groups there are

        def load(shard: RemoteBuffer) -> int:
            return len(shard) + self._underway.get(shard, 0)

        async def put(shard: RemoteBuffer, timeout: float) -> int | None:
            self._underway[shard] = self._underway.get(shard, 0) + 1
            try:
                return await shard.put(**{**arguments, "timeout": timeout})
            finally:
                self._underway[shard] -= 1

        return await self._try_each(shards, load, put, deadline)

    async def _try_each(
        self,
        shards: Shards,
        load: Callable[[RemoteBuffer], int],
        call: Callable[[RemoteBuffer, float], Coroutine[Any, Any, T]],
        deadline: float | None,
    ) -> T:
        """Call shards with a timeout of 0, the one with the least load first, then wait at one for a while, and again."""
        timeout = 0.0
        while True:
            for shard in sorted(shards, key=load)[: None if timeout == 0 else 1]:
                try:
                    return await call(shard, timeout)
                except WaitTimeout as error:
                    last = error
            left = _WAIT_S if deadline is None else min(_WAIT_S, deadline - time.monotonic())
            if left <= 0:
                raise last
            timeout = left * (0.5 + self._random.random() / 2) if timeout == 0 else 0.0

    async def _home(self, shards: Shards, arguments: Arguments, granted: int | None) -> int | None:
        """Return the shard that a group must go to; None: any."""
        task, uid, put_id = arguments["task_name"], arguments.get("uid"), arguments.get("put_id")
        reservation = arguments.get("reservation")
        checked_id("put_id", put_id)
        if granted is not None and isinstance(reservation, Reservation) and reservation.task_name != task:
            return granted  # which refuses it
        if uid is None:
            uid = await self._continued(shards, arguments["items"], task)
        if isinstance(uid, int) and uid > 0:
            own = _shard_of(uid, shards)
            if granted in (None, own) or await shards[own].ask("returning", {"uids": [uid]}):
                return own
        if put_id is None:
            return granted
        known = await _ask_each(shards, "knows_put", {"put_id": put_id})
        if any(known):
            return known.index(True)
        return zlib.crc32(repr(put_id).encode()) % len(shards) if granted is None else granted

    async def _continued(self, shards: Shards, items: Any, task: Any) -> int | None:
        """Return the uid of the group that rollouts continue, as far as they name it; the one that waits, if they name several.

        Raises InvalidArgument for rollouts of several groups in several shards: no shard knows them all.
        """
        if isinstance(items, str | bytes) or not isinstance(items, Sequence):
            return None
        named: set[Any] = {checkout.uid for checkout in read_checkouts(items)}
        named = named or {getattr(item, "group_uid", None) for item in items}
        uids = sorted(uid for uid in named if isinstance(uid, int) and uid > 0)
        if len({_shard_of(uid, shards) for uid in uids}) > 1:
            uids = _chain(await _ask_each(shards, "returning", {"uids": uids})) or uids[:1]
        elif not uids and items and isinstance(task, str) and not any(map(can_carry, items)):
            with contextlib.suppress(AttributeError):  # no rollouts: a shard refuses them
                if (found := fingerprint_of(items)) is not None:
                    asked = {"prompt": found.prompt, "group_id": find_group_id(items), "size": len(items)}
                    uids = _chain(await _ask_each(shards, "printed", {"task_name": task, **asked}))
        if len({_shard_of(uid, shards) for uid in uids}) > 1:
            raise InvalidArgument(
                f"these rollouts may continue several groups, {uids}; put each group by itself, with uid="
            )
        return uids[0] if uids else None

    @_over_shards(ReplayBuffer.reserve)
    async def reserve(self, shards: Shards, arguments: Arguments) -> Reservation:
        deadline = deadline_of(arguments.get("timeout"))

        async def reserve(shard: RemoteBuffer, timeout: float) -> Reservation:
            given = await shard.reserve(**{**arguments, "timeout": timeout})
            return given._replace(id=given.id * len(shards) + list(shards).index(shard))

        return await self._try_each(shards, len, reserve, deadline)

    @_over_shards(ReplayBuffer.release)
    async def release(self, shards: Shards, arguments: Arguments) -> int:
        reservation = arguments["reservation"]
        if not isinstance(reservation, Reservation):
            raise InvalidArgument(f"reservation must be the result of reserve(), not {shown(reservation)}")
        index, own = _granted_by(reservation, shards)
        return await shards[index].release(own)

    # --- deliveries

    @_over_shards(ReplayBuffer.get)
    async def get(self, _shards: Shards, arguments: Arguments) -> list[Any]:
        task = checked_task(arguments.pop("task_name"))
        groups, _ = await self.take_batch({task: arguments.pop("batch_size")}, **arguments)
        return groups[task]

    @_over_shards(ReplayBuffer.take_batch)
    async def take_batch(
        self, shards: Shards, arguments: Arguments
    ) -> tuple[dict[str, list[Any]], dict[str, int]]:
        sizes, deadline = checked_sizes(arguments["task_batch_sizes"]), deadline_of(arguments.get("timeout"))
        status = Status.of(arguments.get("group_status", Status.COMPLETED))
        groups: dict[str, list[Any]] = {task: [] for task in sizes}
        missing: Mapping[str, int] = sizes
        while True:
            try:
                leases, samples = await self._lend(
                    shards, {**arguments, "task_batch_sizes": missing, "timeout": _left(deadline)}, "take"
                )
            except RerollError:
                if not any(groups.values()):
                    raise
                break  # these groups are consumed: a batch that is too small is better than one that is lost
            lost = await _consume(shards, leases, comes_back=status is not Status.COMPLETED)
            for task, drawn in samples.items():
                groups[task] += [sample.group for sample in drawn if sample.info.uid not in lost]
            missing = {task: n - len(groups[task]) for task, n in sizes.items() if n > len(groups[task])}
            if not lost or not arguments.get("wait"):
                break
        return groups, {task: len(given) for task, given in groups.items()}

    @_over_shards(ReplayBuffer.sample)
    async def sample(self, shards: Shards, arguments: Arguments) -> list[Sample]:
        sizes = batch_sizes(arguments["n"], arguments["task_name"], self._random.random)
        wait = not checked_flag("allow_short", arguments.get("allow_short", False))
        asked = {"timeout": arguments.get("timeout"), "train_step": arguments.get("train_step")}
        if checked_flag("replace", arguments.get("replace", False)):
            return await self._sample_with_replacement(shards, sizes, asked)
        leases, samples = await self._lend(
            shards, {"task_batch_sizes": sizes, "wait": wait, **asked}, "sample"
        )
        lost = await _consume(shards, leases)
        return [sample for task in sizes for sample in samples[task] if sample.info.uid not in lost]

    async def _sample_with_replacement(
        self, shards: Shards, sizes: Mapping[str, int], arguments: Arguments
    ) -> list[Sample]:
        """Draw each group of a shard that is chosen by its weight."""
        one = {task: min(n, 1) for task, n in sizes.items()}
        offers = await self._await_offers(
            shards, {**arguments, "task_batch_sizes": one, "wait": True}, "sample"
        )
        samples: list[Sample] = []
        for task, n in sizes.items():
            shares = shares_of([given[task] for given in offers])
            chosen = self._random.choices(range(len(shards)), shares, k=n)
            parts = [chosen.count(index) for index in range(len(shards))]
            drawn = await asyncio.gather(
                *(
                    shard.sample(part, task, replace=True, timeout=0, train_step=arguments["train_step"])
                    for shard, part in zip(shards, parts, strict=True)
                    if part
                )
            )
            samples += self._weigh(task, offers, _chain(drawn))
        return samples

    @bound_like(ReplayBuffer.lease)
    def lease(self, arguments: Arguments) -> Lease:
        async def acquire() -> Batch:
            shards = await self._ready()
            if len(shards) == 1:
                return await shards[0].lease(**arguments)
            leases, samples = await self._lend(shards, arguments, "lease")
            number = sum((lease + 1) << (_LEASE_BITS * index) for index, lease in leases.items())
            return Batch(self, number, samples)

        return Lease(acquire)

    def batches(
        self, task_batch_sizes: Mapping[str, int], *, prefetch: int = 1, **options: Any
    ) -> AsyncIterator[Batch]:
        async def lease() -> Batch:
            return await self.lease(task_batch_sizes, **{"wait": True, **options})

        async def has_stale(batch: Batch) -> bool:
            shards = await self._ready()
            parts = [(shard, Batch(shard, own, batch.samples)) for shard, own in _leases_of(shards, batch.id)]
            return any(await asyncio.gather(*(shard.has_stale(part) for shard, part in parts)))

        return Prefetch(lease, has_stale, prefetch)

    batches.__doc__ = RemoteBuffer.batches.__doc__

    @_over_shards(ReplayBuffer.is_ready)
    async def is_ready(self, shards: Shards, arguments: Arguments) -> bool:
        sizes = checked_sizes(arguments["task_batch_sizes"])
        offers = await self._await_offers(shards, arguments, "is_ready")
        return all(sum(given[task].available for given in offers) >= n for task, n in sizes.items())

    @_over_shards(ReplayBuffer.wait_ready)
    async def wait_ready(self, shards: Shards, arguments: Arguments) -> None:
        await self._await_offers(shards, {**arguments, "wait": True}, "wait_ready")

    @_over_shards(ReplayBuffer.ack_lease)
    async def ack_lease(self, shards: Shards, arguments: Arguments) -> None:
        uids: list[int] = []
        expired: LeaseExpired | None = None
        for error in await self._call_holders(shards, "ack_lease", arguments):
            if not isinstance(error, LeaseExpired):
                raise error
            expired, uids = error, [*uids, *error.uids]
        if expired is not None:
            raise LeaseExpired(str(expired), uids)

    @_over_shards(ReplayBuffer.nack_lease)
    async def nack_lease(self, shards: Shards, arguments: Arguments) -> None:
        for error in await self._call_holders(shards, "nack_lease", arguments):
            raise error

    @_over_shards(ReplayBuffer.end_lease)
    async def end_lease(self, shards: Shards, arguments: Arguments) -> None:
        for error in await self._call_holders(shards, "end_lease", arguments):
            raise error

    @_over_shards(ReplayBuffer.trim_lease)
    async def trim_lease(self, shards: Shards, arguments: Arguments) -> None:
        arguments["uids"] = checked_uids(arguments["uids"])
        for error in await self._call_holders(shards, "trim_lease", arguments):
            raise error

    async def _call_holders(self, shards: Shards, verb: str, arguments: Arguments) -> list[BaseException]:
        """Call every shard that has a part of a batch, also if one of them fails; return the errors."""
        parts = _leases_of(shards, arguments["lease"])
        ends = await asyncio.gather(
            *(getattr(shard, verb)(**{**arguments, "lease": lease}) for shard, lease in parts),
            return_exceptions=True,
        )
        return [end for end in ends if isinstance(end, BaseException)]

    # --- lending

    async def _lend(
        self, shards: Shards, arguments: Arguments, verb: str
    ) -> tuple[dict[int, int], dict[str, list[Sample]]]:
        """Lease groups; return the lease of each shard, and the samples by task. After an error nothing is leased.

        If other clients were faster, the groups are given back and the shards asked again: always, if the batch must be complete,
        else a few times. A take of groups that are used several times has no lease, and its samples have no info.
        """
        sizes = checked_sizes(arguments["task_batch_sizes"])
        wait = checked_flag("wait", arguments.get("wait", False))
        deadline = deadline_of(arguments.get("timeout"))
        read_seconds(arguments.get("ttl_s"), "ttl_s")
        tries = 0
        while True:
            offers = await self._await_offers(shards, {**arguments, "timeout": _left(deadline)}, verb)
            parts = self._split(sizes, offers)
            if verb == "take" and not all(offer.is_used_once for given in offers for offer in given.values()):
                if wait:
                    raise InvalidArgument(
                        "groups that are used several times cannot be taken all or nothing from several shards; sample or "
                        "lease them, or take without wait"
                    )
                return {}, await _take_parts(shards, arguments, parts)
            batches = await _lease_parts(shards, arguments, parts)
            tries += 1
            samples = {task: [s for b in batches.values() for s in b.samples.get(task, ())] for task in sizes}
            asked = {task: sum(part.get(task, 0) for part in parts) for task in sizes}
            if all(len(samples[task]) >= n for task, n in asked.items()) or (not wait and tries >= _TRIES):
                weighed = {task: self._weigh(task, offers, drawn) for task, drawn in samples.items()}
                return {index: batch.id for index, batch in batches.items()}, weighed
            _give_back(shards, batches)
            await asyncio.sleep(self._random.random() * 0.01)

    async def _await_offers(self, shards: Shards, arguments: Arguments, verb: str) -> list[dict[str, Offer]]:
        """Return what the shards offer, when they offer all groups if the call waits; they agree on the training steps.

        Raises WaitTimeout, and InvalidArgument for a batch that the shards can never deliver at once.
        """
        sizes, wait = checked_sizes(arguments["task_batch_sizes"]), bool(arguments.get("wait"))
        status = Status.of(arguments.get("group_status", Status.COMPLETED)).value
        deadline = deadline_of(arguments.get("timeout"))
        step = checked_step("train_step", arguments.get("train_step"))
        told: dict[str, int] = {} if wait or step is None else dict.fromkeys(sizes, step)
        while True:
            asked = {"task_batch_sizes": sizes, "group_status": status, "steps": told}
            offers: list[dict[str, Offer]] = await _within(
                deadline if wait else None, _ask_each(shards, "offers", asked)
            )
            known = {task: [given[task].step for given in offers] for task in sizes}
            held = {task: sum(given[task].available for given in offers) for task in sizes}
            missing = {task: n - held[task] for task, n in sizes.items() if n > held[task]}
            if not wait or not missing:
                newest = dict.fromkeys(sizes, step) if wait and step is not None and not told else {}
                for task, steps in known.items():
                    if (
                        status == "completed" and len(set(steps)) > 1
                    ):  # a shard has not heard of the newest step
                        newest[task] = max([s for s in steps if s is not None] + [step or 0])
                if not newest or newest == told:
                    return offers
                told = {task: number for task, number in newest.items() if number is not None}
                continue
            for task in missing:
                limit = sum(given[task].largest for given in offers)
                if sizes[task] > limit:
                    raise InvalidArgument(
                        f"cannot take {sizes[task]} {status} groups of task {task!r} at once: "
                        f"{'capacity and rate limiter' if status == 'completed' else 'rejected_capacity'} of the shards "
                        f"allow at most {limit:g}"
                    )
            if deadline is not None and time.monotonic() >= deadline:
                counts = {task: f"{held[task]} of {n}" for task, n in sizes.items()}
                unknown = await _unknown_task(shards, sizes)
                raise WaitTimeout(
                    f"{verb} timed out; no group was delivered. The shards offer {counts} groups{unknown}"
                )
            await _await_growth(shards, offers, missing, status, deadline)

    def _split(self, sizes: Mapping[str, int], offers: Sequence[Mapping[str, Offer]]) -> list[dict[str, int]]:
        """Return how many groups of each task each shard gives."""
        parts: list[dict[str, int]] = [{} for _ in offers]
        for task, n in sizes.items():
            given = [offer[task] for offer in offers]
            for part, count in zip(parts, split(n, given, self._random.random), strict=True):
                part[task] = count
        return parts

    def _weigh(self, task: str, offers: Sequence[Mapping[str, Offer]], samples: list[Sample]) -> list[Sample]:
        """Return samples of several shards with probabilities, sizes and importance weights of the whole buffer."""
        given = [offer[task] for offer in offers]
        size, shares = sum(offer.size for offer in given), shares_of(given)
        infos = [sample.info._replace(table_size=size) for sample in samples]
        if given[0].weight is not None:
            infos = [
                info._replace(probability=info.probability * shares[(info.uid - 1) % len(shares)])
                for info in infos
            ]
            if given[0].beta is not None:
                infos = weigh(infos, given[0].beta)
        samples = [Sample(sample.group, info) for sample, info in zip(samples, infos, strict=True)]
        if given[0].weight is not None:
            self._random.shuffle(samples)  # as drawn, not shard by shard
        return samples


# --- calls to several shards


async def _together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of calls that all ended; raise the first error. Cancelling it cancels the calls that run."""
    ends = await asyncio.gather(*calls, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return [end for end in ends if not isinstance(end, BaseException)]


async def _each(shards: Shards, verb: str, arguments: Sequence[Arguments]) -> list[Any]:
    return await _together(getattr(shard, verb)(**own) for shard, own in zip(shards, arguments, strict=True))


async def _ask_each(shards: Shards, verb: str, arguments: Arguments) -> list[Any]:
    return await _together(shard.ask(verb, arguments) for shard in shards)


async def _first(calls: Iterable[Coroutine[Any, Any, Any]], timeout: float) -> None:
    """Return when the first call ends, or after a while; cancel the others. Raises their errors except WaitTimeout."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception) and not isinstance(end, WaitTimeout):
            raise end


async def _within(deadline: float | None, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work that a silent shard may not delay long after the deadline of the call."""
    try:
        async with asyncio.timeout(None if deadline is None else _left_of(deadline) + _GRACE_S) as limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise Unreachable("a shard did not answer in time; check that its host runs") from None


async def _lease_parts(
    shards: Shards, arguments: Arguments, parts: Sequence[dict[str, int]]
) -> dict[int, Batch]:
    """Lease a part of each shard that gives any; return the batches by shard. After an error nothing is leased."""

    async def lease(shard: RemoteBuffer, part: dict[str, int]) -> Batch:
        return await shard.lease(**{**arguments, "task_batch_sizes": part, "wait": False, "timeout": None})

    calls = {
        index: asyncio.ensure_future(lease(shard, part))
        for index, (shard, part) in enumerate(zip(shards, parts, strict=True))
        if any(part.values())
    }
    try:
        await _together(_as_coroutine(call) for call in calls.values())
    except BaseException:
        for call in calls.values():
            call.cancel()  # a cancelled call returns its groups
        ends = await asyncio.gather(*calls.values(), return_exceptions=True)
        _give_back(shards, {i: b for i, b in zip(calls, ends, strict=True) if isinstance(b, Batch)})
        raise
    return {index: call.result() for index, call in calls.items()}


async def _as_coroutine(call: "asyncio.Future[T]") -> T:
    return await asyncio.shield(call)


async def _take_parts(
    shards: Shards, arguments: Arguments, parts: Sequence[dict[str, int]]
) -> dict[str, list[Sample]]:
    """Take a part of each shard at once, without a lease."""
    taken = await _each(shards, "take_batch", [{**arguments, "task_batch_sizes": part} for part in parts])
    tasks = {task for part in parts for task in part}
    return {
        task: [Sample(group, _NO_INFO) for groups, _ in taken for group in groups[task]] for task in tasks
    }


def _give_back(shards: Shards, batches: Mapping[int, Batch]) -> None:
    """Return groups as if they had never been leased."""
    for index, batch in batches.items():
        shards[index].notify("trim_lease", {"lease": batch.id, "uids": []})
        shards[index].notify("nack_lease", {"lease": batch.id})


async def _consume(shards: Shards, leases: Mapping[int, int], *, comes_back: bool = False) -> set[int]:
    """Acknowledge the leases of a take; return the groups that other clients got meanwhile."""
    lost = await finish(
        _together(shards[i].consume(lease, comes_back=comes_back) for i, lease in leases.items())
    )
    return {uid for part in lost for uid in part}


async def _await_growth(
    shards: Shards,
    offers: Sequence[Mapping[str, Offer]],
    missing: Mapping[str, int],
    status: str,
    deadline: float | None,
) -> None:
    """Return when a shard has got its share of the missing groups, at the deadline, or after a while.

    When all missing groups have arrived, one of the shards has got its share of them.
    """
    left = _left(deadline)
    wait_s = _WAIT_S if left is None else min(_WAIT_S, left)
    calls = [
        shard.wait_ready({task: wanted}, group_status=status, timeout=wait_s)
        for shard, given in zip(shards, offers, strict=True)
        for task, n in missing.items()
        if (wanted := given[task].available + max(1, n // len(shards))) <= given[task].largest
    ]
    if calls:
        await _within(deadline, _first(calls, wait_s))
    else:
        await asyncio.sleep(wait_s)


async def _unknown_task(shards: Shards, sizes: Iterable[str]) -> str:
    """Return text that names the known tasks, if one of these is unknown to all shards."""
    known = sorted(set(_chain(await _ask_each(shards, "known_tasks", {}))))
    unknown = [name for name in sizes if name not in known]
    return f". Task {unknown[0]!r} is unknown; {unknown_task(unknown[0], known)}" if unknown else ""


# --- numbers


def split(wanted: int, offers: Sequence[Offer], coin: Callable[[], float]) -> list[int]:
    """Divide a number of groups among shards in proportion to their weight, none above what it offers.

    Of samplers that draw at random, fractions are rounded at random, so that the proportions hold on average; else the shards
    with the largest fractions give one more.
    """
    most, counts, weights = [offer.available for offer in offers], [0] * len(offers), shares_of(offers)
    while (missing := min(wanted, sum(most)) - sum(counts)) > 0:
        left = [weight if count < n else 0.0 for weight, count, n in zip(weights, counts, most, strict=True)]
        if not sum(left) > 0:
            left = [float(n - count) for count, n in zip(counts, most, strict=True)]
        edges = [0.0, *accumulate(missing * weight / sum(left) for weight in left)]
        if offers[0].weight is None:
            more = [int(high - low) for low, high in pairwise(edges)]
            fullest = sorted(range(len(left)), key=lambda i: (edges[i + 1] - edges[i]) % 1, reverse=True)
            for index in [i for i in fullest if left[i] > 0][: missing - sum(more)]:
                more[index] += 1
        else:
            shift = coin()
            more = [int(high + shift) - int(low + shift) for low, high in pairwise(edges)]
        counts = [min(n, count + extra) for n, count, extra in zip(most, counts, more, strict=True)]
    return counts


def shares_of(offers: Sequence[Offer]) -> list[float]:
    """Return the share of each shard in the weight of all; in their groups where no group has a weight."""
    weights = [float(offer.size if offer.weight is None else offer.weight) for offer in offers]
    if not sum(weights) > 0:
        weights = [float(offer.size) for offer in offers]
    whole = sum(weights) or 1.0
    return [weight / whole for weight in weights]


def weigh(infos: Sequence[SampleInfo], beta: float) -> list[SampleInfo]:
    """Return infos with the importance weights of one batch, from their probabilities in the whole buffer."""
    logs = [
        -beta * math.log(info.table_size * info.probability) if info.probability > 0 else None
        for info in infos
    ]
    largest = max((log for log in logs if log is not None), default=0.0)
    weights = [1.0 if log is None else math.exp(log - largest) for log in logs]
    return [info._replace(weight=weight) for info, weight in zip(infos, weights, strict=True)]


def _leases_of(shards: Shards, number: Any) -> list[tuple[RemoteBuffer, int]]:
    """Return the leases that the number of a batch stands for, each with its shard. Raises InvalidArgument."""
    if type(number) is not int or number < 0:  # the number of a batch has more bits than other integers
        number = checked_count("lease", number)
    parts = [
        (shard, number >> (_LEASE_BITS * i) & ((1 << _LEASE_BITS) - 1)) for i, shard in enumerate(shards)
    ]
    return [(shard, part - 1) for shard, part in parts if part]


def _granted_by(reservation: Reservation, shards: Shards) -> tuple[int, Reservation]:
    """Return the shard that granted a reservation, and the reservation as that shard knows it."""
    number, index = divmod(checked_count("reservation.id", reservation.id), len(shards))
    return index, reservation._replace(id=number)


def _shard_of(uid: int, shards: Shards) -> int:
    return (uid - 1) % len(shards)


def _with_paths(shards: Shards, arguments: Arguments) -> list[Arguments]:
    """Return arguments with a directory for each shard."""
    path = PurePath(arguments["path"])
    return [
        {**arguments, "path": str(path / f"shard-{index}-of-{len(shards)}")} for index in range(len(shards))
    ]


def _left_of(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else _left_of(deadline)


def _chain(lists: Iterable[Iterable[T]]) -> list[T]:
    return [item for part in lists for item in part]
