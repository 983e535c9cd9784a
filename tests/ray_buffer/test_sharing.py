"""Groups go to a shard of the same node in memory that both share, to others by Ray; what is read there is what was sent."""

import asyncio
import gc
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from ray_buffer.actors import here, shard_actor
from ray_buffer.pool import own_buffer
from reroll import CorruptData, ReplayBufferConfig
from reroll.ray.scratch import Trays
from reroll.ray.sharing import Elsewhere, Owner, Span, new_memory, read, span_of
from reroll.ray.wire import Holder, Lying, Request, fetched, hand_out, put_in
from reroll.testing.buffer.builders import group, names

pytestmark = [
    pytest.mark.usefixtures("ray_cluster"),
    pytest.mark.skipif(sys.platform != "linux", reason="memory is shared by a memfd of Linux"),
]

FIFO = ReplayBufferConfig(sampler="fifo")


@pytest.fixture(scope="module")
def near(ray_cluster):
    """Make a buffer on the node of this process; each test has groups of its own task."""
    with own_buffer(FIFO, placement=here()) as buffer:
        yield buffer


@pytest.fixture(scope="module")
def far(ray_cluster):
    """Make a buffer on another node."""
    with own_buffer(FIFO, placement={"resources": {"one": 0.001}}) as buffer:
        yield buffer


def put_request(memory, owner, task, name="a"):
    """Return a put of a group that lies in this memory."""
    blob = put_in(group(name), None, memory, owner)
    return Request(f"{task} {name}", "put", {"items": Lying(blob.known, blob.span), "task_name": task})


@pytest.mark.parametrize(("place", "shares"), [("near", True), ("far", False)])
async def test_groups_arrive_at_shards_of_this_node_and_of_another(place, shares, request):
    buffer = request.getfixturevalue(place)
    await asyncio.gather(*(buffer.put(group(name), "arrive") for name in range(5)))
    await buffer.put(group(5), "arrive")
    assert names(await buffer.get(6, "arrive", "completed")) == list(range(6))
    assert [line._shares for line in buffer._spread.lines] == [shares]


async def test_a_group_whose_sender_gave_it_up_is_not_taken_for_the_one_after_it(near):
    memory, owner = new_memory(1 << 16, shared=True)
    late = put_request(memory, owner, "late", "a")
    memory.seek(0)
    now = put_request(memory, owner, "late", "b")
    assert late.arguments["items"].span.start == now.arguments["items"].span.start
    actor = shard_actor(near)
    assert isinstance((await actor.call.remote(late)).error, CorruptData)
    assert (await actor.call.remote(now)).error is None
    assert names(await near.get(2, "late", "completed")) == ["b"]


async def test_a_group_that_was_damaged_there_is_refused(near):
    memory, owner = new_memory(1 << 16, shared=True)
    put = put_request(memory, owner, "damaged")
    memory[put.arguments["items"].span.size // 2] ^= 1
    assert isinstance((await shard_actor(near).call.remote(put)).error, CorruptData)
    assert await near.count("damaged", "completed") == 0


async def test_a_group_that_cannot_be_read_there_is_carried_out_when_it_comes_again(near):
    memory, owner = new_memory(1 << 16, shared=True)
    actor, put = shard_actor(near), put_request(memory, owner, "again")
    known, span = put.arguments["items"]
    unknown = Lying(known, span._replace(owner=owner._replace(name="other")))
    first = put._replace(arguments={**put.arguments, "items": unknown})
    assert isinstance((await actor.call.remote(first)).error, Elsewhere)
    assert (await actor.call.remote(put._replace(seen=(put.id,)))).error is None
    assert await near.count("again", "completed") == 1


@pytest.mark.parametrize("place", ["near", "far"])
async def test_what_is_handed_out_is_laid_out_where_it_was_asked_for_if_it_can_be(place, request):
    buffer = request.getfixturevalue(place)
    for name in range(3):
        await buffer.put(group(name), "lend")
    (memory, room), (_, small) = (new_memory(size, shared=True) for size in (1 << 16, 16))
    lend = Request("lend", "lend", {"task_batch_sizes": {"lend": 3}}, Holder("me"), room=room)
    found = []
    for asked in (lend, lend._replace(room=small), lend._replace(room=None)):
        lent = (await shard_actor(buffer).call.remote(asked)).value
        assert bool(lent.laid_out) == (place == "near" and asked.room == room)
        found.append(names([hand_out(blob) for blob, _ in fetched(lent, memory).samples["lend"]]))
    assert found == [[0, 1, 2]] * 3, "the same call, however it is replied to"


def test_a_tray_whose_reply_did_not_come_is_not_used_again():
    trays = Trays(shared=True)
    with pytest.raises(TimeoutError), trays.lend() as lost:
        raise TimeoutError
    with trays.lend() as kept, trays.lend() as other:
        assert len({lost[1], kept[1], other[1]}) == 3
    with trays.lend() as again:
        assert again in (kept, other)


def test_however_many_wait_few_have_a_tray():
    trays = Trays(shared=True)
    with ExitStack() as waiting:
        lent = [waiting.enter_context(trays.lend()) for _ in range(20)]
    assert [tray is not None for tray in lent] == [True] * 8 + [False] * 12
    with trays.lend() as tray:
        assert tray is not None
    with Trays(shared=False).lend() as tray:
        assert tray is None


def test_only_the_memory_that_is_named_is_read():
    memory, owner = new_memory(1 << 16, shared=True)
    memory.write(bytes(range(100)))
    span = span_of(owner, memory, 60)
    assert read(span) == bytes(range(40, 100))
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE, check=True
    )
    for other in (
        owner._replace(node="another"),
        owner._replace(name="another"),
        owner._replace(fd=0),
        owner._replace(pid=int(ended.stdout)),
    ):
        with pytest.raises(Elsewhere):
            read(span._replace(owner=other))


def test_memory_is_gone_with_whoever_made_it():
    def shared():
        return [link for link in Path("/proc/self/fd").iterdir() if "/memfd:reroll" in os.path.realpath(link)]

    gc.collect()
    before = len(shared())
    memory, owner = new_memory(1 << 16, shared=True)
    assert len(shared()) > before
    array = np.frombuffer(memory, np.uint8)
    del memory, array
    assert len(shared()) == before
    with pytest.raises(Elsewhere):
        read(Span(Owner(*owner), 0, 8, bytes(8)))


def test_where_nothing_is_to_be_shared_there_is_no_owner():
    memory, owner = new_memory(1 << 16, shared=False)
    assert owner is None
    assert put_in(group("a"), None, memory, owner).span is None


@pytest.mark.parametrize("left", [0, 1])
def test_who_may_open_no_more_files_has_memory_that_is_not_shared(left):
    script = f"""
import os, resource
from reroll.ray.sharing import new_memory
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
opened = []
try:
    while True:
        opened.append(os.dup(0))
except OSError:
    pass
for fd in opened[:{left}]:
    os.close(fd)
memory, owner = new_memory(1 << 16, shared=True)
memory.write(b"group")
assert owner is None and memory[:5] == b"group"
for _ in range({left}):
    os.close(os.dup(0))  # what was opened for it is closed again
"""
    subprocess.run([sys.executable, "-c", script], check=True, stdin=subprocess.DEVNULL)
