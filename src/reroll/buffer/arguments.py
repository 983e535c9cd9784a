"""Checks of what callers hand in: each returns the value in its plain form, or raises InvalidArgument."""

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any, Final

import numpy as np

from reroll.engine.task import EXPIRABLE, STATUS_CODE, STATUSES
from reroll.errors import InvalidArgument
from reroll.query import Query
from reroll.rollout import Status, check_threshold

Where = Mapping[str, Any] | Query
"""A query, written as a dict or parsed."""


_BOUND: Final = 1 << 62


def checked_task(task_name: object) -> str:
    if not isinstance(task_name, str) or not task_name:
        raise InvalidArgument(f"task_name must be a text that is not empty, not {task_name!r}")
    return task_name


def checked_count(name: str, value: object) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise InvalidArgument(f"{name} must be a whole number, not {value!r}")
    if abs(int(value)) >= _BOUND:
        raise InvalidArgument(f"{name} must be a whole number of less than 63 bits, not {value!r}")
    return int(value)


def checked_sizes(sizes: object) -> dict[str, int]:
    """Return how many groups are wanted by task; zero or less means none."""
    if not isinstance(sizes, Mapping):
        raise InvalidArgument(f"task_batch_sizes must be a mapping of task names to numbers, not {sizes!r}")
    return {
        checked_task(name): n
        if type(n) is int and abs(n) < _BOUND
        else checked_count(f"batch size of {name!r}", n)
        for name, n in sizes.items()
    }


def checked_step(name: str, step: object) -> int | None:
    if step is None:
        return None
    value = checked_count(name, step)
    if value < 0:
        raise InvalidArgument(f"{name} must be at least 0, not {value}")
    return value


def checked_thresholds(name: str, thresholds: object, *, optional: bool = False) -> dict[str, int | None]:
    """Return the thresholds by task; None, where it is allowed, is none."""
    if not isinstance(thresholds, Mapping):
        raise InvalidArgument(f"{name} must be a mapping of task names to numbers, not {thresholds!r}")
    for task, threshold in thresholds.items():
        checked_task(task)
        if threshold is None and not optional:
            raise InvalidArgument(
                f"{name}[{task!r}] must be a number; leave the task out if nothing is to expire"
            )
        check_threshold(f"{name}[{task!r}]", threshold)
    return dict(thresholds)


def checked_flags(name: str, flags: object) -> dict[str, bool]:
    if not isinstance(flags, Mapping) or not all(isinstance(flag, bool) for flag in flags.values()):
        raise InvalidArgument(f"{name} must be a mapping of task names to True or False, not {flags!r}")
    return {checked_task(task): flag for task, flag in flags.items()}


def checked_names(name: str, values: object) -> list[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidArgument(f"{name} must be a list, such as [{values!r}]")
    return list(values)


def checked_id(name: str, value: object) -> Any:
    try:
        hash(value)
    except TypeError:
        raise InvalidArgument(f"{name} must be hashable, such as a text or a number, not {value!r}") from None
    return value


def checked_statuses(statuses: Iterable[Any]) -> tuple[int, ...]:
    """Return the codes of statuses whose groups may expire."""
    wanted = checked_names("statuses", statuses)
    codes = tuple(dict.fromkeys(STATUS_CODE[Status.of(status)] for status in wanted))
    for code in codes:
        if code not in EXPIRABLE:
            allowed = ", ".join(STATUSES[other].value for other in EXPIRABLE)
            raise InvalidArgument(f"{STATUSES[code].value} groups never expire; statuses may be: {allowed}")
    return codes


def checked_uids(uids: object) -> list[int]:
    if isinstance(uids, str | bytes | Mapping) or not isinstance(uids, Iterable):
        raise InvalidArgument(f"uids must be a list of uids, not {uids!r}")
    return [checked_count("uid", uid) for uid in uids]


def checked_mix(weights: Mapping[Any, Any]) -> dict[str, float]:
    """Return the weight of each task of a mix. Raises InvalidArgument."""
    found = {}
    for task, weight in weights.items():
        try:
            found[checked_task(task)] = float(weight)
        except (TypeError, ValueError, OverflowError):
            raise InvalidArgument(f"weight of task {task!r} must be a number, not {weight!r}") from None
    if not found or not all(0 <= weight <= 1e100 for weight in found.values()) or not sum(found.values()) > 0:
        raise InvalidArgument(
            f"a mix of tasks needs finite weights of at least 0, one of them positive, not {dict(weights)!r}"
        )
    return found


def task_shares(n: int, weights: Mapping[str, float], coin: Callable[[], float]) -> dict[str, int]:
    """Divide n among tasks by weight; `coin`, from 0 to 1, rounds the shares that are no whole numbers.

    Each count differs from its share by less than 1, the counts sum to n, and their expectations are the shares.
    """
    total = math.fsum(weights.values())
    ends = [round(n * end / total, 9) for end in accumulate(weights.values())]
    ends[-1] = n
    shift = 0.0 if all(end == int(end) for end in ends) else coin()
    floors = [0, *(math.floor(end + shift) for end in ends[:-1]), n]
    return {task: floors[i + 1] - floors[i] for i, task in enumerate(weights)}
