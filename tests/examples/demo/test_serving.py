"""The buffer of the demo on a server: versions, groups and the state of a trainer cross."""

import asyncio
import tempfile
import threading
from pathlib import Path

import pytest

from demo.modes import BATCH, MODES, TASK
from demo.processes import connect
from reroll import InvalidArgument, Rollout, Server, Status, WaitTimeout
from reroll.prepare.service import serve_preparer


@pytest.fixture
def path():
    """Serve in a thread, and return where."""
    with tempfile.TemporaryDirectory(prefix="reroll-") as directory:  # a socket's path has to be short
        found, loop, stopping = Path(directory) / "socket", asyncio.new_event_loop(), asyncio.Event()
        is_ready = threading.Event()

        async def run():
            config = MODES["async"].config(0, Path(directory) / "store")
            server = Server(config.buffer_config(), f"ipc://{found}")
            serve_preparer(server, config)
            async with server:
                is_ready.set()
                await stopping.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
        thread.start()
        assert is_ready.wait(60)
        yield Path(directory)
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
        loop.close()


@pytest.fixture
def clients(path):
    """Return a client of the buffer, and of its preparer."""
    buffer, preparer = connect(path)
    yield buffer, preparer
    buffer.close()


def group(status="completed"):
    return [
        Rollout(prompt_ids=[3, 2], response_ids=[3, 1], logprobs=[-1.0, -1.0], reward=reward, status=status)
        for reward in (0.0, 1.0)
    ]


def test_groups_and_errors_cross(clients):
    buffer, _ = clients
    assert buffer.put(group("aborted"), TASK, model_step=3) == 1
    ((first, second),) = buffer.get(1, TASK, Status.ABORTED)
    assert first.group_uid == 1
    assert list(second.response_model_steps) == [3, 3]
    buffer.reserve(3 * BATCH - 1, TASK)
    with pytest.raises(WaitTimeout):
        buffer.reserve(1, TASK, timeout=0)


def test_what_was_reserved_is_released_when_its_holder_goes(path, clients):
    other, _ = connect(path)
    other.reserve(3 * BATCH, TASK)
    other.close()
    clients[0].reserve(3 * BATCH, TASK, timeout=60)


def test_producers_wait_for_weights(path, clients):
    trainer, _ = clients
    assert trainer.version() is None
    producer, found = connect(path)[0], []
    waiting = threading.Thread(target=lambda: found.append(producer.wait_version(0)))
    waiting.start()
    trainer.advance(4)
    waiting.join(60)
    assert found == [4]
    assert trainer.version() == 4
    producer.close()


def test_a_trainer_that_comes_back_goes_on_after_its_checkpoint(path, clients):
    def trained(preparer, step):
        uids = preparer.get_data(0, step, timeout=60).uids
        preparer.done(step)
        return uids

    buffer, preparer = clients
    for _ in range(3 * BATCH):
        buffer.put(group(), TASK, model_step=0)
    first = trained(preparer, 1)
    state = preparer.state(step=1)
    second = trained(preparer, 2)
    assert not set(first) & set(second)
    again, restored = connect(path)
    restored.restore(state)
    assert again.version() == 1
    assert trained(restored, 2) == second, "the steps after its checkpoint used them in vain"
    with pytest.raises(InvalidArgument):
        restored.restore({"step": 1})
    assert trained(restored, 3) == [uid for uid in range(1, 3 * BATCH + 1) if uid not in {*first, *second}]
    again.close()
