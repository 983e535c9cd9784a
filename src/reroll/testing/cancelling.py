"""Cancellation at every await point of every verb, for anything with the verbs of ReplayBuffer.

`sweep` cancels each verb at its first await, at its second, and so on until it finishes, and checks after each that the
buffer is usable, that the ledger closes, and that no lease, reservation or waiter is left.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, Final

from reroll.buffer.batch import Batch
from reroll.buffer.reservations import Reservation
from reroll.engine.ledger import closes
from reroll.engine.limits import MinSize
from reroll.errors import RerollError
from reroll.testing.buffer.builders import ABORTED, COMPLETED, group, names

CAPACITY: Final = 4
"""Of the buffer that is swept."""
_PATIENCE_S: Final = 60.0
_MOST_STEPS: Final = 200

Case = Callable[[Any, Path], Awaitable[Awaitable[Any]]]
"""Arrange, and return the call."""


class Steps:
    """An awaitable that has its task cancelled at one of its awaits: a turn later, or just when it may go on."""

    def __init__(self, work: Awaitable[Any], at: int, *, late: bool) -> None:
        self._work, self._at, self._late = work, at, late
        self.reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        inner, step = self._work.__await__(), 0
        move: Callable[[], Any] = lambda: next(inner)  # noqa: E731
        while True:
            try:
                awaited = move()
            except StopIteration as end:
                return end.value
            if step == self._at:
                self._arm(awaited)
            step += 1
            try:
                value = yield awaited
            except BaseException as error:  # noqa: BLE001  (it is the work's own)
                move = lambda error=error: inner.throw(error)  # type: ignore[misc]  # noqa: E731
            else:
                move = lambda value=value: inner.send(value)  # type: ignore[misc]  # noqa: E731

    def _arm(self, awaited: Any) -> None:
        self.reached = True
        task = asyncio.current_task()
        assert task is not None
        if self._late and isinstance(awaited, asyncio.Future):
            awaited.add_done_callback(lambda _: task.cancel())
        else:
            asyncio.get_running_loop().call_soon(task.cancel)


async def _now(call: Awaitable[Any]) -> Any:
    return await call


async def _after_put(buffer: Any, call: Awaitable[Any], items: Any, **options: Any) -> Any:
    """Await a call that waits for a group which comes a few turns later."""

    async def later() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await buffer.put(items, "t", **options)

    putting = asyncio.ensure_future(later())
    try:
        return await call
    finally:
        while not putting.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([putting])


async def _version_later(buffer: Any) -> Any:
    """Wait for a version that is served a few turns later."""
    version = (await buffer.version() or 0) + 1

    async def later() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await buffer.advance(1, version=version)

    advancing = asyncio.ensure_future(later())
    try:
        return await buffer.wait_version(version)
    finally:
        while not advancing.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([advancing])


def _plain(call: Callable[[Any], Awaitable[Any]]) -> Case:
    async def arranged(buffer: Any, _: Path) -> Awaitable[Any]:
        return call(buffer)

    return arranged


def _leased(call: Callable[[Any, Batch], Awaitable[Any]]) -> Case:
    async def arranged(buffer: Any, _: Path) -> Awaitable[Any]:
        batch = await buffer.lease({"t": 2})

        async def called() -> None:
            try:
                await call(buffer, batch)
            finally:
                batch.__dict__["_done"] = False
                _LEFT.append(batch)

        return called()

    return arranged


_LEFT: Final[list[Any]] = []
"""Leases and reservations that their holder still has to give back."""


async def _released(buffer: Any, _: Path) -> Awaitable[Any]:
    _LEFT.append(await buffer.reserve(1, "t"))
    return buffer.release(_LEFT[-1])  # type: ignore[no-any-return]


async def _uid(buffer: Any) -> int:
    (row, *_) = await buffer.query({"task_name": "t", "status": "completed"}, limit=1)
    uid: int = row.uid
    return uid


def _of_one(call: Callable[[Any, int], Awaitable[Any]]) -> Case:
    async def arranged(buffer: Any, _: Path) -> Awaitable[Any]:
        return call(buffer, await _uid(buffer))

    return arranged


async def _forgotten(buffer: Any, _: Path) -> Awaitable[Any]:
    await buffer.get(1, "t", ABORTED)
    return buffer.forget([row.uid for row in await buffer.query({}, limit=1)])  # type: ignore[no-any-return]


async def _saved(buffer: Any, path: Path) -> Awaitable[Any]:
    return buffer.save(path / "saved")  # type: ignore[no-any-return]


async def _resumed(buffer: Any, path: Path) -> Awaitable[Any]:
    return buffer.resume(path / "saved")  # type: ignore[no-any-return]


async def _full(buffer: Any, _: Path) -> Awaitable[Any]:
    while await buffer.count("t", COMPLETED) < CAPACITY:
        await buffer.put(group("more"), "t")
    return _room_later(buffer)


async def _room_later(buffer: Any) -> Any:
    async def later() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await buffer.get(1, "t", COMPLETED)

    getting = asyncio.ensure_future(later())
    try:
        return await buffer.put(group("late"), "t")
    finally:
        while not getting.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([getting])


CASES: Final[dict[str, list[Case]]] = {
    "put": [
        _plain(lambda b: b.put(group("a"), "t")),
        _plain(lambda b: b.put(group("a", status=ABORTED), "t", put_id="same")),
        _full,
    ],
    "put_many": [
        _plain(lambda b: b.put_many([group("a"), group("b")], "t")),
        _plain(lambda b: b.put_many([group("a"), group("b", status=ABORTED)], "t", put_ids=["x", "y"])),
    ],
    "get": [_plain(lambda b: b.get(1, "t", COMPLETED)), _plain(lambda b: b.get(1, "t", ABORTED))],
    "take_batch": [
        _plain(lambda b: b.take_batch({"t": 2}, train_step=1)),
        _plain(lambda b: _after_put(b, b.take_batch({"t": 3}, wait=True), group("b"))),
    ],
    "sample": [
        _plain(lambda b: b.sample(2, "t")),
        _plain(lambda b: _after_put(b, b.sample(3, "t"), group("b"))),
    ],
    "lease": [
        _plain(lambda b: b.lease({"t": 2})),
        _plain(lambda b: b.lease({"t": 1}, group_status=ABORTED)),
        _plain(lambda b: _after_put(b, b.lease({"t": 3}, wait=True), group("b"))),
    ],
    "wait_ready": [
        _plain(lambda b: b.wait_ready({"t": 2})),
        _plain(lambda b: _after_put(b, b.wait_ready({"t": 3}), group("b"))),
    ],
    "ack_lease": [_leased(lambda b, batch: b.ack_lease(batch.id))],
    "nack_lease": [_leased(lambda b, batch: b.nack_lease(batch.id))],
    "end_lease": [_leased(lambda b, batch: b.end_lease(batch.id))],
    "trim_lease": [_leased(lambda b, batch: b.trim_lease(batch.id, []))],
    "reserve": [_plain(lambda b: b.reserve(1, "t"))],
    "release": [_released],
    "advance": [_plain(lambda b: b.advance(1))],
    "version": [_plain(lambda b: b.version())],
    "wait_version": [_plain(_version_later)],
    "wait_overdue": [_plain(lambda b: b.wait_overdue(10**6))],
    "refresh_staleness": [
        _plain(lambda b: b.refresh_staleness(task_stale_thresholds={"t": 1}, current_train_step=1))
    ],
    "update_priorities": [_of_one(lambda b, uid: b.update_priorities({uid: 2.0}))],
    "patch": [_of_one(lambda b, uid: b.patch(uid, reward=[1.0]))],
    "patch_many": [_of_one(lambda b, uid: b.patch_many({uid: {"reward": [1.0]}}))],
    "delete": [_of_one(lambda b, uid: b.delete([uid]))],
    "forget": [_forgotten],
    "set_rate_limiter": [_plain(lambda b: b.set_rate_limiter("t", MinSize(1)))],
    "set_sampler": [_plain(lambda b: b.set_sampler("t", "fifo"))],
    "save": [_saved],
    "resume": [_resumed],
    "commit": [_plain(lambda b: b.commit(0))],
    "rewind": [_plain(lambda b: b.rewind(1))],
    "is_ready": [_plain(lambda b: b.is_ready({"t": 1}))],
    "count": [_plain(lambda b: b.count("t", COMPLETED))],
    "count_statuses": [_plain(lambda b: b.count_statuses(["t"], [COMPLETED]))],
    "count_where": [_plain(lambda b: b.count_where({}))],
    "query": [_plain(lambda b: b.query({}))],
    "peek": [_of_one(lambda b, uid: b.peek([uid]))],
    "to_arrow": [_plain(lambda b: b.to_arrow(payloads=True))],
    "to_pandas": [_plain(lambda b: b.to_pandas(payloads=True))],
    "ledger": [_plain(lambda b: b.ledger())],
    "stats": [_plain(lambda b: b.stats())],
    "metrics": [_plain(lambda b: b.metrics())],
}
"""Every verb of ReplayBuffer but `close`, after which nothing is usable."""

_TAKING: Final = frozenset({"get", "take_batch", "sample", "lease"})


async def sweep(buffer: Any, folder: Path, *, seed: int = 0, late: bool = False, share: float = 1.0) -> int:
    """Cancel every verb at every await, or at a random share of them; return the number of cancelled calls.

    The buffer has capacity `CAPACITY`.
    """
    cancelled, verbs, rng = 0, list(CASES), random.Random(seed)
    rng.shuffle(verbs)
    for verb in verbs:
        for number, case in enumerate(CASES[verb]):
            for step in range(_MOST_STEPS):
                if rng.random() >= share:
                    continue
                try:
                    reached, was_cancelled = await _once(buffer, folder, verb, case, step, late=late)
                except BaseException as error:
                    error.add_note(
                        f"{verb}, case {number}, cancelled at await {step}, late={late}, seed={seed}"
                    )
                    raise
                cancelled += was_cancelled
                if not reached:
                    break
    return cancelled


async def _once(
    buffer: Any, folder: Path, verb: str, case: Case, step: int, *, late: bool
) -> tuple[bool, bool]:
    await _fill(buffer)
    calling = await case(buffer, folder)
    steps = Steps(calling, step, late=late)
    task = asyncio.ensure_future(_now(steps))
    done, _ = await asyncio.wait([task], timeout=_PATIENCE_S)
    assert done, "the call hangs"
    if not task.cancelled():
        with contextlib.suppress(RerollError, ImportError):  # a call that is refused has changed nothing
            _LEFT.append(task.result())
    await _give_back(buffer)
    await _until_settled(buffer)
    books = (await buffer.ledger())["t"]
    assert closes(books), books
    assert await buffer.count("t", COMPLETED) <= CAPACITY
    if task.cancelled() and verb in _TAKING:
        assert await _resident(buffer) >= 3, "a cancelled call has taken groups"
    await buffer.put(group("probe"), "probe", timeout=_PATIENCE_S)
    groups, _ = await buffer.take_batch({"probe": 1}, wait=True, timeout=_PATIENCE_S)
    assert names(groups["probe"]) == ["probe"]
    return steps.reached, task.cancelled()


async def _fill(buffer: Any) -> None:
    """Let there be two COMPLETED groups of task t, and an ABORTED one."""
    for status, wanted in ((COMPLETED, 2), (ABORTED, 1)):
        await buffer.get(100, "t", status)
        for _ in range(wanted):
            await buffer.put(group("a", status=status), "t", timeout=_PATIENCE_S)


async def _resident(buffer: Any) -> int:
    books = await buffer.ledger()
    groups: int = books["t"]["resident"].groups
    return groups


async def _give_back(buffer: Any) -> None:
    while _LEFT:
        held = _LEFT.pop()
        if isinstance(held, Batch):
            with contextlib.suppress(RerollError):
                await held.nack()
        elif isinstance(held, Reservation):
            await buffer.release(held)


async def _until_settled(buffer: Any) -> None:
    """Return when no call waits, and no lease or reservation is open; a buffer far away hears of that a moment later."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            stats = await buffer.stats()
            waiting = sum(wait.count for wait in stats.total.waiting.values())
            if not waiting and not stats.leases and not stats.reservations:
                return
            await asyncio.sleep(0.005)
