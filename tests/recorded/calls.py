"""A seeded caller: mixed calls to a buffer, and what they returned, as plain text that can be compared.

The calls depend on the seed and on earlier results only, so two versions of reroll that behave alike give the same text.
Bytes, times and metrics are left out: they may change.
"""

import hashlib
import math
import random
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from reroll import (
    GroupBatch,
    MinHeap,
    Mixture,
    Prioritized,
    Queue,
    ReplayBufferConfig,
    RerollError,
    Rollout,
    RolloutGroup,
    SampleToInsertRatio,
    StalenessWindow,
    Status,
)

TASKS = ("math", "code")
CONFIGS: dict[str, dict[str, Any]] = {
    "queue": {"sampler": "fifo", "capacity": 24, "max_staleness": 6},
    "stalest": {"sampler": "stalest", "capacity": 40, "expire": "member", "max_attempts": 4},
    "window": {"sampler": "fifo", "rate_limiter": StalenessWindow(2, 8)},
    "limited": {"sampler": "fifo", "rate_limiter": Queue(16), "on_failed": "drop_member"},
    "uniform": {"sampler": "uniform", "capacity": 32, "remover": "fifo", "max_times_sampled": 3},
    "prioritized": {
        "sampler": Prioritized(alpha=0.6, beta=0.5, half_life=4.0),
        "capacity": 32,
        "remover": MinHeap(),
        "max_times_sampled": None,
        "priority_signal": "reward_std",
        "max_staleness": 8,
        "on_stale": "drop",
    },
    "mixture": {
        "sampler": Mixture(0.5),
        "capacity": 48,
        "remover": "stalest",
        "max_times_sampled": 4,
        "rate_limiter": SampleToInsertRatio(2.0, 4, 24.0),
    },
    "rewound": {"sampler": "least_used", "max_times_sampled": 2, "capacity": 32, "max_uncommitted_steps": 6},
}
BLOCK = 250
"""Calls of one digest."""


class Caller:
    """Makes calls to one buffer in memory, which is saved and resumed now and then."""

    def __init__(self, name: str, directory: Path) -> None:
        self._config = ReplayBufferConfig(seed=7, **CONFIGS[name])
        self._directory = directory
        self._dice = random.Random(name)
        self._buffer = self._config.build()
        self._step = 1
        self._names = 0
        self._taken: list[tuple[str, list[Rollout]]] = []  # aborted or expired groups, to be rolled again
        self._batches: list[Any] = []
        self._reservations: list[tuple[str, Any]] = []
        self._calls: tuple[Callable[[], Awaitable[Any]], ...] = (
            *[self._put] * 10,
            *[self._take, self._sample, self._lease, self._settle, self._roll_again] * 3,
            *[self._refresh, self._advance, self._prioritize, self._patch, self._delete, self._query] * 1,
            *[self._count, self._ledger, self._reserve, self._commit, self._rewind, self._peek] * 1,
        )

    async def texts(self, calls: int) -> AsyncIterator[str]:
        """Yield what each call returned, or the kind of error that it raised."""
        for number in range(calls):
            if number % 5000 == 4999:
                await self._restart()
            call = self._dice.choice(self._calls)
            try:
                result = await call()
            except (RerollError, KeyError, ValueError) as error:
                result = type(error).__name__
            yield f"{call.__name__} {plain(result)}"
        await self._buffer.close()

    async def _restart(self) -> None:
        self._taken, self._batches, self._reservations = [], [], []
        await self._buffer.save(self._directory)
        await self._buffer.close()
        self._buffer = self._config.build()
        await self._buffer.resume(self._directory)

    def _rollout(self, tokens: int, version: int) -> Rollout:
        dice = self._dice
        return Rollout(
            prompt_ids=[1, 2, 3],
            response_ids=[dice.randrange(100) for _ in range(tokens)],
            logprobs=[-dice.random() for _ in range(tokens)] if dice.random() < 0.5 else None,
            response_mask=[dice.randrange(2) for _ in range(tokens)] if dice.random() < 0.2 else None,
            response_model_steps=[version] * tokens if dice.random() < 0.9 else None,
            reward=dice.choice((0.0, 0.5, 1.0)),
            status=dice.choices(("completed", "aborted", "failed", "filtered"), (30, 4, 1, 1))[0],
        )

    async def _put(self) -> Any:
        dice = self._dice
        self._names += 1
        version = max(0, self._step - 1 - dice.choice((0, 0, 0, 1, 1, 2, 4, 8)))
        items = [self._rollout(dice.randint(1, 6), version) for _ in range(dice.randint(1, 3))]
        for place, rollout in enumerate(items):
            rollout.group_id, rollout.rollout_id = f"g{self._names}", place
        options: dict[str, Any] = {"timeout": 0}
        if dice.random() < 0.3:
            options["current_train_step"] = self._step
        if dice.random() < 0.1:
            options |= {"stale_threshold": 3, "expired_groups_retryable": dice.random() < 0.5}
        if dice.random() < 0.3:
            options["priority"] = dice.choice((0.0, 0.5, 2.0, 7.0))
        if dice.random() < 0.1:
            options["tags"] = {"level": dice.randrange(3)}
        if dice.random() < 0.1:
            options["put_id"] = f"p{dice.randrange(self._names)}"
        task = dice.choice(TASKS)
        granted = [reservation for name, reservation in self._reservations if name == task]
        if granted and dice.random() < 0.5:
            options["reservation"] = dice.choice(granted)
        return await self._buffer.put(items, task, model_step=version, **options)

    async def _take(self) -> Any:
        status = self._dice.choices(("completed", "aborted", "expired", "failed"), (8, 4, 4, 1))[0]
        sizes = {task: self._dice.randint(0, 5) for task in TASKS}
        step = self._step if self._dice.random() < 0.5 else None
        wait = self._dice.random() < 0.3
        groups, _ = await self._buffer.take_batch(
            sizes, group_status=status, wait=wait, timeout=0 if wait else None, train_step=step
        )
        if status in ("aborted", "expired"):
            self._taken += [(task, group) for task, some in groups.items() for group in some]
        return groups

    async def _sample(self) -> Any:
        n, task = self._dice.randint(1, 6), self._dice.choice(TASKS)
        short, replace = self._dice.random() < 0.5, self._dice.random() < 0.2
        return await self._buffer.sample(n, task, timeout=0, replace=replace, allow_short=short)

    async def _lease(self) -> Any:
        status = self._dice.choices(("completed", "aborted"), (6, 1))[0]
        sizes = {task: self._dice.randint(0, 4) for task in TASKS}
        batch = await self._buffer.lease(sizes, group_status=status, train_step=self._step)
        self._batches.append(batch)
        return batch.samples

    async def _settle(self) -> Any:
        if not self._batches:
            return None
        batch = self._batches.pop(self._dice.randrange(len(self._batches)))
        return await (batch.ack() if self._dice.random() < 0.7 else batch.nack())

    async def _roll_again(self) -> Any:
        if not self._taken:
            return None
        task, group = self._taken.pop(self._dice.randrange(len(self._taken)))
        if self._dice.random() < 0.2:
            return await self._buffer.forget([group[0].group_uid])
        for rollout in group:
            old = [] if rollout.response_ids is None else rollout.response_ids.tolist()
            rollout.logprobs = rollout.response_mask = None
            rollout.response_ids = [*old, *(self._dice.randrange(100) for _ in range(2))]
            rollout.reward = self._dice.choice((0.0, 1.0))
            rollout.status = Status.COMPLETED if self._dice.random() < 0.8 else Status.ABORTED
        return await self._buffer.put(group, task, model_step=self._step - 1, timeout=0)

    async def _refresh(self) -> Any:
        return await self._buffer.refresh_staleness(
            task_stale_thresholds={task: self._dice.randint(1, 6) for task in TASKS},
            current_train_step=self._step,
            expired_groups_retryable_by_task={task: self._dice.random() < 0.7 for task in TASKS},
        )

    async def _advance(self) -> Any:
        await self._buffer.advance(self._step)
        self._step += 1

    async def _some_uids(self) -> list[int]:
        rows = await self._buffer.query({}, order_by="uid")
        return [self._dice.choice(rows).uid for _ in range(self._dice.randint(1, 4))] if rows else [1]

    async def _prioritize(self) -> Any:
        uids = [*(await self._some_uids()), 10**9]
        return await self._buffer.update_priorities({uid: self._dice.choice((0, 1, 3.5)) for uid in uids})

    async def _patch(self) -> Any:
        uid = (await self._some_uids())[0]
        return await self._buffer.patch(uid, reward=[self._dice.random()] * self._dice.randint(1, 3))

    async def _delete(self) -> Any:
        if self._dice.random() < 0.5:
            return await self._buffer.delete((await self._some_uids())[:1])
        return await self._buffer.delete({"tags.level": 2, "times_sampled": {"$gt": 1}})

    async def _query(self) -> Any:
        where = self._dice.choice(
            ({}, {"status": "completed"}, {"staleness": {"$gte": 2}}, {"$not": {"task_name": "math"}})
        )
        order = self._dice.choice((None, "-priority", "staleness", "num_tokens"))
        return await self._buffer.query(where, order_by=order, limit=20)

    async def _count(self) -> Any:
        return await self._buffer.count_statuses(list(TASKS), list(Status))

    async def _ledger(self) -> Any:
        return await self._buffer.ledger()

    async def _reserve(self) -> Any:
        if self._reservations and self._dice.random() < 0.5:
            return await self._buffer.release(self._reservations.pop()[1])
        task = self._dice.choice(TASKS)
        self._reservations.append((task, await self._buffer.reserve(2, task, timeout=0)))
        return None

    async def _commit(self) -> Any:
        return await self._buffer.commit(max(0, self._step - self._dice.randint(1, 3)))

    async def _rewind(self) -> Any:
        if self._dice.random() < 0.7:
            return None
        return await self._buffer.rewind(max(0, self._step - 2), newer=self._dice.choice(("keep", "expire")))

    async def _peek(self) -> Any:
        return await self._buffer.peek((await self._some_uids())[:2])


def plain(value: Any) -> Any:
    """Return a result as values whose text is the same in every process."""
    if isinstance(value, Rollout):
        return [plain(part) for name, part in sorted(value.to_dict().items()) if name != "extra_fields"]
    if isinstance(value, dict):
        return [[str(name), plain(part)] for name, part in value.items()]
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if is_dataclass(value):
        return plain(
            {part.name: getattr(value, part.name) for part in fields(value) if part.name != "num_bytes"}
        )
    if isinstance(value, list | tuple | RolloutGroup | GroupBatch):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return None if math.isnan(value) else f"{value:.9g}"
    return value if isinstance(value, int | str | None) else str(value)


async def digests(name: str, directory: Path, calls: int) -> list[str]:
    """Return one digest for each block of calls."""
    found: list[str] = []
    block: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        async for text in Caller(name, directory).texts(calls):
            block.append(text)
            if len(block) == BLOCK:
                found.append(hashlib.sha256("\n".join(block).encode()).hexdigest()[:16])
                block.clear()
    return found
