"""`on_drop` in process: when it is called, from where, and what it may do."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from durable_errors.samples import alter_payload
from reroll import Dropped, ReplayBufferConfig, WaitTimeout
from reroll.testing.buffer.builders import ABORTED, COMPLETED, FAILED, group, names, put_all
from reroll.testing.probe import probe


async def test_groups_under_a_lease_are_reported_when_they_leave():
    drops: list[Dropped] = []
    buffer = ReplayBufferConfig(sampler="fifo", capacity=1, remover="fifo", on_drop=drops.extend).build()
    await put_all(buffer, "t", group("a"))
    async with buffer.lease({"t": 1}):
        await put_all(buffer, "t", group("b"))
        assert drops == []
    assert drops == [Dropped(1, "t", "a", "evicted")]  # it came back to a full buffer
    await put_all(buffer, "u", group("c", status=FAILED), group("d", status=FAILED))
    await buffer.get(1, "u", FAILED)
    async with buffer.lease({"u": 1}, group_status=FAILED) as batch:
        await batch.ack()
    assert drops[1:] == [Dropped(3, "u", "c", "failed"), Dropped(4, "u", "d", "failed")]


async def test_a_waiting_call_reports_before_it_waits():
    drops: list[Dropped] = []
    dropped = asyncio.Event()
    config = ReplayBufferConfig(
        max_staleness=1, on_stale="drop", on_drop=lambda gone: (drops.extend(gone), dropped.set())
    )
    buffer = config.build()
    await put_all(buffer, "t", group("a", versions=1), group("b", versions=1))
    waiting = asyncio.create_task(buffer.take_batch({"t": 2}, wait=True, train_step=9))
    await asyncio.wait_for(dropped.wait(), 30)
    assert not waiting.done()
    await put_all(buffer, "t", group("c", versions=8), group("d", versions=8))
    await waiting
    assert [drop.reason for drop in drops] == ["expired"] * 2


async def test_groups_whose_producer_is_late_are_reported_to_any_call():
    drops: list[Dropped] = []
    now = [0.0]
    config = ReplayBufferConfig(out_ttl_s=5, on_drop=drops.extend)
    buffer = config.build()
    probe(buffer).clock = lambda: now[0]
    await put_all(buffer, "t", group("a", status=ABORTED))
    await buffer.get(1, "t", ABORTED)
    now[0] = 6.0
    assert await buffer.count("t", ABORTED) == 0
    assert drops == [Dropped(1, "t", "a", "deleted")]


async def test_on_drop_may_use_the_buffer_and_schedule_calls():
    tasks: list[asyncio.Task[Any]] = []
    sizes: list[int] = []

    def put_again(dropped: list[Dropped]) -> None:
        sizes.append(len(buffer))
        if dropped[0].task_name == "t":
            tasks.append(asyncio.create_task(buffer.put(group("again"), "u")))

    buffer = ReplayBufferConfig(on_drop=put_again).build()
    await put_all(buffer, "t", group("a"), group("b"))
    await buffer.delete([1])
    assert sizes == [1]
    await asyncio.gather(*tasks)
    assert await buffer.count("u", COMPLETED) == 1


def test_a_blocking_buffer_may_be_called_from_on_drop_in_the_same_thread():
    threads: list[threading.Thread] = []

    def put_again(dropped: list[Dropped]) -> None:
        threads.append(threading.current_thread())
        if dropped[0].task_name == "t":
            buffer.put(group("again"), "u", timeout=30)
            buffer.delete({"task_name": "u"})

    with ReplayBufferConfig(max_staleness=1, on_stale="drop", on_drop=put_again).build_blocking() as buffer:
        buffer.put(group("a", versions=1), "t")
        buffer.put(group("b", versions=1), "t")
        buffer.delete([1])
        assert threads == [threading.current_thread()] * 2
        with pytest.raises(WaitTimeout):  # drops "b", reports it with the lock released, and waits on
            buffer.take_batch({"t": 1}, wait=True, timeout=0.01, train_step=9)
        assert len(threads) == 4
        assert buffer.ledger()["u"]["deleted"].groups == 2


@pytest.mark.parametrize("blocking", [False, True])
async def test_exceptions_are_logged(caplog: pytest.LogCaptureFixture, blocking: bool):
    def fail(_: list[Dropped]) -> None:
        raise KeyError("of on_drop")

    config = ReplayBufferConfig(on_drop=fail)
    with caplog.at_level(logging.ERROR, logger="reroll"):
        if blocking:
            with config.build_blocking() as plain:
                plain.put(group("a"), "t")
                assert plain.delete({}) == 1
        else:
            async with config.build() as buffer:
                await buffer.put(group("a"), "t")
                assert await buffer.delete({}) == 1
    (record,) = caplog.records
    assert "on_drop failed for 1 dropped groups" in record.message
    assert "of on_drop" in (record.exc_text or "")


async def test_damaged_groups_are_reported_as_lost(tmp_path: Path):
    drops: list[Dropped] = []
    config = ReplayBufferConfig(
        sampler="fifo", store=tmp_path, on_corrupt="skip", max_resident_bytes=0, on_drop=drops.extend
    )
    async with config.build() as buffer:
        await put_all(buffer, "t", group("a"), group("b"))
    alter_payload(tmp_path, 1)
    async with config.build() as buffer:
        with pytest.warns(UserWarning, match="group 1"):
            assert names(await buffer.get(2, "t", COMPLETED)) == ["b"]
    assert drops == [Dropped(1, "t", "a", "lost")]


def test_on_drop_is_left_out_of_files():
    config = ReplayBufferConfig(capacity=3, on_drop=print)
    assert "on_drop" not in config.model_dump()
    assert ReplayBufferConfig.model_validate_json(config.model_dump_json()).capacity == 3
    with pytest.raises(ValueError, match="on_drop\n  Input should be callable"):
        ReplayBufferConfig.model_validate({"on_drop": "print"})
