"""A checkpoint of a buffer in memory while producers are writing into the groups that they have."""

from dataclasses import dataclass, field

import pytest

from replay.buffers import TASK, books, row_of
from reroll import DictRollout, ReplayBufferConfig, Rollout, register


@register(name="tests.Continued")
@dataclass
class Continued:
    """A rollout of somebody else's class."""

    status: str
    response_ids: list[int]
    logprobs: list[float]
    response_mask: list[int]
    response_model_steps: list[int]
    seq_staleness: int = 0
    extra_fields: dict = field(default_factory=dict)


FIELDS = {
    "status": "aborted",
    "response_ids": [5, 6],
    "logprobs": [-0.5, -0.25],
    "response_mask": [1, 1],
    "response_model_steps": [0, 0],
}
KINDS = {
    "Rollout": lambda: Rollout(**FIELDS),
    "a class": lambda: Continued(**{name: value[:] for name, value in FIELDS.items()}),
    "a dict": lambda: DictRollout({"seq_staleness": 0, **FIELDS}),
}
MORE = {"response_ids": 7, "logprobs": -1.0, "response_mask": 1, "response_model_steps": 3}


def add_to(item, name):
    """Let a producer add a token to one of the fields."""
    if isinstance(item, Continued):
        getattr(item, name).append(MORE[name])
    else:
        setattr(item, name, [*getattr(item, name), MORE[name]])


def told(item):
    return {name: list(getattr(item, name)) for name in MORE}


@pytest.mark.parametrize("written", [1, 2, 3, 4])
@pytest.mark.parametrize("how", ["taken", "lent"])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_producer_is_writing_is_saved_as_far_as_all_fields_tell(tmp_path, kind, how, written):
    config = ReplayBufferConfig(sampler="fifo")
    buffer = config.build()
    assert await buffer.put([KINDS[kind]() for _ in range(2)], TASK) == 1
    if how == "taken":
        ((first, second),) = await buffer.get(1, TASK, "aborted")
    else:
        first, second = (await buffer.lease({TASK: 1}, group_status="aborted")).groups[TASK][0]
    for name in list(MORE)[:written]:
        add_to(first, name)
    mine = told(first)
    await buffer.save(tmp_path)
    assert told(first) == mine, "what the producer has stays as it is"

    again = config.build()
    await again.resume(tmp_path)
    row = await row_of(again, 1)
    assert (row.status, row.attempts, row.version) == ("aborted", 1, 0)
    ((restored, other),) = await again.get(1, TASK, "aborted")
    is_seen = written == 4 and kind != "Rollout"  # of a Rollout the buffer has columns of its own
    assert told(restored) == (mine if is_seen else {name: list(FIELDS[name]) for name in MORE})
    assert told(other) == told(second)
    restored.status = other.status = "completed"
    assert await again.put([restored, other], TASK) == 1
    assert (await books(again))["resident"].groups == 1


async def test_a_producer_that_starts_anew_is_saved_as_empty(tmp_path):
    config = ReplayBufferConfig(sampler="fifo")
    buffer = config.build()
    await buffer.put([KINDS["a dict"]()], TASK)
    ((item,),) = await buffer.get(1, TASK, "aborted")
    item.response_ids = []
    await buffer.save(tmp_path)
    again = config.build()
    await again.resume(tmp_path)
    ((restored,),) = await again.get(1, TASK, "aborted")
    assert [len(field) for field in told(restored).values()] == [0, 0, 0, 0]
