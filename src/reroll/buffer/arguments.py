"""Checks of what callers hand in: each returns the value in its plain form, or raises InvalidArgument."""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np

from reroll.engine.task import EXPIRABLE, STATUS_CODE, STATUSES
from reroll.errors import InvalidArgument, shown
from reroll.query import Query, Scalar
from reroll.rollout import Status, check_threshold
from reroll.rollout.adapters import read_integer, read_number

Where = Mapping[str, Any] | Query
"""A query, written as a dict or parsed."""


_BOUND: Final = 1 << 62
_LONGEST_NAME: Final = 1_000
_LONGEST_READER: Final = 200
_LARGEST_TAG: Final = 1 << 1_000  # those much longer cannot be printed, and so not be written
_LISTED: Final = 20
"""Names in a message."""


def checked_task(task_name: object) -> str:
    if not isinstance(task_name, str) or not task_name:
        raise InvalidArgument(f"task_name must be a non-empty string, not {shown(task_name)}")
    if len(task_name) > _LONGEST_NAME:
        raise InvalidArgument(
            f"task_name must have at most {_LONGEST_NAME} characters, not {len(task_name)}: {shown(task_name)}"
        )
    return checked_text("task_name", task_name)


def unknown_task(name: str, known: Sequence[str]) -> str:
    """Return the known tasks, and the one that is most similar to an unknown name."""
    close = difflib.get_close_matches(name, known, n=1)
    names = ", ".join(map(repr, known[:_LISTED])) + (", ..." if len(known) > _LISTED else "")
    return f"known tasks: {names or 'none'}" + (f"; did you mean {close[0]!r}?" if close else "")


def checked_text(name: str, value: str) -> str:
    """Return a text as a plain str; lone surrogates, which no file can hold, are refused."""
    plain = value if type(value) is str else str.__str__(value)
    if not plain.isascii():
        try:
            plain.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(
                f"{name} must be valid Unicode: {shown(value)}; decode it with errors='replace'"
            ) from None
    return plain


def checked_reader(reader: object) -> str | None:
    """Return the name of a reader of metrics."""
    if reader is None:
        return None
    if not isinstance(reader, str) or not 0 < len(reader) <= _LONGEST_READER:
        raise InvalidArgument(
            f"reader must be None or a name of 1 to {_LONGEST_READER} characters, not {shown(reader)}"
        )
    return checked_text("reader", reader)


def checked_count(name: str, value: object) -> int:
    if type(value) is int and -_BOUND < value < _BOUND:
        return value
    return read_integer(name, value)


def checked_size(name: str, value: object) -> int:
    if (size := checked_count(name, value)) < 0:
        raise InvalidArgument(f"{name} must be an integer of at least 0, not {size}")
    return size


def checked_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise InvalidArgument(f"{name} must be True or False, not {shown(value)}")
    return bool(value)


def checked_choice(name: str, value: object, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise InvalidArgument(f"{name} must be one of {', '.join(choices)}, not {shown(value)}")
    return str.__str__(value)


def checked_path(path: object) -> Path:
    """Return the directory that an argument names."""
    try:
        directory = Path(path)  # type: ignore[arg-type]
        str(directory).encode()
        if str(path) and "\0" not in str(directory):
            with suppress(PermissionError):
                directory.exists()  # raises for names that are too long
            return directory
    except (TypeError, ValueError, OSError):
        pass
    raise InvalidArgument(f"path must name a directory, not {shown(path)}")


def checked_tags(tags: object) -> dict[str, Scalar] | None:
    """Return names and values to query by, as plain values."""
    if tags is None:
        return None
    if not isinstance(tags, Mapping):
        raise InvalidArgument(f"tags must be a mapping of names to values, not {shown(tags)}")
    return {_tag_name(name): _tag_value(name, value) for name, value in tags.items()}


def _tag_name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidArgument(f"tags: a name must be a string, not {shown(name)}")
    return str.__str__(name)


def _tag_value(name: str, value: object) -> Scalar:
    if value is None or isinstance(value, bool | np.bool_):
        return value if value is None else bool(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and abs(value) < _LARGEST_TAG:
        return int(value)
    if hasattr(value, "__index__"):
        return read_integer(f"tags: {shown(name)}", value)
    number = read_number(value)
    if number is None:
        raise InvalidArgument(
            f"tags: {shown(name)} must be a string, a number, a boolean or None, not {shown(value)}"
        )
    return number


def checked_sizes(sizes: object) -> dict[str, int]:
    """Return how many groups are wanted by task; zero or less means none."""
    if not isinstance(sizes, Mapping):
        raise InvalidArgument(
            f"task_batch_sizes must be a mapping of task names to numbers, not {shown(sizes)}"
        )
    return {
        checked_task(name): n
        if type(n) is int and abs(n) < _BOUND
        else checked_count(f"batch size of {shown(name)}", n)
        for name, n in sizes.items()
    }


def checked_step(name: str, step: object) -> int | None:
    if step is None:
        return None
    value = checked_count(name, step)
    if value < 0:
        raise InvalidArgument(f"{name} must be at least 0, not {value}")
    return value


def required_step(name: str, step: object, meaning: str) -> int:
    """Return a step that must not be None."""
    if (value := checked_step(name, step)) is None:
        raise InvalidArgument(f"{name} is required: {meaning}")
    return value


def checked_thresholds(name: str, thresholds: object, *, optional: bool = False) -> dict[str, int | None]:
    """Return the thresholds by task; None, where it is allowed, is none."""
    if not isinstance(thresholds, Mapping):
        raise InvalidArgument(f"{name} must be a mapping of task names to numbers, not {shown(thresholds)}")
    found = {
        checked_task(task): check_threshold(f"{name}[{shown(task)}]", n) for task, n in thresholds.items()
    }
    for task, threshold in found.items():
        if threshold is None and not optional:
            raise InvalidArgument(
                f"{name}[{task!r}] must be a number; leave the task out if nothing is to expire"
            )
    return found


def checked_flags(name: str, flags: object) -> dict[str, bool]:
    if not isinstance(flags, Mapping):
        raise InvalidArgument(f"{name} must be a mapping of task names to True or False, not {shown(flags)}")
    return {checked_task(task): checked_flag(f"{name}[{shown(task)}]", flag) for task, flag in flags.items()}


def checked_names(name: str, values: object) -> list[Any]:
    if isinstance(values, str | bytes):
        raise InvalidArgument(f"{name} must be a list, such as [{shown(values)}]")
    return _listed(name, values)


def _listed(name: str, values: object) -> list[Any]:
    try:
        return list(values)  # type: ignore[call-overload, no-any-return]
    except Exception as error:  # noqa: BLE001  (whatever iterating it raises, such as for an array without dimensions)
        raise InvalidArgument(f"{name} must be a list, not {shown(values)} ({error})") from None


def checked_entries(name: str, values: object, count: int) -> list[Any]:
    """Return the entries of an argument with one entry for each group; None: None for all."""
    if values is None:
        return [None] * count
    entries = checked_names(name, values)
    if len(entries) != count:
        raise InvalidArgument(
            f"{name} has {len(entries)} entries for {count} groups; give one for each group"
        )
    return entries


def checked_columns(columns: object) -> list[str] | None:
    """Return the names of further columns to read; None: all."""
    if columns is None:
        return None
    names = checked_names("columns", columns)
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgument(f"columns must be a list of names, not of {shown(name)}")
    return [str.__str__(name) for name in names]


def checked_id(name: str, value: object) -> Any:
    if type(value) is str or type(value) is int or value is None:
        return value
    try:
        hash(value)
    except Exception:  # noqa: BLE001  (whatever its class raises)
        raise InvalidArgument(
            f"{name} must be hashable, such as a text or a number, not {shown(value)}"
        ) from None
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
    if isinstance(uids, str | bytes | Mapping):
        raise InvalidArgument(f"uids must be a list of uids, not {shown(uids)}")
    return [checked_count("uid", uid) for uid in _listed("uids", uids)]


def checked_mix(weights: Mapping[Any, Any]) -> dict[str, float]:
    """Return the weight of each task of a mix. Raises InvalidArgument."""
    found = {}
    for task, weight in weights.items():
        number = read_number(weight)
        if number is None:
            raise InvalidArgument(f"weight of task {shown(task)} must be a number, not {shown(weight)}")
        found[checked_task(task)] = number
    if not found or not all(0 <= weight <= 1e100 for weight in found.values()) or not sum(found.values()) > 0:
        raise InvalidArgument(
            f"a mix of tasks needs finite weights of at least 0, one of them positive, not {shown(dict(weights))}"
        )
    return found


def batch_sizes(n: object, task_name: object, coin: Callable[[], float]) -> dict[str, int]:
    """Return how many groups `sample(n, task_name)` draws, by task; `coin`, from 0 to 1, rounds fractional shares."""
    count = checked_count("n", n)
    if count < 1:
        raise InvalidArgument(f"n must be at least 1, not {n}")
    if not isinstance(task_name, Mapping):
        return {checked_task(task_name): count}
    return task_shares(count, checked_mix(task_name), coin)


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
