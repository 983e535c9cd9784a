"""Groups that are known by a number: what is put under it, and whether what comes back is that."""

import random
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from reroll import ReplayBufferConfig, Rollout, Status

PROMPT_TOKENS = 3
MEMBERS = 2
LIMITS = {"math": 1, "code": 1, "replay": 3, "plain": 1}
"""How often a group of each task may be trained."""
RETRYABLE = {"math": True, "code": False, "replay": True}
"""Whether expired groups are rolled again; `plain` knows no training steps, and nothing of it expires."""


def config(directory: Any, **options: Any) -> ReplayBufferConfig:
    """Return the configuration of the buffer that lives through kills: every order can be told beforehand."""
    return ReplayBufferConfig(
        store=directory,
        sampler="fifo",
        tasks={
            "code": {"sampler": "max_heap"},
            "replay": {"sampler": "least_used", "max_times_sampled": LIMITS["replay"]},
        },
        **options,
    )


def task_of(number: int) -> str:
    return ("math", "code", "replay", "math", "plain")[number % 5]


def put_id_of(number: int) -> str | None:
    return f"put {number}" if number % 3 else None


def is_aborted(number: int) -> bool:
    return number % 7 == 0


def priority_of(number: int) -> float:
    return random.Random(number).random()


def response_tokens(number: int, attempt: int) -> int:
    return 2 + (number + attempt) % 5


def tokens_of(number: int, attempt: int, status: str) -> int:
    """Return how many tokens the row of a group has."""
    response = 0 if status == "expired" else response_tokens(number, attempt)
    return MEMBERS * (PROMPT_TOKENS + response)


def group(number: int, attempt: int, status: str) -> list[Rollout]:
    """Return the rollouts of a group, as they are put."""
    return [
        Rollout(
            prompt_ids=_ids("prompt", number, member, PROMPT_TOKENS),
            response_ids=_ids(f"response {attempt}", number, member, response_tokens(number, attempt)),
            rollout_id=member,
            status=Status(status),
            extra_fields={"number": number, "attempt": attempt},
        )
        for member in range(MEMBERS)
    ]


def describe(rollouts: Sequence[Rollout], status: str) -> list[int]:
    """Return number and attempt of a group that came back. Raises AssertionError if anything in it is not its own."""
    known = {(item.extra_fields["number"], item.extra_fields["attempt"]) for item in rollouts}
    assert len(known) == 1, f"rollouts of several groups: {known}"
    ((number, attempt),) = known
    assert [item.rollout_id for item in rollouts] == list(range(MEMBERS))
    for item, meant in zip(rollouts, group(number, attempt, status), strict=True):
        assert item.status == status, (number, item.status, status)
        assert item.prompt_ids.tolist() == meant.prompt_ids.tolist(), number
        response = [] if status == "expired" else meant.response_ids.tolist()
        assert list(item.response_ids) == response, (number, attempt, status)
    return [number, attempt]


def _ids(kind: str, number: int, member: int, count: int) -> list[int]:
    return [crc32(f"{kind} {number} {member} {place}".encode()) % 100_000 for place in range(count)]
