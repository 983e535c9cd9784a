"""Ctrl-C at any moment of a blocking call: later calls work, close returns, no group is lost or doubled."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reroll import SyncReplayBufferConfig
from server.hosting import hosted
from store.samples import start

pytestmark = pytest.mark.skipif(os.name == "nt", reason="interval timers are POSIX")
TESTS = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])


def interrupted(kind, seed, interrupts, where):
    """Run the program to its end, and return what it counted."""
    program = [sys.executable, str(Path(__file__).with_name("interrupted.py"))]
    arguments = [kind, str(seed), str(interrupts), str(where)]
    done = subprocess.run(
        [*program, *arguments],
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{kind}, seed {seed}"
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["memory", "durable", "table"])
def test_interrupts_at_any_moment(tmp_path, kind):
    assert interrupted(kind, 1, 150, tmp_path / "store")["interrupts"] >= 150


def test_interrupts_of_a_client():
    with hosted() as host:
        address = host.start(SyncReplayBufferConfig(sampler="fifo", capacity=12), "tcp://127.0.0.1:0")
        assert interrupted("client", 1, 100, address)["interrupts"] >= 100


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["memory", "durable", "table"])
@pytest.mark.parametrize("seed", range(2, 6))
def test_thousands_of_interrupts(tmp_path, kind, seed):
    assert interrupted(kind, seed, 1000, tmp_path / "store")["interrupts"] >= 1000


WAITING = """
import os, signal, threading, time
from durable_errors.samples import TASK, config, group
from reroll.testing.probe import probe
buffer = config(store=sys.argv[1]).build_blocking()
for verb in (lambda: buffer.take_batch({TASK: 1}, wait=True), lambda: buffer.lease({TASK: 1}, wait=True).take()):
    def interrupt():
        while not buffer.stats().tasks.get(TASK) or not probe(buffer).waits._queues:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    try:
        verb()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
uid = buffer.put(group(1), TASK)
assert buffer.take_batch({TASK: 1}, wait=True)[1] == {TASK: 1}
buffer.close()
"""


def test_a_wait_without_end_is_interrupted(tmp_path):
    with start(WAITING, tmp_path) as process:
        assert process.communicate(timeout=100)[0] == "interrupted\n" * 2
    assert process.returncode == 0


HANDLED = """
import signal, threading
from durable_errors.samples import TASK, config, group
from reroll.testing.probe import probe
buffer = config().build_blocking()
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
threading.Timer(0.2, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)).start()
threading.Timer(0.4, lambda: buffer.put(group(1), TASK)).start()
assert buffer.take_batch({TASK: 1}, wait=True)[1] == {TASK: 1}  # a handler that raises nothing ends no wait
assert seen == [1]
"""


def test_a_handler_that_does_not_raise():
    with start(HANDLED) as process:
        process.communicate(timeout=100)
    assert process.returncode == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
