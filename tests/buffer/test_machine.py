"""All calls mixed, on several tasks and configurations, with waiting and cancellation, against the naive model.

Calls run as asyncio tasks. Each records its end, so the model replays them in the order in which they took effect, and
says of each whether it was allowed: its turn, possible, and with this result. When all is quiet, nobody may be waiting
who could go on.
"""

import asyncio
import copy
import math
import warnings
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from buffer.configs import TASKS, buffer_configs, crowded_configs
from reroll import (
    Amount,
    InvalidArgument,
    ReplayBufferConfig,
    Rollout,
    Status,
    UnknownUid,
    WaitTimeout,
)
from reroll.engine.ledger import closes
from reroll.testing.buffer.builders import rollout
from reroll.testing.naive_buffer import NaiveBuffer, NaiveGroup, NaivePut

HANDED_OUT = [Status.COMPLETED] * 5 + [Status.ABORTED] * 3 + [Status.EXPIRED] * 3 + [Status.INIT, *Status]
STEPS = st.integers(0, 8)
THRESHOLDS = st.none() | st.integers(1, 4)


@st.composite
def members(draw: st.DrawFn, statuses: st.SearchStrategy[Status]) -> Rollout:
    """Return a rollout whose tokens have versions, or none; the last ones may lack theirs."""
    tokens = draw(st.integers(0, 3))
    versions = draw(st.lists(st.integers(0, 6), min_size=tokens, max_size=tokens))
    kind = draw(st.sampled_from(["all", "all", "none", "partial"]))
    fields: dict[str, Any] = {}
    if tokens and draw(st.booleans()):
        fields["response_mask"] = [
            1,
            *draw(st.lists(st.integers(0, 1), min_size=tokens - 1, max_size=tokens - 1)),
        ]
        if draw(st.booleans()):
            fields["response_mask"].reverse()
    if draw(st.integers(0, 4)) == 0:
        fields["labels"] = [1]
    return rollout(
        tokens,
        versions={"all": versions, "none": None, "partial": versions[:-1]}[kind],
        status=draw(statuses),
        seq_staleness=draw(st.integers(-1, 5)),
        reward=draw(st.sampled_from([None, 0.0, 1.0, 0.5])),
        group_id=draw(st.sampled_from([None, "p", 7])),
        prompt_ids=draw(st.sampled_from([None, [], [1, 2]])),
        **fields,
    )


@st.composite
def groups_of_rollouts(draw: st.DrawFn) -> list[Rollout]:
    usual = st.sampled_from([Status.COMPLETED] * 6 + [Status.ABORTED] * 3)
    mixed = st.sampled_from(list(Status))
    statuses = draw(st.sampled_from([st.just(Status.COMPLETED), usual, mixed]))
    return draw(st.lists(members(statuses), min_size=1, max_size=3))


def stocks() -> st.SearchStrategy[tuple[str, Status, list[Any]]]:
    """Return a task, a status, and groups of that status: version, staleness and priority of each."""
    priorities = st.sampled_from([0.0, 1.0])
    made = st.tuples(st.sampled_from([0, 1, 3, None]), st.integers(0, 4), priorities)
    statuses = st.sampled_from([Status.COMPLETED, Status.COMPLETED, Status.ABORTED])
    return st.tuples(st.sampled_from(TASKS), statuses, st.lists(made, min_size=2, max_size=4))


def is_partial(items: list[Rollout]) -> bool:
    """Return whether some tokens lack a version that others of the same rollout have."""
    return any(0 < len(item.response_model_steps) < len(item.response_ids) for item in items)


@dataclass(eq=False)
class Call:
    """A call under way, and what its end means to the model."""

    queues: frozenset[Any]
    is_possible: Callable[[], bool]
    on_result: Callable[[Any], None]
    on_error: Callable[[BaseException | None], None]  # None: cancelled
    task: asyncio.Task[None] | None = None


class Machine(RuleBasedStateMachine):
    """Buffer and model side by side; what is done to them is up to the children."""

    def begin(self, config: ReplayBufferConfig) -> None:
        self.loop = asyncio.new_event_loop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            self.buffer = config.build()
        self.config = config
        self.model = NaiveBuffer(config)
        self.waiting: list[Call] = []  # in order of arrival
        self.ended: list[tuple[Call, str, Any]] = []
        self.objects: dict[int, list[Rollout]] = {}  # what was put, by uid
        self.coming_back: set[int] = set()

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            for call in self.waiting:
                assert call.task is not None
                call.task.cancel()
            self.loop.run_until_complete(self.become_quiet())
            self.loop.close()

    def ask(self, verb: Coroutine[Any, Any, Any]) -> Any:
        """Run a verb that never waits and changes nothing."""
        return self.loop.run_until_complete(verb)

    def call(self, verb: Coroutine[Any, Any, Any], call: Call) -> Call:
        async def run() -> None:
            try:
                result = await verb
            except asyncio.CancelledError:
                self.ended.append((call, "cancelled", None))
            except Exception as error:  # noqa: BLE001  (judged by the model)
                self.ended.append((call, "failed", error))
            else:
                self.ended.append((call, "done", result))

        self.waiting.append(call)
        call.task = self.loop.create_task(run())
        return call

    def act(self, verb: Coroutine[Any, Any, Any], on_result: Callable[[Any], None]) -> None:
        """Carry out a verb that never waits."""

        def on_error(error: BaseException | None) -> None:
            raise AssertionError(f"failed with {error!r}") from error

        self.call(verb, Call(frozenset(), lambda: True, on_result, on_error))
        self.settle()

    async def become_quiet(self) -> None:
        quiet = 0
        while quiet < 5:
            ended = len(self.ended)
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self.ended) == ended else 0

    def is_its_turn(self, call: Call) -> bool:
        before = self.waiting[: self.waiting.index(call)]
        return not any(other.queues & call.queues for other in before)

    def settle(self) -> None:
        """Let everybody go on who can, and let the model follow."""
        self.loop.run_until_complete(self.become_quiet())
        for call, end, value in self.ended:
            if end == "done":
                assert self.is_its_turn(call), "overtook somebody who waits for the same"
                assert call.is_possible(), "went on although it was not possible"
                call.on_result(value)
            else:
                call.on_error(value)
            self.waiting.remove(call)
        self.ended.clear()
        for call in self.waiting:
            assert not (self.is_its_turn(call) and call.is_possible()), "still waits although it could go on"

    def draw_options(self, data: st.DataObject, items: list[Rollout]) -> dict[str, Any]:
        versions = st.integers(0, 6)
        return {
            "current_train_step": data.draw(st.none() | STEPS, "current_train_step"),
            "stale_threshold": data.draw(THRESHOLDS, "stale_threshold"),
            "token_stale_threshold": data.draw(THRESHOLDS, "token_stale_threshold"),
            "expired_groups_retryable": data.draw(st.booleans(), "retryable"),
            "model_step": data.draw(versions if is_partial(items) else st.none() | versions, "model_step"),
            "priority": data.draw(st.sampled_from([None, 0.0, 1.0, 2.0]), "priority"),
            "tags": data.draw(st.sampled_from([None, {}, {"x": 1}]), "tags"),
        }

    def start_put(
        self,
        items: list[Rollout],
        task: str,
        options: dict[str, Any],
        *,
        timeout: float | None = None,
        continues: int | None = None,
    ) -> None:
        before = copy.deepcopy(items)
        put = NaivePut(items=before, task=task, **options)
        back = set() if continues is None else {continues}
        self.coming_back |= back

        def on_result(result: int | None) -> None:
            expected = self.model.put(put)
            assert result == expected
            self.coming_back -= back
            if expected is not None:
                group = self.model.find(expected)
                assert group is not None
                kept = items
                if len(group.members) < len(items):
                    kept = [
                        i for i, old in zip(items, before, strict=True) if old.status is not Status.FAILED
                    ]
                self.objects[expected] = kept

        def on_error(error: BaseException | None) -> None:
            assert error is None or isinstance(error, WaitTimeout), error
            if error is not None:
                assert timeout == 0
                assert not (self.is_its_turn(call) and call.is_possible()), (
                    "timed out although it was possible"
                )
            self.coming_back.difference_update(back)
            assert items == before, "a put that did not happen changed the caller's objects"

        completed_only = frozenset([("put", task)])
        call = Call(completed_only, lambda: self.model.can_put(put), on_result, on_error)
        # Puts of other statuses never wait, so they stand in no queue.
        if self.model._decide(put).status is not Status.COMPLETED:
            call.queues = frozenset()
        self.call(self.buffer.put(items, task, timeout=timeout, **options), call)

    def groups_out(self) -> list[NaiveGroup]:
        return [g for g in self.model.groups if g.is_out and g.uid not in self.coming_back]

    def check_handed(self, handed: list[list[Rollout]], expected: list[NaiveGroup]) -> None:
        assert [items[0].group_uid for items in handed] == [group.uid for group in expected]
        for items, group in zip(handed, expected, strict=True):
            assert len(items) == len(self.objects[group.uid]) == len(group.members)
            self.objects[group.uid] = list(items)
            self.check_members(items, group)

    def check_members(self, items: list[Rollout], group: NaiveGroup) -> None:
        step = self.model.steps.get(group.task)
        for item, member in zip(items, group.members, strict=True):
            assert item.status is member.status
            assert list(item.response_model_steps) == member.known_versions()
            assert (0 if item.response_ids is None else len(item.response_ids)) == len(member.versions)
            assert item.reward == member.reward
            assert item.num_tokens == member.tokens
            if step is not None and member.known_versions():
                assert item.seq_staleness == member.staleness(step)
            elif group.version is None and group.told == 0:
                assert item.seq_staleness <= 0
            else:
                assert item.seq_staleness == member.seq_staleness

    def start_take(
        self,
        sizes: dict[str, int],
        status: Status,
        train_step: int | None,
        *,
        wait: bool,
        timeout: float | None = None,
    ) -> Call:
        if wait and any(self.config.for_task(task).max_staleness is not None for task in sizes):
            train_step = None  # it would expire groups while the call still waits, which the model cannot see

        def on_result(result: Any) -> None:
            handed, counts = result
            expected = self.model.take(sizes, status, train_step=train_step, wait=wait)
            assert counts == {task: len(groups) for task, groups in expected.items()}
            assert list(handed) == list(sizes)
            for task, groups in expected.items():
                self.check_handed(handed[task], groups)

        def on_error(error: BaseException | None) -> None:
            if isinstance(error, InvalidArgument):
                assert wait
                assert status is Status.COMPLETED
                assert not self.model.is_ready(sizes), "refused as impossible, but it is there"
                assert any(self.is_bounded(task, n) for task, n in sizes.items())
            elif error is not None:
                assert isinstance(error, WaitTimeout), error
                assert timeout == 0
                assert not (self.is_its_turn(call) and call.is_possible()), (
                    "timed out although it was possible"
                )

        queues = frozenset((status, task) for task, n in sizes.items() if n > 0) if wait else frozenset()
        call = Call(queues, lambda: not wait or self.model.is_ready(sizes, status), on_result, on_error)
        verb = self.buffer.take_batch(
            sizes, group_status=status, wait=wait, timeout=timeout, train_step=train_step
        )
        return self.call(verb, call)

    def is_bounded(self, task: str, n: int) -> bool:
        """Return whether some limit may stand against n groups at once."""
        settings = self.config.for_task(task)
        too_many = settings.capacity is not None and n > settings.capacity
        return too_many or (n > 1 and settings.limiter(1).window.max_diff < math.inf)

    def do_refresh(
        self, thresholds: Any, step: int, by_token: Any = None, retryable: Any = None, statuses: Any = None
    ) -> None:
        def on_result(result: dict[str, int]) -> None:
            expected = self.model.refresh(
                thresholds, step, statuses=statuses, token_thresholds=by_token, retryable=retryable
            )
            assert result == expected

        verb = self.buffer.refresh_staleness(
            task_stale_thresholds=thresholds,
            current_train_step=step,
            statuses=statuses,
            task_token_stale_thresholds=by_token,
            expired_groups_retryable_by_task=retryable,
        )
        self.act(verb, on_result)

    def cancel_calls(self, calls: list[Call], turns: int = 0) -> None:
        """Cancel calls, after as many turns of the loop."""
        for _ in range(turns):
            self.loop.run_until_complete(asyncio.sleep(0))
        for call in calls:
            assert call.task is not None
            call.task.cancel()
        self.settle()

    def some_uids(self, data: st.DataObject) -> list[int]:
        return data.draw(st.lists(st.integers(1, self.model.last_uid + 1), max_size=3))

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.ask(self.compare())

    async def compare(self) -> None:
        buffer, model = self.buffer, self.model
        expected = model.rows()
        rows = await buffer.query({})
        found = [
            {name: getattr(row, name) for name in want} for row, want in zip(rows, expected, strict=False)
        ]
        assert found == expected
        assert len(rows) == len(buffer) == len(expected)
        assert [row.uid for row in sorted(rows, key=lambda row: row.timestamp_id)] == model.arrivals()
        counts = await buffer.count_statuses(TASKS, list(Status))
        assert counts == {t: {s: len(model.pool(t, s)) for s in Status} for t in TASKS}
        for sizes in ({"a": 1}, {"a": 2}, {"b": 1}, {"b": 3}, {"a": 1, "b": 1}):
            for status in (Status.COMPLETED, Status.ABORTED):
                ready = await buffer.is_ready(sizes, group_status=status)
                assert ready == model.is_ready(sizes, status)
        ledger = {t: books for t, books in (await buffer.ledger()).items() if any(map(any, books.values()))}
        assert ledger == {t: books for t, books in model.ledger().items() if any(map(any, books.values()))}
        for task, books in ledger.items():
            assert closes(books)
            mine = [row for row in rows if row.task_name == task]
            assert books["resident"] == Amount(len(mine), sum(row.num_tokens for row in mine), 0, 0)


class BufferMachine(Machine):
    """Every verb, on every configuration."""

    @initialize(config=buffer_configs(), stock=st.lists(stocks(), min_size=2, max_size=4))
    def build(self, config: ReplayBufferConfig, stock: list[Any]) -> None:
        self.begin(config)
        for kind in stock:
            self.put_several(kind)

    @rule(data=st.data(), items=groups_of_rollouts(), task=st.sampled_from(TASKS))
    def put(self, data: st.DataObject, items: list[Rollout], task: str) -> None:
        timeout = data.draw(st.sampled_from([None, None, 0]), "timeout")
        self.start_put(items, task, self.draw_options(data, items), timeout=timeout)
        self.settle()

    @rule(kind=stocks())
    def put_several(self, kind: tuple[str, Status, list[Any]]) -> None:
        task, status, made = kind
        for version, staleness, priority in made:
            items = [rollout(versions=version, seq_staleness=staleness, status=status) for _ in range(2)]
            self.start_put(items, task, {"priority": priority})
        self.settle()

    @rule(
        task=st.sampled_from(TASKS),
        status=st.sampled_from([Status.COMPLETED, Status.ABORTED, Status.EXPIRED, Status.EXPIRED]),
        threshold=st.integers(1, 3),
        ahead=st.integers(0, 4),
        by_token=st.booleans(),
    )
    def refresh_and_take(self, task: str, status: Status, threshold: int, ahead: int, by_token: bool) -> None:
        """What a trainer does at each step."""
        step = self.model.steps.get(task, 1) + ahead
        self.do_refresh({task: threshold}, step, {task: threshold} if by_token else None)
        self.start_take({task: 2}, status, step, wait=False)
        self.settle()

    @precondition(lambda self: self.groups_out())
    @rule(data=st.data(), growth=st.integers(-2, 3), how=st.sampled_from(["same", "same", "uid", "carried"]))
    def put_back(self, data: st.DataObject, growth: int, how: str) -> None:
        """Roll a group again: it grows by tokens, or is written anew, and comes back."""
        group = data.draw(st.sampled_from(self.groups_out()))
        items = self.objects[group.uid]
        if how != "same":
            items = copy.deepcopy(items)
        status = data.draw(
            st.sampled_from([Status.COMPLETED, Status.COMPLETED, Status.ABORTED, Status.FAILED])
        )
        for item in items:
            item.status = status
            held = np.zeros(0, np.int32) if item.response_ids is None else item.response_ids
            if growth >= 0:
                item.response_ids = np.append(held, np.zeros(growth, np.int32))
            else:
                item.response_ids, item.response_model_steps = np.zeros(-growth - 1, np.int32), None
            item.response_mask = None
            item.num_tokens = None
            if how == "uid":
                item.group_uid = None
        options = self.draw_options(data, items) | {"uid": group.uid if how == "uid" else None}
        timeout = data.draw(st.sampled_from([None, None, 0]), "timeout")
        self.start_put(items, group.task, options, timeout=timeout, continues=group.uid)
        self.settle()

    @rule(
        sizes=st.dictionaries(st.sampled_from(TASKS), st.integers(-1, 4), min_size=1),
        status=st.sampled_from(HANDED_OUT),
        train_step=st.none() | STEPS,
    )
    def take(self, sizes: dict[str, int], status: Status, train_step: int | None) -> None:
        self.start_take(sizes, status, train_step, wait=False)
        self.settle()

    @rule(
        sizes=st.dictionaries(st.sampled_from(TASKS), st.integers(0, 4), min_size=1),
        status=st.sampled_from(HANDED_OUT[:11]),
        train_step=st.none() | STEPS,
        timeout=st.sampled_from([None, None, 0]),
    )
    def take_waiting(
        self, sizes: dict[str, int], status: Status, train_step: int | None, timeout: float | None
    ) -> None:
        self.start_take(sizes, status, train_step, wait=True, timeout=timeout)
        self.settle()

    @rule(n=st.integers(-1, 3), task=st.sampled_from(TASKS), status=st.sampled_from(HANDED_OUT))
    def get(self, n: int, task: str, status: Status) -> None:
        self.act(
            self.buffer.get(n, task, status),
            lambda handed: self.check_handed(handed, self.model.take({task: n}, status)[task]),
        )

    @rule(sizes=st.dictionaries(st.sampled_from(TASKS), st.integers(0, 3), min_size=1))
    def wait_ready(self, sizes: dict[str, int]) -> None:
        def on_error(error: BaseException | None) -> None:
            assert error is None or any(self.is_bounded(task, n) for task, n in sizes.items())

        # It only looks: it stands in nobody's way, and nobody in its way.
        call = Call(frozenset([object()]), lambda: self.model.is_ready(sizes), lambda result: None, on_error)
        self.call(self.buffer.wait_ready(sizes), call)
        self.settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.cancel_calls(data.draw(st.lists(st.sampled_from(self.waiting), min_size=1, unique_by=id)))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), items=groups_of_rollouts(), task=st.sampled_from(TASKS), turns=st.integers(1, 3))
    def cancel_just_after_a_wake_up(
        self, data: st.DataObject, items: list[Rollout], task: str, turns: int
    ) -> None:
        victims = data.draw(st.lists(st.sampled_from(self.waiting), min_size=1, unique_by=id))
        if data.draw(st.booleans()):
            self.start_put(items, task, self.draw_options(data, items))
        else:
            self.start_take({task: 1}, Status.COMPLETED, None, wait=False)
        self.cancel_calls(victims, turns)

    @rule(
        thresholds=st.dictionaries(st.sampled_from(TASKS), st.integers(1, 4), min_size=1),
        by_token=st.none() | st.dictionaries(st.sampled_from(TASKS), st.integers(1, 4)),
        retryable=st.none() | st.dictionaries(st.sampled_from(TASKS), st.booleans()),
        statuses=st.none()
        | st.lists(st.sampled_from([Status.COMPLETED, Status.ABORTED, Status.EXPIRED]), unique=True),
        ahead=st.sampled_from([0, 1, 1, 2, 3, 6]),
    )
    def refresh(self, thresholds: Any, by_token: Any, retryable: Any, statuses: Any, ahead: int) -> None:
        step = max([0, *self.model.steps.values()]) + ahead
        self.do_refresh(thresholds, step, by_token, retryable, statuses)

    @precondition(lambda self: self.residents())
    @rule(
        data=st.data(),
        verb=st.sampled_from(["patch", "peek", "update_priorities", "forget", "delete", "delete_by_query"]),
    )
    def look_or_change(self, data: st.DataObject, verb: str) -> None:
        getattr(self, verb)(data)

    def residents(self) -> list[NaiveGroup]:
        return [group for group in self.model.groups if not group.is_out]

    def delete(self, data: st.DataObject) -> None:
        uids = self.some_uids(data)

        def on_result(result: int) -> None:
            assert result == self.model.delete(uids)

        self.act(self.buffer.delete(uids), on_result)

    def delete_by_query(self, data: st.DataObject) -> None:
        task, staleness = data.draw(st.sampled_from(TASKS)), data.draw(st.integers(1, 5))

        def on_result(result: int) -> None:
            found = [
                r["uid"] for r in self.model.rows() if r["task_name"] == task and r["staleness"] >= staleness
            ]
            assert result == self.model.delete(found)

        self.act(self.buffer.delete({"task_name": task, "staleness": {"$gte": staleness}}), on_result)

    def forget(self, data: st.DataObject) -> None:
        uids = [uid for uid in self.some_uids(data) if uid not in self.coming_back]

        def on_result(result: int) -> None:
            assert result == self.model.forget(uids)

        self.act(self.buffer.forget(uids), on_result)

    def update_priorities(self, data: st.DataObject) -> None:
        priorities = {uid: data.draw(st.sampled_from([0.0, 1.0, 2.0, 3.5])) for uid in self.some_uids(data)}

        def on_result(result: list[int]) -> None:
            assert result == self.model.update_priorities(priorities)

        self.act(self.buffer.update_priorities(priorities), on_result)

    def patch(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.residents()))
        tags = data.draw(st.sampled_from([None, {"y": 2}]))
        count = len(group.members)
        rewards = data.draw(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=count, max_size=count))
        verb = self.buffer.patch(group.uid, reward=rewards, tags=tags)
        self.act(verb, lambda _: self.model.patch(group.uid, rewards=rewards, tags=tags))

    def peek(self, data: st.DataObject) -> None:
        groups = data.draw(st.lists(st.sampled_from(self.residents()), max_size=3))
        self.act(
            self.buffer.peek([group.uid for group in groups]),
            lambda handed: self.check_handed(handed, groups),
        )

    @rule(data=st.data(), items=groups_of_rollouts())
    def ask_for_the_impossible(self, data: st.DataObject, items: list[Rollout]) -> None:
        """A wrong argument raises its error; the invariants below tell that nothing changed."""
        before = copy.deepcopy(items)
        unknown = self.model.last_uid + 1
        wrong: list[tuple[Callable[[], Coroutine[Any, Any, Any]], type[Exception]]] = [
            (lambda: self.buffer.put(items, "a", stale_threshold=0, current_train_step=9), InvalidArgument),
            (lambda: self.buffer.put(items, "a", model_step=-1), InvalidArgument),
            (lambda: self.buffer.put(items, "a", priority=-1.0, model_step=9), InvalidArgument),
            (lambda: self.buffer.put(items, "a", uid=unknown, model_step=9), InvalidArgument),
            (lambda: self.buffer.get(1, "a", "done"), InvalidArgument),
            (lambda: self.buffer.take_batch({"a": 1, "b": "2"}), InvalidArgument),
            (lambda: self.buffer.take_batch({"a": 1}, train_step=-1), InvalidArgument),
            (
                lambda: self.buffer.refresh_staleness(
                    task_stale_thresholds={"a": 1, "b": 0}, current_train_step=9
                ),
                InvalidArgument,
            ),
            (lambda: self.buffer.peek([unknown]), UnknownUid),
            (lambda: self.buffer.patch(unknown, reward=[1.0]), UnknownUid),
            (lambda: self.buffer.update_priorities({1: 5.0, 2: -1.0}), InvalidArgument),
            (lambda: self.buffer.delete({"staleness": {"$above": 1}}), InvalidArgument),
        ]
        verb, expected = data.draw(st.sampled_from(wrong))
        try:
            self.ask(verb())
        except expected:
            assert items == before
        else:
            raise AssertionError("accepted")


class WaitingMachine(Machine):
    """Little room and few verbs, so that many wait for each other."""

    @initialize(config=crowded_configs())
    def build(self, config: ReplayBufferConfig) -> None:
        self.begin(config)

    @rule(task=st.sampled_from(TASKS), status=st.sampled_from([Status.COMPLETED] * 4 + [Status.ABORTED]))
    def put(self, task: str, status: Status) -> None:
        self.start_put([rollout(status=status)], task, {})
        self.settle()

    @rule(
        sizes=st.dictionaries(st.sampled_from(TASKS), st.integers(1, 2), min_size=1),
        status=st.sampled_from([Status.COMPLETED] * 4 + [Status.ABORTED]),
    )
    def take_waiting(self, sizes: dict[str, int], status: Status) -> None:
        self.start_take(sizes, status, None, wait=True)
        self.settle()

    @rule(task=st.sampled_from(TASKS))
    def get(self, task: str) -> None:
        self.start_take({task: 1}, Status.COMPLETED, None, wait=False)
        self.settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), task=st.sampled_from(TASKS), turns=st.integers(0, 3), is_put=st.booleans())
    def cancel_just_after_a_wake_up(self, data: st.DataObject, task: str, turns: int, is_put: bool) -> None:
        victims = data.draw(st.lists(st.sampled_from(self.waiting), min_size=1, max_size=2, unique_by=id))
        if is_put:
            self.start_put([rollout()], task, {})
        else:
            self.start_take({task: 1}, Status.COMPLETED, None, wait=False)
        self.cancel_calls(victims, turns)


# Explaining traces every line, which takes minutes here; the shrunk steps tell enough.
PATIENT = settings(
    phases=[Phase.explicit, Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck)
)
BufferMachine.TestCase.settings = WaitingMachine.TestCase.settings = PATIENT
TestBufferMachine = pytest.mark.timeout(600)(BufferMachine.TestCase)
TestWaitingMachine = pytest.mark.timeout(600)(WaitingMachine.TestCase)
