"""Checks of what was written down, when it comes back: whoever can write a file can write its checksums as well.

So types and ranges of all that is read are checked, as far as what follows depends on them. What is not as a buffer writes
it is CorruptData with the file and the remedy; nothing that is read is ever run.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import msgspec
import numpy as np
from msgspec import Meta

from reroll.buffer.group import BOUND, Group, Integer, Whole
from reroll.buffer.leases import Held
from reroll.engine.ledger import EXITS, PUT
from reroll.engine.rows import NO_VERSION
from reroll.engine.state import FORMAT
from reroll.engine.task import STATUSES
from reroll.errors import CorruptData, InvalidConfig, StoreError, UnsupportedFormat
from reroll.query import Scalar
from reroll.rollout.summary import check
from reroll.telemetry.counters import TaskCounters

KIND: Final = "replay buffer"

_BITS: Final = 64


class _Counters(TypedDict):
    inserts: Integer
    samples: Integer
    deletes: Integer
    forgone: float


class _Pool(TypedDict):
    sampler: dict[str, Any]
    remover: dict[str, Any] | None


class _Limiter(TypedDict):
    set: dict[str, Any]
    instead_of: dict[str, Any] | None


class _Task(TypedDict):
    sampler: str
    remover: str | None
    limiter: NotRequired[_Limiter | None]
    counters: _Counters
    ledger: dict[str, tuple[Integer, Integer, Integer, Integer]]
    step: Whole | None
    final: Whole | None
    rewound: Whole
    admission: tuple[Whole, Whole, Whole]
    pools: Annotated[list[_Pool], Meta(min_length=len(STATUSES), max_length=len(STATUSES))]


class _Random(TypedDict):
    state: str
    inc: str
    has_uint32: Literal[0, 1]
    uinteger: Annotated[int, Meta(ge=0, lt=1 << 32)]


class _Engine(TypedDict):
    format: int
    last_uid: Whole
    last_tick: Whole
    last_use: Whole
    advanced: tuple[Whole, Whole | None]
    version: NotRequired[Whole | None]
    rng: _Random
    tasks: dict[str, _Task]


class _Rules(TypedDict):
    thresholds: dict[str, tuple[Whole | None, Whole | None, bool]]
    refreshes: dict[str, Whole]


class _Small(TypedDict):
    kind: str
    engine: _Engine
    flow: dict[str, TaskCounters]
    rules: _Rules
    last_lease: Whole
    last_reservation: Whole
    returned: list[Whole]
    name: tuple[str, dict[str, tuple[Whole, Whole]]]


_Use = tuple[str, Whole, list[Whole], list[Whole], list[Whole]]
_read_use = msgspec.msgpack.Decoder(_Use).decode
_read_held = msgspec.msgpack.Decoder(Held | None).decode
_read_uid = msgspec.msgpack.Decoder(Whole | None).decode


@contextmanager
def trusting_nothing(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong with what a file says into CorruptData, or UnsupportedFormat, with its path."""
    try:
        yield
    except (InvalidConfig, StoreError):
        raise
    except (CorruptData, UnsupportedFormat) as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error
    except Exception as error:
        raise CorruptData(
            f"{path} is not what a buffer writes ({type(error).__name__}: {error}): it was altered, with its checksums; "
            "restore it from a copy"
        ) from error


def small_state(blob: bytes) -> dict[str, Any]:
    """Return the small state as plain values."""
    small = msgspec.msgpack.decode(blob)
    if not isinstance(small, dict) or small.get("kind") != KIND:
        raise CorruptData("the state is not that of a replay buffer; name what a buffer was saved to")
    engine = small.get("engine")
    version = engine.get("format") if isinstance(engine, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise UnsupportedFormat(
            f"its state has format {version}, and this reroll reads {FORMAT}: upgrade reroll"
        )
    if version != FORMAT:
        raise CorruptData(
            f"its state has format {version!r}, and {FORMAT} is written; restore it from a copy"
        )
    checked = msgspec.convert(small, _Small)
    for flow in checked["flow"].values():
        if len(flow.produced.bits) != _BITS or len(flow.trained.bits) != _BITS:
            raise CorruptData("its histograms are not those of a buffer; restore it from a copy")
    for task in checked["engine"]["tasks"].values():
        if task["ledger"].keys() != {PUT, *EXITS}:
            raise CorruptData("its ledger is not that of a buffer; restore it from a copy")
        for pool in task["pools"]:
            for selector in (pool["sampler"], pool["remover"] or {}):
                _check_selector(selector, checked["engine"]["last_uid"])
    return small


def _check_selector(state: Mapping[str, Any], last_uid: int) -> None:
    for name, value in state.items():
        if isinstance(value, dict):
            _check_selector(value, last_uid)
        # No more rows than were ever put had to find room at once.
        bound = 4 * (last_uid + _BITS) if name.endswith("_capacity") else BOUND
        if isinstance(value, int) and abs(value) >= bound and value != NO_VERSION:
            raise CorruptData(f"a selector has the {name} {value}; restore it from a copy")


def use(record: bytes, tasks: Iterable[str]) -> tuple[str, int, list[np.ndarray[Any, Any]]]:
    """Return task, training step, and the columns of a use."""
    task_name, step, *parts = _read_use(record)
    if task_name not in tasks or len(set(map(len, parts))) != 1:
        raise CorruptData(f"a use of task {task_name!r} is not what a buffer writes")
    return task_name, step, [np.array(part, np.int64) for part in parts]


def held(key: object, record: bytes, last: int) -> tuple[int, Held | None]:
    """Return the number of a lease, and the lease; None: it was acknowledged."""
    found = _read_held(record)
    if not isinstance(key, int) or not 0 < key <= last:
        raise CorruptData(f"a lease has the number {key!r}")
    if found is not None and not 0 <= found.status < len(STATUSES):
        raise CorruptData(f"lease {key} has the status {found.status}")
    return key, found


def put_uid(record: bytes) -> int | None:
    """Return what a put returned."""
    uid: int | None = _read_uid(record)
    return uid


def uid(key: object) -> int:
    """Return the uid of a group that was given up."""
    if not isinstance(key, int):
        raise CorruptData(f"a group that was given up has the uid {key!r}")
    return key


def tags(text: str) -> dict[str, Scalar]:
    """Return the tags of a row."""
    return msgspec.convert(json.loads(text), dict[str, Scalar])  # msgspec's own reader knows no NaN


_LARGEST_OF: Final = {
    **dict.fromkeys(("uses", "attempts", "deliveries", "pending", "num_rollouts"), (1 << 31) - 1),
    **dict.fromkeys(("sampler_position", "remover_position"), (1 << 31) - 1),
    "trained": 1,
}
_SIGNED: Final = frozenset({"staleness", "version", "newest", "trainable", "used_at", "patched_at"})
_FREE: Final = frozenset({"reward_mean", "reward_std"})


def check_rows(columns: Mapping[str, Any], last_uid: int, leases: Iterable[Held | None]) -> None:
    """Raise CorruptData if numbers of rows are none that a buffer writes."""
    uids = columns["uid"]
    if not len(uids):
        return
    if uids.dtype.kind != "i" or uids.min() < 1 or uids.max() > last_uid:
        raise CorruptData(f"its rows have uids that are not among 1 to {last_uid}")
    for name, column in columns.items():
        if name in _FREE or not isinstance(column, np.ndarray):
            continue
        if name == "priority":
            is_right = np.isfinite(column) & (column >= 0)
        else:
            largest = _LARGEST_OF.get(name, BOUND)
            is_right = (column <= largest) & (column >= (-largest if name in _SIGNED else 0))
            if name in _SIGNED:
                is_right |= column == NO_VERSION
        if not is_right.all():
            uid = uids[np.flatnonzero(~is_right)[0]]
            raise CorruptData(f"the row of group {uid} has a {name} that no buffer writes")
    lent = Counter(one.uid for lease in leases if lease is not None for one in lease.lent)
    for uid, pending in zip(uids.tolist(), columns["pending"].tolist(), strict=True):
        if pending > lent[uid]:
            raise CorruptData(f"the row of group {uid} says that it is lent, and no lease does")


def check_group(group: Group) -> None:
    """Raise CorruptData if what is known of a group is nothing that a buffer writes; its numbers were read as such."""
    count = len(group.versions)
    if (
        not count
        or len(group.trainable) != count
        or len(group.applied.staleness or group.versions) != count
        or not (group.emptied or {}).keys() <= set(range(count))
        or max(group.measure.bits, default=0) >= _BITS
    ):
        raise CorruptData(f"what is known of group {group.uid} is nothing that a buffer writes")


def rollouts(decoded: Any, group: Group) -> list[Any]:
    """Return the rollouts of a group, as they were decoded; CorruptData if they are no rollouts, or others."""
    expected = len(group.versions)
    if not isinstance(decoded, list) or len(decoded) != expected:
        what = f"{len(decoded)} rollouts" if isinstance(decoded, Sequence) else type(decoded).__name__
        raise CorruptData(f"{expected} rollouts were expected, not {what}")
    try:
        # As they were put, without what the put did to them: tokens may lack a version until that is done again.
        check(decoded, model_step=group.applied.model_step)
    except Exception as error:
        raise CorruptData(f"these are no rollouts: {error}") from error
    return decoded
