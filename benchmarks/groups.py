"""Groups of rollouts to measure with: as plain objects that hold lists, and as Rollout.

Token ids, log-probs and masks are shared by all groups, since no call of a buffer looks into them; versions are each
rollout's own, since refreshes and puts do. So 10k groups of 8 x (256 + 1024) tokens fit many times over. The memory of
groups that share nothing is measured in group_memory.py.
"""

import copy
import gc
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from reroll import Rollout

TASK = "math"
MEMBERS = 8
VERSIONS = 4
"""Groups of a filled buffer are of the versions 1 to 4, in turn."""

T = TypeVar("T")
Group = list[Any]


class Shape(NamedTuple):
    """Tokens of one rollout."""

    prompt: int
    response: int

    @property
    def group_tokens(self) -> int:
        return MEMBERS * (self.prompt + self.response)

    def __str__(self) -> str:
        return f"{MEMBERS} x ({self.prompt} + {self.response})"


LONG, SHORT, WORKLOAD_R = Shape(256, 1024), Shape(16, 32), Shape(256, 4096)


@dataclass(slots=True)
class Listed:
    """A rollout of somebody else: plain attributes and lists."""

    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float] | None
    response_mask: list[int]
    response_model_steps: list[int]
    reward: float
    status: str = "completed"
    seq_staleness: int = 0
    group_uid: int | None = None


def listed_maker(shape: Shape) -> Callable[[], Group]:
    """Return what makes groups of such objects."""
    prompt, response = list(range(1000, 1000 + shape.prompt)), list(range(1000, 1000 + shape.response))
    logprobs, mask = [-0.5] * shape.response, [1] * shape.response
    return lambda: [Listed(prompt, response, logprobs, mask, [], float(i % 2)) for i in range(MEMBERS)]


def rollout_maker(shape: Shape) -> Callable[[], Group]:
    """Return what makes groups of Rollouts."""
    templates = [
        Rollout(
            prompt_ids=np.arange(shape.prompt, dtype=np.int32),
            response_ids=np.arange(shape.response, dtype=np.int32),
            logprobs=np.full(shape.response, -0.5, np.float32),
            response_mask=np.ones(shape.response, np.uint8),
            reward=float(i % 2),
            status="completed",
        )
        for i in range(MEMBERS)
    ]
    return lambda: list(map(copy.copy, templates))


def forget_versions(group: Group) -> Group:
    """Let a group be as it was before it was stamped."""
    for rollout in group:
        rollout.response_model_steps = []
    return group


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that has nothing to wait for, without the cost of a loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("this call had to wait")


def fill(buffer: Any, make: Callable[[], Group], groups: int, **options: Any) -> Any:
    """Put so many groups; several versions, one after another. The garbage collector rests."""
    gc.disable()
    try:
        for number in range(groups):
            drive(
                buffer.put(
                    make(),
                    TASK,
                    model_step=1 + number % VERSIONS,
                    current_train_step=VERSIONS + 1,
                    **{name: value(number) for name, value in options.items()},
                )
            )
    finally:
        gc.enable()
    return buffer
