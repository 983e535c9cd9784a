"""`ReplayBuffer` and its two configurations under xtuner's names: `reroll.ReplayBuffer` with a policy and a storage.

The buffer also releases the trace sessions of groups that leave untrained.
"""

import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import reroll
from reroll.buffer.groups import Groups
from reroll.engine.ledger import Dropped
from reroll.integrations.xtuner.storage import NaiveStorage, ReplayPolicy, StorageBackend
from reroll.rollout import Status
from reroll.waiting import LoopWaits

Release = Callable[[list[str]], Awaitable[object]]
"""A coroutine function that releases the sessions with these ids."""

_TRACE_STORE: Final = "xtuner.v1.rl.rollout.trace_store"
_MIN_SESSIONS: Final = 1_024
_log = logging.getLogger("reroll")


class ReplayBuffer(reroll.ReplayBuffer):
    """A `reroll.ReplayBuffer` with the sampler of a policy, whose groups a storage shows."""

    def __init__(
        self,
        policy: ReplayPolicy,
        storage_backend: StorageBackend,
        *,
        release_sessions: Release | None = None,
        **options: Any,
    ) -> None:
        """Make a buffer.

        Args:
            policy: the order in which COMPLETED groups are delivered.
            storage_backend: an empty storage, which shows the groups of the buffer from now on.
            release_sessions: awaited with the session ids of groups that left untrained; None: the function of xtuner's
                trace store, if the process has imported that module.
            **options: those of `ReplayBufferConfig`: `expire=`, `capacity=`, `store=`, ...

        Raises:
            TypeError: policy or storage is of another class.
            InvalidArgument: the storage is in use.
            InvalidConfig: the options can never proceed.
            pydantic.ValidationError: an option is invalid (a ValueError).

        """
        for given, kind in ((policy, ReplayPolicy), (storage_backend, StorageBackend)):
            if not isinstance(given, kind):
                raise TypeError(f"{given!r} is no {kind.__name__} of this module: {kind.extend_instead}")
        config = reroll.ReplayBufferConfig(sampler=policy.sampler, **options)
        self._open(config, storage_backend, release_sessions)

    @classmethod
    def from_config(
        cls, config: reroll.ReplayBufferConfig, *, release_sessions: Release | None = None
    ) -> "ReplayBuffer":
        """Return a buffer of any configuration, also with another sampler.

        Args:
            config: the configuration.
            release_sessions: releases the trace sessions of dropped groups; None: xtuner's function, if it was
                imported.

        Raises:
            InvalidConfig: the configuration can never proceed.

        """
        buffer = cls.__new__(cls)
        buffer._open(config, NaiveStorage(), release_sessions)  # noqa: SLF001  (its own class)
        return buffer

    def _open(
        self, config: reroll.ReplayBufferConfig, storage: StorageBackend, release: Release | None
    ) -> None:
        def open_with(groups: Groups, options: dict[str, Any]) -> None:
            self._sessions = _Sessions(release, options.pop("on_drop", None), groups.find)
            super(ReplayBuffer, self).__init__(groups, LoopWaits(), on_drop=self._sessions.drop, **options)
            storage.show(self)

        config.build_with(open_with)

    # --- verbs that can drop groups

    async def put(self, items: Any, task_name: str, **options: Any) -> int | None:
        sessions = _session_ids(items)
        uid = await super().put(items, task_name, **options)
        self._sessions.add(uid, sessions)
        await self._sessions.release()
        return uid

    async def refresh_staleness(self, **options: Any) -> dict[str, int]:
        expired = await super().refresh_staleness(**options)
        await self._sessions.release()
        return expired

    async def count_statuses(
        self, task_names: Iterable[str], statuses: Iterable[Any]
    ) -> dict[str, dict[Any, int]]:
        """Return the counts by task and status, zeros included; the keys are the statuses as given, of any enum.

        Args:
            task_names: the tasks.
            statuses: the statuses.

        """
        given = statuses if isinstance(statuses, str) else list(statuses)
        counts = await super().count_statuses(task_names, given)
        return {
            name: {status: of_task[Status.of(status)] for status in given} for name, of_task in counts.items()
        }


class SyncReplayBufferConfig(reroll.SyncReplayBufferConfig):
    """A buffer for synchronous training: the oldest group first. All options of `ReplayBufferConfig`."""

    def build(self, *, release_sessions: Release | None = None) -> ReplayBuffer:
        """Return an asyncio buffer. Raises InvalidConfig for options that can never proceed."""
        return ReplayBuffer.from_config(self, release_sessions=release_sessions)


class AsyncReplayBufferConfig(reroll.AsyncReplayBufferConfig):
    """A buffer for asynchronous training: the stalest group first, then the oldest. All options of `ReplayBufferConfig`."""

    def build(self, *, release_sessions: Release | None = None) -> ReplayBuffer:
        """Return an asyncio buffer. Raises InvalidConfig for options that can never proceed."""
        return ReplayBuffer.from_config(self, release_sessions=release_sessions)


class _Sessions:
    """The session ids of the groups in a buffer, by uid, and the ids that wait for their release."""

    def __init__(
        self,
        release: Release | None,
        on_drop: Callable[[list[Dropped]], object] | None,
        find: Callable[[int], object],
    ) -> None:
        self._release = release
        self._on_drop = on_drop
        self._find = find
        self._by_uid: dict[int, list[str]] = {}
        self._limit = _MIN_SESSIONS
        self._ended: list[str] = []

    def add(self, uid: int | None, sessions: list[str]) -> None:
        """Record the sessions of a group; a group without uid was dropped by its put."""
        if uid is None:
            self._ended += sessions
        elif sessions:
            self._by_uid[uid] = sessions
            if len(self._by_uid) > self._limit:  # most of these groups were trained meanwhile
                self._by_uid = {uid: ids for uid, ids in self._by_uid.items() if self._find(uid) is not None}
                self._limit = max(_MIN_SESSIONS, 2 * len(self._by_uid))

    def drop(self, dropped: list[Dropped]) -> None:
        """Record the end of the sessions of dropped groups; the `on_drop` of the buffer."""
        for each in dropped:
            self._ended += self._by_uid.pop(each.uid, ())
        if self._on_drop is not None:
            self._on_drop(dropped)

    async def release(self) -> None:
        """Release the sessions that ended since the last call; a failure is logged."""
        ended, self._ended = self._ended, []
        release = self._release or getattr(sys.modules.get(_TRACE_STORE), "release_existing_sessions", None)
        if ended and release is not None:
            try:
                await release(ended)
            except Exception:  # noqa: BLE001  (of the user's function)
                _log.exception("%d sessions of dropped groups were not released", len(ended))


def _session_ids(items: Any) -> list[str]:
    if not isinstance(items, Sequence):
        return []
    found = (getattr(item, "session_id", None) for item in items)
    return [str(session) for session in found if session is not None]
