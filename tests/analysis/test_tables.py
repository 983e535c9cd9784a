"""to_arrow and to_pandas: of a buffer, of its blocking twin, and of what is only read."""

import asyncio
import json
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from analysis.groups import CONFIG, fill, group
from buffer.kinds import KINDS
from reroll import InvalidArgument, QueryError, ReplayBufferConfig, Rollout, Row, Status, open_readonly
from reroll.buffer import arrow


def as_row(values):
    """Return the Row of a row of a table."""
    own = {field.name: values[field.name] for field in fields(Row)}
    tags = {} if own["tags"] is None else json.loads(own["tags"])
    return Row(**{**own, "status": Status(own["status"]), "tags": tags})


async def test_a_row_for_each_group():
    buffer = CONFIG.build()
    await fill(buffer)
    table = await buffer.to_arrow()
    assert table.column_names == [*(field.name for field in fields(Row)), "place"]
    assert [as_row(values) for values in table.to_pylist()] == await buffer.query({})
    assert set(table["place"].to_pylist()) == {"resident"}
    assert table["version"].null_count == 2
    assert pa.types.is_dictionary(table.schema.field("status").type)
    some = await buffer.to_arrow({"task_name": "math", "version": {"$lte": 4}})
    assert [as_row(values) for values in some.to_pylist()] == await buffer.query(
        {"task_name": "math", "version": {"$lte": 4}}
    )


async def test_groups_elsewhere():
    buffer = CONFIG.build()
    uids = await fill(buffer)
    everywhere = await buffer.to_arrow(place=None)
    assert everywhere["uid"].to_pylist() == uids
    places = everywhere["place"].to_pylist()
    assert {place: places.count(place) for place in places} == {
        "resident": 5,
        "out": 1,
        "uncommitted": 1,
        "leased": 1,
    }
    for place in ("out", "uncommitted", "leased"):
        table = await buffer.to_arrow(place=place, payloads=True)
        assert set(table["place"].to_pylist()) == {place}
        assert len(table) == 2
    assert len(await buffer.to_arrow({"task_name": "math"}, place=None)) == 5
    with pytest.raises(InvalidArgument, match="place must be one of"):
        await buffer.to_arrow(place="elsewhere")


async def test_a_row_for_each_rollout():
    buffer = CONFIG.build()
    await fill(buffer)
    table = await buffer.to_arrow({"status": "completed"}, payloads=True)
    assert table["uid"].to_pylist() == [1, 1, 2, 2, 3]
    assert table["member"].to_pylist() == table["rollout_id"].to_pylist() == [0, 1, 0, 1, 0]
    assert table["tags"].to_pylist()[:3] == ['{"level": 1, "source": "a"}'] * 2 + [None]
    assert table["response_ids"].to_pylist() == [[0], [0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert table["prompt_ids"].to_pylist() == [[1, 2, 3]] * 5
    assert table["response_model_steps"].to_pylist() == [[3], [3, 3], [4, 4], [4, 4, 4], []]
    assert table["response_mask"].to_pylist() == [None] * 5
    assert table["reward"].to_pylist() == [0.0, 1.0, 0.0, 1.0, 0.0]
    assert table["rollout_num_tokens"].to_pylist() == [4, 5, 5, 6, 6]
    assert set(table["rollout_status"].to_pylist()) == {"completed"}
    assert set(table["response"].to_pylist()) == {"text"}
    assert table.schema.field("response_ids").type == pa.large_list(pa.int32())
    assert table.schema.field("logprobs").type == pa.large_list(pa.float32())
    failed = await buffer.to_arrow({"status": "failed"}, payloads=True)
    assert failed["error_msg"].to_pylist() == ["oom", "oom"]


async def test_nothing_is_there():
    buffer = CONFIG.build()
    for payloads in (False, True):
        assert len(await buffer.to_arrow(payloads=payloads)) == 0
        assert len(await buffer.to_pandas(payloads=payloads)) == 0
    await fill(buffer)
    none, some = [await buffer.to_arrow({"uid": uid}, payloads=True) for uid in (99, 1)]
    assert none.column_names == some.column_names
    assert len(none) == 0
    with pytest.raises(QueryError):
        await buffer.to_arrow({"sizes": 1})


async def test_frames():
    buffer = CONFIG.build()
    await fill(buffer)
    frame = await buffer.to_pandas()
    assert frame["version"].dtype == pd.Int64Dtype()
    assert frame["version"].isna().sum() == 2
    assert frame.groupby("task_name", observed=True)["num_tokens"].sum()["math"] == sum(
        row.num_tokens for row in await buffer.query({"task_name": "math"})
    )
    frame = await buffer.to_pandas({"status": "completed"}, payloads=True)
    assert isinstance(frame["logprobs"][0], np.ndarray)
    assert frame.loc[4, "version"] is pd.NA


async def test_everywhere_the_same(tmp_path):
    buffer = CONFIG.model_copy(update={"store": tmp_path / "store", "max_resident_bytes": 0}).build()
    await fill(buffer)
    await buffer.save(tmp_path / "saved")
    options = [
        {},
        {"place": None},
        {"payloads": True},
        {"payloads": True, "place": None},
        {"where": {"task_name": "code"}},
    ]
    tables = [await buffer.to_arrow(**option) for option in options]
    for path in ("store", "saved"):
        with open_readonly(tmp_path / path) as seen:
            assert [seen.to_arrow(**option) for option in options] == tables
            assert seen.to_pandas(payloads=True).equals(await buffer.to_pandas(payloads=True))
    await buffer.close()
    blocking = ReplayBufferConfig().build_blocking()
    for number in range(3):
        blocking.put(group(number), "math")
    assert len(blocking.to_arrow(payloads=True)) == len(blocking.to_pandas(payloads=True)) == 6


@pytest.mark.parametrize("kind", KINDS)
async def test_whatever_rollouts_are(kind):
    buffer = ReplayBufferConfig().build()
    await buffer.put([KINDS[kind](status="completed", response_ids=[4, 5])], "math", model_step=7)
    (found,) = (await buffer.to_arrow(payloads=True)).to_pylist()
    assert found["response_ids"] == [4, 5]
    assert found["response_model_steps"] == [7, 7]
    assert found["rollout_status"] == "completed"
    assert found["logprobs"] is None


async def test_ids_of_any_kind():
    async def column(*ids):
        buffer = ReplayBufferConfig().build()
        for number in ids:
            await buffer.put([Rollout(status="completed", response_ids=[1], group_id=number)], "math")
        return (await buffer.to_arrow())["group_id"].to_pylist()

    assert await column(1, None, 3) == await column(np.int64(1), None, 3) == [1, None, 3]
    assert await column("a", None) == ["a", None]
    assert await column(1, "a", None) == ["1", "a", None]
    assert await column(1, 2.5, True) == ["1", "2.5", "True"]
    assert await column(2**80, 1) == [str(2**80), "1"]
    assert await column("half \ud83d") == ["half ?"]
    assert await column(None) == [None]


async def test_messages_and_calls_are_json():
    buffer = ReplayBufferConfig().build()
    circle = []
    circle.append(circle)
    await buffer.put(
        [
            Rollout(status="completed", response_ids=[1], message=message, tool_calls=None)
            for message in (
                [{"role": "user", "content": "né"}],
                {"image": np.zeros(2)},
                circle,
                {(1, 2): 3},
                None,
            )
        ],
        "math",
    )
    messages = (await buffer.to_arrow(payloads=True))["message"].to_pylist()
    assert json.loads(messages[0]) == [{"role": "user", "content": "né"}]
    assert json.loads(messages[1]) == {"image": "array([0., 0.])"}
    assert json.loads(messages[2]) == "[[...]]"
    assert json.loads(messages[3]) == "{(1, 2): 3}"
    assert messages[4] is None


async def test_groups_that_leave_meanwhile_are_left_out(monkeypatch):
    monkeypatch.setattr(arrow, "_CHUNK_GROUPS", 1)
    buffer = ReplayBufferConfig(sampler="fifo").build()
    for number in range(1, 40):
        await buffer.put(group(number), "math")
    table = asyncio.create_task(buffer.to_arrow(payloads=True))
    await asyncio.sleep(0)
    await buffer.delete({"uid": {"$gt": 20}})
    found = (await table)["uid"].to_pylist()
    assert found == sorted([*range(1, 21), *range(1, 21)])


async def test_others_go_on_while_a_large_table_is_made():
    buffer = ReplayBufferConfig().build()
    for number in range(300):
        await buffer.put(group(number + 100, members=4), "math")
    table = asyncio.create_task(buffer.to_arrow(payloads=True))
    turns = 0
    while not table.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 9
    assert len(table.result()) == 1200
    assert table.result()["response_ids"].to_pylist()[-1] == list(range(402))


def test_parts_are_bounded():
    tokens = np.array([10, 200_000, 10, *[10] * 40, 99_990, 10, 10])
    uids = np.arange(len(tokens)) + 1
    parts = list(arrow.chunks(uids, tokens))
    assert [uid for part in parts for uid in part.uids] == uids.tolist()
    assert [part.start + 1 for part in parts] == [part.uids[0] for part in parts]
    assert [len(part.uids) for part in parts] == [1, 1, 32, 9, 2, 1]


MISSING = """
import sys
sys.modules[{missing!r}] = None
from reroll import ReplayBufferConfig
buffer = ReplayBufferConfig().build_blocking()
try:
    buffer.{verb}()
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("missing", "verb", "remedy"),
    [
        (
            "pyarrow",
            "to_arrow",
            "to_arrow needs pyarrow: pip install 'reroll[arrow]' (in a clone: pip install '.[arrow]')",
        ),
        ("pandas", "to_pandas", "to_pandas needs pandas: pip install 'reroll[arrow]' pandas"),
    ],
)
def test_without_them(missing, verb, remedy):
    code = MISSING.format(missing=missing, verb=verb)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == remedy
