"""A simulated run: producers and a trainer that use the public verbs of a real buffer, in virtual time."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final, TextIO

from reroll.errors import Deadlock
from reroll.group import RolloutGroup
from reroll.rollout import Status
from reroll.simulate import loop
from reroll.simulate.engines import Engine, Fleet, Sequence
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


class _Member(Sequence):
    """A response of a group, from its first token to its last."""

    __slots__ = ("group", "length", "runs", "status", "versions")

    def __init__(self, length: int, runs: list[int], versions: Any = None) -> None:
        super().__init__(target=0, tokens=sum(runs))
        self.length, self.runs, self.versions = length, runs, versions
        """Tokens of the whole response; those of each run that the buffer gets as one token id; versions of earlier runs."""
        self.status = Status.ABORTED
        self.group: _Group


class _Group:
    """A group while its members are generated."""

    def __init__(self, number: Any, members: list[_Member], solve_rate: float, claim: Any) -> None:
        self.number, self.members, self.solve_rate, self.claim = number, members, solve_rate, claim
        """`claim`: the reservation of a new group, the uid of one that the buffer knows, or None."""
        self.version = 0
        self.running: dict[_Member, None] = {}
        self.needed = 0  # members that must still end
        self.stored = self.tokens  # tokens that the buffer knows
        self.surplus = 0  # tokens that the buffer knows, of members that were left out
        self.is_aborted = self.is_cancelled = False
        self.watch: asyncio.Task[None] | None = None

    @property
    def tokens(self) -> int:
        return sum(sum(member.runs) for member in self.members)


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
        self._fleet = Fleet(scenario.engines, self._loop, self._turn_ended)
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
        counts = _finished(self._buffer.count_statuses([self._task], list(Status)))[self._task]
        held = {status.value: number for status, number in counts.items() if number}
        return (
            f"the trainer needs {self._scenario.trainer.batch} completed groups, the buffer holds {held or 'none'}, "
            f"{self._fleet.load} responses are with engines, and these calls wait: {waiting or 'none'}; "
            "raise max_staleness or capacity, or lower trainer.batch"
        )

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
            members = [_Member(draw(self._rng), []) for _ in range(model.started or model.members)]
            self._generate(_Group(self._started, members, rate, reservation))

    async def _start_again(self, status: str) -> None:
        """Continue groups that were aborted, and generate expired ones again."""
        names = ("status", "response_ids", "response_model_steps", "extra_fields")
        while True:
            taken, _ = await self._buffer.take_batch({self._task: 1}, group_status=status, wait=True)
            await self._places.acquire()
            await self._serving.wait()
            group, members = taken[self._task][0], []
            for state, ids, versions, extra in zip(*group.values(names), strict=True):
                runs = extra.get("runs", [extra["length"]])[: 0 if ids is None else len(ids)]
                members.append(_Member(extra["length"], list(runs), versions if runs else None))
                members[-1].status = state
            self._generate(_Group(group.group_id, members, extra.get("solve_rate", 1.0), group.uid))

    def _generate(self, group: _Group) -> None:
        open_members = [member for member in group.members if member.status != Status.COMPLETED]
        group.needed = self._scenario.group.members - (len(group.members) - len(open_members))
        group.version = self._version
        self._groups[group] = None
        for member in open_members:
            member.group = group
            group.running[member] = None
            self._next_turn(member)
        if self._stops_late_groups:
            group.watch = self._spawn(self._stop_when_overdue(group))

    def _end(self, group: _Group) -> None:
        """Let the buffer have a group of which nothing is with an engine any more."""
        if group.watch is not None and group.watch is not asyncio.current_task():
            group.watch.cancel()
        self._spawn(self._drop(group) if group.is_cancelled else self._put(group))

    async def _drop(self, group: _Group) -> None:
        self._meter.lost["cancelled"] += group.tokens - group.stored
        if isinstance(group.claim, int):
            await self._buffer.forget([group.claim])
        else:
            await self._buffer.release(group.claim)
        self._leave(group)

    async def _put(self, group: _Group) -> None:
        model, members = self._scenario.group, group.members
        if model.judge is not None and not group.is_aborted:
            await asyncio.sleep(model.judge.draw(self._rng))
        # The ledger counts the tokens of a group as a whole: those of members left out are deleted only if it shrinks.
        grown = group.tokens - group.stored
        self._since_step += 1
        if self._since_step > _MOST_BATCHES * self._scenario.trainer.batch:
            raise Deadlock(
                f"the trainer got no step out of the last {self._since_step} groups; {self.explain()}"
            )
        rewards = None if group.is_aborted else self._reward(group)
        is_known = isinstance(group.claim, int)
        await self._buffer.put(
            RolloutGroup.pack(
                [],
                [[0] * len(member.runs) for member in members],
                rewards=rewards,
                status=[member.status for member in members],
                versions=[member.versions for member in members] if is_known else None,
                model_step=group.version,
                group_id=group.number,
                fields={
                    "num_tokens": [sum(member.runs) for member in members],
                    "extra_fields": [_memory(member, group.solve_rate) for member in members],
                },
            ),
            self._task,
            uid=group.claim if is_known else None,
            reservation=None if is_known else group.claim,
        )
        self._meter.put([member.tokens for member in members], {member.status for member in members})
        self._meter.lost["surplus"] += min(group.surplus, group.surplus + grown)
        self._leave(group)

    def _leave(self, group: _Group) -> None:
        del self._groups[group]
        self._places.release()

    async def _stop_when_overdue(self, group: _Group) -> None:
        verdict = await self._buffer.wait_overdue(group.claim)
        if verdict is None or not group.running:
            return  # it has ended, or the judge has it
        group.is_aborted, group.is_cancelled = verdict == "resume", verdict == "cancel"
        for member in group.running:
            if member.engine is not None:
                member.engine.cancel(member)
        self._park(group)

    def _park(self, group: _Group) -> None:
        """End the generation of a group whose responses are with no engine; it keeps the tokens that it has."""
        for member in list(group.running):
            if group.is_aborted and self._scenario.engines.recompute:
                self._meter.recomputed += self._scenario.group.prompt_tokens + member.tokens
            self._keep(member, Status.ABORTED)
        self._end(group)

    def _next_turn(self, member: _Member) -> None:
        model = self._scenario.group
        turn = -(-member.length // model.turns)
        member.target = min(member.length, (member.tokens // turn + 1) * turn)
        is_read = bool(member.tokens) and not self._scenario.engines.recompute
        self._fleet.submit(member, 0 if is_read else model.prompt_tokens + member.tokens)

    def _turn_ended(self, member: _Member) -> None:
        model, group = self._scenario.group, member.group
        if member not in group.running:
            return  # another member ended at the same moment, and this one is surplus
        if self._trace is not None:
            self._record("response", **member.run._asdict())
        if member.tokens < member.length:
            assert model.tool is not None  # noqa: S101  (the scenario has checked it)
            self._loop.call_later(model.tool.draw(self._rng), self._after_tool, member)
            return
        group.needed -= 1
        has_failed = model.failed_share and self._rng.random() < model.failed_share
        self._keep(member, Status.FAILED if has_failed else Status.COMPLETED)
        if not group.needed:
            self._drop_surplus(group)
            self._end(group)

    def _record(self, kind: str, **values: float) -> None:
        assert self._trace is not None  # noqa: S101
        self._trace.write(json.dumps({"kind": kind, **values}) + "\n")

    def _after_tool(self, member: _Member) -> None:
        if member in member.group.running:  # else it was aborted meanwhile
            self._next_turn(member)

    def _keep(self, member: _Member, status: Status) -> int:
        """End a response, and return the tokens of this run."""
        grown = member.tokens - sum(member.runs)
        del member.group.running[member]
        self._meter.generated += grown
        if grown:
            member.runs.append(grown)
        member.status = status
        return grown

    def _drop_surplus(self, group: _Group) -> None:
        """Abort the members that are not needed any more, and leave them out of the group."""
        for member in list(group.running):
            if member.engine is not None:
                member.engine.cancel(member)
            grown = self._keep(member, Status.ABORTED)
            self._meter.lost["surplus"] += grown
            group.surplus += member.tokens - grown
            group.members.remove(member)

    def _reward(self, group: _Group) -> list[float]:
        """Return rewards, and filter a group that teaches nothing."""
        rewards = [float(self._rng.random() < group.solve_rate) for _ in group.members]
        is_same = self._scenario.group.solve_rate is not None and len(set(rewards)) == 1
        if is_same and all(member.status == Status.COMPLETED for member in group.members):
            for member in group.members:
                member.status = Status.FILTERED
        return rewards

    def _abort_all(self) -> None:
        """Abort every response; their groups go back to the buffer with the tokens that they have."""
        for engine in self._fleet.engines:
            engine.abort()
        for group in list(self._groups):
            if group.running:  # else the judge has it
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
        for member in engine.abort():
            assert isinstance(member, _Member)  # noqa: S101
            lost = member.tokens - sum(member.runs)
            self._meter.generated += lost
            self._meter.lost["crashed"] += lost
            member.tokens -= lost
            self._next_turn(member)
        self._loop.call_later(self._scenario.engines.restart_s, self._restart, engine)

    @staticmethod
    def _restart(engine: Engine) -> None:
        engine.is_down = False
        engine.go()

    def _generating(self) -> Generating:
        """Return the tokens with producers. O(running responses)."""
        running = pending = 0
        for group in self._groups:
            running += sum(member.now() - sum(member.runs) for member in group.running)
            pending += group.tokens - group.stored + group.surplus
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
                tokens = sum(sample.group.num_tokens for sample in samples)
                seconds = (model.seconds_per_step + tokens * model.seconds_per_token) * model.updates
                if has_crashed := leased + seconds > next_crash:
                    seconds = next_crash - leased
                if model.colocated:
                    self._fleet.stop()
                await asyncio.sleep(seconds)
                if model.colocated:
                    self._fleet.go()
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
                step,
                self._loop.time(),
                leased - started,
                buffer=self._buffer,
                fleet=self._fleet,
                generating=self._generating(),
            )
            if self._progress is not None:
                self._progress(step, scenario.steps)
            step += 1
        self._over.set_result(None)

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


def _memory(member: _Member, solve_rate: float) -> dict[str, Any]:
    """Return what the buffer keeps of a member for its next producer; one token id stands for all tokens of a run."""
    memory: dict[str, Any] = {"length": member.length}
    if member.runs != [member.length]:
        memory["runs"] = member.runs
    if solve_rate < 1:
        memory["solve_rate"] = solve_rate
    return memory


def _finished(call: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a call that does not wait, without a running loop."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    call.close()
    raise RuntimeError("the call waits")
