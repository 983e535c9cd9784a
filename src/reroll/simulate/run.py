"""A simulated run: producers and a trainer that use the public verbs of a real buffer, in virtual time."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TextIO

from reroll.errors import Deadlock
from reroll.rollout import Rollout, Status
from reroll.simulate import loop
from reroll.simulate.engines import Engine, Fleet
from reroll.simulate.engines import Sequence as Response
from reroll.simulate.result import Generating, Meter, Result
from reroll.simulate.scenario import Scenario

Progress = Callable[[int, int], object]
"""Called with the number of finished steps, and of all."""

_MOST_BATCHES: Final = 100
"""A run ends with an error if this many batches of groups are put, and none is trained."""


def simulate(scenario: Scenario, *, progress: Progress | None = None, trace: TextIO | None = None) -> Result:
    """Simulate a run, and return what was measured. The same scenario gives the same result.

    Args:
        scenario: the run.
        progress: is called after each training step.
        trace: a file that gets a line for each response and step, as `calibrate` reads them.

    Returns:
        Times, rates, staleness and waste of the run.

    Raises:
        Deadlock: the run stops for ever; the message names the calls that wait.
        InvalidConfig: the buffer can never work as configured.

    """
    run = _Run(scenario, progress, trace)
    return loop.run(run.run(), run.explain)


class _Group:
    """A group while its members are generated."""

    def __init__(self, rollouts: Sequence[Rollout], version: int, done: asyncio.Future[None]) -> None:
        self.rollouts, self.version, self.done = list(rollouts), version, done
        self.responses: dict[int, Response] = {}  # members that are generated now, by their position
        self.stored = sum(map(_tokens_of, rollouts))  # tokens that the buffer knows
        self.surplus = 0  # tokens that the buffer knows, of members that were left out
        self.needed = 0  # members that must still end
        self.is_aborted = self.is_cancelled = False


class _Run:
    def __init__(self, scenario: Scenario, progress: Progress | None, trace: TextIO | None) -> None:
        self._scenario, self._progress, self._trace = scenario, progress, trace
        self._rng = random.Random(scenario.seed)
        self._task = scenario.task
        self._buffer = scenario.buffer_config().build()
        task = scenario.buffer_config().for_task(scenario.task)
        self._window = task.window()
        # Late groups are trained late, unless a bound of the task expires them.
        self._stops_late_groups = self._window is not None and (
            self._window.stragglers == "resume" or task.max_staleness is not None
        )
        self._meter = Meter(scenario)
        self._version = 0
        self._groups: dict[_Group, None] = {}  # those that are generated now, in the order of their starts
        self._started = 0
        self._since_step = 0  # groups that were put since the last training step
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> Result:
        scenario = self._scenario
        self._loop = asyncio.get_running_loop()
        self._fleet = Fleet(scenario.engines, self._loop)
        self._places = asyncio.Semaphore(scenario.places())
        self._serving = asyncio.Event()  # cleared while weights are copied
        self._serving.set()
        self._over: asyncio.Future[None] = self._loop.create_future()
        for work in (self._train(), self._start_new(), *map(self._start_again, ("aborted", "expired"))):
            self._spawn(work)
        if scenario.engines.failure_interval_s is not None:
            self._spawn(self._crash_engines(scenario.engines.failure_interval_s))
        try:
            await self._over
        finally:
            for task in self._tasks:
                task.cancel()
        result = await self._meter.result(self._buffer, self._fleet, self._generating())
        await self._buffer.close()
        return result

    def explain(self) -> str:
        """Return what the buffer, the engines and the waiting calls are doing."""
        stats = _finished(self._buffer.stats())
        waiting = ", ".join(
            f"{wait.count} {name}" for name, wait in stats.total.waiting.items() if wait.count
        )
        held = {status.value: number for (_, status), number in self._counts().items() if number}
        return (
            f"the trainer needs {self._scenario.trainer.batch} completed groups, the buffer holds {held or 'none'}, "
            f"{self._fleet.load} responses are with engines, and these calls wait: {waiting or 'none'}; "
            "raise max_staleness or capacity, or lower trainer.batch"
        )

    def _counts(self) -> dict[tuple[str, Status], int]:
        matrix = _finished(self._buffer.count_statuses([self._task], list(Status)))
        return {(task, status): n for task, row in matrix.items() for status, n in row.items()}

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._over.done():
            self._over.set_exception(error)

    # --- producers

    async def _start_new(self) -> None:
        model, draw = self._scenario.group, self._scenario.lengths.draw
        while True:
            reservation = await self._buffer.reserve(1, self._task) if self._window is not None else None
            await self._places.acquire()
            await self._serving.wait()
            self._started += 1
            rate = 1.0 if model.solve_rate is None else self._rng.betavariate(*model.solve_rate)
            rollouts = [
                Rollout(
                    group_id=self._started,
                    status=Status.ABORTED,
                    num_tokens=0,
                    extra_fields={"target": draw(self._rng), "solve_rate": rate},
                )
                for _ in range(model.started or model.members)
            ]
            self._spawn(self._generate(rollouts, reservation))

    async def _start_again(self, status: str) -> None:
        """Continue groups that were aborted, and generate expired ones again."""
        while True:
            groups, _ = await self._buffer.take_batch({self._task: 1}, group_status=status, wait=True)
            await self._places.acquire()
            await self._serving.wait()
            self._spawn(self._generate(groups[self._task][0], None))

    async def _generate(self, rollouts: Sequence[Rollout], reservation: Any) -> None:
        model = self._scenario.group
        group = _Group(rollouts, self._version, self._loop.create_future())
        open_members = [i for i, rollout in enumerate(group.rollouts) if rollout.status != Status.COMPLETED]
        group.needed = model.members - (len(group.rollouts) - len(open_members))
        self._groups[group] = None
        for i in open_members:
            self._submit(group, i)
        watch, uid = None, group.rollouts[0].group_uid or 0
        if self._stops_late_groups:
            watch = self._spawn(self._stop_when_overdue(group, reservation or uid))
        await group.done
        if watch is not None:
            watch.cancel()
        if group.is_cancelled:
            self._meter.lost["cancelled"] += sum(map(_tokens_of, group.rollouts)) - group.stored
            if reservation is not None:
                await self._buffer.release(reservation)
            else:
                await self._buffer.forget([uid])
            del self._groups[group]
            self._places.release()
            return
        if model.judge is not None and not group.is_aborted:
            await asyncio.sleep(model.judge.draw(self._rng))
        self._write(group)
        # The ledger counts the tokens of a group as a whole: those of members left out are deleted only if it shrinks.
        grown = sum(map(_tokens_of, group.rollouts)) - group.stored
        self._meter.put(group.rollouts)
        self._since_step += 1
        if self._since_step > _MOST_BATCHES * self._scenario.trainer.batch:
            raise Deadlock(
                f"the trainer got no step out of the last {self._since_step} groups; {self.explain()}"
            )
        await self._buffer.put(group.rollouts, self._task, model_step=group.version, reservation=reservation)
        self._meter.lost["surplus"] += min(group.surplus, group.surplus + grown)
        del self._groups[group]
        self._places.release()

    async def _stop_when_overdue(self, group: _Group, running: Any) -> None:
        verdict = await self._buffer.wait_overdue(running)
        if verdict is None or not group.responses:
            return  # it has ended, or the judge has it
        group.is_aborted, group.is_cancelled = verdict == "resume", verdict == "cancel"
        for response in group.responses.values():
            if response.engine is not None:
                response.engine.cancel(response)
        self._park(group)

    def _park(self, group: _Group) -> None:
        """End the generation of a group whose responses are with no engine; it keeps the tokens that it has."""
        for i in list(group.responses):
            if group.is_aborted:
                self._meter.recomputed += self._scenario.group.prompt_tokens + group.responses[i].tokens
            self._keep(group, i, Status.ABORTED)
        group.done.set_result(None)

    def _submit(self, group: _Group, i: int) -> None:
        rollout = group.rollouts[i]
        tokens = _tokens_of(rollout)
        response = Response(lambda response: self._turn_ended(group, i, response), target=0, tokens=tokens)
        group.responses[i] = response
        self._next_turn(group, i, response)

    def _next_turn(self, group: _Group, i: int, response: Response) -> None:
        model = self._scenario.group
        target = _target_of(group.rollouts[i])
        turn = -(-target // model.turns)
        response.target = min(target, (response.tokens // turn + 1) * turn)
        self._fleet.submit(response, model.prompt_tokens + response.tokens)

    def _turn_ended(self, group: _Group, i: int, response: Response) -> None:
        model = self._scenario.group
        if group.responses.get(i) is not response:
            return  # another member ended at the same moment, and this one is surplus
        if self._trace is not None:
            self._record("response", **response.run._asdict())
        if response.tokens < _target_of(group.rollouts[i]):
            assert model.tool is not None  # noqa: S101  (the scenario has checked it)
            delay = model.tool.draw(self._rng)
            self._loop.call_later(delay, self._after_tool, group, i, response)
            return
        self._keep(group, i, Status.COMPLETED)
        if not group.needed:
            self._drop_surplus(group)
            group.done.set_result(None)

    def _record(self, kind: str, **values: float) -> None:
        assert self._trace is not None  # noqa: S101
        self._trace.write(json.dumps({"kind": kind, **values}) + "\n")

    def _after_tool(self, group: _Group, i: int, response: Response) -> None:
        if group.responses.get(i) is response:  # else it was aborted meanwhile
            self._next_turn(group, i, response)

    def _keep(self, group: _Group, i: int, status: Status) -> None:
        """Write what was generated to the rollout."""
        response, rollout = group.responses.pop(i), group.rollouts[i]
        before = _tokens_of(rollout)
        if response.tokens > before:
            self._meter.generated += response.tokens - before
            runs = [*rollout.extra_fields.get("runs", ())[: _runs_of(rollout)], response.tokens - before]
            rollout.extra_fields["runs"] = runs
            rollout.response_ids = [0] * len(runs)
        rollout.num_tokens = response.tokens
        if status is Status.COMPLETED:
            group.needed -= 1
            if self._rng.random() < self._scenario.group.failed_share:
                status = Status.FAILED
        rollout.status = status

    def _drop_surplus(self, group: _Group) -> None:
        """Abort the members that are not needed any more, and leave them out of the group."""
        surplus = set(group.responses)
        for i in surplus:
            response, before = group.responses[i], _tokens_of(group.rollouts[i])
            if response.engine is not None:
                response.engine.cancel(response)
            self._keep(group, i, Status.ABORTED)
            self._meter.lost["surplus"] += response.tokens - before
            group.surplus += before
        group.rollouts = [rollout for i, rollout in enumerate(group.rollouts) if i not in surplus]

    def _write(self, group: _Group) -> None:
        """Give members their rewards, and filter a group that teaches nothing."""
        if group.is_aborted:
            return
        rewards = [
            float(self._rng.random() < rollout.extra_fields["solve_rate"]) for rollout in group.rollouts
        ]
        for rollout, reward in zip(group.rollouts, rewards, strict=True):
            rollout.reward = reward
        is_same = self._scenario.group.solve_rate is not None and len(set(rewards)) == 1
        if is_same and all(rollout.status == Status.COMPLETED for rollout in group.rollouts):
            for rollout in group.rollouts:
                rollout.status = Status.FILTERED

    def _abort_all(self) -> None:
        """Abort every response; their groups go back to the buffer with the tokens that they have."""
        for engine in self._fleet.engines:
            engine.abort()
        for group in list(self._groups):
            if not group.responses:
                continue  # the judge has it
            group.is_aborted = True
            self._park(group)

    async def _crash_engines(self, interval_s: float) -> None:
        engines = self._fleet.engines
        while True:
            await asyncio.sleep(self._rng.expovariate(len(engines) / interval_s))
            engine = self._rng.choice(engines)
            if not engine.is_down:
                self._crash(engine)

    def _crash(self, engine: Engine) -> None:
        engine.is_down = True
        engine.stop()
        lost = set(engine.abort())
        for group in self._groups:
            for i, response in group.responses.items():
                if response in lost:
                    before = _tokens_of(group.rollouts[i])
                    self._meter.generated += response.tokens - before
                    self._meter.lost["crashed"] += response.tokens - before
                    response.tokens = before
                    self._next_turn(group, i, response)
        self._loop.call_later(self._scenario.engines.restart_s, self._restart, engine)

    @staticmethod
    def _restart(engine: Engine) -> None:
        engine.is_down = False
        engine.go()

    def _generating(self) -> Generating:
        running = pending = 0
        for group in self._groups:
            running += sum(r.now() - _tokens_of(group.rollouts[i]) for i, r in group.responses.items())
            pending += sum(map(_tokens_of, group.rollouts)) - group.stored + group.surplus
        return Generating(running, pending)

    # --- the trainer

    async def _train(self) -> None:
        scenario, model = self._scenario, self._scenario.trainer
        step, committed, next_crash = 1, 0, self._next_crash()
        while step <= scenario.steps:
            started = self._loop.time()
            async with self._buffer.lease({self._task: model.batch}, wait=True, train_step=step) as batch:
                leased = self._loop.time()
                samples = batch.samples[self._task]
                tokens = sum(_tokens_of(rollout) for sample in samples for rollout in sample.group)
                seconds = (model.seconds_per_step + tokens * model.seconds_per_token) * model.updates
                if has_crashed := leased + seconds > next_crash:
                    seconds = next_crash - leased
                await self._work(seconds)
                if not has_crashed:
                    await batch.ack()
            if has_crashed:
                await asyncio.sleep(model.restart_s)
                await self._buffer.rewind(committed)
                step, next_crash = committed + 1, self._next_crash()
                self._version = min(self._version, committed)
                continue
            self._meter.trained(samples, step)
            self._since_step = 0
            if self._trace is not None:
                self._record("step", tokens=tokens, seconds=seconds, wait_s=leased - started)
            if step % model.sync_interval == 0:
                await self._sync(step)
            await self._buffer.advance(step, version=self._version)
            if step % model.commit_interval == 0:
                await self._buffer.commit(step)
                committed = step
            await self._meter.step(
                step, leased - started, buffer=self._buffer, fleet=self._fleet, generating=self._generating()
            )
            if self._progress is not None:
                self._progress(step, scenario.steps)
            step += 1
        self._over.set_result(None)

    async def _work(self, seconds: float) -> None:
        if self._scenario.trainer.colocated:
            self._fleet.stop()
        await asyncio.sleep(seconds)
        if self._scenario.trainer.colocated:
            self._fleet.go()

    async def _sync(self, step: int) -> None:
        model = self._scenario.trainer
        self._serving.clear()
        self._fleet.stop()
        if model.on_sync == "abort":
            self._abort_all()
        await asyncio.sleep(model.sync_s)
        self._version = step
        self._fleet.go()
        self._serving.set()

    def _next_crash(self) -> float:
        interval = self._scenario.trainer.failure_interval_s
        return float("inf") if interval is None else self._loop.time() + self._rng.expovariate(1 / interval)


def _tokens_of(rollout: Rollout) -> int:
    """Return the tokens that a rollout has; a reset leaves none."""
    return int(rollout.num_tokens or 0) if _runs_of(rollout) else 0


def _runs_of(rollout: Rollout) -> int:
    """Return how many times the rollout was continued; one token id stands for all tokens of such a run."""
    return 0 if rollout.response_ids is None else len(rollout.response_ids)


def _target_of(rollout: Rollout) -> int:
    return int(rollout.extra_fields["target"])


def _finished(call: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a call that does not wait, without a running loop."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    call.close()
    raise RuntimeError("the call waits")
