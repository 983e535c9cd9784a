"""A process that is killed while it saves or resumes, at a chosen event.

echo '{"does": "save", ...}' | python -m crash.saver
"""

import asyncio
import json
import sys
from typing import Any

from crash.killing import Trap
from crash.numbered import config, group, priority_of, put_id_of, task_of
from crash.worker import tell
from reroll import ReplayBuffer


async def fill(buffer: ReplayBuffer, numbers: range) -> None:
    """Put groups, and train with some, so that there is something of everything."""
    for number in numbers:
        await buffer.put(
            group(number, 1, "completed"),
            task_of(number),
            model_step=0,
            priority=priority_of(number),
            put_id=put_id_of(number),
        )
    await buffer.sample(2, "replay", train_step=1)
    await buffer.take_batch({"math": 2}, train_step=1)
    await buffer.lease({"code": 1}, train_step=1)


async def main() -> None:
    orders: dict[str, Any] = json.loads(sys.stdin.readline())
    trap = Trap(None)
    trap.set_for_threads()
    buffer = config(orders["store"]).build()
    match orders["does"]:
        case "hold":
            for number in range(orders["groups"]):
                await buffer.put(group(number, 1, "completed"), task_of(number))
            tell(ready=len(buffer))
            await asyncio.Event().wait()
        case "save":
            await fill(buffer, range(30))
            await buffer.save(orders["path"])
            await fill(buffer, range(30, 60))
            trap.events, trap.at = 0, orders["dies_at"]
            trap.set()
            await buffer.save(orders["path"])
        case "resume":
            trap.events, trap.at = 0, orders["dies_at"]
            trap.set()
            await buffer.resume(orders["path"])
    trap.lift()
    trap.at = None
    tell(events=trap.events)


if __name__ == "__main__":
    asyncio.run(main())
