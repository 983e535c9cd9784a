"""cpprb: prioritized replay in C++, for rows of a fixed shape."""

from collections.abc import Iterator, Sequence
from importlib.metadata import version as version_of
from typing import Any

import numpy as np
from cpprb import PrioritizedReplayBuffer, ReplayBuffer

import work
from worker import Measure

ALPHA, BETA = 0.6, 0.4
CYCLE, BATCH = 256, 64
CANNOT = {
    "replay": "rows have a fixed shape: 50,000 groups padded to their longest response are 14 GB that it copies",
    "crash": "in the memory of the process that trains, and gone with it; `save_transitions` writes a file by hand",
}
LENGTH = work.VARIED.max_tokens


def version() -> str:
    return version_of("cpprb")


def cycle(rows: int) -> Iterator[Measure]:
    """`PrioritizedReplayBuffer.sample` with weights, and `update_priorities` of the indexes that it gave; rows hold one float. Draws with replacement."""
    buffer = PrioritizedReplayBuffer(rows, {"x": {"shape": 1, "dtype": np.float32}}, alpha=ALPHA)
    buffer.add(x=np.zeros((rows, 1), np.float32), priorities=work.priorities(rows))
    new = work.priorities(CYCLE)

    def once() -> None:
        sample = buffer.sample(CYCLE, beta=BETA)
        buffer.update_priorities(sample["indexes"], new)

    once()
    yield lambda: {"us": work.cycle_us(once)}


def _padded(groups: int) -> ReplayBuffer:
    members = work.VARIED.members
    tokens = {"shape": (members, LENGTH)}
    return ReplayBuffer(
        groups,
        {
            "prompt_ids": {"shape": work.VARIED.prompt_tokens, "dtype": np.int32},
            "lengths": {"shape": members, "dtype": np.int32},
            "rewards": {"shape": members, "dtype": np.float32},
            "response_ids": tokens | {"dtype": np.int32},
            "logprobs": tokens | {"dtype": np.float32},
            "response_mask": tokens | {"dtype": np.uint8},
        },
    )


def _row(group: work.Group) -> dict[str, Any]:
    """Pad the responses of a group to the longest that may come."""
    inside = np.arange(LENGTH) < group.lengths[:, None]
    row: dict[str, Any] = {"prompt_ids": group.prompt_ids, "lengths": group.lengths, "rewards": group.rewards}
    for name in ("response_ids", "logprobs", "response_mask"):
        given = getattr(group, name)
        row[name] = np.zeros(inside.shape, given.dtype)
        row[name][inside] = given
    return row


def _group(sample: dict[str, Any], place: int) -> work.Group:
    lengths = sample["lengths"][place]
    inside = np.arange(LENGTH) < lengths[:, None]
    return work.Group(
        sample["prompt_ids"][place],
        lengths,
        *(sample[name][place][inside] for name in ("response_ids", "logprobs", "response_mask")),
        sample["rewards"][place],
    )


def packed(groups: int) -> Iterator[Measure]:
    """Rows have a fixed shape, so responses are padded to the longest that may come, 8,192 tokens; padding is done beforehand. A sample is cut to its lengths, and packed with numpy."""
    buffer = _padded(groups)
    given = work.make_groups(work.VARIED, BATCH)
    rows = list(map(_row, given))
    for place in range(groups):
        buffer.add(**rows[place % BATCH])

    def add() -> None:
        for row in rows:
            buffer.add(**row)

    def batch() -> None:
        sample = buffer.sample(BATCH)
        work.pack([_group(sample, place) for place in range(BATCH)])

    batch()
    yield lambda: {"insert": work.rate(add, BATCH), "batch": work.rate(batch, 1)}


def memory(groups: int) -> Iterator[Measure]:
    """A `ReplayBuffer` with one row per group, padded to 8,192 tokens; resident memory of the process."""

    def start(room: int) -> work.Keep:
        buffer = _padded(room)

        def keep(given: Sequence[work.Group]) -> None:
            for group in given:
                buffer.add(**_row(group))

        return keep

    yield lambda: work.memory_of(start, groups)
