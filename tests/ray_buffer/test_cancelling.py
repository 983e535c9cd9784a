"""Calls that are cancelled: shards live, and nothing stays leased, reserved or in a queue."""

import asyncio
import contextlib
import random

import pytest

from ray_buffer.pool import buffer_of
from reroll import ReplayBufferConfig
from reroll.engine.ledger import closes
from reroll.testing.buffer.builders import group

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.mark.parametrize("kind", ["memory", "durable"])
async def test_saves(tmp_path, kind):
    dice = random.Random(0)
    store = {"store": tmp_path / "store"} if kind == "durable" else {}
    with buffer_of(ReplayBufferConfig(sampler="fifo", **store)) as buffer:
        for number in range(100):
            await buffer.put(group(number, tokens=5000), "t")
        for _ in range(20):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(buffer.save(tmp_path / "saved"), dice.uniform(0.002, 0.04))
        await buffer.save(tmp_path / "saved")
        assert await buffer.count("t", "completed") == 100
        assert closes((await buffer.ledger())["t"])
