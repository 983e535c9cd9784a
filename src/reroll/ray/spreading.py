"""What a handle asks of which shard: the verbs over one shard or several.

With one shard every verb is that of its buffer. With several, what looks or changes goes to all, or to the shard of the
uid; puts go to the emptiest. What is handed out is in `handing`.
"""

import asyncio
import contextlib
import random
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import ray

from reroll.buffer.arguments import checked_flag, checked_reader, checked_step, checked_task, checked_uids
from reroll.buffer.reservations import Reservation
from reroll.config import ReplayBufferConfig
from reroll.engine.limits import limiter_of
from reroll.errors import InvalidArgument, NotStorable, UnknownUid, WaitTimeout
from reroll.ray.calling import Line, time_left
from reroll.ray.dividing import limiter_part
from reroll.ray.handing import HandOut
from reroll.ray.holding import heart, this_holder
from reroll.ray.merging import MERGES
from reroll.ray.wire import Bare, Blob, Holder, hand_out, put_in, resolved
from reroll.rollout.checkout import can_carry, fingerprint_of, read_checkouts
from reroll.rollout.summary import find_group_id
from reroll.sample import Sample
from reroll.telemetry.health import HealthMonitor
from reroll.telemetry.metrics import connection_reader, metrics_dict
from reroll.telemetry.stats import Stats
from reroll.waiting import deadline_of

_WAIT_S: Final = 1.0
"""How long one of several shards is waited for, before another may be the emptiest."""
_LONG: Final = frozenset(("to_arrow", "save", "resume", "rewind", "commit"))
"""Verbs that may take long, without waiting for anybody."""


class Spread:
    """All shards of a buffer, seen from one event loop."""

    def __init__(
        self,
        config: ReplayBufferConfig,
        lines: Sequence[Line],
        *,
        beat_s: float,
        keeps_refs: bool,
    ) -> None:
        self.lines = lines
        self._config, self._beat_s = config, beat_s
        self._keeps_refs = keeps_refs
        self._dice = random.Random()
        self._reader = connection_reader(uuid.uuid4().hex)
        self._health = HealthMonitor(logs=False)  # the shards log
        self._handing = HandOut(config, lines, beat_s)

    async def call(self, verb: str, arguments: dict[str, Any]) -> Any:
        """Return what a verb returns, over all shards."""
        special = getattr(self, f"_{verb}", None)
        if special is not None:
            return await special(arguments)
        return MERGES[verb](await self.each(verb, [arguments] * len(self.lines)), arguments)

    async def each(self, verb: str, arguments: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Call a verb of every shard; raise the first error when all have answered."""
        limit: dict[str, Any] = {"timeout": None} if verb in _LONG else {}
        calls = (line.call(verb, each, **limit) for line, each in zip(self.lines, arguments, strict=True))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    async def lease(self, arguments: dict[str, Any]) -> tuple[int, dict[str, list[Sample]]]:
        """Lend groups; return the number of the batch and the samples by task."""
        return await self._handing.lease(arguments)

    # --- putting

    async def _put(self, arguments: dict[str, Any]) -> int | None:
        checked_step("model_step", arguments.get("model_step"))
        deadline = deadline_of(arguments.get("timeout"))
        group = put_in(arguments["items"])
        while isinstance(group, Blob) and group.refs and not self._keeps_refs:  # they may lead to others
            found = await self._fetched(group.refs, deadline)
            group = put_in(resolved(group, found))
        return await self._send(group, arguments, deadline)

    async def _send(
        self, group: Blob | Bare, arguments: dict[str, Any], deadline: float | None
    ) -> int | None:
        task, put_id = arguments["task_name"], arguments.get("put_id")
        sent = {
            **arguments,
            "items": group,
            "put_id": uuid.uuid4().hex if put_id is None else put_id,
        }
        own, reservation = await self._own_shard(arguments), arguments.get("reservation")
        granted_by = self._granted_by(reservation) if isinstance(reservation, Reservation) else own
        if own != granted_by:  # where it is known, or no window is that could let it wait
            sent["reservation"] = None
        if own is None and not isinstance(task, str):
            own = 0  # to be refused
        if own is not None:
            line = self.lines[own]
            stored: int | None = await line.call("put", sent, timeout=arguments.get("timeout"), together=True)
            self._pass_step_on(line, arguments)
            if granted_by is not None and granted_by != own:
                settled = {"reservation": reservation, "put_id": sent["put_id"]}
                await self.lines[granted_by].call("settle", settled)
            return stored
        await self._know_loads()
        timeout = 0.0
        while True:
            # All are asked first; then the emptiest is waited for, a while, where others wait in order. One that is away
            # is waited for as long as the caller waits: it may have stored the group.
            for line in self._emptiest_first(task)[: None if timeout == 0 else 1]:
                line.underway += 1
                try:
                    stored = await line.call(
                        "put", {**sent, "timeout": timeout}, timeout=time_left(deadline), together=True
                    )
                except WaitTimeout as error:
                    last = error
                else:
                    self._pass_step_on(line, arguments)
                    return stored
                finally:
                    line.underway -= 1
            wait = _WAIT_S if deadline is None else min(_WAIT_S, deadline - time.monotonic())
            if wait <= 0:
                raise last
            timeout = wait * (0.5 + self._dice.random() / 2)

    def _pass_step_on(self, line: Line, arguments: Mapping[str, Any]) -> None:
        """Let the other shards learn the training step that a put told one of them; the next call waits for that."""
        task = arguments["task_name"]
        step = line.steps.get(task)
        if arguments.get("current_train_step") is None or step is None:
            return
        for other in self.lines:
            if other.steps.get(task) != step:
                other.teach(task, step)

    async def _fetched(self, refs: Sequence[Any], deadline: float | None) -> list[Any]:
        """Return what references stand for. Raises WaitTimeout, NotStorable."""
        fetching = asyncio.gather(*(asyncio.wrap_future(ref.future()) for ref in refs))
        try:
            return list(await asyncio.wait_for(fetching, time_left(deadline)))
        except TimeoutError as error:
            raise WaitTimeout(
                "put timed out; nothing was changed. A reference in the group is not ready"
            ) from error
        except ray.exceptions.RayError as error:
            raise NotStorable(
                f"what a reference in the group stands for cannot be had: {error}; put the group without it"
            ) from error

    async def _carried(self, items: Any, task: Any) -> int | None:
        """Return the uid of the group that rollouts continue as far as they tell; the one that waits, if they name several.

        Raises InvalidArgument for rollouts that were taken as several groups, of several shards: none knows of all.
        """
        if isinstance(items, str | bytes) or not isinstance(items, Sequence):
            return None
        carried: set[Any] = {checkout.uid for checkout in read_checkouts(items)}
        carried = carried or {getattr(item, "group_uid", None) for item in items}
        uids = sorted(uid for uid in carried if isinstance(uid, int) and uid > 0)
        if len({self._shard_of(uid) for uid in uids}) > 1:
            uids = await self._ask("out", uids=uids) or uids[:1]
        elif not uids and items and isinstance(task, str) and not any(map(can_carry, items)):
            with contextlib.suppress(AttributeError):  # no rollouts: a shard refuses them
                if (found := fingerprint_of(items)) is not None:
                    group_id = find_group_id(items)
                    uids = await self._ask(
                        "printed", prompt=found.prompt, task_name=task, group_id=group_id, size=len(items)
                    )
        if len({self._shard_of(uid) for uid in uids}) > 1:
            raise InvalidArgument(
                f"these rollouts may continue several groups, {uids}: put each group by itself, and say which one it continues "
                "with uid="
            )
        return uids[0] if uids else None

    async def _ask(self, verb: str, **arguments: Any) -> list[int]:
        """Return the uids that all shards answer."""
        answers = await self.each(verb, [arguments] * len(self.lines))
        return [uid for some in answers for uid in some]

    async def _own_shard(self, arguments: Mapping[str, Any]) -> int | None:
        """Return the shard that a group must go to, None if it may go anywhere."""
        shards = len(self.lines)
        if shards == 1:
            return 0
        uid, reservation = arguments.get("uid"), arguments.get("reservation")
        put_id, task, home = arguments.get("put_id"), arguments["task_name"], None
        if uid is None:
            uid = await self._carried(arguments["items"], task)
        if isinstance(reservation, Reservation):
            home = self._granted_by(reservation)
            if reservation.task_name != task:
                return home  # to be refused
        if isinstance(uid, int):
            own = self._shard_of(uid)
            if home in (None, own) or await self.lines[own].call("out", {"uids": [uid]}):
                return own
        if put_id is None:
            return home
        always = zlib.crc32(repr(put_id).encode()) % shards
        if not isinstance(task, str) or self._config.for_task(task).window() is None:
            return always
        # Only where it was reserved a group need not wait; so one that was put before may be anywhere.
        known = await self.each("knows_put", [{"put_id": put_id}] * shards)
        return known.index(True) if any(known) else always if home is None else home

    async def _know_loads(self) -> None:
        """Ask what the shards hold if nobody was heard of yet, for a while: replies tell it from then on."""
        if all(line.load is None for line in self.lines):
            asked = [asyncio.ensure_future(line.call("out", {"uids": []})) for line in self.lines]
            try:
                await asyncio.wait(asked, timeout=_WAIT_S)
            finally:
                for each in asked:
                    each.cancel()
                await asyncio.gather(*asked, return_exceptions=True)

    def _emptiest_first(self, task: Any) -> list[Line]:
        return sorted(self.lines, key=lambda line: (line.load or {}).get(task, 0) + line.underway)

    async def _reserve(self, arguments: dict[str, Any]) -> Reservation:
        timeout, who = arguments.get("timeout"), this_holder()
        if len(self.lines) == 1:
            granted: Reservation = await self.lines[0].call("reserve", arguments, timeout=timeout, holder=who)
            self._hold(self.lines[0], who)
            return granted
        deadline = deadline_of(timeout)
        await self._know_loads()
        limit = 0.0
        while True:
            for line in self._emptiest_first(arguments["task_name"])[: None if limit == 0 else 1]:
                try:
                    granted = await line.call(
                        "reserve", {**arguments, "timeout": limit}, timeout=time_left(deadline), holder=who
                    )
                except WaitTimeout as error:
                    last = error
                else:
                    self._hold(line, who)
                    return granted
            wait = _WAIT_S if deadline is None else min(_WAIT_S, deadline - time.monotonic())
            if wait <= 0:
                raise last
            limit = wait * (0.5 + self._dice.random() / 2)

    def _hold(self, line: Line, who: Holder) -> None:
        """Let a shard that has granted something know that this process lives; of actors Ray tells it."""
        if who.actor is None:
            heart.hold(line.key, "reservations", line.actor, self._beat_s)

    async def _release(self, arguments: dict[str, Any]) -> int:
        reservation = arguments["reservation"]
        if not isinstance(reservation, Reservation):
            raise InvalidArgument(f"reservation must be what reserve() returned, not {reservation!r}")
        released: int = await self.lines[self._granted_by(reservation)].call("release", arguments)
        return released

    def _granted_by(self, reservation: Reservation) -> int:
        return reservation.id % len(self.lines)

    async def _wait_version(self, arguments: dict[str, Any]) -> int:
        """Wait until every shard has the version: then a group that is reserved or put meets the same one everywhere."""
        timeout = arguments.get("timeout")
        deadline_of(timeout)
        waits = [
            asyncio.ensure_future(line.call("wait_version", arguments, timeout=timeout))
            for line in self.lines
        ]
        try:
            reached: list[int] = await asyncio.gather(*waits)
            return min(reached)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _wait_overdue(self, arguments: dict[str, Any]) -> str | None:
        running = arguments["running"]
        if isinstance(running, Reservation):
            index = self._granted_by(running)
        else:
            index = self._shard_of(running) if isinstance(running, int) else 0  # to be refused
        verdict: str | None = await self.lines[index].call(
            "wait_overdue", arguments, timeout=arguments.get("timeout")
        )
        return verdict

    # --- handing out

    async def _get(self, arguments: dict[str, Any]) -> list[Any]:
        task = checked_task(arguments["task_name"])
        wanted = {
            "task_batch_sizes": {task: arguments["batch_size"]},
            "group_status": arguments["group_status"],
            "train_step": arguments.get("train_step"),
        }
        groups, _ = await self._handing.take(wanted)
        return groups[task]

    async def _take_batch(self, arguments: dict[str, Any]) -> tuple[dict[str, list[Any]], dict[str, int]]:
        return await self._handing.take(arguments)

    async def _sample(self, arguments: dict[str, Any]) -> list[Sample]:
        return await self._handing.sample(arguments)

    async def _is_ready(self, arguments: dict[str, Any]) -> bool:
        return await self._handing.is_ready(arguments)

    async def _wait_ready(self, arguments: dict[str, Any]) -> None:
        await self._handing.wait_ready(arguments)

    async def _ack_lease(self, arguments: dict[str, Any]) -> None:
        await self._handing.ack(arguments["lease"], arguments.get("train_step"))

    async def _nack_lease(self, arguments: dict[str, Any]) -> None:
        await self._handing.nack(arguments["lease"])

    async def _end_lease(self, arguments: dict[str, Any]) -> None:
        await self._handing.end(arguments["lease"])

    async def _trim_lease(self, arguments: dict[str, Any]) -> None:
        await self._handing.trim(arguments["lease"], checked_uids(arguments["uids"]))

    # --- looking and changing

    async def _query(self, arguments: dict[str, Any]) -> list[Any]:
        if len(self.lines) == 1:
            (rows,) = await self.each("query", [arguments])
            return list(rows)
        first, limit = arguments.get("offset", 0), arguments.get("limit")
        asked = arguments
        if isinstance(first, int) and first > 0:  # on which shards the first ones are shows later
            asked = {**arguments, "offset": 0, "limit": first + limit if isinstance(limit, int) else limit}
        return list(MERGES["query"](await self.each("query", [asked] * len(self.lines)), arguments))

    async def _peek(self, arguments: dict[str, Any]) -> list[Any]:
        uids = checked_uids(arguments["uids"])
        by_shard = [[uid for uid in uids if self._shard_of(uid) == index] for index in range(len(self.lines))]
        unknown = [uid for uid in uids if uid < 1]
        if unknown:
            raise UnknownUid(f"no group has uid {unknown[0]}")
        answers = await self.each("peek", [{"uids": part} for part in by_shard])
        found = {
            uid: blob
            for part, blobs in zip(by_shard, answers, strict=True)
            for uid, blob in zip(part, blobs, strict=True)
        }
        return [hand_out(found[uid]) for uid in uids]

    async def _patch(self, arguments: dict[str, Any]) -> None:
        uid = arguments["uid"]
        await self.lines[self._shard_of(uid) if isinstance(uid, int) else 0].call("patch", arguments)

    async def _patch_many(self, arguments: dict[str, Any]) -> list[int]:
        patches = arguments["patches"]
        if not isinstance(patches, Mapping) or not all(isinstance(uid, int) for uid in patches):
            return list(await self.lines[0].call("patch_many", arguments))  # to be refused
        shards = range(len(self.lines))
        parts = [
            {uid: patch for uid, patch in patches.items() if self._shard_of(uid) == index} for index in shards
        ]
        gone = await self.each("patch_many", [{**arguments, "patches": part} for part in parts])
        missing = {uid for part in gone for uid in part}
        return [uid for uid in patches if uid in missing]

    def _shard_of(self, uid: int) -> int:
        return (uid - 1) % len(self.lines)

    async def _set_rate_limiter(self, arguments: dict[str, Any]) -> None:
        limiter, shards = limiter_of(arguments["rate_limiter"]), len(self.lines)
        parts = [
            {**arguments, "rate_limiter": limiter_part(limiter, index, shards)} for index in range(shards)
        ]
        await self.each("set_rate_limiter", parts)

    async def _save(self, arguments: dict[str, Any]) -> None:
        await self.each("save", [{**arguments, "path": path} for path in self._paths(arguments)])

    async def _resume(self, arguments: dict[str, Any]) -> None:
        await self.each("resume", [{**arguments, "path": path} for path in self._paths(arguments)])

    def _paths(self, arguments: Mapping[str, Any]) -> list[Path]:
        """Return the directory of each shard; it must be one that all of them, and whoever resumes, can reach."""
        path, shards = Path(arguments["path"]).absolute(), len(self.lines)
        return [path] if shards == 1 else [path / f"shard-{index}-of-{shards}" for index in range(shards)]

    async def _stats(self, arguments: dict[str, Any]) -> Stats:
        stats = Stats.merge(await self.each("report", [arguments] * len(self.lines)))
        return replace(stats, warnings=self._health.evaluate(stats))

    async def _metrics(self, arguments: dict[str, Any]) -> dict[str, float]:
        reader = checked_reader(arguments.get("reader")) or self._reader
        detail = checked_flag("detail", arguments.get("detail", False))
        answers = await self.each("interval", [{"reader": reader}] * len(self.lines))
        total, interval = (Stats.merge(parts) for parts in zip(*answers, strict=True))
        self._health.evaluate(total)
        return metrics_dict(total, interval, detail=detail)

    async def _to_pandas(self, arguments: dict[str, Any]) -> Any:
        return (await self.call("to_arrow", arguments)).to_pandas()
