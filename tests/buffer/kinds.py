"""The kinds of objects that trainers bring as rollouts, each made from the same keywords."""

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pydantic

from reroll import DictRollout, Rollout


class TheirStatus(enum.Enum):
    COMPLETED = "completed"
    ABORTED = "aborted"
    EXPIRED = "expired"
    FAILED = "failed"


@dataclass
class Dataclass:
    status: str
    response_ids: list[int]
    seq_staleness: int = 0
    response_model_steps: list[int] = field(default_factory=list)
    prompt_ids: list[int] | None = None
    reward: float | None = None
    mm_info: Any = None


class Slots:
    """Only what a rollout must have."""

    __slots__ = ("response_ids", "response_model_steps", "seq_staleness", "status")

    def __init__(self, status, response_ids, response_model_steps=None, **others):
        self.status = status
        self.response_ids = response_ids
        self.response_model_steps = response_model_steps
        self.seq_staleness = others.get("seq_staleness", 0)


class Pydantic(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", validate_assignment=True)

    status: TheirStatus
    response_ids: list[int]
    seq_staleness: int = 0
    response_model_steps: list[int] | None = None
    prompt_ids: list[int] | None = None
    reward: float | None = None
    mm_info: Any = None


class Arrays:
    def __init__(self, status, response_ids, response_model_steps=None, **others):
        self.status = status
        self.response_ids = np.array(response_ids)
        self.response_model_steps = np.array(response_model_steps or [], np.int64)
        self.seq_staleness = others.get("seq_staleness", 0)
        self.mm_info = others.get("mm_info")


def dict_rollout(**fields):
    return DictRollout({"seq_staleness": 0, "response_model_steps": None, **fields})


KINDS = {
    "Rollout": Rollout,
    "dataclass": Dataclass,
    "slots": Slots,
    "pydantic": Pydantic,
    "arrays": Arrays,
    "dict": dict_rollout,
}


def status_of(item: Any) -> str:
    """Return the status as its value, whatever enum or text the object holds."""
    return getattr(item.status, "value", item.status)


def fields_of(item: Any) -> dict[str, Any]:
    """Return all that an object holds: its attributes or slots, or the keys of its dict."""
    if isinstance(item, DictRollout):
        return dict(item.data)
    slots = [name for cls in type(item).__mro__ for name in getattr(cls, "__slots__", ())]
    found = {name: getattr(item, name) for name in slots if not name.startswith("__") and hasattr(item, name)}
    return {**found, **getattr(item, "__dict__", {})}
