"""Killed in the middle of `save` or `resume`: there is the old or the new, as a whole, and nothing else."""

import random

import pytest

from crash.lives import end, order, start
from crash.numbered import config, describe, group, task_of
from crash.saver import fill
from reroll import ReplayBuffer
from reroll.engine.ledger import closes
from reroll.store import FILE_NAME, ROW, open_saved

KILLS = 4


async def picture(buffer: ReplayBuffer):
    rows = await buffer.query({})
    for row, rollouts in zip(rows, await buffer.peek([row.uid for row in rows]), strict=True):
        assert describe(rollouts, row.status.value) == [row.uid - 1, 1]
    books = await buffer.ledger()
    assert all(map(closes, books.values()))
    return rows, books


def events_of(**orders):
    """Return how many events it takes if nobody is killed."""
    process = start("crash.saver")
    (told,) = order(process, dies_at=None, **orders)
    assert end(process) == 0
    return told["events"]


def killed(at, **orders):
    process = start("crash.saver")
    told = list(order(process, dies_at=at, **orders))
    return end(process) == -9 and not told


@pytest.mark.parametrize("kind", ["memory", "durable"])
async def test_a_save_that_is_killed_leaves_the_old_checkpoint_or_the_new(tmp_path, kind):
    chance = random.Random(kind)

    def orders(name):
        store = None if kind == "memory" else str(tmp_path / f"store of {name}")
        return {"does": "save", "store": store, "path": str(tmp_path / name)}

    events = events_of(**orders("whole"))
    seen = set()
    for kill in range(KILLS):
        name = f"kill {kill}"
        at = events - 1 - kill if kill < 2 else chance.randrange(1, events)
        if not killed(at, **orders(name)):
            continue  # threads take turns as they please, and so it was done before
        buffer = config(None).build()
        await buffer.resume(tmp_path / name)
        rows, books = await picture(buffer)
        put = sum(book["put"].groups for book in books.values())
        assert put in (30, 60)
        assert len(rows) == put - (2 if put == 30 else 4)
        seen.add(put)
        await buffer.save(tmp_path / name)
        assert [path.name for path in (tmp_path / name).iterdir()] == [FILE_NAME], "leftovers are gone"
        again = config(None).build()
        await again.resume(tmp_path / name)
        assert await picture(again) == (rows, books)
    assert 30 in seen


async def test_a_resume_that_is_killed_leaves_an_empty_buffer(tmp_path):
    chance = random.Random(4)
    saved = config(None, max_uncommitted_steps=8).build()
    await fill(saved, range(150))
    await saved.save(tmp_path / "saved")

    def orders(name):
        return {"does": "resume", "store": str(tmp_path / name), "path": str(tmp_path / "saved")}

    events = events_of(**orders("whole"))
    whole = config(tmp_path / "whole").build()
    meant = await picture(whole)
    await whole.close()
    kills = 0
    for kill in range(KILLS):
        name = f"kill {kill}"
        at = events * (96 + kill) // 100 if kill < 3 else chance.randrange(1, events)
        if not killed(at, **orders(name)):
            continue
        kills += 1
        buffer = config(tmp_path / name).build()
        if len(buffer):  # it was killed when all was done
            assert await picture(buffer) == meant
        else:
            assert await buffer.ledger() == {}
            assert await buffer.put(group(0, 1, "completed"), task_of(0)) == 1
            await buffer.close()
            with open_saved(tmp_path / name) as left:
                assert [uid for uid, _ in left.records(ROW)] == [1]
                assert [uid for uid, _ in left.all_payloads()] == [1]
                assert [kind for kind in left.kinds() if list(left.records(kind))] == [ROW, "state"]
            buffer = config(tmp_path / name).build()
            await picture(buffer)
        await buffer.close()
    assert kills
