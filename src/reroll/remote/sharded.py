"""ShardedBuffer: several remote buffers, each one shard, as one buffer.

A verb that looks or changes goes to all shards, or to the shard of a uid. A put goes to the emptiest shard. A batch is split in
proportion to what the shards offer, leased from each, topped up where other clients were faster, and given back if it must be
complete and is not. So a batch is all or nothing; samplers hold within a shard, and on average over all shards.
"""

import asyncio
import contextlib
import random
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import reduce, wraps
from pathlib import PurePath
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from reroll.buffer.arguments import (
    batch_sizes,
    checked_count,
    checked_entries,
    checked_flag,
    checked_id,
    checked_names,
    checked_reader,
    checked_sizes,
    checked_task,
    checked_uids,
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
from reroll.group import GroupBatch
from reroll.remote.client import Prefetch, RemoteBuffer
from reroll.remote.draws import (
    Arguments,
    Shards,
    ask_each,
    await_offers,
    chain,
    consume,
    each,
    join_samples,
    lend,
    shares_of,
    time_left,
    together,
)
from reroll.remote.methods import bind_arguments, bound_like
from reroll.remote.shard import ShardPlace, divide_limiter
from reroll.rollout import Status
from reroll.rollout.checkout import can_carry, fingerprint_of, read_checkouts
from reroll.rollout.summary import find_group_id
from reroll.sample import Sample
from reroll.telemetry.health import HealthMonitor
from reroll.telemetry.metrics import connection_reader, metrics_dict
from reroll.telemetry.stats import Stats
from reroll.waiting import deadline_of

P = ParamSpec("P")
T = TypeVar("T")

_WAIT_S: Final = 1.0
"""Seconds that a call waits for one shard before it asks the others again."""
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
        result: T = merge(await each(shards, method.__name__, [arguments] * len(shards)))
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
        return await each(shards, "stats", [{}] * len(shards))

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
        return min(await together(shard.wait_version(**arguments) for shard in shards))

    @_over_shards(ReplayBuffer.set_rate_limiter)
    async def set_rate_limiter(self, shards: Shards, arguments: Arguments) -> None:
        limiter = limiter_of(arguments["rate_limiter"])
        places = [ShardPlace(index, len(shards)) for index in range(len(shards))]
        parts = [{**arguments, "rate_limiter": divide_limiter(limiter, place)} for place in places]
        await each(shards, "set_rate_limiter", parts)

    @_over_shards(ReplayBuffer.save)
    async def save(self, shards: Shards, arguments: Arguments) -> None:
        await each(shards, "save", _with_paths(shards, arguments))

    @_over_shards(ReplayBuffer.resume)
    async def resume(self, shards: Shards, arguments: Arguments) -> None:
        await each(shards, "resume", _with_paths(shards, arguments))

    @_over_shards(ReplayBuffer.query)
    async def query(self, shards: Shards, arguments: Arguments) -> list[Any]:
        first, limit = arguments.get("offset", 0), arguments.get("limit")
        asked = arguments
        if isinstance(first, int) and first > 0:  # which shards have the first rows shows later
            asked = {**arguments, "offset": 0, "limit": first + limit if isinstance(limit, int) else limit}
        found = await each(shards, "query", [asked] * len(shards))
        rows = sorted((row for part in found for row in part), key=lambda row: row.uid)
        order = parse_order(arguments.get("order_by"))
        last = None if limit is None else first + limit
        return (rows if order is None else sort_rows(rows, *order))[first:last]

    @_over_shards(ReplayBuffer.stats)
    async def stats(self, shards: Shards, arguments: Arguments) -> Stats:
        stats = Stats.merge(await ask_each(shards, "totals", arguments))
        return replace(stats, warnings=self._health.evaluate(stats))

    @_over_shards(ReplayBuffer.metrics)
    async def metrics(self, shards: Shards, arguments: Arguments) -> dict[str, float]:
        reader = checked_reader(arguments.get("reader")) or self._reader
        detail = checked_flag("detail", arguments.get("detail", False))
        found = await ask_each(shards, "interval", {"reader": reader})
        total, interval = (Stats.merge(parts) for parts in zip(*found, strict=True))
        self._health.evaluate(total)
        return metrics_dict(total, interval, detail=detail)

    @_over_shards(ReplayBuffer.to_arrow)
    async def to_arrow(self, shards: Shards, arguments: Arguments) -> Any:
        tables = await each(shards, "to_arrow", [arguments] * len(shards))
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
        found = await each(shards, "peek", [{**arguments, "uids": part} for part in parts])
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
        found = await each(shards, "patch_many", [{**arguments, "patches": part} for part in parts])
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
        stored: int | None
        if home is None:
            stored = await self._put_to_emptiest(shards, arguments, deadline)
        elif granted in (None, home):
            stored = await shards[home].put(**arguments)
        else:
            own = {"reservation": arguments["reservation"], "put_id": put_id or uuid.uuid4().hex}
            stored = await shards[home].put(**{**arguments, "reservation": None, "put_id": own["put_id"]})
            await shards[granted].ask("consume_reservation", own)
        _tell_step(shards, task, arguments.get("current_train_step"))
        return stored

    @_over_shards(ReplayBuffer.put_many)
    async def put_many(self, shards: Shards, arguments: Arguments) -> list[int | None]:
        """Put new groups to the emptiest shard, one by one if it has no room for all, and others to their own shard."""
        groups, task = checked_names("groups", arguments.pop("groups")), arguments["task_name"]
        deadline = deadline_of(arguments.get("timeout"))
        entries = {
            name: checked_entries(name, arguments.pop(name, None), len(groups))
            for name in ("priorities", "tags", "uids", "put_ids")
        }
        granted, reservation = None, arguments.pop("reservation", None)
        if isinstance(reservation, Reservation):
            granted, reservation = _granted_by(reservation, shards)
        asked = {"task_name": task, "reservation": reservation}
        homes = await asyncio.gather(
            *(
                self._home(shards, {"items": items, "uid": uid, "put_id": put_id, **asked}, granted)
                for items, uid, put_id in zip(groups, entries["uids"], entries["put_ids"], strict=True)
            )
        )
        entries["put_ids"] = [uuid.uuid4().hex if known is None else known for known in entries["put_ids"]]
        parts: dict[int | None, list[int]] = {}
        for place, home in enumerate(homes if isinstance(task, str) else [0] * len(groups)):
            parts.setdefault(home, []).append(place)
        stored: list[int | None] = [None] * len(groups)

        async def put(index: int | None, places: Sequence[int]) -> None:
            own: dict[str, Any] = {
                "groups": [groups[place] for place in places],
                **{name: [values[place] for place in places] for name, values in entries.items()},
                **arguments,
                "reservation": reservation if granted in (None, index) else None,
            }
            if index is None:
                uids = await self._put_anywhere(shards, own, deadline)
            else:
                uids = await shards[index].put_many(**own)
            for place, uid in zip(places, uids, strict=True):
                stored[place] = uid
            if granted is not None and granted != index:
                for put_id in own["put_ids"]:
                    used = {"reservation": reservation, "put_id": put_id}
                    await shards[granted].ask("consume_reservation", used)

        await together(put(index, places) for index, places in (parts or {0: []}).items())
        _tell_step(shards, task, arguments.get("current_train_step"))
        return stored

    async def _put_anywhere(
        self, shards: Shards, arguments: Arguments, deadline: float | None
    ) -> list[int | None]:
        """Put groups to the first shard that has room for all of them; else one by one, each where there is room."""
        try:
            uids: list[int | None] = await self._put_to_emptiest(
                shards, arguments, time.monotonic(), "put_many"
            )
        except WaitTimeout:
            names = {
                "groups": "items",
                "priorities": "priority",
                "tags": "tags",
                "uids": "uid",
                "put_ids": "put_id",
            }
            common = {name: value for name, value in arguments.items() if name not in names}
            each = [
                {own: arguments[name][place] for name, own in names.items()}
                for place in range(len(arguments["groups"]))
            ]
            return [await self._put_to_emptiest(shards, {**common, **own}, deadline) for own in each]
        return uids

    async def _put_to_emptiest(
        self, shards: Shards, arguments: Arguments, deadline: float | None, verb: str = "put"
    ) -> Any:
        """Ask all shards whether they have room, then wait at the emptiest for a while, and again.

        A shard that does not answer is waited for until the deadline: it may have stored the group.
        """
        if verb == "put":
            arguments = {**arguments, "put_id": arguments.get("put_id") or uuid.uuid4().hex}
        if all(shard.last_length is None for shard in shards):  # replies tell how many groups there are
            asked = [asyncio.ensure_future(shard.health()) for shard in shards]
            try:
                await asyncio.wait(asked, timeout=_WAIT_S)
            finally:
                for call in asked:
                    call.cancel()
                await asyncio.gather(*asked, return_exceptions=True)

        def load(shard: RemoteBuffer) -> int:
            return (shard.last_length or 0) + self._underway.get(shard, 0)

        count = len(arguments.get("groups", [None]))

        async def put(shard: RemoteBuffer, timeout: float) -> Any:
            self._underway[shard] = self._underway.get(shard, 0) + count
            try:
                while True:
                    try:
                        return await getattr(shard, verb)(**{**arguments, "timeout": timeout})
                    except Unreachable:
                        if deadline is None or time.monotonic() >= deadline:
                            raise
            finally:
                self._underway[shard] -= count

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
        known = await ask_each(shards, "knows_put", {"put_id": put_id})
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
            uids = chain(await ask_each(shards, "returning", {"uids": uids})) or uids[:1]
        elif not uids and items and isinstance(task, str) and not any(map(can_carry, items)):
            with contextlib.suppress(AttributeError):  # no rollouts: a shard refuses them
                if (found := fingerprint_of(items)) is not None:
                    asked = {"prompt": found.prompt, "group_id": find_group_id(items), "size": len(items)}
                    uids = chain(await ask_each(shards, "printed", {"task_name": task, **asked}))
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

        return await self._try_each(shards, lambda shard: shard.last_length or 0, reserve, deadline)

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
                leases, samples = await lend(
                    shards,
                    {**arguments, "task_batch_sizes": missing, "timeout": time_left(deadline)},
                    "take",
                    self._random,
                )
            except RerollError:
                if not any(groups.values()):
                    raise
                break  # these groups are consumed: a batch that is too small is better than one that is lost
            lost = await consume(shards, leases, comes_back=status is not Status.COMPLETED)
            for task, drawn in samples.items():
                groups[task] += [sample.group for sample in drawn if sample.info.uid not in lost]
            missing = {task: n - len(groups[task]) for task, n in sizes.items() if n > len(groups[task])}
            if not lost or not arguments.get("wait"):
                break
        return groups, {task: len(given) for task, given in groups.items()}

    @_over_shards(ReplayBuffer.sample)
    async def sample(self, shards: Shards, arguments: Arguments) -> GroupBatch:
        sizes = batch_sizes(arguments["n"], arguments["task_name"], self._random.random)
        wait = not checked_flag("allow_short", arguments.get("allow_short", False))
        asked = {name: arguments.get(name) for name in ("timeout", "train_step", "columns")}
        if checked_flag("replace", arguments.get("replace", False)):
            return await self._sample_with_replacement(shards, sizes, asked)
        leases, samples = await lend(
            shards, {"task_batch_sizes": sizes, "wait": wait, **asked}, "sample", self._random
        )
        lost = await consume(shards, leases)
        return GroupBatch.of(s for task in sizes for s in samples[task] if s.info.uid not in lost)

    async def _sample_with_replacement(
        self, shards: Shards, sizes: Mapping[str, int], arguments: Arguments
    ) -> GroupBatch:
        """Draw each group of a shard that is chosen by its weight."""
        one = {task: min(n, 1) for task, n in sizes.items()}
        offers = await await_offers(shards, {**arguments, "task_batch_sizes": one, "wait": True}, "sample")
        samples: list[Sample] = []
        for task, n in sizes.items():
            shares = shares_of([given[task] for given in offers])
            chosen = self._random.choices(range(len(shards)), shares, k=n)
            parts = [chosen.count(index) for index in range(len(shards))]
            drawn = await asyncio.gather(
                *(
                    shard.sample(part, task, replace=True, **{**arguments, "timeout": 0})
                    for shard, part in zip(shards, parts, strict=True)
                    if part
                )
            )
            samples += join_samples(task, offers, chain(drawn), self._random)
        return GroupBatch.of(samples)

    @bound_like(ReplayBuffer.lease)
    def lease(self, arguments: Arguments) -> Lease:
        async def acquire() -> Batch:
            shards = await self._ready()
            if len(shards) == 1:
                return await shards[0].lease(**arguments)
            leases, samples = await lend(shards, arguments, "lease", self._random)
            number = sum((lease + 1) << (_LEASE_BITS * index) for index, lease in leases.items())
            return Batch(self, number, {task: GroupBatch.of(drawn) for task, drawn in samples.items()})

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
        offers = await await_offers(shards, arguments, "is_ready")
        return all(sum(given[task].available for given in offers) >= n for task, n in sizes.items())

    @_over_shards(ReplayBuffer.wait_ready)
    async def wait_ready(self, shards: Shards, arguments: Arguments) -> None:
        await await_offers(shards, {**arguments, "wait": True}, "wait_ready")

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


def _tell_step(shards: Shards, task: str, step: int | None) -> None:
    """Let all shards learn a training step before any later call."""
    for shard in shards if step is not None else ():
        shard.notify("offers", {"task_batch_sizes": {}, "group_status": "completed", "steps": {task: step}})


# --- numbers


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
