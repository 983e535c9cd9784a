"""What is handed out over one shard or several: lent by each, and consumed when it has arrived."""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from reroll.buffer.arguments import checked_count, checked_mix, checked_sizes, task_shares, unknown_task
from reroll.config import ReplayBufferConfig
from reroll.engine.selectors.specs import Prioritized, Uniform
from reroll.errors import InvalidArgument, LeaseExpired, RerollError, Unreachable, WaitTimeout
from reroll.ray.calling import Line, time_left
from reroll.ray.drawing import Drawn, by_count, by_weight, multinomial, shares_of, weighed
from reroll.ray.holding import heart, this_holder
from reroll.ray.wire import Draw, Lent, hand_out
from reroll.rollout import Status
from reroll.sample import Sample
from reroll.waiting import deadline_of

_LOOK_S: Final = 1.0
"""How long a shard is asked at most whether something has changed: leases may end by time."""
_HIDDEN_S: Final = 0.25
"""For how long who does not wait tries again, while others have drawn what it could have."""
_DIGITS: Final = 64
"""Bits of the lease of one shard in the number of a batch over several."""

Samples = dict[str, list[Sample]]


class HandOut:
    """The verbs that hand groups out."""

    def __init__(self, config: ReplayBufferConfig, lines: Sequence[Line], beat_s: float) -> None:
        self._config, self._lines, self._beat_s = config, lines, beat_s
        self._dice = random.Random(config.seed)
        self._betas: dict[str, float] = {}  # of each task, as shards reported it with their last draw
        # Knows the limits of the whole, and holds nothing: it refuses what is wrong before any shard is asked. What a
        # limiter allows is told by the shards, which may have got another one since.
        free = {"rate_limiter": None}
        tasks = {name: task.model_copy(update=free) for name, task in config.tasks.items()}
        self._whole = config.model_copy(
            update={"store": None, "sync": "os", "max_resident_bytes": None, "tasks": tasks, **free}
        ).build()

    # --- verbs

    async def take(self, arguments: Mapping[str, Any]) -> tuple[dict[str, list[Any]], dict[str, int]]:
        """Take what `take_batch` takes."""
        sizes = checked_sizes(arguments["task_batch_sizes"])
        if self._is_replayed(sizes, arguments):
            return await self._take_replayed(sizes, arguments)
        deadline = deadline_of(arguments.get("timeout"))
        got: dict[str, list[Any]] = {task: [] for task in sizes}
        while True:
            missing = {task: n - len(got[task]) if n > 0 else n for task, n in sizes.items()}
            try:
                lent = await self._lend(
                    {**arguments, "task_batch_sizes": missing, "timeout": time_left(deadline)}
                )
            except RerollError:
                if not any(got.values()):
                    raise
                break  # these are consumed: a batch that is too small is better than one that is lost
            samples = self._opened(lent)
            gone = await self._ack(lent, comes_back=not self._is_completed(arguments))
            for task, given in samples.items():
                got[task] += [sample.group for sample in given if sample.info.uid not in gone]
            if not gone or not arguments.get("wait"):
                break
        return got, {task: len(groups) for task, groups in got.items()}

    async def lease(self, arguments: Mapping[str, Any]) -> tuple[int, Samples]:
        """Lend what `lease` lends; return the number of the batch, and the samples by task."""
        lent = await self._lend(arguments)
        samples = self._opened(lent)
        if this_holder().actor is None:
            for index, part in lent.items():
                heart.hold(self._lines[index].key, part.lease, self._lines[index].actor, self._beat_s)
        return self._number(lent), samples

    async def ack(self, number: int, train_step: int | None = None) -> None:
        """Acknowledge a batch. Raises LeaseExpired with the groups that were handed out again."""
        gone: list[int] = []
        lost: LeaseExpired | None = None
        for error in await self._to_holders("ack", number, train_step=train_step):
            if not isinstance(error, LeaseExpired):
                raise error
            lost, gone = error, [*gone, *error.uids]
        if lost is not None:
            raise LeaseExpired(str(lost), gone)

    async def nack(self, number: int) -> None:
        """Give a batch back."""
        for error in await self._to_holders("nack", number):
            raise error

    async def end(self, number: int) -> None:
        """End a batch as if its time was over."""
        for error in await self._to_holders("end", number):
            raise error

    async def trim(self, number: int, uids: Sequence[int]) -> None:
        """Give back the groups of a batch but these."""
        for error in await self._to_holders("trim", number, uids=list(uids)):
            raise error

    async def _to_holders(self, verb: str, number: int, **arguments: Any) -> list[BaseException]:
        """Tell every shard that has a part of a batch, also when one of them is away; return what they raised."""
        parts = self._leases(number)
        if verb != "trim":
            for index, lease in parts.items():
                heart.settle(self._lines[index].key, lease)
        ends = await asyncio.gather(
            *(self._lines[index].call(verb, {"lease": lease, **arguments}) for index, lease in parts.items()),
            return_exceptions=True,
        )
        return [end for end in ends if isinstance(end, BaseException)]

    async def sample(self, arguments: Mapping[str, Any]) -> list[Sample]:
        """Draw what `sample` draws."""
        await self._refuse({**arguments, "timeout": 0}, "sample")
        n, mix = arguments["n"], arguments["task_name"]
        sizes = task_shares(n, checked_mix(mix), self._dice.random) if isinstance(mix, Mapping) else {mix: n}
        if arguments.get("replace"):
            return await self._sample_again(sizes, arguments)
        lent = await self._lend(
            {
                "task_batch_sizes": sizes,
                "wait": not arguments.get("allow_short", False),
                "timeout": arguments.get("timeout"),
                "train_step": arguments.get("train_step"),
            }
        )
        opened = self._opened(lent)
        gone = await self._ack(lent)
        return [sample for task in sizes for sample in opened[task] if sample.info.uid not in gone]

    async def is_ready(self, arguments: Mapping[str, Any]) -> bool:
        """Tell what `is_ready` tells."""
        sizes = checked_sizes(arguments["task_batch_sizes"])
        by_shard = await self._available(sizes, arguments.get("group_status", Status.COMPLETED))
        return all(sum(counts[task][0] for counts in by_shard) >= n for task, n in sizes.items())

    async def wait_ready(self, arguments: Mapping[str, Any]) -> None:
        """Wait as `wait_ready` waits."""
        timeout = arguments.get("timeout")
        deadline = deadline_of(timeout)
        if len(self._lines) == 1:
            await self._lines[0].call("wait_ready", dict(arguments), timeout=timeout)
            return
        await self._refuse({**arguments, "timeout": 0}, "wait_ready")
        await self._until_ready(arguments, deadline, "wait_ready")

    # --- lending

    async def _lend(self, arguments: Mapping[str, Any]) -> dict[int, Lent]:
        """Lend groups; return what each shard gave. Nothing stays lent if it is not all that has to be."""
        timeout, wait = arguments.get("timeout"), bool(arguments.get("wait"))
        deadline = deadline_of(timeout)
        if len(self._lines) == 1:
            return {
                0: await self._lines[0].call(
                    "lend", dict(arguments), timeout=timeout if wait else 0, holder=this_holder()
                )
            }
        deadline_of(arguments.get("ttl_s"), "ttl_s")
        end = time.monotonic() + _HIDDEN_S
        asked = {name: value for name, value in arguments.items() if name != "ttl_s"}
        await self._refuse({**asked, "timeout": 0}, "take_batch")
        while True:
            if wait:  # first, since who does not get all has changed nothing
                await self._until_ready(arguments, deadline, "take")
            limit, whole = (time_left(deadline), True) if wait else (0.0, time.monotonic() < end)
            lent = await self._lend_once(arguments, limit, whole=whole)
            if lent is not None:
                return lent
            await asyncio.sleep(self._dice.random() * 0.01)  # others wanted the same, or a shard was away

    async def _lend_once(
        self, arguments: Mapping[str, Any], timeout: float | None, *, whole: bool
    ) -> dict[int, Lent] | None:
        """Let every shard draw what is wanted, and keep the part of each that makes the whole; None if that cannot be.

        Without `wait` fewer are enough, unless it shall be the whole and others, who draw now, may give back what lacks.
        """
        sizes = checked_sizes(arguments["task_batch_sizes"])
        asked, who = {**arguments, "wait": False, "timeout": None}, this_holder()
        calls = [
            asyncio.ensure_future(line.call("draw", asked, timeout=timeout, holder=who))
            for line in self._lines
        ]
        try:
            await asyncio.wait(calls)
        except BaseException:  # a call under way takes back what it drew; one that has ended has to be told
            ended = [call.done() and not call.cancelled() and call.exception() is None for call in calls]
            self._put_back(
                [call.result().lease if has else None for call, has in zip(calls, ended, strict=True)]
            )
            for call in calls:
                call.cancel()
            raise
        answers = [call.exception() or call.result() for call in calls]
        leases = [None if isinstance(answer, BaseException) else answer.lease for answer in answers]
        try:
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer  # noqa: TRY301  (what others have drawn is given back)
            drawn: list[Draw] = [answer for answer in answers if isinstance(answer, Draw)]
            if self._is_completed(arguments) and (lagging := self._lagging(sizes)):
                await self._undraw(leases, timeout)  # first: a group that is lent would count as trained
                for task, step, behind in lagging:
                    await self._learn(behind, task, step, timeout=timeout)
                return None
            kept: list[list[int]] = [[] for _ in drawn]
            for task, wanted in sizes.items():
                parts = [draw.parts[task] for draw in drawn]
                lacks = sum(len(part.infos) for part in parts) < wanted
                hidden = any(task in draw.hidden for draw in drawn)
                if lacks and whole and (hidden or arguments.get("wait")):
                    await self._undraw(leases, timeout)
                    return None
                for index, count in enumerate(self._division(task, arguments, max(wanted, 0), parts)):
                    kept[index] += [info.uid for info in parts[index].infos[:count]]
            claims = [{"lease": lease, "uids": uids} for lease, uids in zip(leases, kept, strict=True)]
            given: list[Lent] = await self._each("claim", claims, timeout=timeout)
        except LeaseExpired:  # a shard was away since it drew
            self._put_back(leases)
            return None
        except BaseException:
            self._put_back(leases)
            raise
        return {index: self._as_one(sizes, lent, drawn, index) for index, lent in enumerate(given)}

    async def _undraw(self, leases: Sequence[int | None], timeout: float | None) -> None:
        """Give back what shards have drawn, and wait until it is back."""
        none: list[dict[str, Any]] = [{"lease": lease, "uids": []} for lease in leases]
        await self._each("claim", none, timeout=timeout)
        await self._each("nack", [{"lease": lease} for lease in leases], timeout=timeout)

    def _lagging(self, tasks: Iterable[str]) -> list[tuple[str, int, list[Line]]]:
        """Return bounded tasks whose training step some shards do not know, with that step and those shards.

        All shards have just replied.
        """
        found = []
        for task in tasks:
            newest = max(line.steps.get(task, -1) for line in self._lines)
            behind = [line for line in self._lines if line.steps.get(task, -1) < newest]
            if behind and self._config.for_task(task).max_staleness is not None:
                found.append((task, newest, behind))
        return found

    async def _agree(self, tasks: Iterable[str], **limit: Any) -> bool:
        """Teach shards that lag behind the training step of a bounded task; return whether one did."""
        lagged = False
        for task, newest, behind in self._lagging(tasks):
            await self._learn(behind, task, newest, **limit)
            lagged |= all(line.steps.get(task, -1) >= newest for line in behind)
        return lagged

    async def _learn(self, lines: Iterable[Line], task: str, step: Any, **limit: Any) -> None:
        """Let shards know a training step, by a take of nothing."""
        asked = {"task_batch_sizes": {task: 0}, "train_step": step}
        await asyncio.gather(*(line.call("take_batch", asked, **limit) for line in lines))

    def _put_back(self, leases: Sequence[int | None]) -> None:
        """Give back what shards have drawn."""
        for line, lease in zip(self._lines, leases, strict=True):
            if lease is not None:
                line.tell("nack", {"lease": lease})

    def _division(
        self, task: str, arguments: Mapping[str, Any], wanted: int, parts: Sequence[Drawn]
    ) -> list[int]:
        if self._is_by_chance(task, arguments):
            return by_weight(wanted, parts, self._dice)
        return by_count(wanted, [part.size for part in parts], [len(part.infos) for part in parts])

    def _as_one(self, sizes: Mapping[str, int], lent: Lent, drawn: Sequence[Draw], index: int) -> Lent:
        """Return what a shard gave, with chances and sizes as of the whole; weights follow when all is there."""
        samples = {}
        for task in sizes:
            size = sum(draw.parts[task].size for draw in drawn)
            share = shares_of([draw.parts[task][:2] for draw in drawn])[index]
            self._betas[task] = drawn[index].parts[task].beta
            samples[task] = [
                (blob, info._replace(table_size=size, probability=info.probability * share))
                if self._is_by_chance(task, {})
                else (blob, info._replace(table_size=size))
                for blob, info in lent.samples[task]
            ]
        return lent._replace(samples=samples)

    async def _until_ready(self, arguments: Mapping[str, Any], deadline: float | None, what: str) -> None:
        """Wait until the shards together hold what is wanted. Raises WaitTimeout, InvalidArgument if they never can."""
        sizes = checked_sizes(arguments["task_batch_sizes"])
        status = arguments.get("group_status", Status.COMPLETED)
        while True:
            told = await self._available(sizes, status, timeout=time_left(deadline))
            held = {task: sum(counts[task][0] for counts in told) for task in sizes}
            missing = {task: n - held[task] for task, n in sizes.items() if n > held[task]}
            if not missing:
                return
            for task in missing:
                limit = sum(counts[task][1] for counts in told)
                if sizes[task] > limit:
                    raise InvalidArgument(
                        f"{sizes[task]} groups of task {task!r} can never be had at once: the rate limiters of the shards "
                        f"allow at most {limit:g}"
                    )
            if deadline is not None and time.monotonic() >= deadline:
                counts = {task: f"{held[task]} of {n}" for task, n in sizes.items()}
                raise WaitTimeout(
                    f"{what} timed out; no group was delivered. There are {counts} groups{await self._unknown(sizes)}"
                )
            await self._grown(told, missing, status, deadline)

    async def _unknown(self, sizes: Mapping[str, int]) -> str:
        """Return which tasks there are, if one of these is unknown to all shards."""
        try:
            told = await self._each("known_tasks", [{}] * len(self._lines), timeout=1.0)
        except (WaitTimeout, Unreachable):  # a shard is away
            return ""
        known = sorted({name for names in told for name in names})
        return next(
            (
                f". Task {name!r} is unknown; {unknown_task(name, known)}"
                for name in sizes
                if name not in known
            ),
            "",
        )

    async def _grown(
        self,
        told: Sequence[dict[str, tuple[int, float]]],
        missing: Mapping[str, int],
        status: Any,
        deadline: float | None,
    ) -> None:
        """Return when a shard has got its share of what is missing, at the deadline, or after a while.

        When all that is missing has come, one of the shards has got its share of it.
        """
        left = time_left(deadline)
        look_s = _LOOK_S if left is None else min(_LOOK_S, left)
        shares = {task: max(1, n // len(self._lines)) for task, n in missing.items()}
        looks = [
            asyncio.ensure_future(
                line.call(
                    "grown",
                    {
                        "task_batch_sizes": {task: counts[task][0] + share for task, share in shares.items()},
                        "group_status": status,
                        "timeout": look_s,
                    },
                    timeout=left,
                )
            )
            for line, counts in zip(self._lines, told, strict=True)
        ]
        try:
            await asyncio.wait(looks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for look in looks:
                look.cancel()
            ends = await asyncio.gather(*looks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _available(
        self, sizes: Mapping[str, int], status: Any, **limit: Any
    ) -> list[dict[str, tuple[int, float]]]:
        """Return how many groups can be had, by shard and task, at most what is wanted; and how many ever at once."""
        asked = {"task_batch_sizes": dict(sizes), "group_status": status}
        return await self._each("available", [asked] * len(self._lines), **limit)

    async def _refuse(self, arguments: Mapping[str, Any], verb: str) -> None:
        """Raise what a buffer of the whole configuration says to wrong arguments."""
        with contextlib.suppress(WaitTimeout):
            await getattr(self._whole, verb)(**arguments)

    # --- arriving

    def _opened(self, lent: Mapping[int, Lent]) -> Samples:
        """Return what shards lent as rollouts, by task."""
        samples: Samples = {}
        try:
            for part in lent.values():
                for task, given in part.samples.items():
                    samples.setdefault(task, []).extend(Sample(hand_out(blob), info) for blob, info in given)
        except BaseException:  # a class that is not registered here: others may read it
            for index, part in lent.items():
                self._lines[index].tell("nack", {"lease": part.lease})
            raise
        return (
            samples
            if len(lent) == 1
            else {task: self._weighed(task, found) for task, found in samples.items()}
        )

    def _weighed(self, task: str, samples: list[Sample]) -> list[Sample]:
        sampler = self._config.for_task(task).sampler
        if not isinstance(sampler, Prioritized):
            return samples
        self._dice.shuffle(samples)  # as drawn, not shard by shard
        infos = weighed([sample.info for sample in samples], self._betas.get(task, sampler.beta))
        return [Sample(sample.group, info) for sample, info in zip(samples, infos, strict=True)]

    async def _ack(self, lent: Mapping[int, Lent], *, comes_back: bool = False) -> set[int]:
        """Acknowledge what has arrived; return what was handed to others meanwhile, because a shard was away.

        Whoever is cancelled here has taken the groups already, and gets them: else they would be lost. Of groups that will
        not come back, a shard without a store is not waited for: when it ends, nothing can be handed out again.
        """
        if self._config.store is None and not comes_back:
            for index, part in lent.items():
                self._lines[index].tell("ack", {"lease": part.lease})
            return set()
        acked = asyncio.ensure_future(self._ack_all(lent))
        while not acked.done():
            try:
                await asyncio.wait([acked])
            except asyncio.CancelledError:
                continue
        return acked.result()

    async def _ack_all(self, lent: Mapping[int, Lent]) -> set[int]:
        async def ack(index: int, part: Lent) -> set[int]:
            try:
                await self._lines[index].call("ack", {"lease": part.lease})
            except LeaseExpired as error:
                return set(error.uids) or {info.uid for given in part.samples.values() for _, info in given}
            return set()

        return set().union(*await asyncio.gather(*(ack(index, part) for index, part in lent.items())))

    def _number(self, lent: Mapping[int, Lent]) -> int:
        if len(self._lines) == 1:
            return lent[0].lease
        return sum((part.lease + 1) << (_DIGITS * index) for index, part in lent.items())

    def _leases(self, number: int) -> dict[int, int]:
        """Return the leases of a batch, by shard. Raises InvalidArgument for what is no number of a batch."""
        if type(number) is not int:  # the leases of several shards take more bits than other numbers
            number = checked_count("lease", number)
        if len(self._lines) == 1:
            return {0: number}
        digits = {
            index: number >> (_DIGITS * index) & ((1 << _DIGITS) - 1) for index in range(len(self._lines))
        }
        return {index: digit - 1 for index, digit in digits.items() if digit}

    # --- groups that are used several times

    def _is_completed(self, arguments: Mapping[str, Any]) -> bool:
        return Status.of(arguments.get("group_status", Status.COMPLETED)) is Status.COMPLETED

    def _is_by_chance(self, task: str, arguments: Mapping[str, Any]) -> bool:
        return self._is_completed(arguments) and isinstance(
            self._config.for_task(task).sampler, Uniform | Prioritized
        )

    def _is_replayed(self, sizes: Mapping[str, int], arguments: Mapping[str, Any]) -> bool:
        return self._is_completed(arguments) and any(
            self._config.for_task(task).max_times_sampled != 1 for task in sizes
        )

    async def _take_replayed(
        self, sizes: Mapping[str, int], arguments: Mapping[str, Any]
    ) -> tuple[dict[str, list[Any]], dict[str, int]]:
        """Take groups that others may have sampled: a lease would hide nothing, so each shard takes at once."""
        if len(self._lines) == 1:
            limit = arguments.get("timeout") if arguments.get("wait") else 0
            taken = [await self._lines[0].call("take_batch", dict(arguments), timeout=limit)]
        else:
            if arguments.get("wait"):
                raise InvalidArgument(
                    "over several shards, groups that are used several times cannot be taken all or nothing: sample or lease "
                    "them, or take without wait"
                )
            await self._refuse(arguments, "take_batch")
            by_shard = await self._available(sizes, Status.COMPLETED, timeout=0)
            if await self._agree(sizes, timeout=0):
                by_shard = await self._available(sizes, Status.COMPLETED, timeout=0)
            parts = {
                task: by_count(max(n, 0), counts, counts)
                for task, n in sizes.items()
                for counts in [[held[task][0] for held in by_shard]]
            }
            wanted = [{task: parts[task][index] for task in sizes} for index in range(len(self._lines))]
            taken = await self._each(
                "take_batch", [{**arguments, "task_batch_sizes": part} for part in wanted], timeout=0
            )
        groups = {task: [hand_out(b) for part, _ in taken for b in part[task]] for task in sizes}
        return groups, {task: len(given) for task, given in groups.items()}

    async def _sample_again(self, sizes: Mapping[str, int], arguments: Mapping[str, Any]) -> list[Sample]:
        """Draw with replacement: shards are drawn from by their weight."""
        if len(self._lines) == 1:
            drawn = await self._lines[0].call("sample", dict(arguments), timeout=arguments.get("timeout"))
            return [Sample(hand_out(blob), info) for blob, info in drawn]
        deadline = deadline_of(arguments.get("timeout"))
        ready = {task: min(n, 1) for task, n in sizes.items()}
        step = arguments.get("train_step")
        for task in sizes if step is not None else ():
            await self._learn(self._lines, task, step, timeout=time_left(deadline))
        is_known = False
        while not is_known:
            await self._until_ready({"task_batch_sizes": ready}, deadline, "sample")
            is_known = not await self._agree(sizes, timeout=time_left(deadline))
        parts = [await self._draw_again(task, n, arguments, time_left(deadline)) for task, n in sizes.items()]
        return [sample for part in parts for sample in part]

    async def _draw_again(
        self, task: str, n: int, arguments: Mapping[str, Any], limit: float | None
    ) -> list[Sample]:
        """Draw n groups of one task with replacement, from shards that together hold at least one."""
        totals = await self._each("weight", [{"task_name": task}] * len(self._lines), timeout=limit)
        self._betas[task] = totals[0][2]
        shares = shares_of([total[:2] for total in totals])
        counts = multinomial(n, shares, self._dice)
        asked = [{**arguments, "task_name": task, "n": count, "timeout": 0} for count in counts]
        calls = [
            line.call("sample", each, timeout=limit)
            for line, each in zip(self._lines, asked, strict=True)
            if each["n"]
        ]
        size = sum(held for _, held, _ in totals)
        samples = []
        for share, part in zip(
            (share for share, count in zip(shares, counts, strict=True) if count),
            await asyncio.gather(*calls),
            strict=True,
        ):
            samples += [
                Sample(hand_out(blob), info._replace(probability=info.probability * share, table_size=size))
                for blob, info in part
            ]
        return self._weighed(task, samples)

    async def _each(self, verb: str, arguments: Sequence[dict[str, Any]], **limit: Any) -> list[Any]:
        """Call a verb of every shard; `timeout` limits it as it limits the call of one."""
        return await asyncio.gather(
            *(line.call(verb, each, **limit) for line, each in zip(self._lines, arguments, strict=True))
        )
