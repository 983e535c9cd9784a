"""The producers of the soak: new groups with ids of their own, some of them aborted; and who rolls those again.

    python soak_producer.py ADDRESS NAME FILE SEED      makes groups; notes in FILE what it knows to be stored
    python soak_producer.py ADDRESS again               takes aborted and expired groups, and puts them completed

Both end when a line comes in.
"""

import random
import sys
import threading
from pathlib import Path

import numpy as np

from reroll import BlockingReplayBuffer, Rollout, Status, WaitTimeout, connect_blocking
from soak_processes import TASK, told_by_a_line

MEMBERS, MEAN_TOKENS = 4, 1000
ABORTED = 0.2
ASK_EVERY = 16
"""Groups that are made before it looks which version generates."""


def make_group(name: str, dice: random.Random) -> list[Rollout]:
    """Return a group whose lengths are log-normal, now and then an aborted one."""
    status = Status.ABORTED if dice.random() < ABORTED else Status.COMPLETED
    return [
        Rollout(group_id=name, prompt_ids=np.arange(64), **_response(dice, status)) for _ in range(MEMBERS)
    ]


def _response(dice: random.Random, status: Status) -> dict[str, object]:
    tokens = 1 + min(8 * MEAN_TOKENS, int(dice.lognormvariate(0, 1) * MEAN_TOKENS / 1.65))
    return {
        "response_ids": np.full(tokens, dice.randrange(32_000), np.int32),
        "logprobs": np.full(tokens, -dice.random(), np.float32),
        "reward": None if status is Status.ABORTED else float(dice.random() < 0.5),
        "status": status,
    }


def produce(
    buffer: BlockingReplayBuffer, name: str, file: Path, dice: random.Random, over: threading.Event
) -> None:
    """Go on after what was noted; a group that may be stored already has the same id, and is stored once."""
    number = len(file.read_text().splitlines()) if file.exists() else 0
    step = None
    with file.open("a", buffering=1) as notes:
        while not over.is_set():
            group = make_group(f"{name}/{number}", dice)
            if number % ASK_EVERY == 0 or step is None:
                step = version(buffer)
            try:
                buffer.put(group, TASK, model_step=step, put_id=f"{name}/{number}", timeout=1)
            except WaitTimeout:
                continue  # there is no room; the same one again
            notes.write(f"{name}/{number}\n")
            number += 1


def roll_again(buffer: BlockingReplayBuffer, dice: random.Random, over: threading.Event) -> None:
    while not over.is_set():
        for status in (Status.ABORTED, Status.EXPIRED):
            for group in buffer.get(8, TASK, status):
                for rollout in group:
                    for name, value in _response(dice, Status.COMPLETED).items():
                        setattr(rollout, name, value)
                    rollout.response_model_steps = []
                buffer.put(group, TASK, model_step=version(buffer))
        over.wait(0.02)


def version(buffer: BlockingReplayBuffer) -> int:
    """Return the version that generates now."""
    return max((task.step for task in buffer.stats().tasks.values() if task.step is not None), default=1) - 1


def main() -> None:
    address, name, *rest = sys.argv[1:]
    over = told_by_a_line()
    with connect_blocking(address, heartbeat_s=0.2) as buffer:
        if name == "again":
            roll_again(buffer, random.Random(0), over)
        else:
            produce(buffer, name, Path(rest[0]), random.Random(f"{name} {rest[1]}"), over)


if __name__ == "__main__":
    main()
