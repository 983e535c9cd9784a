"""No dead-lock: limiters, capacities, windows, reservations, leases, expiry, two tasks and cancellations, in any order.

After each step the books close, nobody waits who could go on, and of producer and consumer one can always act:

- If a COMPLETED group cannot be put, one can be handed out, or a holder has one that it can acknowledge or give back.
- If a producer that follows the window cannot start, another holds a place that it can settle or release (a reservation,
  a group that is out or parked), or a group is ready, or lent, or the trainer has had its batch and can advance.
- If nothing can be handed out, a group can be put or started, or a holder can act.

At the end, everybody who holds something lets go, and simple producers and consumers let all who still wait go on.
"""

import asyncio
import math
import warnings
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replay.buffers import LONG_S, group, timed
from reroll import (
    Fifo,
    InvalidArgument,
    InvalidConfig,
    LeaseExpired,
    LeastUsed,
    MinSize,
    Prioritized,
    Queue,
    ReplayBufferConfig,
    SampleToInsertRatio,
    StalenessWindow,
    Stalest,
    TaskConfig,
    Uniform,
    WaitTimeout,
)
from reroll.engine.ledger import Spot, closes
from reroll.engine.task import COMPLETED, RUNNING, STATUS_CODE, Status
from reroll.testing.probe import probe

TASKS = ("a", "b")
ABORTED, EXPIRED = STATUS_CODE[Status.ABORTED], STATUS_CODE[Status.EXPIRED]


@st.composite
def task_configs(draw):
    uses = draw(st.sampled_from([1, 1, 2, 3]))
    limiter = draw(
        st.sampled_from(
            [None, MinSize(2), Queue(2), Queue(3), SampleToInsertRatio(float(uses), 1, 4.0 * uses)]
        )
    )
    window = draw(
        st.sampled_from([None, StalenessWindow(0, 2), StalenessWindow(2, 1, 2), StalenessWindow(1, 2)])
    )
    if window is not None and limiter is not None:
        # Must be refused, see test_admission: the window fills with groups that the limiter lets nobody sample.
        spi, min_size, min_diff, _ = limiter.window
        narrowest = (window.max_staleness + 2 - window.sync_interval) * window.batch
        if min_size > narrowest or (uses > spi and min_diff > -math.inf):
            window = None
    sampler = draw(st.sampled_from([Fifo(), Stalest(), Uniform(), Prioritized(half_life=2.0), LeastUsed()]))
    stalest_once = isinstance(sampler, Stalest) and uses == 1
    if window is not None and draw(st.booleans()):
        window = replace(window, stragglers="wait" if stalest_once else "resume")
    return TaskConfig(
        capacity=draw(st.sampled_from([None, 2, 3, 4])),
        sampler=sampler,
        remover=draw(st.sampled_from([None, None, "fifo", "min_heap"])),
        max_times_sampled=uses,
        max_staleness=None
        if window is not None and window.stragglers == "resume"
        else draw(st.sampled_from([None, None, 2])),
        on_stale=draw(st.sampled_from(["reroll", "drop"])),
        rate_limiter=[part for part in (limiter, window) if part is not None] or None,
    )


class Machine(RuleBasedStateMachine):
    @initialize(a=task_configs(), b=task_configs(), out_ttl=st.sampled_from([None, LONG_S]))
    def build(self, a, b, out_ttl):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                config = ReplayBufferConfig(tasks={"a": a, "b": b}, seed=1, out_ttl_s=out_ttl)
                self.buffer, self.clock = timed(config)
            except InvalidConfig:
                assume(False)  # refused at construction: that is the other way to keep the promise
        self.loop = asyncio.new_event_loop()
        self.engine = probe(self.buffer).engine
        self.step = 0
        self.waiting = []  # (kind, task of asyncio)
        self.leases, self.reservations, self.out = [], [], []
        for name in TASKS:
            self.engine.task(name)

    def teardown(self):
        if not hasattr(self, "loop"):
            return
        try:
            self.everybody_ends()
        finally:
            for _, call in self.waiting:
                call.cancel()
            self.loop.run_until_complete(self.quiet())
            self.loop.close()

    # --- the machinery

    async def quiet(self):
        for _ in range(10):
            await asyncio.sleep(0)

    def ask(self, call):
        """Carry out a verb that never waits."""

        async def now():
            future = asyncio.ensure_future(call)
            await self.quiet()
            assert future.done(), "waits, but never should"
            return await future

        result = self.loop.run_until_complete(now())
        self.collect()
        return result

    def begin(self, kind, call):
        """Start a verb that may wait."""

        async def taken():
            return await call

        self.waiting.append((kind, self.loop.create_task(taken())))
        self.loop.run_until_complete(self.quiet())
        self.collect()

    def collect(self):
        for kind, call in [done for done in self.waiting if done[1].done()]:
            self.waiting.remove((kind, call))
            if call.cancelled():
                continue
            try:
                result = call.result()
            except (WaitTimeout, InvalidArgument):
                continue
            {"lease": self.leases, "reserve": self.reservations}.get(kind, []).append(result)

    # --- producers

    @rule(task=st.sampled_from(TASKS), priority=st.sampled_from([0.0, 1.0, 3.0]), age=st.integers(0, 2))
    def put(self, task, priority, age):
        version = max(0, self.step - age)
        self.begin("put", self.buffer.put(group(version=version), task, priority=priority))

    @rule(
        task=st.sampled_from(TASKS),
        status=st.sampled_from(["aborted", "expired", "failed", "filtered", "init"]),
    )
    def park(self, task, status):
        self.ask(self.buffer.put(group(version=self.step, status=status), task))

    @rule(task=st.sampled_from(TASKS), age=st.integers(2, 6))
    def put_too_late(self, task, age):
        step = max(self.step, age)
        self.ask(self.buffer.put(group(version=step - age), task, current_train_step=step, stale_threshold=1))

    # One at a time: see test_admission for what becomes of producers that reserve several.
    @rule(task=st.sampled_from(TASKS), n=st.just(1), ttl=st.booleans())
    def reserve(self, task, n, ttl):
        self.begin("reserve", self.buffer.reserve(n, task, ttl_s=LONG_S if ttl else None))

    @precondition(lambda self: self.reservations)
    @rule(data=st.data(), status=st.sampled_from(["completed", "completed", "aborted", "filtered"]))
    def settle(self, data, status):
        reservation = data.draw(st.sampled_from(self.reservations))
        items = group(version=self.step, status=status)
        if self.ask_open(reservation):
            self.ask(self.buffer.put(items, reservation.task_name, reservation=reservation))
        else:  # as one without
            self.begin("put", self.buffer.put(items, reservation.task_name, reservation=reservation))

    def ask_open(self, reservation):
        self.ask(self.buffer.count("a", "completed"))  # time passes
        return reservation.id in probe(self.buffer).reservations._open

    @precondition(lambda self: self.reservations)
    @rule(data=st.data())
    def release(self, data):
        reservation = data.draw(st.sampled_from(self.reservations))
        self.reservations.remove(reservation)
        self.ask(self.buffer.release(reservation))

    @rule(task=st.sampled_from(TASKS), status=st.sampled_from(["aborted", "expired"]))
    def roll_again(self, task, status):
        self.out += [(task, items) for items in self.ask(self.buffer.get(1, task, status))]

    @precondition(lambda self: self.out)
    @rule(data=st.data(), completed=st.booleans())
    def come_back(self, data, completed):
        task, items = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        for item in items:
            item.response_ids, item.response_model_steps = [1, 2], [self.step, self.step]
            item.status = "completed" if completed else "aborted"
        self.begin("put", self.buffer.put(items, task))

    # --- consumers

    @rule(task=st.sampled_from(TASKS), n=st.integers(1, 3))
    def get(self, task, n):
        self.ask(self.buffer.get(n, task, "completed"))

    @rule(n=st.integers(0, 2), m=st.integers(0, 2))
    def take(self, n, m):
        self.begin("take", self.buffer.take_batch({"a": n, "b": m}, wait=True))

    @rule(task=st.sampled_from(TASKS), n=st.integers(1, 2), replace=st.booleans())
    def sample(self, task, n, replace):
        self.begin("sample", self.buffer.sample(n, task, replace=replace))

    @rule(
        n=st.integers(0, 2),
        m=st.integers(0, 2),
        wait=st.booleans(),
        ttl=st.booleans(),
        status=st.sampled_from(["completed", "completed", "aborted", "expired"]),
    )
    def lease(self, n, m, wait, ttl, status):
        ttl_s = LONG_S if ttl else None
        self.begin("lease", self.buffer.lease({"a": n, "b": m}, wait=wait, ttl_s=ttl_s, group_status=status))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), acks=st.booleans())
    def end_lease(self, data, acks):
        batch = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        try:
            self.ask(batch.ack() if acks else batch.nack())
        except LeaseExpired:
            assert acks

    @rule(step=st.integers(0, 2), threshold=st.integers(1, 3), retryable=st.booleans())
    def refresh(self, step, threshold, retryable):
        self.ask(
            self.buffer.refresh_staleness(
                task_stale_thresholds=dict.fromkeys(TASKS, threshold),
                current_train_step=self.step + step,
                expired_groups_retryable_by_task=dict.fromkeys(TASKS, retryable),
            )
        )

    @rule()
    def advance(self):
        self.step += 1
        self.ask(self.buffer.advance(self.step))

    # --- anybody

    @rule(uids=st.lists(st.integers(1, 30), max_size=4))
    def delete(self, uids):
        self.ask(self.buffer.delete(uids))
        self.ask(self.buffer.forget(uids[:1]))

    @rule(uid=st.integers(1, 30), priority=st.sampled_from([0.0, 2.0]))
    def update_priority(self, uid, priority):
        self.ask(self.buffer.update_priorities({uid: priority}))

    @rule(seconds=st.sampled_from([LONG_S / 3, 2 * LONG_S]))
    def let_time_pass(self, seconds):
        self.clock.advance(seconds)
        self.ask(self.buffer.count("a", "completed"))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), turns=st.integers(0, 2))
    def cancel(self, data, turns):
        _, call = data.draw(st.sampled_from(self.waiting))
        for _ in range(turns):
            self.loop.run_until_complete(asyncio.sleep(0))
        call.cancel()
        self.loop.run_until_complete(self.quiet())
        self.collect()

    # --- what always holds

    @invariant()
    def books_close(self):
        if not hasattr(self, "loop"):
            return
        ledger = self.ask(self.buffer.ledger())
        for name, amounts in ledger.items():
            task = self.engine.tasks[name]
            assert closes(amounts), (name, amounts)
            assert amounts["resident"].groups == sum(map(len, task.pools))
            assert (
                amounts["out"].groups <= task.checked_out <= amounts["out"].groups + amounts["leased"].groups
            )
            assert task.reserved == sum(
                r.left for r in probe(self.buffer).reservations._open.values() if r.task is task
            )
            assert task.running == self.running(task)
            assert amounts["leased"].groups >= task.leased
            limit = task.settings.max_times_sampled
            held = task.completed.sampler.slots()
            assert (self.engine.columns.uses[held] < limit).all()
            capacity = task.settings.capacity
            if capacity is not None and task.settings.remover is not None:
                assert len(task.completed) <= capacity

    def running(self, task):
        """Return the running groups by version, counted anew."""
        found, columns = Counter(), self.engine.columns
        if task.awaits_stragglers:
            for one in probe(self.buffer).reservations._open.values():
                found[one.version] += one.left if one.task is task else 0
            for slot in columns.alive().tolist():
                spot = Spot(columns.status.item(slot), columns.place.item(slot))
                if columns.task.item(slot) == task.code and spot in RUNNING:
                    found[columns.version.item(slot)] += 1
        return +found

    @invariant()
    def nobody_waits_who_could_go_on(self):
        if not hasattr(self, "loop"):
            return
        waits = probe(self.buffer).waits
        for queue in waits._queues.values():
            assert not waits._may_go(queue[0]), f"{queue[0].queues} was not woken"

    @invariant()
    def somebody_can_act(self):
        if not hasattr(self, "loop"):
            return
        leased = bool(len(probe(self.buffer).leases))
        for task in self.engine.tasks.values():
            can_put = self.engine.can_insert(task)
            can_take = self.engine.available(task, COMPLETED, 1) > 0
            assert can_put or can_take or leased or task.places_left() < 1, (
                f"{task.name}: neither put nor take, nothing is lent, and no group is waited for"
            )
            if task.settings.window is not None and task.may_start() < 1:
                parked = task.reserved or task.checked_out or len(task.pools[ABORTED])
                has_batch = task.consumed >= task.settings.window.batch
                assert parked or can_take or leased or has_batch, (
                    f"{task.name}: nobody may start, and nobody can change it"
                )

    def everybody_ends(self):
        """Whoever holds something lets go; then plain puts, takes and advances let everybody go on."""
        while self.leases:
            self.ask(self.leases.pop().nack())
        while self.reservations:
            self.ask(self.buffer.release(self.reservations.pop()))
        self.give_up_stragglers()
        for _ in range(8 + 3 * len(self.waiting)):  # consumers first: nothing but puts, as far as those go on
            if not self.waiting_for("take", "sample", "lease"):
                break
            for name in TASKS:
                for status in ("completed", "aborted", "aborted", "expired"):
                    if status != "completed" or self.engine.can_insert(self.engine.tasks[name]):
                        newest = self.engine.tasks[name].step or 0
                        self.begin("put", self.buffer.put(group(version=newest, status=status), name))
            while self.leases:
                self.ask(self.leases.pop().nack())
            self.give_up_stragglers()
        assert not self.waiting_for("take", "sample", "lease"), f"consumers wait for ever: {self.told()}"
        for _ in range(16 + 3 * len(self.waiting)):
            if not self.waiting:
                break
            for name in TASKS:
                for status in ("aborted", "expired"):
                    self.ask(self.buffer.get(9, name, status))
                self.ask(self.buffer.get(1, name, "completed"))
            self.ask(self.buffer.forget(list(probe(self.buffer).groups.out.uids())))
            while self.reservations:
                self.ask(self.buffer.release(self.reservations.pop()))
            self.step += 1
            self.ask(self.buffer.advance(self.step))
        assert not self.waiting, f"producers wait for ever: {self.told()}"

    def give_up_stragglers(self):
        """Producers give up what they continue, and the aborted groups that trainers wait for."""
        for name in TASKS:
            if self.engine.tasks[name].awaits_stragglers:
                self.ask(self.buffer.get(99, name, "aborted"))
        self.ask(self.buffer.forget(list(probe(self.buffer).groups.out.uids())))

    def told(self):
        """Return what a failure should tell."""
        tasks = self.engine.tasks.values()
        books = {
            task.name: (task.counters, task.completed.__len__(), task.reserved, task.checked_out)
            for task in tasks
        }
        return [*self.waiting_for("put", "reserve", "take", "sample", "lease")], books

    def waiting_for(self, *kinds):
        return [kind for kind, _ in self.waiting if kind in kinds]


Machine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
TestNoDeadLock = pytest.mark.filterwarnings("ignore:.*without versions")(Machine.TestCase)
