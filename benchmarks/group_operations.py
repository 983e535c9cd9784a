"""Every call of a ReplayBuffer that the scanning design has too, at several sizes, side by side.

Both get objects that hold lists (`Listed`); reroll once more with Rollouts. All cases but the last leave their buffer as
large as it was: what was taken or put leaves or comes back, outside of the timing.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from groups import (
    LONG,
    SHORT,
    TASK,
    VERSIONS,
    Group,
    Shape,
    drive,
    fill,
    forget_versions,
    listed_maker,
    rollout_maker,
)
from measure import Case, Timing, interleave, per_operation
from reroll import AsyncReplayBufferConfig
from scanning_groups import ScanningGroups

BATCH = 64
NEVER = 10**9

LISTS, ROLLOUTS, SCANNING = "reroll", "reroll, Rollout", "scanning"
COUNT, NOTHING, TAKE = "count", "get(1), nothing found", "get(64)"
REFRESH, EXPIRE, TAKE_EXPIRED = "refresh, nothing expires", "refresh, all expire", "get of all expired"
PUT, PUT_VERSIONS, PUT_RESUMED = "put", "put, with versions", "put, with versions, resumed"


class Size(NamedTuple):
    """So many groups of a shape."""

    groups: int
    shape: Shape

    def __str__(self) -> str:
        return f"{self.groups // 1000}k{'' if self.shape is LONG else ' short'}"


SMALL, MIDDLE = Size(1_000, LONG), Size(10_000, LONG)
MIDDLE_SHORT, LARGE_SHORT = Size(10_000, SHORT), Size(100_000, SHORT)


class Measured(NamedTuple):
    """One operation of one design at one size; seconds are those of a call, or of a group where all groups pass."""

    operation: str
    design: str
    size: Size


class Subject:
    """A filled buffer, and the step that its trainer is at."""

    def __init__(self, design: str, size: Size) -> None:
        self.size = size
        self.steps = count(VERSIONS + 2)
        self.make = rollout_maker(size.shape) if design == ROLLOUTS else listed_maker(size.shape)
        self.buffer: Any = ScanningGroups() if design == SCANNING else AsyncReplayBufferConfig(seed=0).build()
        self.repeats = 1 if design == SCANNING else 200  # of calls that change nothing
        fill(self.buffer, self.make, size.groups)

    def cases(self) -> dict[str, Case]:
        buffer = self.buffer
        return {
            COUNT: lambda: per_operation(lambda: drive(buffer.count(TASK, "completed")), self.repeats),
            NOTHING: lambda: per_operation(lambda: drive(buffer.get(1, TASK, "aborted")), self.repeats),
            TAKE: self._take_case,
            REFRESH: lambda: per_operation(lambda: self._refresh(NEVER), self.repeats),
            PUT: self._put_case(lambda _: None),
            PUT_VERSIONS: self._put_case(forget_versions, model_step=3, current_train_step=NEVER),
            PUT_RESUMED: self._put_case(_half_stamped, model_step=3, current_train_step=NEVER),
        }

    def expire_all(self) -> tuple[float, float]:
        """Let all groups expire, and take them out; return seconds a group of both."""
        groups = self.size.groups
        refresh = per_operation(lambda: self._refresh(1)) / groups
        taken: list[Group] = []
        take = per_operation(lambda: taken.extend(drive(self.buffer.get(groups, TASK, "expired"))))
        if len(taken) != groups or any(len(rollout.response_ids) for rollout in taken[-1]):
            raise AssertionError("not all groups expired")
        return refresh, take / groups

    def _refresh(self, threshold: int) -> None:
        drive(
            self.buffer.refresh_staleness(
                task_stale_thresholds={TASK: threshold}, current_train_step=next(self.steps)
            )
        )

    def _take_case(self) -> float:
        taken: list[Group] = []
        seconds = per_operation(lambda: taken.extend(drive(self.buffer.get(BATCH, TASK, "completed"))))
        for group in taken:
            drive(self.buffer.put(group, TASK))
        return seconds

    def _put_case(self, prepare: Callable[[Group], object], **options: Any) -> Case:
        groups = [self.make() for _ in range(16)]

        def case() -> float:
            for group in groups:
                prepare(group)
            waiting, uids = iter(groups), []
            step = {} if "current_train_step" not in options else {"current_train_step": next(self.steps)}
            seconds = per_operation(
                lambda: uids.append(drive(self.buffer.put(next(waiting), TASK, **{**options, **step}))),
                len(groups),
            )
            drive(self.buffer.delete(uids))
            return seconds

        return case


def measure_operations(
    sizes: Sequence[Size], rounds: int, expire_rounds: Mapping[Size, int]
) -> dict[Measured, Timing]:
    """Time all operations; sizes and designs take turns."""
    subjects = {
        (design, size): Subject(design, size) for size in sizes for design in (LISTS, ROLLOUTS, SCANNING)
    }
    gc.collect()
    gc.freeze()  # so that a collection between two blocks does not walk millions of rollouts
    cases: dict[Measured, Case] = {}
    for (design, size), subject in subjects.items():
        cases |= {Measured(name, design, size): case for name, case in subject.cases().items()}
    results: dict[Measured, Timing] = {}
    for operation in dict.fromkeys(key.operation for key in cases):
        results |= interleave(
            {key: case for key, case in cases.items() if key.operation == operation}, rounds
        )
    cases.clear()
    results |= _measure_expiry(subjects, expire_rounds)
    gc.unfreeze()
    return results


def _measure_expiry(
    subjects: dict[tuple[str, Size], Subject], rounds: Mapping[Size, int]
) -> dict[Measured, Timing]:
    """Use the buffers up; for more than one round they are filled anew."""
    seconds: dict[Measured, list[float]] = {}
    gc.disable()
    try:
        for size in dict.fromkeys(size for _, size in subjects):
            for number in range(rounds[size]):
                for design in (LISTS, SCANNING, ROLLOUTS):
                    subject = subjects.pop((design, size)) if number == 0 else Subject(design, size)
                    gc.disable()  # filling has put it to work again
                    for operation, taken in zip((EXPIRE, TAKE_EXPIRED), subject.expire_all(), strict=True):
                        seconds.setdefault(Measured(operation, design, size), []).append(taken)
                    del subject
    finally:
        gc.enable()
    return {key: Timing.of(values) for key, values in seconds.items()}


def _half_stamped(group: Group) -> None:
    """Let the first half of each response be of an older version."""
    for rollout in group:
        rollout.response_model_steps = [2] * (len(rollout.response_ids) // 2)
