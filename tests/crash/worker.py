"""The process that is killed: it owns a durable buffer, and tells of every operation when it begins and when it ends.

Each line is one JSON object, written whole. An operation that has begun has changed the buffer by the time that anything
else runs; one that has ended is acknowledged.

    echo '{"directory": "...", "seed": 1, ...}' | python -m crash.worker
"""

import asyncio
import faulthandler
import inspect
import json
import os
import random
import sys
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from crash.killing import Trap
from crash.numbered import (
    RETRYABLE,
    config,
    describe,
    group,
    is_aborted,
    priority_of,
    put_id_of,
    task_of,
)
from reroll import BlockingReplayBuffer, ForkedProcess, ReplayBuffer
from reroll.engine.ledger import closes
from reroll.store import durable

MAX_OPEN = 3
"""Leases that one process leaves open."""


def tell(**line: Any) -> None:
    os.write(1, (json.dumps(line) + "\n").encode())


class Worker:
    """Several asyncio tasks that use one buffer at once, as chance would have it."""

    def __init__(self, buffer: Any, orders: dict[str, Any]) -> None:
        self._buffer = buffer
        self._directory = orders["directory"]
        self._chance = random.Random(f"{orders['seed']} {orders['life']}")
        self._first = self._next = orders["life"] * 100_000
        self._step = orders["checkpoint"]  # the last training step that was done
        self._checkpoint = orders["checkpoint"]
        self._orphans = orders["orphans"]
        self._begun = 0
        self._seen: list[int] = []
        self._open: list[Any] = []

    async def run(self) -> None:
        await self._begin()
        others = (self._save_and_cancel, self._fork)
        await asyncio.gather(*map(self._forever, (*self._actors(), *others)))

    async def run_alone(self) -> None:
        """Do one thing after another, for a blocking buffer: an interrupt comes within one operation, or between two."""
        await self._begin()
        while True:
            await self._chance.choice(self._actors())()

    async def rest(self) -> None:
        """Only look, as the last to come."""
        tell(seen=await picture_of(self._buffer))
        await self._rewind()
        tell(seen=await picture_of(self._buffer))
        await self._buffer.close()
        tell(closed=True)

    async def _begin(self) -> None:
        tell(seen=await picture_of(self._buffer))
        await self._rewind()
        tell(seen=await picture_of(self._buffer))
        for uid, number, attempt in self._orphans:  # made by producers that have outlived the last process
            await self._put_again(uid, number, attempt)

    def _actors(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        producers = (self._produce, self._produce, self._produce, self._roll_again)
        return (*producers, self._train, self._lease_and_leave, self._tinker, self._consume_plain)

    async def _forever(self, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            await act()
            await asyncio.sleep(0)  # an operation that finds nothing to do does not wait

    async def _do(self, call: Callable[[], Awaitable[Any]], **op: Any) -> Any:
        self._begun += 1
        number = self._begun
        tell(begin=number, **op)
        result = call()
        if inspect.isawaitable(result):  # what it changes is changed before it waits for anything
            result = await result
        told = _told(result, op)
        tell(end=number, result=told)
        return result

    # --- producers

    async def _produce(self) -> None:
        number = self._next
        repeats = [n for n in range(max(0, number - 200), number) if put_id_of(n) and n % 100_000 < 1000]
        if repeats and self._chance.random() < 0.1:
            number = self._chance.choice(repeats)
        else:
            self._next += 1
        version = max(0, self._step - self._chance.randrange(3))
        items = group(number, 1, "aborted" if is_aborted(number) else "completed")
        uid = await self._do(
            lambda: self._buffer.put(
                items,
                task_of(number),
                model_step=version,
                priority=priority_of(number),
                put_id=put_id_of(number),
            ),
            op="put",
            number=number,
            version=version,
        )
        self._seen.append(uid)

    async def _roll_again(self) -> None:
        status = self._chance.choice(["aborted", "expired"])
        taken = await self._take({"math": 2, "replay": 1}, status, None)
        for uid, number, attempt in taken:
            if self._chance.random() < 0.1:
                await self._do(lambda uid=uid: self._buffer.forget([uid]), op="forget", uids=[uid])
            elif self._chance.random() < 0.9:
                await self._put_again(uid, number, attempt)

    async def _put_again(self, uid: int, number: int, attempt: int) -> None:
        status = "aborted" if self._chance.random() < 0.2 else "completed"
        version = self._step
        await self._do(
            lambda: self._buffer.put(
                group(number, attempt + 1, status),
                task_of(number),
                model_step=version,
                priority=priority_of(number),
                uid=uid,
            ),
            op="put",
            number=number,
            version=version,
            uid=uid,
            status=status,
        )

    # --- the trainer

    async def _train(self) -> None:
        step = self._step + 1
        if self._chance.random() < 0.5:
            await self._refresh(step)
        acts = (
            partial(self._take, {"math": self._chance.randrange(4), "code": 1}, "completed", step),
            partial(self._sample, self._chance.randrange(1, 4), step),
            partial(self._train_under_lease, step),
        )
        if isinstance(self._buffer, ReplayBuffer):
            await asyncio.gather(*(act() for act in acts))
        else:
            for act in acts:
                await act()
        if self._chance.random() < 0.1:
            await self._take({"replay": 1}, "completed", step)
        if self._open and self._chance.random() < 0.2:  # of some step before, which may have been rewound
            batch = self._open.pop(0)
            await self._do(batch.ack, op="ack", lease=batch.id)
        self._step = step
        if self._chance.random() < 0.4:
            self._checkpoint = step
            tell(checkpoint=step)  # the trainer's own is on disk
            await self._do(lambda: self._buffer.commit(step), op="commit", step=step)
        elif self._chance.random() < 0.1:
            await self._rewind()

    async def _train_under_lease(self, step: int) -> None:
        batch = await self._lease({"math": 1, "replay": 2, "code": 1}, step)
        if self._chance.random() < 0.8:
            await self._do(batch.ack, op="ack", lease=batch.id)
        else:
            await self._do(batch.nack, op="nack", lease=batch.id)

    async def _refresh(self, step: int) -> None:
        thresholds = {task: self._chance.randrange(3, 6) for task in RETRYABLE}
        await self._do(
            lambda: self._buffer.refresh_staleness(
                task_stale_thresholds=thresholds,
                current_train_step=step,
                expired_groups_retryable_by_task=RETRYABLE,
            ),
            op="refresh",
            thresholds=thresholds,
            step=step,
        )

    async def _rewind(self) -> None:
        step = self._checkpoint
        tell(restart=step)
        self._step = step  # from now on for all: a buffer keeps to the largest step that it was told
        await self._do(lambda: self._buffer.rewind(step), op="rewind", step=step)

    async def _take(self, sizes: dict[str, int], status: str, step: int | None) -> list[list[int]]:
        groups, _ = await self._do(
            lambda: self._buffer.take_batch(sizes, group_status=status, train_step=step),
            op="take",
            sizes=sizes,
            status=status,
            step=step,
        )
        return [_name(rollouts, status) for some in groups.values() for rollouts in some]

    async def _sample(self, n: int, step: int) -> None:
        await self._do(
            lambda: self._buffer.sample(n, "replay", train_step=step, allow_short=True),
            op="sample",
            task="replay",
            n=n,
            step=step,
        )

    async def _lease(self, sizes: dict[str, int], step: int) -> Any:
        async def lease() -> Any:
            return await self._buffer.lease(sizes, train_step=step)

        return await self._do(lease, op="lease", sizes=sizes, step=step)

    # --- others

    async def _lease_and_leave(self) -> None:
        batch = await self._lease({"math": 1, "replay": 1}, self._step + 1)
        if len(self._open) < MAX_OPEN and self._chance.random() < 0.3:
            self._open.append(batch)
        else:
            await self._do(batch.nack, op="nack", lease=batch.id)

    async def _tinker(self) -> None:
        uids = self._chance.sample(self._seen, min(len(self._seen), 3))
        priorities = [[uid, self._chance.random()] for uid in {*uids, 10**9}]
        await self._do(
            lambda: self._buffer.update_priorities(dict(priorities)), op="priorities", priorities=priorities
        )
        if uids and self._chance.random() < 0.2:
            await self._do(lambda: self._buffer.delete(uids[:1]), op="delete", uids=uids[:1])

    async def _consume_plain(self) -> None:
        await self._take({"plain": 2}, "completed", None)

    # --- what harms nothing

    async def _save_and_cancel(self) -> None:
        """Save, and mostly do not wait for the end; a checkpoint that was written is whole."""
        saving = asyncio.ensure_future(self._buffer.save(f"{self._directory}-saved"))
        for _ in range(self._chance.choice([0, 1, 2, 5, 20, 100, 10**9])):
            if saving.done():
                break
            await asyncio.sleep(0)
        saving.cancel()
        try:
            await saving
            tell(saved=True)
        except asyncio.CancelledError:
            tell(cancelled=True)
        for _ in range(200):
            await asyncio.sleep(0)

    async def _fork(self) -> None:
        """Let a child find that the buffer is its parent's; it lives as long as its parent, or a moment longer."""
        for _ in range(500):
            await asyncio.sleep(0)
        tell(forking=True)
        end, kept = os.pipe()
        with warnings.catch_warnings():  # of forks in a process that has threads
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(kept)
                os.close(1)
                try:
                    self._buffer.put(group(1, 1, "completed"), "math").send(None)
                except ForkedProcess:
                    code = 0
                if self._chance.random() < 0.5:
                    os.read(end, 1)  # until its parent is killed
            finally:
                os._exit(code)
        os.close(end)
        if self._chance.random() < 0.5:
            os.close(kept)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert status == 0, "a forked child used the buffer"
            tell(forked=True)
        else:
            await asyncio.Event().wait()  # the child outlives this process


async def picture_of(buffer: Any) -> dict[str, Any]:
    """Return what is there, after a check that rollouts, rows and books agree."""
    rows = await buffer.query({})
    for row, rollouts in zip(rows, await buffer.peek([row.uid for row in rows]), strict=True):
        number, attempt = describe(rollouts, row.status.value)
        assert (row.attempts, row.task_name) == (attempt, task_of(number)), (number, attempt, row)
    books = await buffer.ledger()
    for task, amounts in books.items():
        own = [row for row in rows if row.task_name == task]
        resident = amounts["resident"]
        assert resident[:2] == (len(own), sum(row.num_tokens for row in own)), (task, resident)
        assert closes(amounts), (task, amounts)
        for status in ("completed", "aborted", "expired"):
            count = sum(row.status.value == status for row in own)
            assert count == await buffer.count(task, status), (task, status)
    assert len(buffer) == len(rows)
    counted = {
        task: {name: amount.groups for name, amount in amounts.items() if amount.groups}
        for task, amounts in books.items()
    }
    return {
        "rows": {
            str(row.uid): [
                *(row.timestamp_id, row.task_name, row.status.value, row.priority, row.version),
                *(row.times_sampled, row.attempts, row.deliveries, row.num_tokens),
            ]
            for row in rows
        },
        "books": {task: book for task, book in counted.items() if book},
    }


def _name(rollouts: list[Any], status: str) -> list[int]:
    return [rollouts[0].group_uid, *describe(rollouts, status)]


def _told(result: Any, op: dict[str, Any]) -> Any:
    """Return what an operation gave, in numbers; rollouts are checked on the way."""
    match op["op"]:
        case "take":
            return [_name(rollouts, op["status"]) for some in result[0].values() for rollouts in some]
        case "sample":
            return [
                [*_name(given.group, "completed"), given.info.times_sampled]
                for given in result
                if given.info.uid == given.group[0].group_uid
            ]
        case "lease":
            return [result.id, [_name(r, "completed") for some in result.groups.values() for r in some]]
    return result


class Plain:
    """A blocking buffer with the verbs of the other one; nothing of it ever waits in an event loop."""

    def __init__(self, buffer: BlockingReplayBuffer) -> None:
        self._blocking = buffer

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        verb = getattr(self._blocking, name)

        async def call(*args: Any, **options: Any) -> Any:
            return verb(*args, **options).take() if name == "lease" else verb(*args, **options)

        return call

    def __len__(self) -> int:
        return len(self._blocking)


def work_until_interrupted(buffer: BlockingReplayBuffer, orders: dict[str, Any]) -> None:
    """Use a blocking buffer until Ctrl-C, and close it, which must come to an end."""
    try:
        with suppress(StopIteration):
            Worker(Plain(buffer), orders).run_alone().send(None)
    except KeyboardInterrupt:
        tell(interrupted=True)
    buffer.close()
    tell(closed=True)


def open_buffer(orders: dict[str, Any]) -> Any:
    """Return the buffer that is worked with, and die on the way if so ordered."""
    faulthandler.dump_traceback_later(60, exit=True)  # one that hangs says where
    opening, writing = Trap(orders["dies_opening_at"]), Trap(orders["dies_writing_at"], "reroll ")
    tell(opening=True)
    if writing.at is not None:  # it makes a process slower
        writing.set_for_threads()
    if opening.at is not None:
        opening.set()
    if orders["life"] % 3:  # and the log is, after each commit or two, being folded into the file
        durable.LOG_BYTES = 1 << 18
    made = config(orders["directory"], **orders["options"])
    buffer = made.build_blocking() if orders["interrupted"] else made.build()
    opening.lift()
    tell(opened=opening.events)
    return buffer


async def work(orders: dict[str, Any]) -> None:
    worker = Worker(open_buffer(orders), orders)
    await (worker.rest() if orders["rests"] else worker.run())


def main() -> None:
    orders = json.loads(sys.stdin.readline())
    if orders["interrupted"]:
        work_until_interrupted(open_buffer(orders), orders)
    else:
        asyncio.run(work(orders))


if __name__ == "__main__":
    main()
