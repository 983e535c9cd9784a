"""ReadOnlyBuffer: a saved or durable buffer, opened for reading, also while another process writes it.

It needs no configuration: samplers, limits and rules only matter for changes.
"""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Self

from reroll.buffer.blocking import under
from reroll.buffer.buffer import ReplayBuffer, runtime_of
from reroll.buffer.group import Group
from reroll.buffer.groups import Groups
from reroll.buffer.journal import Columns, Fetched
from reroll.buffer.plain_calls import blocking
from reroll.buffer.put import GroupRules
from reroll.buffer.records import read_columns, read_payload, read_state
from reroll.buffer.references import OBJECT, Objects
from reroll.engine.engine import Engine
from reroll.engine.ledger import LedgerReport
from reroll.engine.selectors.specs import Fifo
from reroll.engine.state import restore
from reroll.engine.task import TaskSettings
from reroll.errors import CorruptData
from reroll.group import RolloutGroup
from reroll.store import Saved, open_saved
from reroll.telemetry.health import HealthMonitor
from reroll.telemetry.stats import DiskUse
from reroll.waiting import Guard, ThreadWaits

_SETTINGS = TaskSettings(sampler=Fifo())


class _SavedPayloads:
    """Reads rollouts from a file, and unloads them again: those of a store may not fit into memory."""

    resident_bytes = 0

    def __init__(self, saved: Saved, *, allow_pickle: bool) -> None:
        self._saved = saved
        self._allow_pickle = allow_pickle

    async def look(self, groups: Sequence[Group], columns: Columns = None) -> Fetched:
        parts: dict[int, RolloutGroup] = {}
        objects = Objects(lambda number: self._saved.record(OBJECT, number), allow_pickle=self._allow_pickle)
        for uid, group in sorted({group.uid: group for group in groups}.items()):
            part = None
            if columns is not None:
                part = read_columns(
                    self._saved, group, columns, refs=objects, allow_pickle=self._allow_pickle
                )
            if part is not None:
                parts[uid] = part
                continue
            (blob,) = self._saved.payloads([uid])
            found = read_payload(blob, group, self._saved.path, refs=objects, allow_pickle=self._allow_pickle)
            if isinstance(found, CorruptData):
                raise CorruptData(
                    f"group {uid} in {self._saved.path} is corrupt ({found}); leave it out, or restore the file from a backup"
                ) from found
            group.load(found)
        return Fetched(set(), parts)

    def settle(self, groups: Iterable[Group]) -> None:
        for group in groups:
            group.unload()

    def use(self) -> DiskUse:
        return DiskUse.of(self._saved.path)


def _load(saved: Saved, waits: ThreadWaits, *, allow_pickle: bool) -> ReplayBuffer:
    """Return a buffer over a file; only verbs that read may be called."""
    engine = Engine(lambda _: _SETTINGS)
    groups = Groups(engine, lambda _: GroupRules(), None)
    buffer = ReplayBuffer(groups, waits, allow_pickle=allow_pickle)
    memory = read_state(saved, runtime_of(buffer).entries)
    if memory is not None:  # a durable buffer into which nothing was put has no state yet
        restore(engine, _without_selectors(memory.engine))
        groups.restore(memory.groups)
        groups.counters.restore(memory.small["flow"])
    groups.counters.started = None  # no time passes in a file, so it has no rates
    runtime = runtime_of(buffer)
    runtime.payloads = _SavedPayloads(saved, allow_pickle=allow_pickle)
    runtime.health = HealthMonitor(logs=False)
    return buffer


class ReadOnlyBuffer:
    """A saved or durable buffer at the moment at which it was opened; open it again to see later changes.

    It has the verbs of `BlockingReplayBuffer` that only read. Rollouts are read from the file on demand. Groups that are checked
    out, leased or uncommitted are included; Ray references are replaced by their objects. Close it: while it is open, the log of
    a store in use grows.
    """

    def __init__(self, saved: Saved, *, allow_pickle: bool = False) -> None:
        self._guard = Guard("the read-only buffer")
        waits = ThreadWaits(self._guard)
        self._run = under(self._guard, waits)
        self._saved = saved
        self._target = _load(saved, waits, allow_pickle=allow_pickle)

    count_where = blocking(ReplayBuffer.count_where)
    query = blocking(ReplayBuffer.query)
    count = blocking(ReplayBuffer.count)
    count_statuses = blocking(ReplayBuffer.count_statuses)
    peek = blocking(ReplayBuffer.peek)
    ledger = blocking(ReplayBuffer.ledger)
    stats = blocking(ReplayBuffer.stats)
    metrics = blocking(ReplayBuffer.metrics)
    to_arrow = blocking(ReplayBuffer.to_arrow)
    to_pandas = blocking(ReplayBuffer.to_pandas)

    def close(self) -> None:
        """Close the file; every later call raises Closed."""
        self._run(self._target.close())
        self._saved.close()

    def __len__(self) -> int:
        with self._guard:
            return len(self._target)

    def __bool__(self) -> bool:
        return True  # also when it is empty

    def __repr__(self) -> str:
        return f"<ReadOnlyBuffer of {len(self)} groups in {self._saved.path}>"

    def _repr_html_(self) -> str:
        return LedgerReport(self.ledger()).to_html(repr(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_readonly(path: str | PathLike[str], *, allow_pickle: bool = False) -> ReadOnlyBuffer:
    """Open a saved buffer, or the store of a durable buffer at rest or in use, for reading.

    Classes in rollouts must be registered only where `peek` or `payloads` reads them.

    Args:
        path: the directory, or the file in it.
        allow_pickle: whether objects of unregistered types are unpickled, which runs code.

    Returns:
        A buffer that shows the moment of this call; close it when done.

    Raises:
        SavedNotFound: there is no file.
        CorruptData: the file was altered.
        UnsupportedFormat: the file has another format.
        StoreFailed: the file cannot be read.

    """
    saved = open_saved(path)
    try:
        return ReadOnlyBuffer(saved, allow_pickle=allow_pickle)
    except BaseException:
        saved.close()
        raise


def _without_selectors(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine's state for tasks of `_SETTINGS`, whatever they were sampled and evicted by."""
    plain = {"sampler": Fifo.type, "remover": None}
    tasks = {
        name: {**task, **plain, "pools": [{"sampler": {}, "remover": None} for _ in task["pools"]]}
        for name, task in state["tasks"].items()
    }
    return {**state, "tasks": tasks}
