"""ReplayBuffer and its configurations under xtuner's names: those of reroll, made from a policy and a storage."""

from typing import Any

import reroll
from reroll.buffer.groups import Groups
from reroll.integrations.xtuner.policy import ReplayPolicy
from reroll.integrations.xtuner.storage import NaiveStorage, StorageBackend
from reroll.waiting import LoopWaits


class ReplayBuffer(reroll.ReplayBuffer):
    """`reroll.ReplayBuffer`, whose sampler is that of the policy, and which the storage shows."""

    def __init__(self, policy: ReplayPolicy, storage_backend: StorageBackend, **options: Any) -> None:
        """Make a buffer; the options are those of `ReplayBufferConfig`: `expire=`, `capacity=`, `store=`, ...

        Raises TypeError for policies and storages of other kinds, InvalidArgument for a storage that is in use,
        pydantic.ValidationError (a ValueError) and InvalidConfig for wrong options.
        """
        if not isinstance(policy, ReplayPolicy) or not isinstance(storage_backend, StorageBackend):
            raise TypeError(
                f"a buffer takes a FIFOReplayPolicy or StalenessReplayPolicy and a NaiveStorage or PandasStorage of this "
                f"module, not {policy!r} and {storage_backend!r}; another order is a selector: "
                "reroll.ReplayBufferConfig(sampler=...), another place has the verbs of a buffer: CONTRIBUTING.md, and "
                "reroll.testing has the conformance suites of both"
            )
        self._begin(reroll.ReplayBufferConfig(sampler=policy.sampler, **options), storage_backend)

    @classmethod
    def from_config(cls, config: reroll.ReplayBufferConfig) -> "ReplayBuffer":
        """Return the buffer that is configured, whatever its sampler. Raises InvalidConfig."""
        buffer = cls.__new__(cls)
        buffer._begin(config, NaiveStorage())  # noqa: SLF001  (its own class)
        return buffer

    def _begin(self, config: reroll.ReplayBufferConfig, storage: StorageBackend) -> None:
        def begin(groups: Groups, options: dict[str, Any]) -> None:
            super(ReplayBuffer, self).__init__(groups, LoopWaits(), **options)
            storage.show(self)

        config.build_with(begin)


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
