"""`make(**fields)` builds the same rollout as every kind of object that a trainer may bring."""

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pydantic
import pytest

from reroll.rollout import DictRollout, Rollout, Status

DEFAULTS: dict[str, Any] = {
    "group_id": None,
    "rollout_id": None,
    "message": None,
    "prompt_ids": None,
    "tokens": None,
    "response": None,
    "response_ids": None,
    "logprobs": None,
    "response_mask": None,
    "response_model_steps": None,
    "seq_staleness": 0,
    "reward": None,
    "status": Status.INIT,
    "finish_reason": None,
    "error_msg": None,
    "routed_experts": None,
    "mm_info": None,
    "tool_calls": None,
    "num_tokens": None,
    "input_ids": None,
    "labels": None,
    "extra_fields": None,
}


class TheirStatus(enum.Enum):
    INIT = "init"
    COMPLETED = "completed"
    ABORTED = "aborted"
    EXPIRED = "expired"
    FAILED = "failed"
    FILTERED = "filtered"


@dataclass
class DataclassRollout:
    status: Any = Status.INIT
    seq_staleness: int = 0
    group_id: Any = None
    rollout_id: Any = None
    message: Any = None
    prompt_ids: list[int] | None = None
    tokens: list[int] | None = None
    response: str | None = None
    response_ids: list[int] | None = None
    logprobs: list[float] | None = None
    response_mask: list[int] | None = None
    response_model_steps: list[int] | None = None
    reward: Any = None
    finish_reason: str | None = None
    error_msg: str | None = None
    routed_experts: Any = None
    mm_info: Any = None
    tool_calls: Any = None
    num_tokens: int | None = None
    input_ids: list[int] | None = None
    labels: list[int] | None = None
    extra_fields: dict[str, Any] | None = field(default=None)


class SlotsRollout:
    __slots__ = tuple(DEFAULTS)

    def __init__(self, **fields: Any) -> None:
        for name, value in (DEFAULTS | fields).items():
            setattr(self, name, value)


class StrictRollout(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", validate_assignment=True)

    status: TheirStatus = TheirStatus.INIT
    seq_staleness: int = 0
    group_id: Any = None
    rollout_id: Any = None
    message: Any = None
    prompt_ids: list[int] | None = None
    tokens: list[int] | None = None
    response: str | None = None
    response_ids: list[int] | None = None
    logprobs: list[float] | None = None
    response_mask: list[int] | None = None
    response_model_steps: list[int] | None = None
    reward: Any = None
    finish_reason: str | None = None
    error_msg: str | None = None
    routed_experts: Any = None
    mm_info: Any = None
    tool_calls: Any = None
    num_tokens: int | None = None
    input_ids: list[int] | None = None
    labels: list[int] | None = None
    extra_fields: Any = None


class ArrayRollout(SlotsRollout):
    """A foreign class that keeps numpy arrays."""

    __slots__ = ()

    def __init__(self, **fields: Any) -> None:
        arrays = ("prompt_ids", "response_ids", "logprobs", "response_mask", "response_model_steps")
        for name in arrays:
            if fields.get(name) is not None:
                kind = np.float64 if name == "logprobs" else np.int64
                fields[name] = np.array(fields[name], dtype=kind)
        super().__init__(**fields)


KINDS = {
    "Rollout": Rollout,
    "dataclass": DataclassRollout,
    "slots": SlotsRollout,
    "pydantic": StrictRollout,
    "dict": lambda **fields: DictRollout(DEFAULTS | fields),
    "arrays": ArrayRollout,
}


@pytest.fixture(params=KINDS)
def make(request):
    return KINDS[request.param]


def plain(value: Any) -> Any:
    """A token field as a list, whatever the object keeps it as."""
    return value if value is None else list(value)


@pytest.fixture
def as_list():
    return plain
