"""Cancels many saves of one buffer, at random moments; run as a process of its own, with faulthandler.

Arguments: a directory, whether the buffer is durable, how many saves, a seed.
"""

import asyncio
import random
import sys
from pathlib import Path

from reroll import ReplayBufferConfig
from reroll.testing.buffer.builders import group

GROUPS, TOKENS = 200, 5000


async def main(folder: Path, kind: str, cancels: int, seed: int) -> None:
    dice = random.Random(seed)
    store = {"store": folder / "store"} if kind == "durable" else {}
    config = ReplayBufferConfig(sampler="fifo", **store)
    buffer = config.build()
    for number in range(GROUPS):
        await buffer.put(group(number, tokens=TOKENS), "t")
    ended = 0
    for _ in range(cancels):
        try:
            await asyncio.wait_for(buffer.save(folder / "saved"), dice.uniform(0.002, 0.04))
        except TimeoutError:
            ended += 1
        if dice.random() < 0.1:  # at once, in the place of one that was cancelled
            await buffer.save(folder / "saved")
    await buffer.save(folder / "saved")
    again = ReplayBufferConfig(sampler="fifo").build()
    await again.resume(folder / "saved")
    assert len(again) == len(buffer) == GROUPS
    assert [path.name for path in (folder / "saved").iterdir()] == ["replay_buffer.sqlite"]
    await buffer.close()
    sys.stdout.write(f"{ended} cancelled\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
