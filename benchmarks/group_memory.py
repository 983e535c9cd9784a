"""Memory of groups that share nothing, as Rollout and as lists, each in a process of its own.

Lists are what `tolist` of a tokenizer's or an engine's output gives: an object for each id above 256 and for each log-prob;
masks and versions repeat one object. Resident memory of the process counts, so what the allocator wastes is in it.
"""

import gc
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from groups import LONG, MEMBERS, TASK, Group, Listed, Shape, drive
from reroll import Rollout, SyncReplayBufferConfig

VOCABULARY = 150_000
KINDS = ("Rollout", "lists")


class Memory(NamedTuple):
    """Bytes a group, in a buffer."""

    kind: str
    groups: int
    group_bytes: float
    buffer_bytes: float
    """Of these, what the buffer needs besides the rollouts."""
    payload_bytes: float
    """Of these, the numbers themselves: 4 bytes an id and a log-prob, 1 a mask entry."""

    @property
    def token_bytes(self) -> float:
        """Bytes a token, all in."""
        return self.group_bytes / LONG.group_tokens

    @property
    def overhead_bytes(self) -> float:
        """Bytes a group besides the numbers."""
        return self.group_bytes - self.payload_bytes


def measure_memory(groups: dict[str, int]) -> dict[str, Memory]:
    """Fill a buffer with so many groups of each kind, in fresh processes."""
    found = {}
    for kind in KINDS:
        command = [sys.executable, str(Path(__file__)), kind, str(groups[kind])]
        found[kind] = Memory(**json.loads(subprocess.check_output(command, text=True)))
    return found


def _measure(kind: str, groups: int, shape: Shape = LONG) -> Memory:
    make = {"Rollout": _rollouts, "lists": _lists}[kind]
    buffer = SyncReplayBufferConfig().build()
    rng = np.random.default_rng(0)
    drive(buffer.put(make(rng, shape), TASK, model_step=1))  # loads what is loaded on first use
    gc.disable()
    before = _resident()
    made = [make(rng, shape) for _ in range(groups)]
    between = _resident()
    for group in made:
        drive(buffer.put(group, TASK, model_step=1))
    made.clear()
    gc.collect()
    after = _resident()
    payload = MEMBERS * (4 * shape.prompt + 9 * shape.response)
    return Memory(kind, groups, (after - before) / groups, (after - between) / groups, payload)


def _tokens(rng: np.random.Generator, shape: Shape) -> dict[str, Any]:
    return {
        "prompt_ids": rng.integers(300, VOCABULARY, shape.prompt, dtype=np.int32),
        "response_ids": rng.integers(300, VOCABULARY, shape.response, dtype=np.int32),
        "logprobs": -rng.random(shape.response, dtype=np.float32),
    }


def _rollouts(rng: np.random.Generator, shape: Shape) -> Group:
    return [
        Rollout(
            **_tokens(rng, shape),
            response_mask=np.ones(shape.response, np.uint8),
            response_model_steps=[1] * shape.response,
            reward=float(rng.random()),
            status="completed",
        )
        for _ in range(MEMBERS)
    ]


def _lists(rng: np.random.Generator, shape: Shape) -> Group:
    return [
        Listed(
            **{name: array.tolist() for name, array in _tokens(rng, shape).items()},
            response_mask=[1] * shape.response,
            response_model_steps=[1] * shape.response,
            reward=float(rng.random()),
        )
        for _ in range(MEMBERS)
    ]


def _resident() -> int:
    """Bytes of memory that this process has now; elsewhere than on Linux the most it ever had."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], int(sys.argv[2]))._asdict()))
