"""ReplayBuffer and its configurations under xtuner's names: those of reroll, made from a policy and a storage."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

import reroll
from reroll.buffer.groups import Groups
from reroll.integrations.xtuner.policy import ReplayPolicy
from reroll.integrations.xtuner.statuses import ours
from reroll.integrations.xtuner.storage import NaiveStorage, StorageBackend
from reroll.waiting import LoopWaits

T = TypeVar("T")


class ReplayBuffer(reroll.ReplayBuffer):
    """`reroll.ReplayBuffer`, whose sampler is that of the policy, and which the storage shows."""

    def __init__(self, policy: ReplayPolicy, storage_backend: StorageBackend, **options: Any) -> None:
        """Make a buffer; the options are those of `ReplayBufferConfig`: `expire=`, `capacity=`, `store=`, ...

        Raises TypeError for policies and storages of other kinds, InvalidArgument for a storage that is in use,
        pydantic.ValidationError (a ValueError) and InvalidConfig for wrong options.
        """
        for given, kind in ((policy, ReplayPolicy), (storage_backend, StorageBackend)):
            if not isinstance(given, kind):
                raise TypeError(f"{given!r} is no {kind.__name__} of this module: {kind.extend_instead}")
        self._begin(reroll.ReplayBufferConfig(sampler=policy.sampler, **options), storage_backend)

    @classmethod
    def from_config(cls, config: reroll.ReplayBufferConfig) -> "ReplayBuffer":
        """Return the buffer that is configured, whatever its sampler. Raises InvalidConfig."""
        buffer = cls.__new__(cls)
        buffer._begin(config, NaiveStorage())  # noqa: SLF001  (its own class)
        return buffer

    async def count_statuses(
        self, task_names: Iterable[str], statuses: Iterable[Any]
    ) -> dict[str, dict[Any, int]]:
        """Return the counts of all these tasks and statuses, zeros included, under the statuses as they were given."""
        given = statuses if isinstance(statuses, str) else list(statuses)
        counts = await super().count_statuses(task_names, ours(given))
        return {name: {status: of_task[ours(status)] for status in given} for name, of_task in counts.items()}

    def _begin(self, config: reroll.ReplayBufferConfig, storage: StorageBackend) -> None:
        def begin(groups: Groups, options: dict[str, Any]) -> None:
            super(ReplayBuffer, self).__init__(groups, LoopWaits(), **options)
            storage.show(self)

        config.build_with(begin)


def _taking_any_status(verb: Callable[..., T]) -> Callable[..., T]:
    @wraps(verb)
    def call(*args: Any, **options: Any) -> T:
        return verb(*map(ours, args), **{name: ours(value) for name, value in options.items()})

    return call


for _name in ("get", "take_batch", "lease", "count", "is_ready", "wait_ready", "refresh_staleness"):
    setattr(ReplayBuffer, _name, _taking_any_status(getattr(reroll.ReplayBuffer, _name)))


class SyncReplayBufferConfig(reroll.SyncReplayBufferConfig):
    """A buffer for synchronous training: the oldest group first. All options of `ReplayBufferConfig`."""

    def build(self) -> ReplayBuffer:
        """Return an asyncio buffer. Raises InvalidConfig for what can never proceed."""
        return ReplayBuffer.from_config(self)


class AsyncReplayBufferConfig(reroll.AsyncReplayBufferConfig):
    """A buffer for asynchronous training: the stalest group first, then the oldest. All options of `ReplayBufferConfig`."""

    def build(self) -> ReplayBuffer:
        """Return an asyncio buffer. Raises InvalidConfig for what can never proceed."""
        return ReplayBuffer.from_config(self)
