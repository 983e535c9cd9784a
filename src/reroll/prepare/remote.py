"""A preparer beside the buffer of a server: engines push results, ranks fetch their part, from other processes.

`PreparerService` stands on the server; `RemotePreparer` has the same verbs on the other side, over whatever carries them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import reroll.prepare.stored  # noqa: F401  (what crosses)
from reroll.errors import InvalidArgument
from reroll.prepare.async_preparer import AsyncPreparer
from reroll.prepare.config import PrepareConfig
from reroll.prepare.keeping import checked_state
from reroll.prepare.results import GenerationResult
from reroll.prepare.step import StepData

NAME: Final = "prepare"
"""Of the service."""


class PreparerService:
    """Lets clients of a server call a preparer, which starts with the first call that needs it."""

    verbs = frozenset({"put", "get_data", "done", "commit", "state", "restore"})

    def __init__(
        self,
        preparer: AsyncPreparer,
        *,
        again: Callable[[], AsyncPreparer] | None = None,
        rewinds: bool = False,
    ) -> None:
        """Serve a preparer.

        `again` makes another one, for a trainer that goes back to its checkpoint; then `rewinds` lets the buffer go back with
        it, which is for buffers with a store, and that nobody else trains from.
        """
        self._preparer = preparer
        self._again = again
        self._rewinds = rewinds
        self._is_started = False
        self._starting = asyncio.Lock()  # held while the preparer starts, or becomes another one

    async def put(self, results: Sequence[GenerationResult], timeout: float | None = None) -> int:
        """See `AsyncPreparer.put`."""
        await self._start()
        return await self._preparer.put(list(results), timeout=timeout)

    async def get_data(self, rank: int, step: int, timeout: float | None = None) -> StepData:
        """See `AsyncPreparer.get_data`."""
        await self._start()
        return await self._preparer.get_data(rank, step, timeout)

    async def done(self, step: int, version: int | None = None) -> None:
        """See `AsyncPreparer.done`."""
        await self._start()
        await self._preparer.done(step, version=version)

    async def commit(self, step: int) -> int:
        """See `AsyncPreparer.commit`."""
        return await self._preparer.commit(step)

    async def state(self, step: int | None = None) -> dict[str, Any]:
        """See `AsyncPreparer.state`; the buffer is the server's, and is not saved by this."""
        return await self._preparer.state(step=step)

    async def restore(self, state: Mapping[str, Any]) -> None:
        """See `AsyncPreparer.restore`; whoever waits for a preparer that has started gets Closed."""
        step: int = checked_state(state)["step"]
        async with self._starting:
            if self._is_started:
                if self._again is None:
                    raise InvalidArgument(
                        "the preparer has started; restore before anything else is asked of it"
                    )
                await self._preparer.shutdown()
                self._preparer, self._is_started = self._again(), False
            if self._rewinds:
                await self._preparer.buffer.rewind(step)
            await self._preparer.restore(state)

    async def stop(self) -> None:
        """Shut the preparer down; whoever waits gets Closed."""
        await self._preparer.shutdown()

    async def _start(self) -> None:
        async with self._starting:  # whoever comes meanwhile waits until it has started
            if not self._is_started:
                await self._preparer.start()
                self._is_started = True


def serve_preparer(server: Any, config: PrepareConfig) -> None:
    """Let a `reroll.Server` prepare the batches of one training from its buffer. With a store, that is rewound by `restore`."""

    def made() -> AsyncPreparer:
        return AsyncPreparer(config, buffer=server.buffer)

    is_durable = server.config.store is not None
    server.add_service(NAME, PreparerService(made(), again=made, rewinds=is_durable))


class RemotePreparer:
    """The verbs of a preparer on a server. Over `reroll.connect` they are awaited, over `connect_blocking` they block."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(
        self, results: GenerationResult | Sequence[GenerationResult], *, timeout: float | None = None
    ) -> Any:
        """Put results; return how many became groups to train on. Raises InvalidArgument, WaitTimeout, Closed."""
        some = [results] if isinstance(results, GenerationResult) else list(results)
        return self._ask("put", results=some, timeout=timeout)

    def get_data(self, rank: int, step: int, timeout: float | None = None) -> Any:
        """Return what a rank trains in a step, a `StepData`. Raises what `Preparer.get_data` raises."""
        return self._ask("get_data", rank=rank, step=step, timeout=timeout)

    def done(self, step: int, *, version: int | None = None) -> Any:
        """Tell that a step, and all before it, was trained."""
        return self._ask("done", step=step, version=version)

    def commit(self, step: int) -> Any:
        """Tell that the trainer's own checkpoint of this step is on disk."""
        return self._ask("commit", step=step)

    def state(self, *, step: int | None = None) -> Any:
        """Return what a restart needs, for the trainer's checkpoint; with `step`, that step is done first."""
        return self._ask("state", step=step)

    def restore(self, state: Mapping[str, Any]) -> Any:
        """Go on after the step of a state, as a trainer does that was started anew, or whose server was."""
        return self._ask("restore", state=dict(state))

    def _ask(self, verb: str, **arguments: Any) -> Any:
        return self._client.ask(f"{NAME}.{verb}", arguments)
