"""Many calls at once, of which any may be cancelled at any moment, while the disk writes: no group is lost or doubled."""

import asyncio
import contextlib
import random
from collections import Counter

import pytest

from durable.stores import crashed, fifo, picture
from replay.buffers import TASK, group, uids_of
from reroll import WaitTimeout
from reroll.testing.probe import probe

CALLS = 220


class Storm:
    """Producers and consumers that are cancelled by chance, and all that reached somebody."""

    def __init__(self, buffer, seed, uses):
        self.buffer, self.dice, self.uses = buffer, random.Random(seed), uses
        self.put, self.used, self.step = [], Counter(), 1
        self.rolling = []

    async def one_call(self):
        dice, buffer = self.dice, self.buffer
        step = dice.choice([None, self.step])
        verb = dice.choice(
            ["put"] * 6 + ["take", "take", "sample", "lease", "roll", "rejected", "refresh", "peek"]
        )
        if verb == "put":
            status = dice.choice(["completed"] * 4 + ["aborted", "failed"])
            self.put.append(await buffer.put(group(status=status, version=self.step), TASK, timeout=5))
        elif verb == "take":
            self.used.update(
                uids_of(await buffer.get(dice.randint(1, 3), TASK, "completed", train_step=step))
            )
        elif verb == "sample":
            found = await buffer.sample(dice.randint(1, 2), TASK, allow_short=True, train_step=step)
            self.used.update(sample.info.uid for sample in found)
        elif verb == "lease":
            await self.lease(step)
        elif verb == "roll":
            for items in await buffer.get(2, TASK, "aborted"):
                items[0].status = "completed"
                await buffer.put(items, TASK, timeout=5)
        elif verb == "rejected":
            self.used.update(uids_of(await buffer.get(1, TASK, "failed")))
        elif verb == "refresh":
            self.step += 1
            await buffer.refresh_staleness(task_stale_thresholds={TASK: 50}, current_train_step=self.step)
            await buffer.commit(max(0, self.step - 20))
        elif rows := await buffer.query({}):
            await buffer.peek([dice.choice(rows).uid])

    async def lease(self, step):
        batch = await self.buffer.lease({TASK: 2}, train_step=step)
        await asyncio.sleep(self.dice.random() / 1000)
        if self.dice.random() < 0.5:
            await batch.nack()
            return
        self.used.update(uids_of(batch.groups[TASK]))  # it was trained on, whether or not the ack is heard of
        await asyncio.shield(batch.ack())

    async def guarded(self):
        with contextlib.suppress(WaitTimeout):
            await self.one_call()

    async def run(self):
        calls = set()
        for _ in range(CALLS):
            calls.add(asyncio.ensure_future(self.guarded()))
            for _ in range(self.dice.randint(0, 3)):
                await asyncio.sleep(0)
            if self.dice.random() < 0.4:
                self.dice.choice(sorted(calls, key=id)).cancel()
            if self.dice.random() < 0.1:
                await asyncio.sleep(0.002)
        for end in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(end, Exception):  # and no cancellation
                raise end


@pytest.mark.parametrize("resident", [None, 0])
@pytest.mark.parametrize(("seed", "uses"), [(1, 1), (2, 1), (3, 3)])
async def test_no_group_is_lost_or_doubled(tmp_path, seed, uses, resident):
    options = {"max_times_sampled": uses, "max_resident_bytes": resident, "sampler": "least_used"}
    buffer = fifo(tmp_path / "store", **options)
    storm = Storm(buffer, seed, uses)
    await storm.run()
    await probe(buffer).disk.drained()
    before = await picture(buffer)
    again = crashed(buffer, **options)
    after = await picture(again)
    assert len(after["rows"]) == len(before["rows"]) + sum(
        before["ledger"][TASK][bucket].groups for bucket in ("leased", "out")
    )
    last = probe(again).engine.last_uid
    assert last == probe(buffer).engine.last_uid == before["ledger"][TASK]["put"].groups
    assert set(storm.put) <= set(range(1, last + 1))
    assert max(storm.used.values()) <= uses, "handed out too often"
    there = {row.uid for row in after["rows"]}
    books = after["ledger"][TASK]
    gone = books["uncommitted"].groups + books["consumed"].groups + books["failed"].groups
    assert len(there) + gone == last
    assert set(range(1, last + 1)) - there <= storm.used.keys(), "gone, and nobody got it"
    if uses == 1:
        assert not there & storm.used.keys(), "still there, although somebody got it"
    await buffer.close()
    await again.close()
