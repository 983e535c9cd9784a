"""Forked children: objects of the parent raise ForkedProcess there at once, and the parent goes on unharmed."""

import os

import pytest

from reroll import ForkedProcess, RerollError, open_readonly
from reroll.store import ROW, open_saved
from store.samples import start

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

COMMON = """
import asyncio, gc, os, sys, threading, warnings
from durable_errors.samples import TASK, config, group
from reroll import ForkedProcess, Table, connect, connect_blocking
warnings.simplefilter("ignore", DeprecationWarning)  # that this process has threads

def refused(call):
    try:
        call()
    except ForkedProcess as error:
        assert "spawn" in str(error) or "serve" in str(error), error
    else:
        raise AssertionError("it was carried out")

def in_child(check, leave=sys.exit):
    # Run a check in a forked child that ends as any other program: with its finalizers and exit handlers.
    child = os.fork()
    if child == 0:
        check()
        gc.collect()
        leave(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
"""

BLOCKING = """
buffer = config(store=sys.argv[1] or None).build_blocking()
for number in range(1, 9):
    buffer.put(group(number), TASK)
batch = buffer.lease({TASK: 2}).take()

def check():
    refused(lambda: buffer.get(1, TASK, "completed"))
    refused(lambda: buffer.put(group(99), TASK))
    refused(lambda: buffer.count(TASK, "completed"))
    refused(lambda: len(buffer))
    refused(batch.ack)
    refused(batch.nack)
    refused(lambda: buffer.save(sys.argv[1] or "saved"))
    if sys.argv[1]:
        from reroll import open_readonly
        refused(lambda: open_readonly(sys.argv[1]))
    buffer.close()

in_child(check)
with buffer._guard:  # as another thread holds it
    in_child(check)
waiting = threading.Thread(target=lambda: buffer.take_batch({"other": 1}, wait=True))
waiting.start()
in_child(check)
buffer.put(group(100), "other")
waiting.join()
batch.ack()
buffer.put(group(9), TASK)
assert len(buffer) == 7
buffer.close()
"""

ASYNC = """
async def main():
    buffer = config(store=sys.argv[1] or None).build()
    for number in range(1, 9):
        await buffer.put(group(number), TASK)

    def check():
        for call in (
            lambda: buffer.get(1, TASK, "completed"),
            lambda: buffer.put(group(99), TASK),
            lambda: buffer.stats(),
            lambda: buffer.take_batch({TASK: 1}),
            lambda: buffer.nack_lease(1),
        ):
            refused(lambda: call().send(None))
        refused(lambda: len(buffer))
        try:
            buffer.close().send(None)
        except StopIteration:
            pass

    in_child(check, os._exit)  # asyncio itself stops the loop of the parent if a child leaves it
    assert len(await buffer.get(2, TASK, "completed")) == 2
    await buffer.put(group(9), TASK)
    assert len(buffer) == 7
    await buffer.close()

asyncio.run(main())
"""

TABLE = """
table = Table.queue(4)
table.insert("a", 1)

def check():
    refused(lambda: table.sample(1))
    refused(lambda: table.insert("b", 2))
    refused(lambda: len(table))
    refused(table.shutdown)

in_child(check)
with table._guard:
    in_child(check)
assert table.sample(1) == [1]
"""

SERVED = """
from reroll.server import Server

def ready(server, stop, started):
    async def main():
        async with server:
            started.set()
            await asyncio.to_thread(stop.wait)
    asyncio.run(main())

server, stop, started = Server(config(), "tcp://127.0.0.1:0"), threading.Event(), threading.Event()
thread = threading.Thread(target=ready, args=(server, stop, started))
thread.start()
assert started.wait(60)
client = connect_blocking(server.address)
for number in range(1, 9):
    client.put(group(number), TASK)
fresh = connect(server.address)  # not connected yet, but its put ids would be those of the parent

def check():
    refused(lambda: client.get(1, TASK, "completed"))
    refused(lambda: client.put(group(99), TASK))
    refused(lambda: len(client))
    client.close()
    refused(lambda: fresh.count(TASK, "completed").send(None))
    refused(lambda: server.start().send(None))
    refused(lambda: server.buffer.count(TASK, "completed").send(None))
    with connect_blocking(server.address) as own:  # the remedy
        assert len(own.get(1, TASK, "completed")) == 1

in_child(check)
assert len(client.get(10, TASK, "completed")) == 7
client.close()
stop.set()
thread.join()
"""

PREPARER = """
from reroll.prepare import PrepareConfig, BlockingPreparer

preparer = BlockingPreparer(PrepareConfig(global_batch_size=2, pack_length=64)).start()

def check():
    refused(lambda: preparer.get_data(0, 1))
    refused(lambda: preparer.put([]))
    refused(lambda: preparer.buffer.stats())
    refused(lambda: preparer.state())
    preparer.shutdown()

in_child(check)
with preparer._gate:
    in_child(check)
preparer.buffer.stats()
preparer.shutdown()
"""

LOADER = """
import multiprocessing

buffer = config(store=sys.argv[1] or None).build_blocking()
for number in range(1, 9):
    buffer.put(group(number), TASK)

def worker(queue):  # as a loader of data does it: the buffer came along with the fork
    try:
        queue.put(len(buffer.get(2, TASK, "completed")))
    except ForkedProcess:
        queue.put("refused")

context = multiprocessing.get_context("fork")
queue = context.Queue()
workers = [context.Process(target=worker, args=(queue,)) for _ in range(3)]
for one in workers:
    one.start()
assert [queue.get(timeout=60) for _ in workers] == ["refused"] * 3
for one in workers:
    one.join()
    assert one.exitcode == 0
assert len(buffer.get(8, TASK, "completed")) == 8
buffer.put(group(9), TASK)
buffer.close()
"""


def run(script, store=""):
    with start(COMMON + script, store) as process:
        try:
            process.wait(100)
        finally:
            process.kill()
    assert process.returncode == 0


@pytest.mark.parametrize("script", [BLOCKING, ASYNC, LOADER], ids=["blocking", "asyncio", "workers"])
@pytest.mark.parametrize("is_durable", [False, True], ids=["memory", "durable"])
def test_a_buffer_in_a_child(tmp_path, script, is_durable):
    run(script, tmp_path if is_durable else "")
    if is_durable:
        with open_saved(tmp_path) as saved:
            left = {BLOCKING: 7, ASYNC: 7, LOADER: 1}[script]
            assert len(list(saved.records(ROW))) == left
        with open_readonly(tmp_path) as reader:
            assert len(reader.query({})) == left


@pytest.mark.parametrize("script", [TABLE, SERVED, PREPARER], ids=["table", "server and client", "preparer"])
def test_other_objects_in_a_child(script):
    run(script)


KILLED = """
store = sys.argv[1]
buffer = config(store=store).build_blocking()
for number in range(1, 9):
    buffer.put(group(number), TASK)
reader, writer = os.pipe()
if os.fork() == 0:
    os.close(writer)
    os.read(reader, 1)  # until the parent is gone
    gc.collect()
    sys.exit(0)
print("ready", flush=True)
sys.stdin.readline()
os._exit(0)
"""


def test_a_child_that_outlives_its_parent_leaves_the_log(tmp_path):
    """The child ends when the parent is gone, and closes no connection: the log with all groups stays."""
    with start(COMMON + KILLED, tmp_path) as process:
        assert process.stdout.readline() == "ready\n"
        process.communicate("\n", timeout=100)  # returns when the child has ended too, and closed the pipe
    with open_saved(tmp_path) as saved:
        assert len(list(saved.records(ROW))) == 8


def test_the_error():
    assert issubclass(ForkedProcess, RuntimeError)
    assert issubclass(ForkedProcess, RerollError)
