"""Exports in several parts: one table, whatever users chose as ids, and nothing in half."""

import csv
import json
import sqlite3
from contextlib import closing

import pytest

from observe.groups import CONFIG, group
from reroll import CorruptData
from reroll.observe import export as exports
from reroll.observe import open_view
from reroll.store import FILE_NAME


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(exports, "_PART_GROUPS", 2)


async def put_some(buffer):
    for group_id in (1, 2, "three", None, 5):
        await buffer.put(group(3, group_id=group_id), "t")


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
async def test_parts_become_one_table(tmp_path, ending):
    out, told = tmp_path / f"out.{ending}", []
    async with CONFIG.build() as buffer:
        await put_some(buffer)
        async with await open_view(buffer) as view:
            assert await exports.export(view, out, progress=lambda *how_far: told.append(how_far)) == 5
    assert told == [(0, 5), (2, 5), (4, 5), (5, 5), (5, 5)]
    if ending == "parquet":
        rows = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
    elif ending == "csv":
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
        rows = [
            row
            | {
                "uid": int(row["uid"]),
                "group_id": row["group_id"] or None,
                "response_ids": json.loads(row["response_ids"]),
            }
            for row in rows
        ]
    else:
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["uid"] for row in rows] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [row["group_id"] for row in rows[::2]] == ["1", "2", "three", None, "5"]
    assert rows[0]["response_ids"] == [10, 11, 12]
    assert rows[0]["status"] == "completed"


async def test_groups_that_leave_meanwhile_are_left_out(tmp_path):
    async with CONFIG.build() as buffer:
        await put_some(buffer)

        class Leaving:
            def __getattr__(self, name):
                return getattr(buffer, name)

            async def to_arrow(self, where, *, payloads=False):
                table = await buffer.to_arrow(where, payloads=payloads)
                await buffer.delete([4, 5])
                return table

        async with await open_view(Leaving()) as view:
            await exports.export(view, tmp_path / "out.jsonl")
    rows = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(row)["uid"] for row in rows] == [1, 1, 2, 2, 3, 3]


async def test_what_fails_leaves_no_file(tmp_path):
    async with CONFIG.build() as buffer:
        await put_some(buffer)
        await buffer.save(tmp_path / "saved")
    with closing(sqlite3.connect(tmp_path / "saved" / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("UPDATE payloads SET blob = zeroblob(100) WHERE uid = 4")
    async with await open_view(tmp_path / "saved") as view:
        with pytest.raises(CorruptData, match="uid 4"):
            await exports.export(view, tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
