"""open_readonly: a saved buffer, a durable one at rest, in use, and left behind."""

import asyncio
import inspect
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path

import pytest

import reroll
from analysis.groups import CONFIG, fill, group
from reroll import (
    Closed,
    CorruptData,
    InvalidArgument,
    QueryError,
    ReadOnlyBuffer,
    ReplayBufferConfig,
    Rollout,
    SavedNotFound,
    Status,
    UnknownUid,
    UnsupportedFormat,
    open_readonly,
)
from reroll.engine.selectors.specs import SELECTORS

SRC = Path(__file__).parents[2] / "src"


async def built(tmp_path, kind):
    """Return a buffer with groups of all sorts, and where it can be looked at."""
    if kind == "saved":
        buffer = CONFIG.build()
        await fill(buffer)
        await buffer.save(tmp_path / "saved")
        return buffer, tmp_path / "saved"
    buffer = CONFIG.model_copy(update={"store": tmp_path / "store"}).build()
    await fill(buffer)
    return buffer, tmp_path / "store"


KINDS = pytest.mark.parametrize("kind", ["saved", "in use"])


@KINDS
async def test_it_tells_what_the_buffer_tells(tmp_path, kind):
    buffer, path = await built(tmp_path, kind)
    with open_readonly(path) as seen:
        for where in (
            {},
            {"task_name": "math"},
            {"status": "aborted"},
            {"tags.level": 1},
            {"version": {"$gt": 3}},
        ):
            assert seen.query(where) == await buffer.query(where)
        assert seen.query({}, order_by="-priority", limit=2) == await buffer.query(
            {}, order_by="-priority", limit=2
        )
        assert seen.count("math", "completed") == 3
        statuses = ["completed", "aborted", "failed"]
        assert seen.count_statuses(["math", "code"], statuses) == await buffer.count_statuses(
            ["math", "code"], statuses
        )
        assert seen.count("never", Status.COMPLETED) == 0
        assert seen.ledger() == await buffer.ledger()
        assert len(seen) == len(buffer) == 5
        mine, theirs = seen.stats().tasks, (await buffer.stats()).tasks
        assert {name: task.statuses for name, task in mine.items()} == {
            n: t.statuses for n, t in theirs.items()
        }
        assert seen.stats().total.produced.groups_per_s is None
        assert seen.metrics()["buffer/groups"] == 5
        uids = [row.uid for row in seen.query({})]
        assert seen.peek(uids) == await buffer.peek(uids)
        assert seen.peek(reversed(uids)) == (await buffer.peek(uids))[::-1]
        assert seen.peek([uids[0], uids[0]])[1][0].response == "text"
    await buffer.close()


@KINDS
async def test_whatever_is_not_resident(tmp_path, kind):
    buffer, path = await built(tmp_path, kind)
    with open_readonly(path) as seen:
        (out,) = {4, 5} - {row.uid for row in seen.query({})}
        assert seen.peek([out])[0][0].status is Status.ABORTED
        assert seen.ledger()["code"]["uncommitted"].groups == seen.ledger()["code"]["leased"].groups == 1
        with pytest.raises(UnknownUid):
            seen.peek([99])
    await buffer.close()


@pytest.mark.parametrize("sampler", [s for s in SELECTORS if s != "mixture"])
async def test_whatever_the_samplers_are(tmp_path, sampler):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        config = ReplayBufferConfig(sampler=sampler, remover=sampler, capacity=3, max_times_sampled=3, seed=1)
        buffer = config.build()
    for number in range(5):
        await buffer.put(group(number), "math", model_step=number, priority=number)
    await buffer.sample(2, "math", train_step=9)
    await buffer.save(tmp_path)
    with open_readonly(tmp_path) as seen:
        assert seen.query({}) == await buffer.query({})
        assert seen.query({"task_name": "math", "status": "completed"}) == seen.query({})


async def test_expired_groups_are_shown_as_they_are(tmp_path):
    buffer = CONFIG.build()
    uid = await buffer.put(group(3), "math", model_step=1)
    await buffer.refresh_staleness(task_stale_thresholds={"math": 2}, current_train_step=9)
    await buffer.save(tmp_path)
    with open_readonly(tmp_path) as seen:
        assert seen.query({"status": "expired"}) == await buffer.query({})
        for _ in range(2):
            assert [len(rollout.response_ids) for rollout in seen.peek([uid])[0]] == [0, 0]
        assert seen.peek([uid]) == await buffer.peek([uid])


async def test_a_store_in_use_is_seen_as_it_was_when_it_was_opened(tmp_path):
    buffer = ReplayBufferConfig(store=tmp_path).build()
    with open_readonly(tmp_path) as seen:
        assert len(seen) == 0
        assert seen.query({}) == []
        assert seen.ledger() == {}
    uid = await buffer.put(group(1), "math")
    with open_readonly(tmp_path) as seen:
        await buffer.put(group(2), "math")
        await buffer.delete([uid])
        assert [row.uid for row in seen.query({})] == [uid]
        assert len(seen.peek([uid])[0]) == 2
        with open_readonly(tmp_path) as later:
            assert [row.uid for row in later.query({})] == [uid + 1]
    await buffer.close()
    with open_readonly(tmp_path / "replay_buffer.sqlite") as seen:
        assert len(seen) == 1


WRITER = """
import sys
from reroll import ReplayBufferConfig, Rollout
buffer = ReplayBufferConfig(store=sys.argv[1]).build_blocking()
for number in range(10**6):
    buffer.put([Rollout(status="completed", response_ids=range(100), rollout_id=number)], "math")
    if number == 20:
        print("going", flush=True)
"""


def test_another_process_writes_and_is_killed(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(SRC)},
    )
    try:
        assert writer.stdout.readline() == "going\n"
        sizes = []
        for _ in range(5):
            with open_readonly(tmp_path) as seen:
                rows = seen.query({})
                assert [row.uid for row in rows] == list(range(1, len(rows) + 1))
                assert seen.peek([rows[-1].uid])[0][0].rollout_id == len(rows) - 1
                assert seen.ledger()["math"]["put"].groups == len(rows) == len(seen)
                sizes.append(len(rows))
        assert sizes == sorted(sizes)
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    with open_readonly(tmp_path) as seen:
        assert len(seen) >= sizes[-1]


def test_nothing_can_be_changed(tmp_path):
    verbs = {name for name, _ in inspect.getmembers(ReadOnlyBuffer) if not name.startswith("_")}
    assert verbs == {
        *("query", "count", "count_statuses", "count_where", "peek", "ledger", "stats", "metrics"),
        *("to_arrow", "to_pandas", "close"),
    }
    for name in verbs - {"close"}:
        assert inspect.signature(getattr(ReadOnlyBuffer, name)) == inspect.signature(
            getattr(reroll.ReplayBuffer, name)
        )


async def test_reading_leaves_the_directory_as_it_was(tmp_path):
    buffer = CONFIG.build()
    await fill(buffer)
    await buffer.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with open_readonly(tmp_path) as seen:
        seen.peek([row.uid for row in seen.query({})])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


async def test_after_close(tmp_path):
    await CONFIG.build().save(tmp_path)
    seen = open_readonly(tmp_path)
    seen.close()
    seen.close()
    for call in (seen.ledger, lambda: seen.query({}), lambda: seen.peek([1])):
        with pytest.raises(Closed):
            call()


async def test_wrong_calls(tmp_path):
    with pytest.raises(SavedNotFound):
        open_readonly(tmp_path)
    await CONFIG.build().save(tmp_path)
    with closing(open_readonly(tmp_path)) as seen:
        with pytest.raises(QueryError):
            seen.query({"sizes": 1})
        with pytest.raises(InvalidArgument, match="place must be one of resident"):
            seen.to_arrow(place="nowhere")
    (tmp_path / "replay_buffer.sqlite").write_bytes(b"nothing of the kind")
    with pytest.raises(CorruptData):
        open_readonly(tmp_path)


class Private:
    def __init__(self, secret):
        self.secret = secret


async def test_types_are_needed_for_rollouts_only(tmp_path):
    buffer = ReplayBufferConfig(allow_pickle=True).build()
    uid = await buffer.put([Rollout(status="completed", response_ids=[1], extra_fields=Private(3))], "math")
    await buffer.save(tmp_path)
    with open_readonly(tmp_path) as seen:
        assert len(seen.query({})) == 1
        with pytest.raises(UnsupportedFormat):
            seen.peek([uid])
    with open_readonly(tmp_path, allow_pickle=True) as seen:
        assert seen.peek([uid])[0][0].extra_fields.secret == 3


async def test_a_damaged_group_is_named(tmp_path):
    import sqlite3  # noqa: PLC0415

    buffer = CONFIG.build()
    uid = await buffer.put(group(1), "math")
    await buffer.save(tmp_path)
    connection = sqlite3.connect(tmp_path / "replay_buffer.sqlite")
    connection.execute("UPDATE payloads SET blob = zeroblob(length(blob))")
    connection.commit()
    connection.close()
    with open_readonly(tmp_path) as seen:
        assert len(seen.query({})) == 1
        with pytest.raises(CorruptData, match=f"uid {uid}|group {uid}"):
            seen.peek([uid])


async def test_for_several_threads(tmp_path):
    buffer = CONFIG.build()
    uids = [await buffer.put(group(n), "math") for n in range(20)]
    await buffer.save(tmp_path)
    with open_readonly(tmp_path) as seen:
        found = await asyncio.gather(*(asyncio.to_thread(seen.peek, uids) for _ in range(8)))
        assert all(groups == found[0] for groups in found)
