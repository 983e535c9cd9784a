"""ReplayBuffer and its configurations under xtuner's names: those of reroll, made from a policy and a storage."""

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

import reroll
from reroll.buffer.batch import Lease
from reroll.buffer.groups import Groups
from reroll.integrations.xtuner.policy import ReplayPolicy
from reroll.integrations.xtuner.sessions import Release, Sessions, sessions_of
from reroll.integrations.xtuner.statuses import all_ours, ours
from reroll.integrations.xtuner.storage import NaiveStorage, StorageBackend
from reroll.rollout import Status
from reroll.waiting import LoopWaits


class ReplayBuffer(reroll.ReplayBuffer):
    """`reroll.ReplayBuffer`, whose sampler is that of the policy, and which the storage shows."""

    def __init__(
        self,
        policy: ReplayPolicy,
        storage_backend: StorageBackend,
        *,
        release_sessions: Release | None = None,
        **options: Any,
    ) -> None:
        """Make a buffer; the options are those of `ReplayBufferConfig`: `expire=`, `capacity=`, `store=`, ...

        `release_sessions` is awaited with the session ids of groups that leave untrained; default: that of xtuner's trace
        store, if the process has imported it.
        Raises TypeError for policies and storages of other kinds, InvalidArgument for a storage that is in use,
        pydantic.ValidationError (a ValueError) and InvalidConfig for wrong options.
        """
        for given, kind in ((policy, ReplayPolicy), (storage_backend, StorageBackend)):
            if not isinstance(given, kind):
                raise TypeError(f"{given!r} is no {kind.__name__} of this module: {kind.extend_instead}")
        config = reroll.ReplayBufferConfig(sampler=policy.sampler, **options)
        self._begin(config, storage_backend, release_sessions)

    @classmethod
    def from_config(
        cls, config: reroll.ReplayBufferConfig, *, release_sessions: Release | None = None
    ) -> "ReplayBuffer":
        """Return the buffer that is configured, whatever its sampler. Raises InvalidConfig."""
        buffer = cls.__new__(cls)
        buffer._begin(config, NaiveStorage(), release_sessions)  # noqa: SLF001  (its own class)
        return buffer

    # --- the verbs that drop groups, whose sessions are released

    async def put(self, items: Any, task_name: str, **options: Any) -> int | None:
        sessions = sessions_of(items) if isinstance(items, Sequence) else []
        uid = await super().put(items, task_name, **options)
        self._sessions.add(uid, sessions)
        await self._sessions.release()
        return uid

    async def refresh_staleness(self, *, statuses: Any = None, **options: Any) -> dict[str, int]:
        expired = await super().refresh_staleness(statuses=all_ours(statuses), **options)
        await self._sessions.release()
        return expired

    # --- the verbs that take a status, which may be of another enum

    def get(
        self, batch_size: int, task_name: str, group_status: Any, **options: Any
    ) -> Coroutine[Any, Any, list[list[Any]]]:
        return super().get(batch_size, task_name, ours(group_status), **options)

    def take_batch(
        self, task_batch_sizes: Mapping[str, int], *, group_status: Any = Status.COMPLETED, **options: Any
    ) -> Coroutine[Any, Any, tuple[dict[str, list[list[Any]]], dict[str, int]]]:
        return super().take_batch(task_batch_sizes, group_status=ours(group_status), **options)

    def lease(
        self, task_batch_sizes: Mapping[str, int], *, group_status: Any = Status.COMPLETED, **options: Any
    ) -> Lease:
        return super().lease(task_batch_sizes, group_status=ours(group_status), **options)

    def is_ready(
        self, task_batch_sizes: Mapping[str, int], *, group_status: Any = Status.COMPLETED
    ) -> Coroutine[Any, Any, bool]:
        return super().is_ready(task_batch_sizes, group_status=ours(group_status))

    def wait_ready(
        self, task_batch_sizes: Mapping[str, int], *, group_status: Any = Status.COMPLETED, **options: Any
    ) -> Coroutine[Any, Any, None]:
        return super().wait_ready(task_batch_sizes, group_status=ours(group_status), **options)

    def count(self, task_name: str, group_status: Any) -> Coroutine[Any, Any, int]:
        return super().count(task_name, ours(group_status))

    async def count_statuses(
        self, task_names: Iterable[str], statuses: Iterable[Any]
    ) -> dict[str, dict[Any, int]]:
        """Return the counts of all these tasks and statuses, zeros included, under the statuses as they were given."""
        given = statuses if isinstance(statuses, str) else list(statuses)
        counts = await super().count_statuses(task_names, all_ours(given))
        return {name: {status: of_task[ours(status)] for status in given} for name, of_task in counts.items()}

    def _begin(
        self, config: reroll.ReplayBufferConfig, storage: StorageBackend, release: Release | None
    ) -> None:
        def begin(groups: Groups, options: dict[str, Any]) -> None:
            self._sessions = Sessions(release, options.pop("on_drop", None), groups.find)
            super(ReplayBuffer, self).__init__(groups, LoopWaits(), on_drop=self._sessions.dropped, **options)
            storage.show(self)

        config.build_with(begin)


class SyncReplayBufferConfig(reroll.SyncReplayBufferConfig):
    """A buffer for synchronous training: the oldest group first. All options of `ReplayBufferConfig`."""

    def build(self, *, release_sessions: Release | None = None) -> ReplayBuffer:
        """Return an asyncio buffer. Raises InvalidConfig for what can never proceed."""
        return ReplayBuffer.from_config(self, release_sessions=release_sessions)


class AsyncReplayBufferConfig(reroll.AsyncReplayBufferConfig):
    """A buffer for asynchronous training: the stalest group first, then the oldest. All options of `ReplayBufferConfig`."""

    def build(self, *, release_sessions: Release | None = None) -> ReplayBuffer:
        """Return an asyncio buffer. Raises InvalidConfig for what can never proceed."""
        return ReplayBuffer.from_config(self, release_sessions=release_sessions)
