"""One question for all who look: nobody asks while nobody looks, and what is kept is bounded."""

import asyncio
import time
from contextlib import aclosing

from observe.groups import CONFIG, fill, group
from reroll.observe import Poll, View, open_view


class Counted:
    """A buffer that counts how often it is asked."""

    def __init__(self, buffer):
        self._buffer = buffer
        self.asked = 0

    async def stats(self):
        self.asked += 1
        return await self._buffer.stats()

    def __getattr__(self, name):
        return getattr(self._buffer, name)


async def some(poll, count):
    """Return so many moments."""
    found = []
    async with aclosing(poll.moments()) as moments:
        async for moment in moments:
            found.append(moment)
            if len(found) == count:
                break
    return found


async def test_ten_viewers_are_one_question():
    async with CONFIG.build() as buffer:
        await fill(buffer)
        source = Counted(buffer)
        poll = Poll(View(source, title="", kind="process"), interval_s=0.001, history=1000)
        assert source.asked == 0
        seen = await asyncio.gather(*(some(poll, 5) for _ in range(10)))
        assert source.asked == len(poll.history), "each answer is kept, and nothing else was asked"
        known = set(map(id, poll.history))
        assert all(id(moment) in known for moments in seen for moment in moments)
        assert all([m.at for m in moments] == sorted({m.at for m in moments}) for moments in seen)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nobody looks any more, and nobody asks"
        assert await some(poll, 1)


async def test_history_is_bounded():
    async with CONFIG.build() as buffer:
        poll = Poll(await open_view(buffer), interval_s=0.0, history=3)
        for _ in range(5):
            await poll.now()
        assert len(poll.history) == 3
        assert poll.latest is poll.history[-1]


async def test_those_who_ask_at_the_same_time_share_an_answer():
    async with CONFIG.build() as buffer:
        source = Counted(buffer)
        poll = Poll(View(source, title="", kind="process"), interval_s=60.0)
        moments = await asyncio.gather(*(poll.now() for _ in range(10)))
        assert source.asked == 1
        assert len(set(map(id, moments))) == 1


async def test_rates_are_of_the_time_since_the_moment_before():
    async with CONFIG.build() as buffer:
        await fill(buffer)
        poll = Poll(await open_view(buffer), interval_s=0.0)
        first = await poll.now()
        assert first.rates == {}
        for _ in range(4):
            await buffer.put(group(2), "math")
        await buffer.take_batch({"math": 2, "code": 1})
        second = await poll.now()
        seconds = second.at - first.at
        counted = {name: [round(rate * seconds) for rate in rates] for name, rates in second.rates.items()}
        assert counted == {"": [4, 3, 3], "math": [4, 2, 2], "code": [0, 1, 1]}


async def test_a_buffer_that_does_not_answer_is_told_and_asked_again():
    buffer = CONFIG.build()
    poll = Poll(await open_view(buffer), interval_s=0.0)
    assert (await poll.now()).error is None
    await buffer.close()
    moment = await poll.now()
    assert (moment.stats, moment.ledger, moment.rates) == (None, {}, {})
    assert moment.error == "the buffer was closed"
    assert len(poll.history) == 2


async def test_a_wall_clock_that_is_set_back_does_not_stop_the_poll(monkeypatch):
    async with CONFIG.build() as buffer:
        source = Counted(buffer)
        poll = Poll(View(source, title="", kind="process"), interval_s=0.0)
        first = await poll.now()
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() - 3600)
        await fill(buffer)
        second = await poll.now()
        assert source.asked == 2
        assert second.at >= first.at
        assert second.rates[""].put_per_s > 0
