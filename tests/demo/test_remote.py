"""The buffer behind a socket: only what is offered can be called, errors keep their class, and what a caller held comes back."""

import tempfile
import threading
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from reroll import Closed, Rollout, Status, WaitTimeout
from reroll.codec import encode
from reroll.demo.modes import BATCH, MODES, TASK
from reroll.demo.remote import Remote, Service


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(prefix="reroll-") as directory:  # a socket's path has to be short
        yield Path(directory) / "socket"


@pytest.fixture
def service(path):
    service = Service(path, MODES["async"].config(0))
    thread = threading.Thread(target=service.serve)
    thread.start()
    yield service
    service.end()
    thread.join()


def group(status="completed"):
    return [
        Rollout(prompt_ids=[3, 2], response_ids=[3, 1], logprobs=[-1.0, -1.0], reward=reward, status=status)
        for reward in (0.0, 1.0)
    ]


def gone(remote):
    """Break a connection as the end of its process does."""
    remote._connection.close()


def test_before_a_trainer_begins_there_is_no_buffer(service, path):
    with pytest.raises(Closed, match="no trainer has begun"):
        Remote(path).preparer.buffer.get(1, TASK, Status.ABORTED)


def test_groups_and_errors_cross(service, path):
    remote = Remote(path)
    remote.service.begin(None)
    buffer = remote.preparer.buffer
    assert buffer.put(group("aborted"), TASK, model_step=3) == 1
    ((first, second),) = buffer.get(1, TASK, Status.ABORTED)
    assert first.group_uid == 1
    assert list(second.response_model_steps) == [3, 3]
    buffer.reserve(3 * BATCH - 1, TASK)
    with pytest.raises(WaitTimeout):
        buffer.reserve(1, TASK, timeout=0)


def test_what_a_caller_held_comes_back_when_it_is_gone(service, path):
    trainer, producer = Remote(path), Remote(path)
    trainer.service.begin(None)
    producer.preparer.buffer.put(group("aborted"), TASK, model_step=0)
    assert len(producer.preparer.buffer.get(1, TASK, Status.ABORTED)) == 1
    assert trainer.preparer.buffer.get(1, TASK, Status.ABORTED) == []
    producer.preparer.buffer.reserve(3 * BATCH - 1, TASK)
    gone(producer)
    trainer.preparer.buffer.reserve(3 * BATCH - 1, TASK, timeout=30)  # waits until the other's are released
    ((first, _),) = trainer.preparer.buffer.get(1, TASK, Status.ABORTED)
    assert first.group_uid == 1


def test_what_was_put_is_no_longer_held(service, path):
    trainer, producer = Remote(path), Remote(path)
    trainer.service.begin(None)
    buffer = producer.preparer.buffer
    buffer.put(group("aborted"), TASK, model_step=0)
    (taken,) = buffer.get(1, TASK, Status.ABORTED)
    for rollout in taken:
        rollout.status = Status.COMPLETED
    assert buffer.put(taken, TASK, model_step=0) == 1
    reservation = buffer.reserve(1, TASK)
    buffer.put(group(), TASK, model_step=0, reservation=reservation)
    buffer.reserve(3 * BATCH - 2, TASK)
    gone(producer)
    trainer.preparer.buffer.reserve(3 * BATCH - 2, TASK, timeout=30)  # now all is given back
    assert service.preparer.buffer.count(TASK, Status.COMPLETED) == 2
    assert service.preparer.buffer.count(TASK, Status.ABORTED) == 0


@pytest.mark.parametrize(
    "call", [("buffer", "close"), ("service", "__init__"), ("board", "_weights"), ("os", "system")]
)
def test_only_what_is_offered_can_be_called(service, path, call):
    with pytest.raises(KeyError):
        service.verb(*call)


def test_bytes_that_are_no_message_end_a_connection_and_nothing_else(service, path):
    stranger = Client(str(path), "AF_UNIX")
    stranger.send_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises((EOFError, OSError)):
        stranger.recv_bytes()
    odd = Client(str(path), "AF_UNIX")
    odd.send_bytes(encode([1, 2]))
    with pytest.raises((EOFError, OSError)):
        odd.recv_bytes()
    Remote(path).service.begin(None)


def test_weights_are_waited_for(service, path):
    trainer, producer = Remote(path), Remote(path)
    trainer.service.begin(None)
    assert producer.board.version() is None
    found = []
    waiting = threading.Thread(target=lambda: found.append(producer.board.newest()))
    waiting.start()
    trainer.board.publish(4, {"w": [1.0]})
    waiting.join(30)
    assert found == [(4, {"w": [1.0]})]
