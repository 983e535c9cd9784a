"""One view, four sources: the same answers, and nothing that changes a buffer."""

import asyncio
import inspect
import json

import pytest

from observe.groups import CONFIG, HOSTILE, fill, group
from reroll import InvalidArgument, QueryError, SavedNotFound, Server, UnknownUid, Unreachable
from reroll.observe import View, open_view
from reroll.observe.plain import plain, plain_rollout


@pytest.fixture(params=["process", "server", "file"])
async def looked_at(request, tmp_path):
    """Return a buffer, and a view of it."""
    stored = CONFIG.model_copy(update={"store": tmp_path / "store"})
    async with Server(stored, f"ipc://{tmp_path}/socket") as server:
        buffer = server.buffer
        await fill(buffer)
        target = {"process": buffer, "server": f"ipc://{tmp_path}/socket", "file": tmp_path / "store"}
        async with await open_view(target[request.param]) as view:
            assert view.kind == request.param
            yield buffer, view


async def test_it_tells_what_the_buffer_tells(looked_at):
    buffer, view = looked_at
    assert await view.ledger() == await buffer.ledger()
    seen, own = await view.stats(), await buffer.stats()
    for name in ("code", "math"):
        assert seen.tasks[name].statuses == own.tasks[name].statuses
        assert seen.tasks[name].priorities == own.tasks[name].priorities
        assert seen.tasks[name].trained.lengths == own.tasks[name].trained.lengths
    assert seen.disk is not None
    assert seen.disk.file_bytes > 0
    counts = await view.count_statuses(["math"], ["completed"])
    assert counts == await buffer.count_statuses(["math"], ["completed"])
    assert (await view.metrics())["buffer/groups"] == len(buffer)


async def test_rows_come_by_page(looked_at):
    _, view = looked_at
    found = await view.rows({"task_name": "code"}, order_by="-priority", limit=2, offset=1)
    assert [row["tags"] for row in found.rows] == [{"n": 6}, {"n": 3}]
    assert (found.total, found.offset) == (4, 1)
    row = found.rows[0]
    assert (row["task_name"], row["status"], row["reward_mean"], row["reward_std"]) == (
        "code",
        "completed",
        0.5,
        0.5,
    )
    assert {"uid", "staleness", "num_rollouts", "num_tokens", "times_sampled", "attempts"} <= row.keys()
    assert (await view.rows()).total == 11
    assert (await view.rows(limit=0)).rows == []
    with pytest.raises(QueryError, match=r"where\.reward"):
        await view.rows({"reward": 1})
    with pytest.raises(InvalidArgument, match="order_by"):
        await view.rows(order_by="reward")


async def test_a_group_is_told_in_plain_values(looked_at):
    buffer, view = looked_at
    (row,) = await buffer.query({"tags.n": 6})
    told = await view.group(row.uid)
    assert json.loads(json.dumps(told)) == plain(told)
    assert told["row"]["uid"] == row.uid
    first, second = told["rollouts"]
    assert first["message"] == HOSTILE
    assert first["response"] == "the answer"
    assert (first["score"], second["score"]) == (0.0, 1.0)
    assert first["response_ids"] == list(range(10, 18))
    assert first["versions"] == [(0, 4), (1, 4)]
    assert first["mask"] == [(1, 7), (0, 1)]
    short = (await view.group(row.uid, max_tokens=5))["rollouts"][0]
    assert (len(short["response_ids"]), short["num_response_tokens"]) == (5, 8)
    assert (short["versions"], short["mask"]) == ([(0, 4), (1, 1)], [(1, 5)])
    with pytest.raises(UnknownUid):
        await view.group(999)


async def test_looking_changes_nothing(looked_at):
    buffer, view = looked_at
    before = [
        await buffer.query({}),
        await buffer.ledger(),
        (await buffer.stats()).tasks["math"].trained_uses,
    ]
    for row in (await view.rows(limit=100)).rows:
        await view.group(row["uid"])
    await view.stats()
    await view.metrics()
    assert before == [
        await buffer.query({}),
        await buffer.ledger(),
        (await buffer.stats()).tasks["math"].trained_uses,
    ]


def test_there_is_no_verb_that_changes():
    verbs = {name for name, _ in inspect.getmembers(View, inspect.isfunction) if not name.startswith("_")}
    assert verbs == {
        *("stats", "ledger", "metrics", "count_statuses", "rows", "group", "to_arrow", "close"),
    }


async def test_a_store_that_is_written_meanwhile_is_read_anew(tmp_path):
    async with CONFIG.model_copy(update={"store": tmp_path}).build() as buffer:
        await buffer.put(group(2), "t")
        async with await open_view(tmp_path) as view:
            assert (await view.stats()).total.num_groups == 1
            await buffer.put(group(2), "t")
            assert (await view.rows()).total == 1, "as it was"
            assert (await view.stats()).total.num_groups == 2
            assert (await view.rows()).total == 2


async def test_many_look_at_a_file_at_once(tmp_path):
    async with CONFIG.build() as buffer:
        await fill(buffer)
        await buffer.save(tmp_path)
    async with await open_view(tmp_path) as view:
        uids = [row["uid"] for row in (await view.rows()).rows]
        found = await asyncio.gather(*(view.group(uid) for uid in uids), view.stats(), view.rows())
        assert [one["uid"] for one in found[:-2]] == uids


async def test_dicts_and_values_of_users():
    told = plain_rollout(
        {
            "status": "completed",
            "seq_staleness": 1,
            "response_ids": [1, 2],
            "response_model_steps": [3, 3],
            "reward": {"score": 1.5, "parts": (1, float("nan"))},
            "message": [{"role": "user", "content": "hi"}],
            "extra_fields": {"image": object(), 3: b"raw"},
        }
    )
    assert (told["score"], told["versions"], told["mask"]) == (1.5, [(3, 2)], [])
    assert told["reward"] == {"score": 1.5, "parts": [1, None]}
    assert json.loads(told["message"]) == [{"role": "user", "content": "hi"}]
    assert told["extra_fields"] == {"image": "<object>", "3": "<bytes>"}
    assert json.dumps(told)


@pytest.mark.parametrize(
    ("target", "error", "said"),
    [
        ("/nowhere/at/all", SavedNotFound, "nothing was saved there"),
        ("http://localhost:1", InvalidArgument, "tcp://host:port"),
        ("tcp://127.0.0.1:9", Unreachable, "does not answer within 0.2 s"),
        (CONFIG.build_blocking(), InvalidArgument, "blocking"),
    ],
)
async def test_what_cannot_be_looked_at(target, error, said):
    with pytest.raises(error, match=said):
        await open_view(target, timeout=0.2)


async def test_keys_are_for_servers(tmp_path):
    with pytest.raises(InvalidArgument, match="go together"):
        await open_view("tcp://127.0.0.1:9", key=tmp_path / "mine.secret")
    with pytest.raises(InvalidArgument, match="go together"):
        await open_view(tmp_path, key=tmp_path / "mine.secret", server_key="x")
