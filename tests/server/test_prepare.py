"""A preparer beside the buffer: engines push results, ranks fetch their parts, from other processes."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from reroll import (
    Closed,
    InvalidArgument,
    ReplayBufferConfig,
    Server,
    WaitTimeout,
    connect,
    connect_blocking,
    register,
)
from reroll.prepare import BlockingPreparer, GenerationResult, PrepareConfig, Preparer
from reroll.prepare.service import PreparerService, RemotePreparer
from server.program import Program

SETTINGS = {
    "global_batch_size": 4,
    "pack_length": 64,
    "num_ranks": 2,
    "group_size": 2,
    "filter_zero_std": True,
}


def result(number: int) -> GenerationResult:
    return GenerationResult(
        prompt_id=number,
        prompt_ids=[1, 2, 3],
        responses=[[number] * 4, np.array([number] * 6, np.int32)],
        finish_reasons=["stop", "stop"],
        logprobs=[[-0.5] * 4, [-0.25] * 6],
        rewards=[float(number % 3 == 0), 1.0],
        model_step=0,
    )


@pytest.fixture
def prepare_file(tmp_path: Path) -> str:
    path = tmp_path / "prepare.json"
    path.write_text(json.dumps(SETTINGS))
    return str(path)


def described(data) -> list[tuple]:
    return [
        (
            data.step,
            data.rank,
            part.input_ids.tolist(),
            part.advantages.tolist(),
            part.logprobs.tolist(),
            part.num_rows,
        )
        for part in data
    ]


async def test_ranks_get_what_a_preparer_here_would_give(prepare_file):
    results = [result(number) for number in range(1, 13)]
    with BlockingPreparer(PrepareConfig(**SETTINGS), iter(results)) as local:
        expected = [described(local.get_data(rank, step, timeout=30)) for step in (1, 2) for rank in (0, 1)]
    with Program("--prepare", prepare_file) as server:
        async with connect(server.address) as engine, connect(server.address) as trainer:
            pushing, ranks = RemotePreparer(engine), RemotePreparer(trainer)
            waiting = [asyncio.ensure_future(ranks.get_data(rank, 1, timeout=30)) for rank in (0, 1)]
            assert await pushing.put(results[:8]) == 6
            first = await asyncio.gather(*waiting)
            assert await pushing.put(results[8:]) == 2
            second = [await ranks.get_data(rank, 2, timeout=30) for rank in (0, 1)]
            assert [described(data) for data in (*first, *second)] == expected
            assert first[0].batch.counts == first[1].batch.counts
            assert first[0].metrics["train/groups"] == 4
            await ranks.done(2)
            assert (await ranks.state())["step"] == 2
            with pytest.raises(WaitTimeout, match="get_data of step 3"):
                await ranks.get_data(0, 3, timeout=0.01)
            with pytest.raises(InvalidArgument):
                await ranks.get_data(7, 3, timeout=1)
            stuck = asyncio.ensure_future(ranks.get_data(0, 3))
            await trainer.health()
            assert (await trainer.health())["services"] == ["prepare"]
            assert server.stop() == 0
            with pytest.raises(Closed):
                await stuck


def test_whoever_has_registered_results_himself_can_push_them(prepare_file):
    register(GenerationResult)  # under a name of its own
    try:
        with Program("--prepare", prepare_file) as server, connect_blocking(server.address) as client:
            assert RemotePreparer(client).put([result(1)]) == 1
    finally:
        register(GenerationResult, name="reroll.prepare.GenerationResult")


def test_ranks_that_are_threads(prepare_file, tmp_path):
    store = ("--store", str(tmp_path / "store"))
    with Program("--prepare", prepare_file, *store) as server, connect_blocking(server.address) as client:
        preparer = RemotePreparer(client)
        preparer.put([result(number) for number in range(1, 7)])
        before = described(preparer.get_data(0, 1, timeout=30))
        state = preparer.state()  # before the step is done
        server.kill()
        server.start()
        preparer.restore(state)
        again = preparer.get_data(0, 1, timeout=30)
        assert described(again) == before, "the groups of a step that was not done are there again"
        assert again.batch.micro_batches[0].to_torch()["input_ids"].tolist() == before[0][2]


async def test_without_a_preparer_there_is_none(host):
    async with connect(host.start(PrepareConfig(**SETTINGS).buffer_config(), "tcp://127.0.0.1:0")) as client:
        with pytest.raises(InvalidArgument, match=r"prepare\.put"):
            await RemotePreparer(client).put(result(1))


async def test_who_asks_while_it_starts_waits_for_that(tmp_path):
    """A buffer elsewhere takes a while to tell what is in it."""
    settings = PrepareConfig(**{**SETTINGS, "global_batch_size": 1})
    async with (
        Server(ReplayBufferConfig(), f"ipc://{tmp_path}/s") as server,
        connect(server.address) as there,
    ):
        service = PreparerService(Preparer(settings, buffer=there))
        given_up = asyncio.create_task(service.get_data(0, 1))
        await asyncio.sleep(0)
        given_up.cancel()  # in the middle of the start
        asked = [service.put([result(1)], 30), service.get_data(0, 1, 30), service.get_data(1, 1, 30)]
        put, left, right = await asyncio.gather(*asked)
        assert put == 1
        assert left.uids == right.uids == [1]
        await service.stop()
