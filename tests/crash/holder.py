"""A process that has a durable buffer open, and carries out what it is asked for, a line each.

echo '{"store": "..."}' | python -m crash.holder
"""

import asyncio
import json
import sys
from typing import Any

from crash.numbered import config, describe, group, task_of
from crash.worker import tell
from reroll import ReplayBuffer, RerollError


async def carry_out(buffer: ReplayBuffer, asked: dict[str, Any]) -> Any:
    match asked["does"]:
        case "put":
            return await buffer.put(group(asked["number"], 1, "completed"), task_of(asked["number"]))
        case "take":
            taken, _ = await buffer.take_batch({"math": 1})
            return [describe(rollouts, "completed")[0] for rollouts in taken["math"]]
    return await buffer.close()


async def main() -> None:
    buffer = config(json.loads(sys.stdin.readline())["store"]).build()
    tell(open=True)
    for line in sys.stdin:
        try:
            tell(result=await carry_out(buffer, json.loads(line)))
        except RerollError as error:
            tell(error=type(error).__name__, words=str(error))


if __name__ == "__main__":
    asyncio.run(main())
