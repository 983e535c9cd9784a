"""AsyncPreparer: results come in, steps go out. All that waits in this package waits here or in the buffer.

Two loops run in the event loop. The consuming loop puts what a source gives into the buffer. The preparing loop leases the
groups of one step after the other, prepares them, and runs at most `async_steps` ahead of the trainer. A step is consumed
when all ranks are done with it; until then its groups come back if anything goes wrong. `Preparer` is the same for threads.
"""

import asyncio
import time
from collections.abc import Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Self

from reroll import forking
from reroll.buffer.blocking import BlockingReplayBuffer
from reroll.errors import CannotRewind, Closed, InvalidArgument, LoopFailed, SourceEnded, WaitTimeout
from reroll.prepare.columns import Memory
from reroll.prepare.config import PrepareConfig
from reroll.prepare.intake import Intake, results_in
from reroll.prepare.keeping import FORMAT, Keeping, checked_state
from reroll.prepare.prompts import Prompts
from reroll.prepare.results import GenerationResult
from reroll.prepare.settling import Settling
from reroll.prepare.sources import pump
from reroll.prepare.step import Prepared, StepData, prepare_step
from reroll.prepare.steps import Steps
from reroll.prepare.taking import Taking
from reroll.waiting import LoopWaits, Once, deadline_of


class AsyncPreparer:
    """From generation results to the batch of each rank, step after step."""

    def __init__(
        self,
        config: PrepareConfig,
        source: Any = None,
        *,
        buffer: Any = None,
        prompts: Prompts | None = None,
        sentinel: Any = None,
    ) -> None:
        """Make a preparer; `start()` starts it, `restore()` goes before that.

        Args:
            config: what it does.
            source: where results come from: whatever has `get`, can be called, or can be iterated, with or without
                `await`. None: they are handed to `put`, or others put groups into the buffer.
            buffer: whatever has the verbs of `ReplayBuffer`, and belongs to somebody else; None: one of its own, as
                configured.
            prompts: who learns which results are settled, missing or solved too often, and has the prompt cursor.
            sentinel: what a source gives when nothing will come any more.

        """
        if isinstance(buffer, BlockingReplayBuffer):
            raise InvalidArgument(
                "a preparer needs a buffer whose verbs are coroutines; give what `config.build()` returns"
            )
        self.config = config
        self._owns_buffer = buffer is None
        self.buffer: Any = config.build_buffer() if buffer is None else buffer
        self._keeping = Keeping(self.buffer, store=config.replay_buffer.store, is_own=self._owns_buffer)
        self._is_restored = False
        self._source = source
        self._sentinel = sentinel
        self._prompts = prompts or Prompts()
        self._intake = Intake(config, self.buffer, self._prompts, next_step=lambda: self._steps.newest + 1)
        self._left_over: list[GenerationResult] = []
        self._steps: Steps[Prepared] = Steps(config.num_ranks, config.async_steps, config.first_step - 1)
        self._memory = Memory(spare_blocks=2)
        self._waits = LoopWaits()
        self._taking = Taking(
            config,
            self.buffer,
            self._intake,
            self._waits,
            is_asked_for=lambda step: self._steps.is_asked_for(step),  # noqa: PLW0108  (a restore replaces them)
        )
        self._settling = Settling(self.buffer, config.first_step - 1)
        self._tasks: list[asyncio.Task[None]] = []
        self._puts: set[asyncio.Task[int]] = set()  # which may wait for room
        self._error: BaseException | None = None  # of the preparing loop: nothing is prepared any more
        self._home = forking.here()
        self._is_closed = False
        self._stopping: Once[list[GenerationResult]] = Once()

    # --- its life

    async def start(self) -> Self:
        """Start both loops; without a `restore`, with `first_step`: what it and later steps used is available again.

        Raises CannotRewind if that was committed, or let go.
        """
        self._check_open()
        if self._tasks:
            raise InvalidArgument("the preparer was started before")
        if not self._is_restored:
            await self._keeping.begin(self.config.first_step)
        await self._intake.begin()
        self._tasks = [asyncio.create_task(self._prepare_all(), name="reroll-prepare")]
        if self._source is not None:
            self._tasks.append(asyncio.create_task(self._consume_all(), name="reroll-consume"))
        return self

    async def shutdown(self) -> list[GenerationResult]:
        """Stop both loops; whoever waits gets Closed. Steps that are not done give their groups back.

        Returns the results that were taken from the source and are not in the buffer. A buffer of its own is closed. A second
        call returns when the first has ended.
        """
        if forking.is_elsewhere(self._home):
            return self._left_over
        return await self._stopping.run(self._stop)

    async def _stop(self) -> list[GenerationResult]:
        self._is_closed = True
        self._waits.wake()
        running = (*self._tasks, *self._puts)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._settling.give_back()
        if self._owns_buffer:
            await self.buffer.close()
        return self._left_over

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except CannotRewind:  # nobody else has it, who could
            await self.shutdown()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    # --- for producers

    async def put(
        self, results: GenerationResult | list[GenerationResult], *, timeout: float | None = None
    ) -> int:
        """Put results as the consuming loop does; return how many of them are groups to train on,
        now or since they first came: so a producer knows how many lack.

        Waits for room, without a timeout until there is some. Raises InvalidArgument for what cannot be used, WaitTimeout,
        Closed: what came before it in a list is in the buffer then, and is stored once if it is put again.
        """
        self._check_open()
        putting = asyncio.create_task(self._take_in(results_in(results), timeout))
        self._puts.add(putting)
        putting.add_done_callback(self._puts.discard)
        try:
            return await putting
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is None or not caller.cancelling():  # so that it was the shutdown
                self._check_open()
            raise

    # --- for trainers

    async def get_data(self, rank: int, step: int, timeout: float | None = None) -> StepData:
        """Return what a rank trains in a step; wait until it is prepared.

        Asking for a step says that this rank is done with all before it; the one before can still be read again. Raises
        WaitTimeout (which says how many groups are missing), StepGone, SourceEnded, LoopFailed, Closed, InvalidArgument.
        """
        deadline = deadline_of(timeout)
        self._check_started()
        self._steps.check(rank, step)
        self._steps.ask(rank, step)
        self._taking.moved()
        await self._settling.settle_by(deadline, self._steps)
        self._intake.arrivals.trained(self._steps.done)
        try:
            await self._waits.until(
                [object()],
                lambda: self._steps.is_ready(step) or self._cannot_go_on(),
                deadline,
                str,
            )
        except WaitTimeout:
            raise WaitTimeout(await self._explain(step)) from None
        self._check_open()
        prepared = self._steps.give(rank, step)
        if prepared is not None:
            return prepared.part(rank)
        self._steps.check(rank, step)
        raise self._failure()

    async def done(self, step: int, *, version: int | None = None) -> None:
        """Tell that a step, and all before it, was trained: their groups are consumed.

        `version` is that of the weights which generate from now on, for a staleness window. Raises InvalidArgument if
        nobody has asked for the step.
        """
        self._check_started()
        self._steps.finish(step)
        await self._settle(version)

    async def commit(self, step: int) -> int:
        """Tell that the trainer's own checkpoint of this step is on disk; see `ReplayBuffer.commit`."""
        self._check_open()
        count: int = await self.buffer.commit(step)
        return count

    async def state(
        self, *, step: int | None = None, save_to: str | PathLike[str] | None = None
    ) -> dict[str, Any]:
        """Return what a restart needs, as plain values, for the trainer's checkpoint: step, prompt cursor, buffer.

        With `step`, that step is done first. The buffer is saved into a new directory inside of `save_to`, which is kept
        until you remove it; one with a store, or that belongs to somebody else, need not be. Raises InvalidArgument if its
        groups would be lost.
        """
        self._check_open()
        self._keeping.check_can_save(save_to)
        if step is not None:
            self._steps.finish(step)
            await self._settle()
        async with self._settling.lock:
            # First the cursor: what comes in between is saved but not settled, is generated again and stored once.
            state = {
                "format": FORMAT,
                "step": self._steps.done,
                "cursor": self._prompts.state(),
                "generated": self._intake.state(),
            }
            return state | await self._keeping.save(save_to, self._steps.done)

    async def restore(self, state: Mapping[str, Any], *, saved: str | PathLike[str] | None = None) -> None:
        """Go on after the step of a state, before `start()`. What later steps had consumed is available again.

        The buffer has to be where the state says, or in the directory `saved` if it was moved. Raises InvalidArgument,
        SavedNotFound, and what `ReplayBuffer.resume` and `rewind` raise.
        """
        self._check_open()
        if self._tasks:
            raise InvalidArgument("the preparer has started; restore before that")
        step: int = checked_state(state)["step"]
        await self._keeping.restore(state, saved)
        self._prompts.restore(state["cursor"])
        self._intake.restore(state["generated"])
        self._steps = Steps(self.config.num_ranks, self.config.async_steps, step)
        self._settling = Settling(self.buffer, step)
        self._is_restored = True

    # --- the consuming loop

    async def _consume_all(self) -> None:
        try:
            await pump(self._source, self._sentinel, self._deliver)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  (whoever asks for data gets it, also an exit in the source's thread)
            self._taking.source_error = error
        self._taking.has_ended = True
        self._taking.moved()

    async def _deliver(self, item: Any) -> None:
        results = results_in(item)
        for place, result in enumerate(results):
            try:
                await self._take_in([result], None)
            except BaseException:
                self._left_over += results[place:]
                raise

    async def _take_in(self, results: list[GenerationResult], timeout: float | None) -> int:
        self._taking.came()
        try:
            return await self._intake.take(results, timeout)
        except (KeyboardInterrupt, SystemExit) as error:
            # Either would end the event loop, and with it all who wait.
            raise LoopFailed(f"a predicate or callback ended with {error!r}") from error
        finally:
            self._taking.moved()

    # --- the preparing loop

    async def _prepare_all(self) -> None:
        try:
            await self._prepare_one_after_the_other()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  (whoever asks for data gets it)
            self._error = error
            self._waits.wake()

    async def _prepare_one_after_the_other(self) -> None:
        while True:
            step, started = self._steps.newest + 1, time.monotonic()
            await self._waits.until([object()], lambda step=step: self._steps.may_prepare(step), None, str)  # type: ignore[misc]
            allowed = time.monotonic()
            batch = await self._taking.take(step)
            taken = time.monotonic()
            try:
                prepared = await self._prepare(step, batch)
            except BaseException:
                if batch is not None:
                    await batch.nack()
                raise
            prepared.metrics["time/waiting_for_trainer_s"] = allowed - started
            prepared.metrics["time/waiting_for_generation_s"] = taken - allowed
            prepared.metrics["time/preparing_s"] = time.monotonic() - taken
            self._settling.hold(step, batch)
            self._steps.offer(step, prepared)
            self._waits.wake()

    async def _prepare(self, step: int, batch: Any) -> Prepared:
        samples = dict.fromkeys(self.config.sizes, ()) if batch is None else batch.samples
        await asyncio.sleep(0)  # whoever put the last of them notes it first
        arrivals = self._intake.arrivals
        if self.config.when_filtered == "yield":
            generated = arrivals.take(step, self.config.sizes)
        elif self.config.is_in_order:
            newest = {
                task: max(sample.info.uid for sample in drawn) for task, drawn in samples.items() if drawn
            }
            generated = arrivals.take_up_to(step, newest)
        else:
            generated = arrivals.take_all(step)
        return await asyncio.to_thread(prepare_step, step, samples, generated, self.config, self._memory)

    async def _settle(self, version: int | None = None) -> None:
        await self._settling.settle(self._steps, version=version)
        self._intake.arrivals.trained(self._steps.done)

    # --- messages

    def _check_open(self) -> None:
        forking.check(self._home, "the preparer")
        if self._is_closed:
            raise Closed("the preparer was shut down")

    def _check_started(self) -> None:
        self._check_open()
        if not self._tasks:
            raise Closed("the preparer was not started; call start(), or use it in a `with`")

    def _cannot_go_on(self) -> bool:
        return self._is_closed or self._error is not None or self._taking.over is not None

    def _failure(self) -> Exception:
        for name, error in (("preparing", self._error), ("consuming", self._taking.source_error)):
            if error is not None:
                failure = LoopFailed(f"the {name} loop failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                return failure
        return SourceEnded(self._taking.over or "the source has ended")

    async def _explain(self, step: int) -> str:
        """Return why a step is not there yet."""
        if not self._steps.may_prepare(step):
            return (
                f"get_data of step {step} timed out: another rank is more than async_steps={self.config.async_steps} "
                "behind; is it alive?"
            )
        first = self._steps.newest + 1
        why = "" if first == step else f"step {first} comes first; "
        return f"get_data of step {step} timed out: {why}{await self._taking.missing(first)}"
