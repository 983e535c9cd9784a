"""All verbs on a durable buffer and on one in memory, side by side, with crashes, saves and resumes between any two.

Both have the same seed and get the same calls, so all that can be seen of them is the same, the next picks included. What
the disk holds is compared with the rows in memory after every step, column by column: a change that nobody marked is
found there and then. How often groups were used, and for which steps, is told by a model of lists.
"""

import asyncio
import copy
import dataclasses
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from durable.stores import copy_of, passed, picture
from reroll import (
    Fifo,
    InvalidConfig,
    LeastUsed,
    MinSize,
    Mixture,
    Prioritized,
    Queue,
    ReplayBufferConfig,
    RerollError,
    SampleToInsertRatio,
    StalenessWindow,
    Stalest,
    TaskConfig,
    Uniform,
    Unlimited,
)
from reroll.buffer.records import read_state
from reroll.engine.state import state_of
from reroll.testing.buffer.builders import rollout
from reroll.testing.probe import probe

TASKS = ("a", "b")
SAMPLERS = [
    Fifo(),
    Stalest(),
    Uniform(),
    Prioritized(half_life=2.0, reuse_decay=0.5),
    Mixture(0.5),
    LeastUsed(),
]
STATUSES = ["completed"] * 6 + ["aborted"] * 3 + ["expired", "failed", "filtered", "init"]

LEAVING = ("evicted", "failed", "filtered", "expired")
"""How groups may leave when others come home, or when they come home themselves."""


@st.composite
def task_configs(draw: st.DrawFn) -> TaskConfig:
    return TaskConfig(
        capacity=draw(st.sampled_from([None, None, 3, 5])),
        sampler=draw(st.sampled_from(SAMPLERS)),
        remover=draw(st.sampled_from([None, None, "fifo", "min_heap", "uniform"])),
        max_times_sampled=draw(st.sampled_from([1, 1, 2, 3])),
        rate_limiter=draw(
            st.sampled_from(
                [None, None, None, Queue(3), SampleToInsertRatio(1.0, 1, 3.0), StalenessWindow(1, 2)]
            )
        ),
        expire=draw(st.sampled_from(["group", "member"])),
        max_staleness=draw(st.sampled_from([None, 1, 3])),
        on_stale=draw(st.sampled_from(["reroll", "drop"])),
        max_attempts=draw(st.sampled_from([None, 2])),
        rejected_capacity=draw(st.sampled_from([1024, 1])),
    )


def items_of(size: int, status: str, versions: list[int] | None, reward: float | None) -> list[Any]:
    made = []
    for number in range(size):
        version = None if versions is None else versions[number % len(versions)]
        made.append(
            rollout(2, versions=version, status=status, reward=reward, rollout_id=number, group_id="p")
        )
    return made


def seen(items: Any) -> Any:
    """Return a hand-out as plain values."""
    return [
        (
            item.group_uid,
            item.status,
            [] if item.response_ids is None else list(item.response_ids),
            list(item.response_model_steps),
            item.seq_staleness,
            item.reward,
            item.num_tokens,
            item.extra_fields,
        )
        for item in items
    ]


def plain(value: Any) -> Any:
    """Return arrays and what holds them in a form that can be compared."""
    if isinstance(value, np.ndarray):
        return [str(number) for number in value.tolist()]  # NaN is the same as itself
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


class Lent(NamedTuple):
    """A group under a lease, as it was then."""

    uid: int
    attempts: int
    step: int | None


class Machine(RuleBasedStateMachine):
    """The two buffers are always called one after the other, and must answer the same."""

    @initialize(
        tasks=st.fixed_dictionaries({task: task_configs() for task in TASKS}),
        kept=st.sampled_from([64, 64, 64, 2, 1, 0]),
        resident=st.sampled_from([None, 0, 200]),
    )
    def build(self, tasks: Any, kept: int, resident: int | None) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="machine-"))
        warnings.simplefilter("ignore", UserWarning)
        self.loop = asyncio.new_event_loop()
        self.memory_config = ReplayBufferConfig(tasks=tasks, seed=5, max_uncommitted_steps=kept)
        self.config = self.memory_config.model_copy(update={"max_resident_bytes": resident})
        self.abandoned: list[Any] = []
        self.number = 0
        try:
            self.memory = self.memory_config.build()
        except InvalidConfig:
            assume(False)
        self.disk = self.durable(self.root / "store")
        self.step = 1
        self.leases: dict[int, list[Lent]] = {}
        self.ended: set[int] = set()  # leases of the time before the last restart
        self.lent_to_roll: dict[tuple[int, int], Any] = {}
        self.out: dict[int, tuple[str, Any, Any]] = {}
        self.uses: dict[int, list[int | None]] = {}
        self.put_ids: dict[int, int | None] = {}
        self.reservations: list[Any] = []
        for task in TASKS:
            self.put_several(task, "completed", 3)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            for buffer in [*self.abandoned, getattr(self, "disk", None)]:
                if buffer is not None:
                    probe(buffer).disk.store.close()
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.root)
        warnings.resetwarnings()
        warnings.simplefilter("error")

    # --- the machinery

    def durable(self, path: Path) -> Any:
        return self.config.model_copy(update={"store": path}).build()

    def fresh(self) -> Path:
        self.number += 1
        return self.root / str(self.number)

    def run(self, call: Any) -> Any:
        async def made() -> Any:
            return await call

        return self.loop.run_until_complete(made())

    def both(
        self, call: Callable[[Any, int], Any], show: Callable[[Any], Any] = lambda result: result
    ) -> Any:
        """Call both; compare what they show, or that both refuse for the same reason; return both results, or None."""
        ends = []
        for which, buffer in enumerate((self.memory, self.disk)):
            try:
                ends.append(("done", self.run(call(buffer, which))))
            except RerollError as error:
                ends.append(("failed", error))
        (how, mine), (also, theirs) = ends
        assert how == also, ends
        if how == "failed":
            assert type(mine) is type(theirs), ends
            return None
        assert show(mine) == show(theirs)
        return mine, theirs

    def task_steps(self) -> dict[str, int | None]:
        return {name: task.step for name, task in probe(self.disk).engine.tasks.items()}

    def count_uses(self, task: str, uids: list[int]) -> None:
        for uid in uids:
            self.uses.setdefault(uid, []).append(self.task_steps()[task])

    def rows(self) -> dict[int, Any]:
        return {row.uid: row for row in self.run(self.disk.query({}))}

    # --- producers

    @rule(
        task=st.sampled_from(TASKS),
        status=st.sampled_from(STATUSES),
        size=st.integers(1, 2),
        ages=st.none() | st.lists(st.integers(-1, 3), min_size=1, max_size=2),
        priority=st.sampled_from([None, 0.0, 1.0, 2.5]),
        threshold=st.sampled_from([None, None, None, 2]),
        retryable=st.booleans(),
        put_id=st.sampled_from([None, None, None, 1, 2, 3]),
        reserved=st.booleans(),
    )
    def put(  # noqa: PLR0917
        self,
        task: str,
        status: str,
        size: int,
        ages: Any,
        priority: Any,
        threshold: Any,
        retryable: bool,
        put_id: Any,
        reserved: bool,
    ) -> None:
        versions = None if ages is None else [max(0, self.step - 1 - age) for age in ages]
        both = [items_of(size, status, versions, priority) for _ in range(2)]
        reservation = None
        if reserved:
            reservation = next((r for r in self.reservations if r.task_name == task), None)
        result = self.both(
            lambda buffer, which: buffer.put(
                both[which],
                task,
                model_step=self.step if ages is None and size == 1 else None,
                current_train_step=None if threshold is None else self.step,
                stale_threshold=threshold,
                expired_groups_retryable=retryable,
                priority=priority,
                tags={"x": size} if size == 2 else None,
                put_id=put_id,
                reservation=reservation,
                timeout=0,
            )
        )
        if put_id is not None and result is not None:
            assert self.put_ids.setdefault(put_id, result[0]) == result[0], "stored twice"

    @rule(
        task=st.sampled_from(TASKS),
        status=st.sampled_from(["completed"] * 3 + ["aborted"]),
        n=st.integers(1, 4),
    )
    def put_several(self, task: str, status: str, n: int) -> None:
        for number in range(n):
            made = [items_of(1 + number % 2, status, [max(0, self.step - number)], 1.0) for _ in range(2)]
            self.both(lambda buffer, which, made=made: buffer.put(made[which], task, timeout=0))  # type: ignore[misc]

    @rule(data=st.data(), status=st.sampled_from(["completed", "aborted"]), tokens=st.integers(0, 3))
    @precondition(lambda self: self.out)
    def put_back(self, data: st.DataObject, status: str, tokens: int) -> None:
        uid = data.draw(st.sampled_from(sorted(self.out)))
        task, *both = self.out.pop(uid)
        for items in both:
            for item in items:
                item.status, item.response_ids = status, [9] * tokens
                item.response_model_steps, item.response_mask = [self.step] * tokens, None
                item.num_tokens = None
        known = self.rows()
        if self.both(lambda buffer, which: buffer.put(both[which], task, timeout=0)) is None:
            self.out[uid] = (task, *both)
        elif uid not in known or known[uid].attempts != self.rows().get(uid, known[uid]).attempts:
            self.uses.pop(uid, None)

    @rule(task=st.sampled_from(TASKS), release=st.booleans())
    def reserve(self, task: str, release: bool) -> None:
        if release and self.reservations:
            reservation = self.reservations.pop()
            self.both(lambda buffer, _: buffer.release(reservation))
        elif (got := self.both(lambda buffer, _: buffer.reserve(1, task, timeout=0))) is not None:
            self.reservations.append(got[0])

    # --- consumers

    @rule(
        sizes=st.dictionaries(st.sampled_from(TASKS), st.integers(0, 3), min_size=1),
        status=st.sampled_from(["completed"] * 4 + ["aborted"] * 3 + ["expired", "failed"]),
        stepped=st.booleans(),
    )
    def take(self, sizes: Any, status: str, stepped: bool) -> None:
        result = self.both(
            lambda buffer, _: buffer.take_batch(
                sizes, group_status=status, train_step=self.step if stepped else None
            ),
            lambda result: {task: list(map(seen, groups)) for task, groups in result[0].items()},
        )
        for task in sizes if result is not None else ():
            for mine, theirs in zip(result[0][0][task], result[1][0][task], strict=True):
                uid = mine[0].group_uid
                if status == "completed":
                    self.count_uses(task, [uid])
                elif status in ("aborted", "expired"):
                    self.out[uid] = (task, mine, theirs)

    @rule(
        task=st.sampled_from(TASKS),
        n=st.integers(1, 3),
        replace=st.booleans(),
        allow_short=st.booleans(),
        stepped=st.booleans(),
    )
    def sample(self, task: str, n: int, replace: bool, allow_short: bool, stepped: bool) -> None:
        result = self.both(
            lambda buffer, _: buffer.sample(
                n,
                task,
                replace=replace,
                allow_short=allow_short,
                timeout=0,
                train_step=self.step if stepped else None,
            ),
            lambda samples: [(s.info, seen(s.group)) for s in samples],
        )
        if result is not None:
            self.count_uses(task, [sample.info.uid for sample in result[0]])

    @rule(
        sizes=st.dictionaries(st.sampled_from(TASKS), st.integers(0, 2), min_size=1),
        status=st.sampled_from(["completed"] * 4 + ["aborted"]),
        stepped=st.booleans(),
    )
    def lease(self, sizes: Any, status: str, stepped: bool) -> None:
        before = self.rows()
        result = self.both(
            lambda buffer, _: buffer.lease(
                sizes, group_status=status, train_step=self.step if stepped else None
            ),
            lambda batch: (
                batch.id,
                {t: [(s.info, seen(s.group)) for s in part] for t, part in batch.samples.items()},
            ),
        )
        if result is None:
            return
        mine, theirs = result
        self.leases[mine.id] = []
        for task, samples in mine.samples.items():
            step = self.task_steps()[task]
            for place, sample in enumerate(samples):
                uid = sample.info.uid
                if status == "completed":
                    lent = Lent(uid, before[uid].attempts, step)
                    self.leases[mine.id].append(lent)
                else:
                    self.lent_to_roll[mine.id, uid] = (task, sample.group, theirs.groups[task][place])

    @rule(data=st.data(), acks=st.sampled_from([True, True, False]))
    @precondition(lambda self: self.leases)
    def end_lease(self, data: st.DataObject, acks: bool) -> None:
        lease = data.draw(st.sampled_from(sorted(self.leases)))
        held = self.leases.pop(lease)
        before = self.rows()
        self.both(lambda buffer, _: buffer.ack_lease(lease) if acks else buffer.nack_lease(lease))
        for (number, uid), taken in list(self.lent_to_roll.items()):
            if number == lease:
                del self.lent_to_roll[number, uid]
                if uid in probe(self.disk).groups.out:
                    self.out[uid] = taken
        after = self.rows()
        for uid, attempts, step in held if acks else ():
            row = before.get(uid, after.get(uid))
            if row is not None and row.attempts != attempts:
                continue  # rolled again meanwhile: another one
            if lease in self.ended:  # it came back; whether it was used now shows
                row = after.get(uid)
                if uid not in before or (row and row.times_sampled == before[uid].times_sampled):
                    continue
            self.uses.setdefault(uid, []).append(step)

    # --- changes

    @rule(
        threshold=st.integers(1, 3),
        by_token=st.booleans(),
        retryable=st.booleans(),
        ahead=st.integers(0, 1),
        statuses=st.sampled_from([None, None, ["completed"], ["aborted", "expired"]]),
    )
    def refresh(self, threshold: int, by_token: bool, retryable: bool, ahead: int, statuses: Any) -> None:
        self.step += ahead
        self.both(
            lambda buffer, _: buffer.refresh_staleness(
                task_stale_thresholds={} if by_token else dict.fromkeys(TASKS, threshold),
                task_token_stale_thresholds=dict.fromkeys(TASKS, threshold) if by_token else None,
                current_train_step=self.step,
                statuses=statuses,
                expired_groups_retryable_by_task={"a": retryable},
            )
        )

    @rule(task=st.sampled_from(TASKS), limiter=st.sampled_from([Queue(4), MinSize(2), Unlimited()]))
    def set_limiter(self, task: str, limiter: Any) -> None:
        self.both(lambda buffer, _: buffer.set_rate_limiter(task, limiter))

    def some_uids(self, data: st.DataObject) -> list[int]:
        last = probe(self.disk).engine.last_uid
        return data.draw(st.lists(st.integers(max(1, last - 8), last + 1), max_size=3, unique=True))

    @rule(data=st.data(), verb=st.sampled_from(["delete", "forget", "priority", "peek", "patch", "patch"]))
    def change(self, data: st.DataObject, verb: str) -> None:
        if verb == "patch":
            self.patch(data)
            return
        uids = self.some_uids(data)
        if verb == "delete":
            self.both(lambda buffer, _: buffer.delete(uids))
        elif verb == "forget":
            self.both(lambda buffer, _: buffer.forget(uids))
        elif verb == "peek":
            self.both(lambda buffer, _: buffer.peek(uids), lambda groups: list(map(seen, groups)))
        else:
            priorities = {uid: float(uid % 3) for uid in uids}
            self.both(lambda buffer, _: buffer.update_priorities(priorities))

    def patch(self, data: st.DataObject) -> None:
        rows = self.rows()
        if rows:
            uid = data.draw(st.sampled_from(sorted(rows)))
            rewards = [data.draw(st.sampled_from([0.0, 1.0]))] * rows[uid].num_rollouts
            tags = data.draw(st.sampled_from([None, {"y": 1}]))
            self.both(
                lambda buffer, _: buffer.patch(uid, reward=rewards, late=[[1.5]] * len(rewards), tags=tags)
            )

    # --- the trainer's own checkpoints

    @rule(n=st.integers(1, 2), replayed=st.booleans(), commits=st.sampled_from([None, None, None, 0, 1, 2]))
    def train(self, n: int, replayed: bool, commits: int | None) -> None:
        """A whole training step, and sometimes a checkpoint of it or of an earlier one."""
        for task in TASKS:
            if replayed:
                self.sample(task, n, False, True, True)
            else:
                self.take({task: n}, "completed", True)
        self.both(lambda buffer, _: buffer.advance(self.step))
        if commits is not None:
            self.both(lambda buffer, _: buffer.commit(max(0, self.step - commits)))
        self.step += 1

    @rule(back=st.integers(1, 4), newer=st.sampled_from(["keep", "keep", "expire"]))
    def rewind(self, back: int, newer: Any) -> None:
        step = max(0, self.step - back)
        if self.both(lambda buffer, _: buffer.rewind(step, newer=newer)) is not None:
            self.step = min(self.step, step + 1)
            for uid, used in self.uses.items():
                self.uses[uid] = [known for known in used if known is None or known <= step]

    # --- the end of a process

    @rule(how=st.sampled_from(["crash", "crash", "save", "swap"]))
    def restart(self, how: str) -> None:
        before = self.run(picture(self.disk))
        file_of_memory, file_of_disk = self.fresh(), self.fresh()
        self.run(self.memory.save(file_of_memory))
        self.run(self.disk.save(file_of_disk))
        old, memory = self.disk, self.memory_config.build()
        self.abandoned.append(old)
        if how == "crash":
            self.disk = self.durable(copy_of(probe(old).disk.store.path.parent))
            self.run(memory.resume(file_of_memory))
        else:
            self.disk = self.durable(self.fresh())
            files = (file_of_memory, file_of_disk) if how == "save" else (file_of_disk, file_of_memory)
            self.run(memory.resume(files[0]))
            self.run(self.disk.resume(files[1]))
        self.memory = memory
        self.reservations.clear()
        self.ended |= set(self.leases)
        self.check_what_came_home(before)
        self.check_next_picks(file_of_disk)

    def check_what_came_home(self, before: dict[str, Any]) -> None:
        after = self.run(picture(self.disk))
        rows = {row.uid: row for row in after["rows"]}
        gone = {row.uid for row in before["rows"]} - rows.keys()
        for task, books in before["ledger"].items():
            now = after["ledger"][task]
            assert now["put"][:2] == books["put"][:2]
            assert now["leased"] == now["out"] == (0, 0, 0, 0)
            for bucket in ("uncommitted", "consumed", "deleted", "lost"):
                assert now[bucket] == books[bucket], bucket
            home = books["resident"].groups + books["leased"].groups + books["out"].groups
            left = sum(now[name].groups - books[name].groups for name in LEAVING)
            assert now["resident"].groups == home - left
            if not books["leased"].groups:
                assert now["expired"] == books["expired"], "only what was lent is checked for its age"
        assert not gone or any(
            after["ledger"][task][name].groups > before["ledger"][task][name].groups
            for task in before["ledger"]
            for name in LEAVING
        )
        for row in before["rows"]:
            if row.uid in rows:
                same = dataclasses.replace(rows[row.uid], times_sampled=row.times_sampled)
                assert same == row

    def check_next_picks(self, saved: Path) -> None:
        """Two that came back from the same file draw the same, and a third that was left alone is not disturbed."""
        first, second = self.memory_config.build(), self.durable(self.fresh())
        for buffer in (first, second):
            self.run(buffer.resume(saved))
        for task in TASKS:
            drawn = [
                [s.info for s in self.run(buffer.sample(3, task, allow_short=True))]
                for buffer in (first, second)
            ]
            taken = [
                list(map(seen, self.run(buffer.get(9, task, "completed")))) for buffer in (first, second)
            ]
            assert drawn[0] == drawn[1]
            assert taken[0] == taken[1]
        self.run(first.close())
        self.run(second.close())

    # --- what always holds

    @invariant()
    def both_are_the_same(self) -> None:
        if hasattr(self, "disk"):
            mine, theirs = self.run(picture(self.memory)), self.run(picture(self.disk))
            assert mine == theirs
            assert self.bare(self.run(passed(self.memory))) == self.bare(self.run(passed(self.disk)))
            assert plain(state_of(probe(self.memory).engine)) == plain(state_of(probe(self.disk).engine))
            for task in TASKS:
                for n in (1, 2):
                    ready = [self.run(buffer.is_ready({task: n})) for buffer in (self.memory, self.disk)]
                    assert ready[0] == ready[1]
            admitted = [
                {
                    name: (task.may_start(), task.can_insert(1))
                    for name, task in probe(buffer).engine.tasks.items()
                }
                for buffer in (self.memory, self.disk)
            ]
            assert admitted[0] == admitted[1]

    def bare(self, told: dict[str, Any]) -> dict[str, Any]:
        """Return statistics without rates, which need a clock."""
        return {
            task: (
                puts,
                *(dataclasses.replace(r, timed_groups=0, timed_tokens=0, seconds=None) for r in responses),
            )
            for task, (puts, *responses) in told.items()
        }

    @invariant()
    def the_disk_holds_what_is_in_memory(self) -> None:
        if not hasattr(self, "disk"):
            return
        self.run(probe(self.disk).disk.written())
        assert not probe(self.disk).disk._has_changed()
        with probe(self.disk).disk.store.reader() as reader:
            written = read_state(reader, probe(self.disk).entries)
        assert (written is None) == (
            probe(self.disk).disk.store.commits == 0 and not probe(self.disk).engine.last_uid
        ) or written
        if written is None:
            return
        live = plain(state_of(probe(self.disk).engine))
        rows, on_disk = live.pop("rows"), plain(written.engine["rows"])
        for name in rows:
            assert on_disk[name] == rows[name], name
        uses = {task: found for task, found in live.pop("uses").items() if found}
        assert plain(written.engine["uses"]) == uses
        small = plain(copy.deepcopy(written.engine))
        assert {name: small[name] for name in live} == live
        for each in probe(self.disk).entries:
            assert written.entries[each.kind] == dict(sorted(each.entries.items())), each.kind
        for group in written.groups:
            if group._stale_at is None:  # else it may have been shown since, which comes to the same
                mine = probe(self.disk).groups.find(group.uid)
                assert mine is not None
                assert group.record() == mine.record()

    @invariant()
    def uses_are_those_that_were_not_undone(self) -> None:
        if not hasattr(self, "disk"):
            return
        pending: dict[tuple[int, int], int] = {}
        for lease, held in self.leases.items():
            for uid, attempts, _ in held if lease not in self.ended else ():
                pending[uid, attempts] = pending.get((uid, attempts), 0) + 1
        for uid, row in self.rows().items():
            if row.status.value == "completed":
                limit = self.config.for_task(row.task_name).max_times_sampled
                expected = len(self.uses.get(uid, ())) + pending.get((uid, row.attempts), 0)
                assert row.times_sampled == expected, (uid, self.uses.get(uid), pending)
                assert expected <= limit


CALM = settings(
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
    max_examples=10,
    stateful_step_count=30,
)
Machine.TestCase.settings = CALM
TestMachine = pytest.mark.timeout(600)(Machine.TestCase)


class LongMachine(Machine):
    pass


LongMachine.TestCase.settings = settings(CALM, max_examples=300, stateful_step_count=60)
TestLongMachine = pytest.mark.slow(pytest.mark.timeout(3000)(LongMachine.TestCase))
