"""A buffer to look at: what was saved, or what a durable buffer holds, also while another process writes it.

It needs no configuration: samplers, limits and rules decide what happens next, and here nothing happens.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Self

from reroll.buffer.blocking import under
from reroll.buffer.groups import Groups
from reroll.buffer.handed import Handed
from reroll.buffer.looking import Looking
from reroll.buffer.plain_calls import blocking
from reroll.buffer.put import GroupRules
from reroll.buffer.records import read_state
from reroll.buffer.references import OBJECT, Objects
from reroll.buffer.shell import disk_use
from reroll.codec import decode
from reroll.engine.engine import Engine
from reroll.engine.selectors.specs import Fifo
from reroll.engine.state import restore
from reroll.engine.task import TaskSettings
from reroll.errors import CorruptData, UnsupportedFormat
from reroll.store import Saved, open_saved
from reroll.telemetry.health import HealthMonitor
from reroll.telemetry.stats import DiskUse
from reroll.waiting import Guard, ThreadWaits

_SETTINGS = TaskSettings(sampler=Fifo())


class _Look(Looking):
    """The verbs that only look, over a file."""

    def __init__(self, saved: Saved, waits: ThreadWaits, *, allow_pickle: bool) -> None:
        engine = Engine(lambda _: _SETTINGS)
        super().__init__(Groups(engine, lambda _: GroupRules(), None), waits, allow_pickle=allow_pickle)
        self._saved = saved
        memory = read_state(saved, self._entries)
        if memory is not None:  # a durable buffer that nothing was put into has no state yet
            restore(engine, _without_selectors(memory.engine))
            self._groups.restore(memory.groups)
            self._groups.counters.restore(memory.small["flow"])
        self._groups.counters.started = None  # no time passes here, so there are no rates
        self._health = HealthMonitor(logs=False)

    def _memory_bytes(self) -> int:
        return 0

    def _disk_use(self) -> DiskUse:
        return disk_use(self._saved.path)

    async def _show(self, handed: Sequence[Handed]) -> list[list[list[Any]]]:
        """Read rollouts, and let go of them again: those of a store may not fit into memory."""
        groups = {group.uid: group for given in handed for group in given.groups}
        objects = Objects(lambda number: self._saved.record(OBJECT, number), allow_pickle=self._allow_pickle)
        for uid in sorted(groups):
            (blob,) = self._saved.payloads([uid])
            try:
                groups[uid].load(decode(blob, refs=objects, allow_pickle=self._allow_pickle))
            except CorruptData as error:
                raise CorruptData(
                    f"group {uid} in {self._saved.path} is damaged ({error}); leave it out, or restore the file from a copy"
                ) from error
            except UnsupportedFormat as error:
                raise UnsupportedFormat(f"group {uid} in {self._saved.path}: {error}") from error
        shown = [self._groups.show(given) for given in handed]
        for group in groups.values():
            group.unload()
        return shown

    async def close(self) -> None:
        """Close the file; every later call raises Closed."""
        self._closed = True
        self._saved.close()


class ReadOnlyBuffer:
    """What a buffer was at the moment at which this was opened; open it again to see what came since.

    It has the verbs of `BlockingReplayBuffer` that only look, and none that changes something. Rollouts are read from the
    file when they are asked for. Groups that are out, leased or consumed but not committed are there as they were; Ray
    references are the objects they stand for. Close it: as long as it is open, the log of a store in use grows.
    """

    def __init__(self, saved: Saved, *, allow_pickle: bool = False) -> None:
        self._guard = Guard("the read-only buffer")
        waits = ThreadWaits(self._guard)
        self._run = under(self._guard, waits)
        self._target = _Look(saved, waits, allow_pickle=allow_pickle)
        self._path = saved.path

    count_where = blocking(Looking.count_where)
    query = blocking(Looking.query)
    count = blocking(Looking.count)
    count_statuses = blocking(Looking.count_statuses)
    peek = blocking(Looking.peek)
    ledger = blocking(Looking.ledger)
    stats = blocking(Looking.stats)
    metrics = blocking(Looking.metrics)
    to_arrow = blocking(Looking.to_arrow)
    to_pandas = blocking(Looking.to_pandas)
    close = blocking(_Look.close)

    def __len__(self) -> int:
        with self._guard:
            return len(self._target)

    def __bool__(self) -> bool:
        return True  # also when it is empty

    def __repr__(self) -> str:
        return f"<ReadOnlyBuffer of {len(self)} groups in {self._path}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_readonly(path: str | PathLike[str], *, allow_pickle: bool = False) -> ReadOnlyBuffer:
    """Open what was saved, or the store of a durable buffer, at rest or in use, to look at it.

    `path` is the directory, or the file in it. Classes in rollouts have to be registered only where `peek` or `payloads`
    reads them. Raises SavedNotFound, CorruptData, UnsupportedFormat, StoreFailed.
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
