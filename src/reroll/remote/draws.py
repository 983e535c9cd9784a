"""Deliveries from several shards: what the shards offer, how a batch is split, and its leases.

All shards are asked for offers. The batch is split in proportion to them, and leased from each shard; if other clients were
faster, it is given back and tried again.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, TypeVar

from reroll.buffer.arguments import (
    checked_flag,
    checked_sizes,
    checked_step,
    unknown_task,
)
from reroll.buffer.batch import Batch
from reroll.errors import (
    InvalidArgument,
    Unreachable,
    WaitTimeout,
)
from reroll.remote.client import RemoteBuffer, finish
from reroll.remote.shard import Offer
from reroll.rollout import Status
from reroll.sample import Sample, SampleInfo
from reroll.waiting import deadline_of, read_seconds

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


async def lend(
    shards: Shards, arguments: Arguments, verb: str, rng: random.Random
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
        offers = await await_offers(shards, {**arguments, "timeout": time_left(deadline)}, verb)
        parts = _split_all(sizes, offers, rng)
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
            weighed = {task: join_samples(task, offers, drawn, rng) for task, drawn in samples.items()}
            return {index: batch.id for index, batch in batches.items()}, weighed
        _give_back(shards, batches)
        await asyncio.sleep(rng.random() * 0.01)


async def await_offers(shards: Shards, arguments: Arguments, verb: str) -> list[dict[str, Offer]]:
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
        offers: list[dict[str, Offer]] = await within(
            deadline if wait else None, ask_each(shards, "offers", asked)
        )
        known = {task: [given[task].step for given in offers] for task in sizes}
        held = {task: sum(given[task].available for given in offers) for task in sizes}
        missing = {task: n - held[task] for task, n in sizes.items() if n > held[task]}
        if not wait or not missing:
            newest = dict.fromkeys(sizes, step) if wait and step is not None and not told else {}
            for task, steps in known.items():
                if status == "completed" and len(set(steps)) > 1:  # a shard has not heard of the newest step
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


def _split_all(
    sizes: Mapping[str, int], offers: Sequence[Mapping[str, Offer]], rng: random.Random
) -> list[dict[str, int]]:
    """Return how many groups of each task each shard gives."""
    parts: list[dict[str, int]] = [{} for _ in offers]
    for task, n in sizes.items():
        given = [offer[task] for offer in offers]
        for part, count in zip(parts, split(n, given, rng.random), strict=True):
            part[task] = count
    return parts


def join_samples(
    task: str, offers: Sequence[Mapping[str, Offer]], samples: list[Sample], rng: random.Random
) -> list[Sample]:
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
        rng.shuffle(samples)  # as drawn, not shard by shard
    return samples


# --- calls to several shards


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of calls that all ended; raise the first error. Cancelling it cancels the calls that run."""
    ends = await asyncio.gather(*calls, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return [end for end in ends if not isinstance(end, BaseException)]


async def each(shards: Shards, verb: str, arguments: Sequence[Arguments]) -> list[Any]:
    return await together(getattr(shard, verb)(**own) for shard, own in zip(shards, arguments, strict=True))


async def ask_each(shards: Shards, verb: str, arguments: Arguments) -> list[Any]:
    return await together(shard.ask(verb, arguments) for shard in shards)


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


async def within(deadline: float | None, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work that a silent shard may not delay long after the deadline of the call."""
    try:
        async with asyncio.timeout(None if deadline is None else seconds_left(deadline) + _GRACE_S) as limit:
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
        await together(_as_coroutine(call) for call in calls.values())
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
    taken = await each(shards, "take_batch", [{**arguments, "task_batch_sizes": part} for part in parts])
    tasks = {task for part in parts for task in part}
    return {
        task: [Sample(group, _NO_INFO) for groups, _ in taken for group in groups[task]] for task in tasks
    }


def _give_back(shards: Shards, batches: Mapping[int, Batch]) -> None:
    """Return groups as if they had never been leased."""
    for index, batch in batches.items():
        shards[index].notify("trim_lease", {"lease": batch.id, "uids": []})
        shards[index].notify("nack_lease", {"lease": batch.id})


async def consume(shards: Shards, leases: Mapping[int, int], *, comes_back: bool = False) -> set[int]:
    """Acknowledge the leases of a take; return the groups that other clients got meanwhile."""
    lost = await finish(
        together(shards[i].consume(lease, comes_back=comes_back) for i, lease in leases.items())
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
    left = time_left(deadline)
    wait_s = _WAIT_S if left is None else min(_WAIT_S, left)
    calls = [
        shard.wait_ready({task: wanted}, group_status=status, timeout=wait_s)
        for shard, given in zip(shards, offers, strict=True)
        for task, n in missing.items()
        if (wanted := given[task].available + max(1, n // len(shards))) <= given[task].largest
    ]
    if calls:
        await within(deadline, _first(calls, wait_s))
    else:
        await asyncio.sleep(wait_s)


async def _unknown_task(shards: Shards, sizes: Iterable[str]) -> str:
    """Return text that names the known tasks, if one of these is unknown to all shards."""
    known = sorted(set(chain(await ask_each(shards, "known_tasks", {}))))
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
            parts = [
                round(high - low, 9) for low, high in pairwise(edges)
            ]  # equal parts must compare as equal
            more = list(map(int, parts))
            fullest = sorted(range(len(left)), key=lambda i: more[i] - parts[i])
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


def seconds_left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def time_left(deadline: float | None) -> float | None:
    return None if deadline is None else seconds_left(deadline)


def chain(lists: Iterable[Iterable[T]]) -> list[T]:
    return [item for part in lists for item in part]
