"""`Preparer`: results in, the batches of each rank out, step after step.

Two loops run in the event loop. The consuming loop puts the results of a source into the buffer. The preparing loop leases the
groups of one step after the other, prepares them, and stays at most `async_steps` ahead of the trainer. The groups of a step are
consumed when all ranks are done with it; before that, any failure returns them to the buffer.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Self

from reroll import forking
from reroll.buffer.blocking import BlockingReplayBuffer
from reroll.errors import CannotRewind, Closed, InvalidArgument, LoopFailed, SourceEnded, WaitTimeout
from reroll.prepare.array_pool import ArrayPool
from reroll.prepare.checkpoint import FORMAT, PreparerCheckpoint, checked_state
from reroll.prepare.config import PrepareConfig
from reroll.prepare.intake import Intake, results_in
from reroll.prepare.leases import StepLeaser
from reroll.prepare.prompts import Prompts
from reroll.prepare.results import GenerationResult
from reroll.prepare.sources import pump
from reroll.prepare.step_data import StepData, prepare_step
from reroll.prepare.steps import Steps
from reroll.waiting import LoopWaits, Once, deadline_of


class Preparer:
    """Prepares the batches of each rank from generation results; its verbs are coroutines.

    `async with Preparer(config, source) as preparer` starts it and shuts it down. `restore()` comes before `start()`.
    `BlockingPreparer` has the same verbs for threads.

    Args:
        config: What it does.
        source: Where results come from: an object that has `get`, can be called, or can be iterated, with or without
            `await`. None: producers call `put`, or put groups into the buffer.
        buffer: A buffer with the verbs of `ReplayBuffer`, which the preparer does not own; None: a new one, as configured.
        prompts: Callbacks for stored, missing and solved prompts, and the prompt cursor.
        sentinel: The item of the source that means its end.

    Raises:
        InvalidArgument: The buffer is a blocking one.
        InvalidConfig: The buffer that is configured could never proceed.

    """

    def __init__(
        self,
        config: PrepareConfig,
        source: Any = None,
        *,
        buffer: Any = None,
        prompts: Prompts | None = None,
        sentinel: Any = None,
    ) -> None:
        if isinstance(buffer, BlockingReplayBuffer):
            raise InvalidArgument(
                "a preparer needs a buffer whose verbs are coroutines; give what `config.build()` returns"
            )
        self.config = config
        self._owns_buffer = buffer is None
        self.buffer: Any = config.build_buffer() if buffer is None else buffer
        self._checkpoint = PreparerCheckpoint(
            self.buffer, store=config.replay_buffer.store, is_own=self._owns_buffer
        )
        self._is_restored = False
        self._source = source
        self._sentinel = sentinel
        self._prompts = prompts or Prompts()
        self._waits = LoopWaits()
        self._steps = Steps(self.buffer, config.num_ranks, config.async_steps, config.first_step - 1)
        self._intake = Intake(config, self.buffer, self._prompts, self._steps)
        self._leaser = StepLeaser(config, self.buffer, self._intake, self._steps, self._waits)
        self._pool = ArrayPool(spare_blocks=2)
        self._left_over: list[GenerationResult] = []
        self._loops: list[asyncio.Task[None]] = []
        self._puts: set[asyncio.Task[int]] = set()  # they may wait for room
        self._error: BaseException | None = None  # of the preparing loop, which has ended
        self._home = forking.here()
        self._is_closed = False
        self._shutdown: Once[list[GenerationResult]] = Once()

    async def start(self) -> Self:
        """Start both loops. Without a `restore`, begin with `first_step`.

        A buffer with a store takes back the groups that `first_step` and later steps used.

        Raises:
            CannotRewind: Those groups were committed or dropped.
            InvalidArgument: The preparer was started before.
            Closed: It was shut down.

        """
        self._check_open()
        if self._loops:
            raise InvalidArgument("the preparer was started before; make a new one")
        if not self._is_restored:
            await self._checkpoint.begin(self.config.first_step)
        await self._intake.begin()
        self._loops = [asyncio.create_task(self._run_preparing(), name="reroll-prepare")]
        if self._source is not None:
            self._loops.append(asyncio.create_task(self._run_consuming(), name="reroll-consume"))
        return self

    async def shutdown(self) -> list[GenerationResult]:
        """Stop both loops, fail waiting calls with Closed, and return the groups of unfinished steps to the buffer.

        A buffer that the preparer owns is closed. A second call returns the same when the first has ended.

        Returns:
            The results that were taken from the source and are not in the buffer.

        """
        if forking.is_elsewhere(self._home):
            return self._left_over
        return await self._shutdown.run(self._stop)

    async def _stop(self) -> list[GenerationResult]:
        self._is_closed = True
        self._waits.wake()
        running = (*self._loops, *self._puts)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._steps.give_back()
        if self._owns_buffer:
            await self.buffer.close()
        return self._left_over

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except CannotRewind:  # the caller has no reference yet to shut it down
            await self.shutdown()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def put(
        self, results: GenerationResult | list[GenerationResult], *, timeout: float | None = None
    ) -> int:
        """Put results as the consuming loop does; wait for room in the buffer.

        Args:
            results: One result, or several, in the order in which they are stored.
            timeout: Seconds to wait for room; None: no limit.

        Returns:
            How many of the results are groups to train on, now or since they first arrived. The difference to the number
            of results is how many replacements a producer of full steps has to generate.

        Raises:
            InvalidArgument: A result is unusable. Earlier results of the list are stored, and stored once if put again.
            WaitTimeout: There was no room; the message says which results were stored.
            Closed: The preparer was shut down.

        """
        self._check_open()
        putting = asyncio.create_task(self._put(results_in(results), timeout))
        self._puts.add(putting)
        putting.add_done_callback(self._puts.discard)
        try:
            return await putting
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is None or not caller.cancelling():  # cancelled by the shutdown, not by the caller
                self._check_open()
            raise

    async def get_data(self, rank: int, step: int, timeout: float | None = None) -> StepData:
        """Return the data that a rank trains in a step; wait until it is prepared.

        A request says that this rank has finished all steps before. The previous step can be read again.

        Args:
            rank: From 0 to `num_ranks` - 1.
            step: The step after the last one that this rank received, or one of these two.
            timeout: Seconds to wait; None: no limit.

        Raises:
            WaitTimeout: The step is not prepared; the message says how many groups are missing.
            StepGone: The step was discarded.
            SourceEnded: The source has ended, and the rest fills no step.
            LoopFailed: A loop has failed; the cause is its error.
            InvalidArgument: There is no such rank, or it has not received the step before.
            Closed: The preparer was shut down, or not started.

        """
        deadline = deadline_of(timeout)
        self._check_started()
        self._steps.check(rank, step)
        self._steps.request(rank, step)
        self._leaser.invalidate_plan()
        await self._steps.acknowledge_by(deadline)
        try:
            await self._wait(lambda: self._steps.is_prepared(step) or self._has_stopped(), deadline)
        except WaitTimeout:
            raise WaitTimeout(await self._explain(step)) from None
        self._check_open()
        prepared = self._steps.receive(rank, step)
        if prepared is not None:
            return prepared.part(rank)
        self._steps.check(rank, step)
        raise self._failure()

    async def done(self, step: int, *, version: int | None = None) -> None:
        """Consume the groups of a step and of all before it: they were trained.

        Args:
            step: The last trained step.
            version: Policy version that generates from now on, for a staleness window.

        Raises:
            InvalidArgument: No rank received the step.
            LeaseExpired: Groups of the step were delivered again, because its lease had ended.

        """
        self._check_started()
        self._steps.finish(step)
        await self._steps.acknowledge(version=version)

    async def commit(self, step: int) -> int:
        """Record that the trainer's own checkpoint of a step is on disk; see `ReplayBuffer.commit`.

        Args:
            step: the training step.

        Returns:
            The number of groups that are now consumed for good.

        """
        self._check_open()
        count: int = await self.buffer.commit(step)
        return count

    async def state(
        self, *, step: int | None = None, save_to: str | PathLike[str] | None = None
    ) -> dict[str, Any]:
        """Return what a restart needs, for the trainer's checkpoint: step, prompt cursor, location of the buffer.

        Args:
            step: With this, `done(step)` comes first.
            save_to: The buffer is saved into a new directory inside this one, which is kept until you remove it. A buffer
                with a store, or one that the preparer does not own, need not be saved.

        Returns:
            Plain values, which JSON can hold.

        Raises:
            InvalidArgument: The groups of a buffer in memory would be lost; set `save_to`.

        """
        self._check_open()
        self._checkpoint.check_can_save(save_to)
        if step is not None:
            self._steps.finish(step)
            await self._steps.acknowledge()
        async with self._steps.lock:
            # The cursor first: a result that arrives in between is saved, generated again, and stored once.
            state = {
                "format": FORMAT,
                "step": self._steps.trained,
                "cursor": self._prompts.state(),
                "generated": self._intake.state(),
            }
            return state | await self._checkpoint.save(save_to, self._steps.trained)

    async def restore(self, state: Mapping[str, Any], *, saved: str | PathLike[str] | None = None) -> None:
        """Continue after the step of a state; call it before `start()`. Groups of later steps are available again.

        Args:
            state: What `state()` returned.
            saved: Directory of the buffer, if it was moved.

        Raises:
            InvalidArgument: It is no state, the buffer is another one, or the preparer was started.
            SavedNotFound: There is no saved buffer in the directory.

        Further errors are those of `ReplayBuffer.resume` and `rewind`.

        """
        self._check_open()
        if self._loops:
            raise InvalidArgument("the preparer has started; restore before that")
        step: int = checked_state(state)["step"]
        await self._checkpoint.restore(state, saved)
        self._prompts.restore(state["cursor"])
        self._intake.restore(state["generated"])
        self._steps.restart(step)
        self._is_restored = True

    async def _run_consuming(self) -> None:
        try:
            await pump(self._source, self._sentinel, self._deliver)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  (get_data raises it, also an exit in the source's thread)
            self._leaser.source_error = error
        self._leaser.has_ended = True
        self._leaser.invalidate_plan()

    async def _deliver(self, item: Any) -> None:
        results = results_in(item)
        for place, result in enumerate(results):
            try:
                await self._put([result], None)
            except BaseException:
                self._left_over += results[place:]
                raise

    async def _put(self, results: list[GenerationResult], timeout: float | None) -> int:
        self._leaser.note_result()
        try:
            return await self._intake.put(results, timeout)
        except (KeyboardInterrupt, SystemExit) as error:
            # Either would end the event loop with all waiting calls.
            raise LoopFailed(
                f"a predicate or callback ended with {error!r}; return from it instead"
            ) from error
        finally:
            self._leaser.invalidate_plan()

    async def _run_preparing(self) -> None:
        while True:
            number = self._steps.newest + 1
            try:
                await self._prepare(number)
            except BaseException as error:
                await self._steps.give_back(number)
                if isinstance(error, asyncio.CancelledError):
                    raise
                self._error = error  # get_data raises it
                self._waits.wake()
                return

    async def _prepare(self, number: int) -> None:
        started = time.monotonic()
        await self._wait(lambda: self._steps.can_prepare(number))
        allowed = time.monotonic()
        step = await self._leaser.open(number)
        leased = time.monotonic()
        samples = dict.fromkeys(self.config.sizes, ()) if step.lease is None else step.lease.samples
        prepared = await asyncio.to_thread(
            prepare_step, number, samples, step.generated, self.config, self._pool
        )
        prepared.metrics["time/waiting_for_trainer_s"] = allowed - started
        prepared.metrics["time/waiting_for_generation_s"] = leased - allowed
        prepared.metrics["time/preparing_s"] = time.monotonic() - leased
        self._steps.offer(number, prepared)
        self._waits.wake()

    async def _wait(self, condition: Callable[[], bool], deadline: float | None = None) -> None:
        await self._waits.until([object()], condition, deadline, str)

    def _check_open(self) -> None:
        forking.check(self._home, "the preparer")
        if self._is_closed:
            raise Closed("the preparer was shut down")

    def _check_started(self) -> None:
        self._check_open()
        if not self._loops:
            raise Closed("the preparer was not started; call start(), or use it in a `with`")

    def _has_stopped(self) -> bool:
        return self._is_closed or self._error is not None or self._leaser.shortage is not None

    def _failure(self) -> Exception:
        for name, error in (("preparing", self._error), ("consuming", self._leaser.source_error)):
            if error is not None:
                failure = LoopFailed(f"the {name} loop failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                return failure
        return SourceEnded(self._leaser.shortage or "the source has ended")

    async def _explain(self, step: int) -> str:
        """Return why a step is not prepared."""
        if not self._steps.can_prepare(step):
            return (
                f"get_data of step {step} timed out: another rank is more than async_steps={self.config.async_steps} "
                "behind; is it alive?"
            )
        first = self._steps.newest + 1
        why = "" if first == step else f"step {first} comes first; "
        return f"get_data of step {step} timed out: {why}{await self._leaser.explain_missing(first)}"
