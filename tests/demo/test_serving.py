"""The buffer of the demo in a process of its own: weights, groups and the state of a trainer cross."""

import asyncio
import tempfile
import threading
from pathlib import Path

import pytest

from reroll import InvalidArgument, Rollout, Server, Status, WaitTimeout
from reroll.demo.modes import BATCH, MODES, TASK
from reroll.demo.serving import BoardService, Remote
from reroll.prepare.remote import serve_preparer


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
            server.add_service("board", BoardService())
            async with server:
                is_ready.set()
                await stopping.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
        thread.start()
        assert is_ready.wait(60)
        yield found
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
        loop.close()


@pytest.fixture
def remote(path):
    made = Remote(path)
    yield made
    made.buffer.close()


def group(status="completed"):
    return [
        Rollout(prompt_ids=[3, 2], response_ids=[3, 1], logprobs=[-1.0, -1.0], reward=reward, status=status)
        for reward in (0.0, 1.0)
    ]


def test_groups_and_errors_cross(remote):
    buffer = remote.buffer
    assert buffer.put(group("aborted"), TASK, model_step=3) == 1
    ((first, second),) = buffer.get(1, TASK, Status.ABORTED)
    assert first.group_uid == 1
    assert list(second.response_model_steps) == [3, 3]
    buffer.reserve(3 * BATCH - 1, TASK)
    with pytest.raises(WaitTimeout):
        buffer.reserve(1, TASK, timeout=0)


def test_what_was_reserved_is_released_when_its_holder_goes(path, remote):
    other = Remote(path)
    other.buffer.reserve(3 * BATCH, TASK)
    other.buffer.close()
    remote.buffer.reserve(3 * BATCH, TASK, timeout=60)


def test_weights_are_waited_for(path, remote):
    assert remote.board.version() is None
    producer, found = Remote(path), []
    waiting = threading.Thread(target=lambda: found.append(producer.board.newest()))
    waiting.start()
    remote.board.publish(4, {"w": [1.0]})
    waiting.join(60)
    assert found == [(4, {"w": [1.0]})]
    assert remote.board.version() == 4
    remote.begin(None)
    assert remote.board.version() is None
    producer.buffer.close()


def test_a_trainer_that_comes_back_goes_on_after_its_checkpoint(path, remote):
    def trained(trainer, step):
        uids = trainer.preparer.get_data(0, step, timeout=60).uids
        trainer.preparer.done(step)
        return uids

    for _ in range(3 * BATCH):
        remote.buffer.put(group(), TASK, model_step=0)
    first = trained(remote, 1)
    state = remote.preparer.state(step=1)
    second = trained(remote, 2)
    assert not set(first) & set(second)
    again = Remote(path)
    again.begin(state)
    assert trained(again, 2) == second, "the steps after its checkpoint used them in vain"
    with pytest.raises(InvalidArgument):
        again.preparer.restore({"step": 1})
    assert trained(again, 3) == [uid for uid in range(1, 3 * BATCH + 1) if uid not in {*first, *second}]
    again.buffer.close()
