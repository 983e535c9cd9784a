"""A preparer beside the buffer of a server: engines put results, ranks fetch their data, from other processes.

`PreparerService` runs on the server; `RemotePreparer` has the same verbs for its clients, over any transport.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from reroll.codec import register
from reroll.errors import InvalidArgument
from reroll.prepare.batches import PackedBatch
from reroll.prepare.checkpoint import checked_state
from reroll.prepare.config import PrepareConfig
from reroll.prepare.preparer import Preparer
from reroll.prepare.ranks import GlobalCounts, RankBatch
from reroll.prepare.results import GenerationResult
from reroll.prepare.step_data import StepData

NAME: Final = "prepare"
"""Name of the service."""

for _kind in (GenerationResult, StepData, RankBatch, PackedBatch, GlobalCounts):
    register(_kind)  # also under the name that a caller's own `register` uses
    register(_kind, name=f"reroll.prepare.{_kind.__name__}")


class PreparerService:
    """Lets the clients of a server call a preparer, which starts with the first call that needs it.

    Args:
        preparer: The preparer.
        make_another: Makes another one, for a trainer that goes back to its checkpoint; None: it cannot.
        rewinds: Whether `restore` rewinds the buffer: for a buffer with a store that no other trainer uses.

    """

    verbs = frozenset({"put", "get_data", "done", "commit", "state", "restore"})

    def __init__(
        self,
        preparer: Preparer,
        *,
        make_another: Callable[[], Preparer] | None = None,
        rewinds: bool = False,
    ) -> None:
        self._preparer = preparer
        self._make_another = make_another
        self._rewinds = rewinds
        self._is_started = False
        self._starting = asyncio.Lock()  # held while the preparer starts or is replaced

    async def put(self, results: Sequence[GenerationResult], timeout: float | None = None) -> int:
        """See `Preparer.put`."""
        await self._start()
        return await self._preparer.put(list(results), timeout=timeout)

    async def get_data(self, rank: int, step: int, timeout: float | None = None) -> StepData:
        """See `Preparer.get_data`."""
        await self._start()
        return await self._preparer.get_data(rank, step, timeout)

    async def done(self, step: int, version: int | None = None) -> None:
        """See `Preparer.done`."""
        await self._start()
        await self._preparer.done(step, version=version)

    async def commit(self, step: int) -> int:
        """See `Preparer.commit`."""
        return await self._preparer.commit(step)

    async def state(self, step: int | None = None) -> dict[str, Any]:
        """See `Preparer.state`; the buffer belongs to the server and is not saved."""
        return await self._preparer.state(step=step)

    async def restore(self, state: Mapping[str, Any]) -> None:
        """See `Preparer.restore`; calls that wait for a preparer that has started raise Closed."""
        step: int = checked_state(state)["step"]
        async with self._starting:
            if self._is_started:
                if self._make_another is None:
                    raise InvalidArgument(
                        "the preparer has started; restore before anything else is asked of it"
                    )
                await self._preparer.shutdown()
                self._preparer, self._is_started = self._make_another(), False
            if self._rewinds:
                await self._preparer.buffer.rewind(step)
            await self._preparer.restore(state)

    async def stop(self) -> None:
        """Shut the preparer down; waiting calls raise Closed."""
        await self._preparer.shutdown()

    async def _start(self) -> None:
        async with self._starting:  # calls that arrive meanwhile wait until it has started
            if not self._is_started:
                await self._preparer.start()
                self._is_started = True


def serve_preparer(server: Any, config: PrepareConfig) -> None:
    """Let a `reroll.Server` prepare the batches of one training run from its buffer; `restore` rewinds a store."""

    def make() -> Preparer:
        return Preparer(config, buffer=server.buffer)

    is_durable = server.config.store is not None
    server.add_service(NAME, PreparerService(make(), make_another=make, rewinds=is_durable))


class RemotePreparer:
    """The verbs of a preparer on a server: coroutines over `reroll.connect`, blocking over `connect_blocking`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(
        self, results: GenerationResult | Sequence[GenerationResult], *, timeout: float | None = None
    ) -> Any:
        """Put results. See `Preparer.put`.

        Args:
            results: one result, or several.
            timeout: seconds to wait for room; None: without limit.

        Returns:
            The number of groups to train on.

        """
        some = [results] if isinstance(results, GenerationResult) else list(results)
        return self._call("put", results=some, timeout=timeout)

    def get_data(self, rank: int, step: int, timeout: float | None = None) -> Any:
        """Return the `StepData` of a rank. See `Preparer.get_data`.

        Args:
            rank: data-parallel rank of the caller.
            step: the training step.
            timeout: seconds to wait; None: without limit.

        """
        return self._call("get_data", rank=rank, step=step, timeout=timeout)

    def done(self, step: int, *, version: int | None = None) -> Any:
        """Consume the groups of a step and of all before it. See `Preparer.done`.

        Args:
            step: the training step that every rank has trained.
            version: version of the weights after it.

        Returns:
            Nothing; over `reroll.connect` a coroutine.

        """
        return self._call("done", step=step, version=version)

    def commit(self, step: int) -> Any:
        """Record that the trainer's own checkpoint of a step is on disk.

        Args:
            step: the training step.

        Returns:
            The number of groups that are now consumed for good.

        """
        return self._call("commit", step=step)

    def state(self, *, step: int | None = None) -> Any:
        """Return the state of the preparer, for the trainer's checkpoint.

        Args:
            step: call `done(step)` first; None: do not.

        """
        return self._call("state", step=step)

    def restore(self, state: Mapping[str, Any]) -> Any:
        """Continue after the step of a state, after a restart of the trainer or of the server.

        Args:
            state: what `state` returned.

        Returns:
            Nothing; over `reroll.connect` a coroutine.

        """
        return self._call("restore", state=dict(state))

    def _call(self, verb: str, **arguments: Any) -> Any:
        return self._client.ask(f"{NAME}.{verb}", arguments)
