"""BufferSuite: what everything with the verbs of ReplayBuffer holds to, in process or far away.

Only what is returned is looked at, never whether it is the same object, and never the rollouts that were put. The tests
are coroutines: run them with pytest-asyncio in auto mode.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from reroll.config import ReplayBufferConfig, TaskConfig
from reroll.engine.ledger import Amount, closes
from reroll.engine.limiters import MinSize, Queue, SampleToInsertRatio
from reroll.errors import Closed, InvalidArgument, InvalidPriority, QueryError, UnknownUid, WaitTimeout
from reroll.rollout import Rollout, Status

New = Callable[..., Awaitable[Any]]
"""`await new(capacity=3)` makes a buffer, FIFO unless told otherwise."""

COMPLETED, ABORTED, EXPIRED = Status.COMPLETED, Status.ABORTED, Status.EXPIRED
FAILED, FILTERED, INIT = Status.FAILED, Status.FILTERED, Status.INIT


def rollout(tokens: int = 2, *, versions: Any = None, status: Any = COMPLETED, **fields: Any) -> Rollout:
    """Return a rollout of three prompt tokens and some response tokens; `versions` may be one for all of them."""
    if isinstance(versions, int):
        versions = [versions] * tokens
    fields = {"prompt_ids": [1, 2, 3], "response_ids": list(range(tokens)), **fields}
    return Rollout(response_model_steps=versions, status=status, **fields)


def group(name: Any = None, members: int = 1, **fields: Any) -> list[Rollout]:
    """Return a group of like rollouts, known by its group_id."""
    return [rollout(group_id=name, rollout_id=index, **fields) for index in range(members)]


def names(groups: Iterable[Sequence[Any]]) -> list[Any]:
    """Return what the groups are known by."""
    return [rollouts[0].group_id for rollouts in groups]


async def picture(buffer: Any) -> tuple[Any, ...]:
    """Return all that a buffer tells of itself, to compare before and after."""
    books = {
        task: amounts for task, amounts in (await buffer.ledger()).items() if any(map(any, amounts.values()))
    }
    return len(buffer), await buffer.query({}), books


@asynccontextmanager
async def refused(buffer: Any, error: type[Exception], match: str | None = None) -> AsyncIterator[None]:
    """Assert that what is done inside raises the error, and changes nothing."""
    before = await picture(buffer)
    with pytest.raises(error, match=match):
        yield
    assert await picture(buffer) == before


async def put_all(buffer: Any, task: str, *groups: list[Rollout], **options: Any) -> list[Any]:
    """Put groups one after another and return the uids."""
    return [await buffer.put(items, task, **options) for items in groups]


async def row_of(buffer: Any, uid: int | None) -> Any:
    """Return the row of one resident group."""
    (row,) = await buffer.query({"uid": uid})
    return row


async def bucket(buffer: Any, name: str, task: str = "t") -> Amount:
    """Return one amount of the ledger, which must close."""
    books = (await buffer.ledger())[task]
    assert closes(books)
    amount: Amount = books[name]
    return amount


WRONG_PUTS: list[tuple[dict[str, Any], str]] = [
    ({"items": [rollout(), rollout(status="aborted")], "stale_threshold": 0}, "stale_threshold"),
    ({"stale_threshold": -1}, "stale_threshold"),
    ({"stale_threshold": True}, "stale_threshold"),
    ({"stale_threshold": "3"}, "stale_threshold"),
    ({"token_stale_threshold": 0}, "token_stale_threshold"),
    ({"model_step": -1}, "model_step"),
    ({"model_step": 1.5}, "model_step"),
    ({"model_step": 2**70}, "model_step"),
    ({"current_train_step": -1}, "current_train_step"),
    ({"current_train_step": "5"}, "current_train_step"),
    ({"current_train_step": 2**70}, "current_train_step"),
    ({"task_name": ""}, "task_name"),
    ({"task_name": 5}, "task_name"),
    ({"task_name": ["t"]}, "task_name"),
    ({"items": None}, "items"),
    ({"items": 5}, "items"),
    ({"items": "abc"}, "items"),
    ({"items": {"status": "completed"}}, "items"),
    ({"items": [{"status": "completed"}]}, "rollout 0"),
    ({"items": [rollout(), object()]}, "rollout 1"),
    ({"priority": -1.0}, "priority"),
    ({"priority": float("nan")}, "priority"),
    ({"priority": "high"}, "priority"),
    ({"tags": ["x"]}, "tags"),
    ({"tags": {"x": []}}, "tags"),
    ({"tags": {1: "x"}}, "tags"),
    ({"uid": 99}, "99"),
    ({"uid": "1"}, "uid|group"),
    ({"put_id": []}, "put_id"),
    ({"timeout": -1}, "timeout"),
    ({"timeout": "1"}, "timeout"),
    ({"timeout": float("nan")}, "timeout"),
]


def _with(**fields: Any) -> Rollout:
    """Return a rollout whose fields were assigned one by one, so that nobody compared them."""
    made = rollout()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


WRONG_ROLLOUTS: list[tuple[Callable[[], Rollout], str]] = [
    (lambda: _with(logprobs=[0.5]), "logprobs"),
    (lambda: _with(logprobs=[0.5] * 3), "logprobs"),
    (lambda: _with(response_mask=[1]), "response_mask"),
    (lambda: _with(response_model_steps=[1]), "response_model_steps"),
    (lambda: _with(response_model_steps=[1, 1, 1]), "response_model_steps"),
    (lambda: _with(reward="good"), "reward"),
    (lambda: _with(num_tokens=-1), "num_tokens"),
]

UNKNOWN_STATUS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "get": lambda buffer: buffer.get(1, "t", "done"),
    "get 2": lambda buffer: buffer.get(1, "t", 1),
    "get 3": lambda buffer: buffer.get(1, "t", None),
    "take_batch": lambda buffer: buffer.take_batch({"t": 1}, group_status="COMPLETED"),
    "is_ready": lambda buffer: buffer.is_ready({"t": 1}, group_status="done"),
    "wait_ready": lambda buffer: buffer.wait_ready({"t": 1}, group_status="done"),
    "count": lambda buffer: buffer.count("t", "done"),
    "count_statuses": lambda buffer: buffer.count_statuses(["t"], ["completed", "done"]),
    "count_statuses 2": lambda buffer: buffer.count_statuses([], ["done"]),
    "refresh_staleness": lambda buffer: buffer.refresh_staleness(
        task_stale_thresholds={"t": 1}, current_train_step=9, statuses=["done"]
    ),
    "query": lambda buffer: buffer.query({"status": "done"}),
    "delete": lambda buffer: buffer.delete({"status": "done"}),
}

WRONG_ARGUMENTS: list[tuple[Callable[[Any], Awaitable[Any]], str]] = [
    (lambda buffer: buffer.get("1", "t", COMPLETED), "batch size"),
    (lambda buffer: buffer.get(1.0, "t", COMPLETED), "batch size"),
    (lambda buffer: buffer.get(1, "", COMPLETED), "task_name"),
    (lambda buffer: buffer.get(1, None, COMPLETED), "task_name"),
    (lambda buffer: buffer.get(1, ["t"], COMPLETED), "task_name"),
    (lambda buffer: buffer.get(1, "t", COMPLETED, train_step=-1), "train_step"),
    (lambda buffer: buffer.get(1, "t", COMPLETED, train_step=2**70), "train_step"),
    (lambda buffer: buffer.take_batch(["t"]), "task_batch_sizes"),
    (lambda buffer: buffer.take_batch({"t": 1, "u": None}), "batch size"),
    (lambda buffer: buffer.take_batch({"t": 1}, train_step="3"), "train_step"),
    (lambda buffer: buffer.take_batch({"t": 1}, wait=True, timeout=-1), "timeout"),
    (lambda buffer: buffer.is_ready({"t": "1"}), "batch size"),
    (lambda buffer: buffer.wait_ready({"t": 1}, timeout="1"), "timeout"),
    (lambda buffer: buffer.count(5, COMPLETED), "task_name"),
    (lambda buffer: buffer.count_statuses("t", [COMPLETED]), "task_names"),
    (lambda buffer: buffer.count_statuses(["t"], "completed"), "status"),
    (lambda buffer: buffer.count_statuses(5, [COMPLETED]), "task_names"),
    (lambda buffer: buffer.peek(1), "uids"),
    (lambda buffer: buffer.peek(["1"]), "uid"),
    (lambda buffer: buffer.delete(1), "uids"),
    (lambda buffer: buffer.delete("1"), "uids"),
    (lambda buffer: buffer.forget({1: 1}), "uids"),
    (lambda buffer: buffer.update_priorities([1]), "priorities"),
    (lambda buffer: buffer.query({}, limit=-1), "limit"),
    (lambda buffer: buffer.query({}, order_by="length"), "order_by"),
    (lambda buffer: buffer.query({}, order_by=["uid"]), "order_by"),
    (lambda buffer: buffer.patch(1, reward=[1.0, 2.0]), "reward"),
    (lambda buffer: buffer.patch(1, reward=1.0), "reward"),
    (lambda buffer: buffer.patch(1, reward=["good"]), "reward"),
    (lambda buffer: buffer.patch(1, logprobs=[[0.5]]), "logprobs"),
    (lambda buffer: buffer.patch(1, status=["aborted"]), "status"),
    (lambda buffer: buffer.patch(1, response_ids=[[1, 2]]), "response_ids"),
    (lambda buffer: buffer.patch(1, reward=[1.0], tags=["x"]), "tags"),
]

WRONG_REFRESHES: list[tuple[dict[str, Any], str]] = [
    ({"task_stale_thresholds": {"t": 0}}, "task_stale_thresholds"),
    ({"task_stale_thresholds": {"t": 1, "u": -1}}, "task_stale_thresholds"),
    ({"task_stale_thresholds": {"t": "1"}}, "task_stale_thresholds"),
    ({"task_stale_thresholds": 1}, "task_stale_thresholds"),
    ({"task_token_stale_thresholds": {"t": 0}}, "task_token_stale_thresholds"),
    ({"task_token_stale_thresholds": [1]}, "task_token_stale_thresholds"),
    ({"current_train_step": -1}, "current_train_step"),
    ({"current_train_step": None}, "current_train_step"),
    ({"current_train_step": "9"}, "current_train_step"),
    ({"current_train_step": 2**70}, "current_train_step"),
    ({"statuses": [COMPLETED, FAILED]}, "failed"),
    ({"statuses": "completed"}, "statuses"),
    ({"statuses": 5}, "statuses"),
    ({"expired_groups_retryable_by_task": [True]}, "expired_groups_retryable_by_task"),
]

EVERY_VERB: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "put": lambda buffer: buffer.put(group(), "t"),
    "put 2": lambda buffer: buffer.put([], "t"),
    "get": lambda buffer: buffer.get(1, "t", COMPLETED),
    "take_batch": lambda buffer: buffer.take_batch({"t": 1}),
    "take_batch 2": lambda buffer: buffer.take_batch({"t": 1}, wait=True),
    "refresh_staleness": lambda buffer: buffer.refresh_staleness(
        task_stale_thresholds={"t": 1}, current_train_step=1
    ),
    "is_ready": lambda buffer: buffer.is_ready({"t": 1}),
    "wait_ready": lambda buffer: buffer.wait_ready({"t": 1}),
    "count": lambda buffer: buffer.count("t", COMPLETED),
    "count_statuses": lambda buffer: buffer.count_statuses(["t"], [COMPLETED]),
    "count_statuses 2": lambda buffer: buffer.count_statuses([], []),
    "query": lambda buffer: buffer.query({}),
    "peek": lambda buffer: buffer.peek([]),
    "delete": lambda buffer: buffer.delete([]),
    "forget": lambda buffer: buffer.forget([]),
    "update_priorities": lambda buffer: buffer.update_priorities({}),
    "patch": lambda buffer: buffer.patch(1, reward=[1.0]),
    "stats": lambda buffer: buffer.stats(),
    "metrics": lambda buffer: buffer.metrics(),
    "ledger": lambda buffer: buffer.ledger(),
}


class VerbSuite:
    """One call at a time. Subclass as `class TestMine(VerbSuite)` with `make`; pytest runs the rest."""

    async def make(self, config: ReplayBufferConfig) -> Any:
        """Return a new buffer of this configuration."""
        return config.build()

    @pytest.fixture
    async def new(self) -> AsyncIterator[New]:
        made: list[Any] = []

        async def make(**options: Any) -> Any:
            buffer = await self.make(ReplayBufferConfig(**{"sampler": "fifo", "seed": 0, **options}))
            made.append(buffer)
            return buffer

        yield make
        for buffer in made:
            await buffer.close()

    # --- put: uids, stamping, staleness

    async def test_uids_count_from_one_and_are_never_used_again(self, new: New) -> None:
        buffer = await new()
        assert await put_all(buffer, "t", group(), group()) == [1, 2]
        assert await buffer.delete([1, 2]) == 2
        assert await buffer.put(group(), "u") == 3

    async def test_no_items_are_no_put(self, new: New) -> None:
        buffer = await new()
        assert await buffer.put([], "t") is None
        assert await buffer.put((), "t", put_id="x") is None
        assert await picture(buffer) == (0, [], {})

    async def test_stamps_tokens_and_computes_staleness(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put([rollout(2)], "t", model_step=3, current_train_step=5)
        row = await row_of(buffer, uid)
        assert (row.version, row.staleness) == (3, 1)
        for (fetched,) in (*await buffer.peek([uid]), *await buffer.get(1, "t", COMPLETED)):
            assert list(fetched.response_model_steps) == [3, 3]
            assert fetched.seq_staleness == 1
            assert fetched.group_uid == uid

    async def test_only_tokens_without_a_version_are_stamped(self, new: New) -> None:
        buffer = await new()
        continued = rollout(4, versions=[1, 2])
        await buffer.put([continued, rollout(1)], "t", model_step=5)
        ((first, second),) = await buffer.get(1, "t", COMPLETED)
        assert list(first.response_model_steps) == [1, 2, 5, 5]
        assert list(second.response_model_steps) == [5]

    async def test_staleness_is_that_of_the_oldest_token_and_may_be_minus_one(self, new: New) -> None:
        buffer = await new()
        old = await buffer.put([rollout(versions=[4, 2]), rollout(versions=4)], "t", current_train_step=5)
        new_uid = await buffer.put(group(versions=5), "t", current_train_step=5)
        assert (await row_of(buffer, old)).staleness == 2
        assert (await row_of(buffer, new_uid)).staleness == -1

    async def test_a_put_without_a_step_trusts_what_rollouts_say(self, new: New) -> None:
        buffer = await new()
        uids = await put_all(
            buffer, "t", [rollout(seq_staleness=1), rollout(seq_staleness=4)], group(versions=9)
        )
        assert [row.staleness for row in await buffer.query({})] == [4, 0]
        stale = await buffer.put(group(seq_staleness=3, versions=9), "t", stale_threshold=3)
        assert (await row_of(buffer, stale)).status is EXPIRED
        assert (await row_of(buffer, uids[0])).status is COMPLETED

    async def test_a_put_with_a_step_computes_staleness_and_no_versions_give_zero(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group(seq_staleness=8), "t", current_train_step=5, stale_threshold=1)
        row = await row_of(buffer, uid)
        assert (row.staleness, row.status, row.version) == (0, COMPLETED, None)
        assert (await buffer.peek([uid]))[0][0].seq_staleness == 0

    async def test_the_step_of_a_task_only_grows(self, new: New) -> None:
        buffer = await new()
        await buffer.get(1, "t", COMPLETED, train_step=9)
        late = await buffer.put(group(versions=3), "t", current_train_step=5, stale_threshold=5)
        assert (await row_of(buffer, late)).status is EXPIRED
        assert (await row_of(buffer, late)).staleness == 5
        uid = await buffer.put(group(versions=7), "t")
        await buffer.refresh_staleness(task_stale_thresholds={"t": 5}, current_train_step=2)
        assert (await row_of(buffer, uid)).staleness == 1

    async def test_told_staleness_holds_until_a_step_and_without_versions_until_a_refresh(
        self, new: New
    ) -> None:
        buffer = await new()
        await put_all(buffer, "t", group(seq_staleness=7, versions=2), group(seq_staleness=6))

        async def staleness() -> list[int]:
            return [row.staleness for row in await buffer.query({})]

        assert await staleness() == [7, 6]
        await buffer.take_batch({"t": 0}, train_step=4)
        assert await staleness() == [1, 6]
        await buffer.refresh_staleness(task_stale_thresholds={"t": 9}, current_train_step=4)
        assert await staleness() == [1, 0]
        ((_,), (untold,)) = await buffer.get(2, "t", COMPLETED)
        assert untold.seq_staleness == 0

    async def test_every_task_has_its_own_step(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group(versions=1))
        await put_all(buffer, "u", group(versions=1, seq_staleness=2))
        await buffer.refresh_staleness(task_stale_thresholds={"t": 9}, current_train_step=8)
        assert [row.staleness for row in await buffer.query({})] == [6, 2]

    async def test_the_same_put_id_stores_once(self, new: New) -> None:
        buffer = await new()
        first = await buffer.put(group(), "t", put_id=("worker", 1))
        assert await buffer.put(group(), "t", put_id=("worker", 1)) == first
        assert await buffer.put(group(), "t", put_id=("worker", 2)) == 2
        assert len(buffer) == 2
        dropped = {
            "current_train_step": 9,
            "stale_threshold": 1,
            "expired_groups_retryable": False,
            "put_id": "x",
        }
        assert await buffer.put(group(versions=1), "t", **dropped) is None
        assert await buffer.put(group(versions=8), "t", **dropped) is None
        assert (await bucket(buffer, "put")).groups == 3

    # --- put: status

    @pytest.mark.parametrize(
        ("statuses", "expected"),
        [
            ("completed completed", COMPLETED),
            ("completed aborted", ABORTED),
            ("aborted failed", FAILED),
            ("expired aborted", ABORTED),
            ("expired filtered", EXPIRED),
            ("completed filtered", FILTERED),
            ("completed init", INIT),
            ("completed archived", INIT),
            ("filtered failed expired aborted completed", FAILED),
        ],
    )
    async def test_the_status_of_a_group(self, new: New, statuses: str, expected: Status) -> None:
        buffer = await new()
        uid = await buffer.put([rollout(status=status) for status in statuses.split()], "t")
        assert (await row_of(buffer, uid)).status is expected
        assert await buffer.count("t", expected) == 1
        assert len(await buffer.get(1, "t", COMPLETED)) == (expected is COMPLETED)

    async def test_failed_members_are_dropped_where_asked_for(self, new: New) -> None:
        buffer = await new(on_failed="drop_member", min_group_size=2)
        bad: dict[str, Any] = {"status": FAILED, "rollout_id": "bad"}
        kept = await buffer.put([rollout(), rollout(**bad), rollout(status=ABORTED)], "t")
        failed = await buffer.put([rollout(), rollout(**bad)], "t")
        assert (await row_of(buffer, kept)).status is ABORTED
        assert (await row_of(buffer, kept)).num_rollouts == 2
        assert (await row_of(buffer, kept)).num_tokens == 10
        assert (await row_of(buffer, failed)).status is FAILED
        assert (await row_of(buffer, failed)).num_rollouts == 2
        assert "bad" not in [member.rollout_id for member in (await buffer.peek([kept]))[0]]

    async def test_only_the_newest_rejected_groups_stay(self, new: New) -> None:
        buffer = await new(rejected_capacity=2, capacity=1)
        statuses = [FAILED, FILTERED, FAILED, FILTERED]
        for index, status in enumerate(statuses):
            await buffer.put(group(index, status=status), "t", timeout=0)
        await buffer.put(group(), "t", timeout=0)
        assert [row.group_id for row in await buffer.query({"status": {"$in": ["failed", "filtered"]}})] == [
            2,
            3,
        ]
        assert (await bucket(buffer, "failed")).groups == (await bucket(buffer, "filtered")).groups == 1
        assert (await bucket(buffer, "resident")).groups == 3
        assert names(await buffer.get(9, "t", FAILED)) == [2]
        assert (await bucket(buffer, "failed")).groups == 2

    async def test_no_room_for_rejected_groups_is_a_drop(self, new: New) -> None:
        buffer = await new(rejected_capacity=0)
        assert await buffer.put(group(status=FAILED), "t") is None
        assert len(buffer) == 0
        assert (await bucket(buffer, "failed")).groups == 1

    # --- expiry at put

    async def test_a_stale_group_expires_at_put_and_is_emptied(self, new: New) -> None:
        buffer = await new()
        stale = Rollout(
            status=COMPLETED,
            prompt_ids=[1, 2, 3],
            response_ids=[0, 1],
            response_model_steps=[1, 1],
            message=["hi"],
            tokens=[1, 2, 3, 0, 1],
            response="ab",
            logprobs=[0.5, 0.5],
            response_mask=[1, 1],
            reward=1.0,
            finish_reason="stop",
            error_msg="e",
            routed_experts=[1],
            tool_calls=[{}],
            mm_info={"image": 1},
            extra_fields={"a": 1},
            rollout_id="r",
            session_id="s",
        )
        uid = await buffer.put([stale], "t", current_train_step=5, stale_threshold=3)
        row = await row_of(buffer, uid)
        assert (row.status, row.staleness, row.num_tokens, row.reward_mean, row.version) == (
            EXPIRED,
            3,
            3,
            None,
            None,
        )
        ((member,),) = await buffer.get(1, "t", EXPIRED)
        assert member.status is EXPIRED
        assert member.seq_staleness == 3
        assert member.response == ""
        assert [list(ids) for ids in (member.tokens, member.prompt_ids)] == [[1, 2, 3]] * 2
        assert [len(getattr(member, n)) for n in ("response_ids", "logprobs", "response_model_steps")] == [
            0
        ] * 3
        emptied = ("response_mask", "reward", "finish_reason", "error_msg", "routed_experts", "tool_calls")
        assert [getattr(member, name) for name in emptied] == [None] * 6
        assert (member.message, member.mm_info, member.extra_fields) == (["hi"], {"image": 1}, {"a": 1})
        assert (member.rollout_id, member.session_id) == ("r", "s")

    async def test_a_stale_group_that_nobody_rolls_again_is_dropped(self, new: New) -> None:
        buffer = await new()
        options = {"current_train_step": 5, "stale_threshold": 3, "expired_groups_retryable": False}
        assert await buffer.put(group(versions=1), "t", **options) is None
        assert await buffer.put(group(versions=2), "t", **options) == 2
        assert len(buffer) == 1
        assert await bucket(buffer, "expired") == Amount(1, 5)

    async def test_other_statuses_do_not_expire(self, new: New) -> None:
        buffer = await new()
        for status in (FAILED, FILTERED, INIT, EXPIRED):
            uid = await buffer.put(
                group(versions=1, status=status), "t", current_train_step=9, stale_threshold=1
            )
            assert (await row_of(buffer, uid)).status is status
            assert (await row_of(buffer, uid)).num_tokens == 5
            assert (await row_of(buffer, uid)).staleness == 7

    async def test_one_stale_member_expires_all_or_itself(self, new: New) -> None:
        for expire, tokens in (("group", 6), ("member", 8)):
            buffer = await new(expire=expire)
            items = [rollout(versions=1, reward=1.0), rollout(versions=7, reward=1.0)]
            uid = await buffer.put(items, "t", current_train_step=9, stale_threshold=5)
            row = await row_of(buffer, uid)
            assert (row.status, row.num_tokens) == (EXPIRED, tokens)
            ((stale, fresh),) = await buffer.get(1, "t", EXPIRED)
            assert (stale.status, stale.seq_staleness, stale.reward) == (EXPIRED, 7, None)
            kept = [COMPLETED, 1, 1.0] if expire == "member" else [EXPIRED, 1, None]
            assert [fresh.status, fresh.seq_staleness, fresh.reward] == kept

    async def test_by_token_a_member_expires_with_its_last_trainable_token(self, new: New) -> None:
        buffer = await new(expire="member")
        options = {"current_train_step": 9, "token_stale_threshold": 3}
        fresh_end = await buffer.put([rollout(versions=[1, 8])], "t", **options)
        masked_end = await buffer.put([rollout(versions=[1, 8], response_mask=[1, 0])], "t", **options)
        exempt = await buffer.put([rollout(versions=[1, 1], labels=[1])], "t", **options)
        stamped = await buffer.put([rollout(versions=[1])], "t", model_step=8, **options)
        all_old = await buffer.put([rollout(versions=[1, 5])], "t", **options)
        statuses = {row.uid: row.status for row in await buffer.query({})}
        assert [statuses[uid] for uid in (fresh_end, exempt, stamped)] == [COMPLETED] * 3
        assert [statuses[uid] for uid in (masked_end, all_old)] == [EXPIRED] * 2

    # --- put: refused

    @pytest.mark.parametrize(
        ("arguments", "named"), WRONG_PUTS, ids=lambda value: value if isinstance(value, str) else ""
    )
    async def test_a_wrong_put_changes_nothing(self, new: New, arguments: dict[str, Any], named: str) -> None:
        buffer = await new()
        await buffer.put(group(versions=1), "t")
        call = {"items": group(versions=1), "task_name": "t", "current_train_step": 8, **arguments}
        async with refused(buffer, InvalidArgument, named):
            await buffer.put(call.pop("items"), call.pop("task_name"), **call)
        assert await buffer.put(group(), "t") == 2, "a refused put used a uid up"

    @pytest.mark.parametrize(
        ("wrong", "named"), WRONG_ROLLOUTS, ids=lambda value: value if isinstance(value, str) else ""
    )
    async def test_a_wrong_rollout_is_refused_by_name(
        self, new: New, wrong: Callable[[], Rollout], named: str
    ) -> None:
        buffer = await new()
        async with refused(buffer, InvalidArgument, f"rollout 1.*{named}"):
            await buffer.put([rollout(), wrong()], "t")
        assert await buffer.put(group(), "t") == 1

    # --- hand out

    @pytest.mark.parametrize(
        ("sampler", "order"),
        [
            ("fifo", "abcd"),
            ("lifo", "dcba"),
            ("stalest", "bacd"),
            ("freshest", "acdb"),
            ("min_heap", "dbca"),
            ("max_heap", "abcd"),
            ("least_used", "abcd"),
        ],
    )
    async def test_the_order_of_samplers(self, new: New, sampler: str, order: str) -> None:
        buffer = await new(sampler=sampler)
        for name, staleness, priority in zip("abcd", (3, 8, 3, 3), (3.0, 2.0, 2.0, 0.5), strict=True):
            await buffer.put(group(name, seq_staleness=staleness), "t", priority=priority)
        assert await buffer.is_ready({"t": 4})
        assert "".join(names(await buffer.get(3, "t", COMPLETED))) == order[:3]
        assert names(await buffer.get(3, "t", COMPLETED)) == [order[3]]

    async def test_stalest_first_mixes_derived_and_told_staleness(self, new: New) -> None:
        buffer = await new(sampler="stalest")
        await put_all(
            buffer, "t", group("v3", versions=3), group("told", seq_staleness=2), group("v1", versions=1)
        )
        assert names(await buffer.get(1, "t", COMPLETED, train_step=5)) == ["v1"]
        assert names(await buffer.get(2, "t", COMPLETED)) == ["told", "v3"]

    async def test_other_statuses_come_in_order_of_arrival(self, new: New) -> None:
        buffer = await new(sampler="lifo", rate_limiter=MinSize(5))
        for status in (ABORTED, EXPIRED, FAILED, FILTERED, INIT):
            await put_all(buffer, "t", *(group(index, status=status) for index in range(3)))
            assert names(await buffer.get(2, "t", status)) == [0, 1]
            assert names(await buffer.get(2, "t", status.value)) == [2]

    async def test_get_of_nothing(self, new: New) -> None:
        buffer = await new()
        await buffer.put(group(), "t")
        assert await buffer.get(0, "t", COMPLETED) == []
        assert await buffer.get(-3, "t", COMPLETED) == []
        assert await buffer.get(3, "nobody", COMPLETED) == []
        assert len(buffer) == 1

    async def test_take_batch_gives_what_is_there(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group("a"), group("b"))
        await put_all(buffer, "u", group("c"))
        groups, counts = await buffer.take_batch({"u": 5, "t": 1, "v": 2, "w": 0, "x": -1})
        assert {task: names(taken) for task, taken in groups.items()} == {
            "u": ["c"],
            "t": ["a"],
            "v": [],
            "w": [],
            "x": [],
        }
        assert counts == {"u": 1, "t": 1, "v": 0, "w": 0, "x": 0}
        assert await buffer.take_batch({}) == ({}, {})

    async def test_waiting_is_all_or_nothing(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group("a"), group("b"))
        await put_all(buffer, "u", group("c"))
        async with refused(buffer, WaitTimeout):
            await buffer.take_batch({"t": 2, "u": 2}, wait=True, timeout=0, train_step=5)
        groups, _ = await buffer.take_batch({"t": 2, "u": 1, "v": 0}, wait=True, timeout=0)
        assert {task: names(taken) for task, taken in groups.items()} == {
            "t": ["a", "b"],
            "u": ["c"],
            "v": [],
        }
        with pytest.raises(TimeoutError):
            await buffer.wait_ready({"t": 1}, timeout=0.001)

    async def test_a_closed_limiter_looks_empty(self, new: New) -> None:
        buffer = await new(min_size=2)
        await buffer.put(group("a"), "t")
        assert await buffer.get(1, "t", COMPLETED) == []
        assert not await buffer.is_ready({"t": 1})
        async with refused(buffer, WaitTimeout):
            await buffer.take_batch({"t": 1}, wait=True, timeout=0)
        await buffer.put(group("b"), "t")
        assert names(await buffer.get(1, "t", COMPLETED)) == ["a"]
        assert await buffer.get(1, "t", COMPLETED) == []

    async def test_what_can_never_be_met_is_refused_at_once(self, new: New) -> None:
        buffer = await new(capacity=3, rejected_capacity=2, tasks={"q": {"rate_limiter": Queue(2)}})
        async with refused(buffer, InvalidArgument, "capacity is 3"):
            await buffer.take_batch({"u": 1, "t": 4}, wait=True)
        async with refused(buffer, InvalidArgument, "capacity is 3"):
            await buffer.wait_ready({"t": 4})
        async with refused(buffer, InvalidArgument, "Queue"):
            await buffer.take_batch({"q": 3}, wait=True)
        async with refused(buffer, WaitTimeout):
            await buffer.take_batch({"t": 3}, wait=True, timeout=0)
        async with refused(buffer, WaitTimeout):
            await buffer.take_batch({"t": 4}, group_status=ABORTED, wait=True, timeout=0)
        assert await buffer.take_batch({"t": 4}) == ({"t": []}, {"t": 0})

    async def test_more_rejected_groups_than_are_kept_can_never_be_met(self, new: New) -> None:
        buffer = await new(rejected_capacity=2)
        async with refused(buffer, InvalidArgument, "rejected_capacity"):
            await buffer.take_batch({"t": 3}, group_status=FAILED, wait=True, timeout=0.1)

    async def test_a_request_is_not_refused_that_can_be_met(self, new: New) -> None:
        # Groups leave at their first use, so two samples per insert are never reached, and what is allowed piles up.
        buffer = await new(rate_limiter=SampleToInsertRatio(2.0, 5, 2.0))
        for n in (2, 4):
            while await buffer.count("t", COMPLETED) < 5:
                await buffer.put(group(), "t", timeout=0)
            _, counts = await buffer.take_batch({"t": n}, wait=True, timeout=0)
            assert counts == {"t": n}
        while await buffer.count("t", COMPLETED) < 5:
            await buffer.put(group(), "t", timeout=0)
        assert await buffer.is_ready({"t": 5})
        _, counts = await buffer.take_batch({"t": 5}, wait=True, timeout=0)
        assert counts == {"t": 5}

    @pytest.mark.parametrize("call", UNKNOWN_STATUS.values(), ids=UNKNOWN_STATUS)
    async def test_an_unknown_status_is_an_error(
        self, new: New, call: Callable[[Any], Awaitable[Any]]
    ) -> None:
        buffer = await new()
        await buffer.put(group(versions=1), "t")
        async with refused(buffer, InvalidArgument):
            await call(buffer)

    @pytest.mark.parametrize(
        ("call", "named"), WRONG_ARGUMENTS, ids=lambda value: value if isinstance(value, str) else ""
    )
    async def test_a_wrong_argument_changes_nothing(
        self, new: New, call: Callable[[Any], Awaitable[Any]], named: str
    ) -> None:
        buffer = await new()
        await buffer.put(group(versions=1), "t")
        async with refused(buffer, InvalidArgument, named):
            await call(buffer)

    # --- rolled again

    async def test_an_aborted_group_is_out_until_it_is_put_again(self, new: New) -> None:
        buffer = await new()
        uids = await put_all(buffer, "t", group("a", versions=1, status=ABORTED), group("b", status=ABORTED))
        (taken,) = await buffer.get(1, "t", ABORTED)
        assert len(buffer) == 1
        assert await buffer.count("t", ABORTED) == 1
        assert [row.uid for row in await buffer.query({})] == uids[1:]
        assert await bucket(buffer, "out") == Amount(1, 5)
        taken[0].response_ids = [0, 1, 2, 3]
        assert await buffer.put(taken, "t", model_step=4) == uids[0]
        row = await row_of(buffer, uids[0])
        assert (row.attempts, row.num_tokens, row.version) == (2, 7, 1)
        assert await bucket(buffer, "out") == Amount()
        assert await bucket(buffer, "put") == Amount(2, 12)
        assert names(await buffer.get(2, "t", ABORTED)) == ["b", "a"], "it comes back at the end of the line"

    async def test_old_tokens_keep_their_versions(self, new: New) -> None:
        buffer = await new()
        await buffer.put(group(status=ABORTED), "t", model_step=1, current_train_step=2)
        for step in (2, 3):
            (taken,) = await buffer.get(1, "t", ABORTED)
            taken[0].response_ids = [*taken[0].response_ids, 7]
            taken[0].status = ABORTED if step == 2 else COMPLETED
            await buffer.put(taken, "t", model_step=step, current_train_step=step + 1)
        ((done,),) = await buffer.get(1, "t", COMPLETED)
        assert list(done.response_model_steps) == [1, 1, 2, 3]
        assert done.seq_staleness == 2

    async def test_a_group_is_continued_by_uid(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group("a", status=ABORTED), "t", tags={"x": 1})
        async with refused(buffer, InvalidArgument, "not out"):
            await buffer.put(group(), "t", uid=uid)
        await buffer.get(1, "t", ABORTED)
        async with refused(buffer, InvalidArgument, "'u'"):
            await buffer.put(group(), "u", uid=uid)
        assert await buffer.put(group("b"), "t", uid=uid) == uid
        row = await row_of(buffer, uid)
        assert (row.attempts, row.status, row.tags, row.group_id) == (2, COMPLETED, {"x": 1}, "b")

    async def test_the_same_prompt_is_another_group(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group("prompt", status=ABORTED), "t")
        await buffer.get(1, "t", ABORTED)
        other = await buffer.put(group("prompt"), "t")
        assert other != uid
        assert (await row_of(buffer, other)).attempts == 1

    async def test_members_of_several_groups_do_not_come_back_as_one(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group(status=ABORTED), group(status=ABORTED))
        first, second = await buffer.get(2, "t", ABORTED)
        async with refused(buffer, InvalidArgument, "several groups"):
            await buffer.put([*first, *second], "t")
        assert await buffer.put(first, "t") == 1
        assert await buffer.put(second, "t") == 2

    async def test_an_expired_group_is_rolled_again(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group(versions=1, tokens=4), "t", current_train_step=9, stale_threshold=2)
        assert await bucket(buffer, "expired") == Amount(0, 4)
        (taken,) = await buffer.get(1, "t", EXPIRED)
        taken[0].response_ids, taken[0].status = [5, 6], COMPLETED
        options = {"model_step": 8, "current_train_step": 9, "stale_threshold": 2}
        assert await buffer.put(taken, "t", **options) == uid
        row = await row_of(buffer, uid)
        assert (row.status, row.staleness, row.attempts, row.version) == (COMPLETED, 0, 2, 8)
        assert await bucket(buffer, "put") == Amount(1, 9)

    async def test_too_many_attempts_fail_but_never_what_is_completed(self, new: New) -> None:
        buffer = await new(max_attempts=2)
        uids = await put_all(buffer, "t", *(group(name, status=ABORTED) for name in "abc"))
        for _ in range(2):
            for taken in await buffer.get(3, "t", ABORTED):
                await buffer.put(taken, "t")
        assert await buffer.count_statuses(["t"], [ABORTED, FAILED]) == {"t": {ABORTED: 0, FAILED: 3}}
        assert [row.attempts for row in await buffer.query({})] == [3, 3, 3]
        assert {member.status for members in await buffer.peek(uids) for member in members} == {FAILED}

    async def test_a_completed_group_may_have_any_number_of_attempts(self, new: New) -> None:
        buffer = await new(max_attempts=1)
        uid = await buffer.put(group(status=ABORTED), "t")
        (taken,) = await buffer.get(1, "t", ABORTED)
        taken[0].status = COMPLETED
        assert await buffer.put(taken, "t") == uid
        assert (await row_of(buffer, uid)).status is COMPLETED

    async def test_fewer_tokens_than_before_count_as_deleted(self, new: New) -> None:
        buffer = await new()
        await buffer.put(group(tokens=6, status=ABORTED), "t")
        (taken,) = await buffer.get(1, "t", ABORTED)
        taken[0].response_ids = [1]
        await buffer.put(taken, "t")
        assert await bucket(buffer, "put") == Amount(1, 9)
        assert await bucket(buffer, "deleted") == Amount(0, 5)
        assert await bucket(buffer, "resident") == Amount(1, 4)

    async def test_a_forgotten_group_is_deleted_and_new_when_it_comes_back(self, new: New) -> None:
        buffer = await new()
        uids = await put_all(buffer, "t", group(status=ABORTED), group(status=ABORTED))
        (taken,) = await buffer.get(1, "t", ABORTED)
        assert await buffer.forget([*uids, 99, uids[0]]) == 1
        assert await bucket(buffer, "deleted") == Amount(1, 5)
        assert await bucket(buffer, "out") == Amount()
        assert len(buffer) == 1
        assert await buffer.put(taken, "t") == 3

    async def test_a_group_that_comes_back_and_is_evicted_at_once_leaves_the_others_alone(
        self, new: New
    ) -> None:
        buffer = await new(capacity=1, remover="lifo")
        returning = await buffer.put(group("a", status=ABORTED), "t")
        (taken,) = await buffer.get(1, "t", ABORTED)
        staying = await buffer.put(group("b"), "t")
        taken[0].status = COMPLETED
        assert await buffer.put(taken, "t") is None
        assert len(buffer) == 1
        assert names(await buffer.peek([staying])) == ["b"]
        with pytest.raises(UnknownUid):
            await buffer.peek([returning])
        assert await bucket(buffer, "evicted") == Amount(1, 5)
        assert names(await buffer.get(1, "t", COMPLETED)) == ["b"]

    # --- refresh

    async def test_refresh_expires_completed_and_aborted(self, new: New) -> None:
        for statuses, expired in (
            (None, {"t": 2}),
            ([ABORTED], {"t": 1}),
            (["completed"], {"t": 1}),
            ([], {"t": 0}),
        ):
            buffer = await new()
            for status in (COMPLETED, ABORTED, FAILED, INIT):
                await buffer.put(group(tokens=1, versions=[1], status=status), "t")
            result = await buffer.refresh_staleness(
                task_stale_thresholds={"t": 2}, current_train_step=4, statuses=statuses
            )
            assert result == expired
            assert await buffer.count("t", EXPIRED) == expired["t"]
            still = await buffer.count_statuses(["t"], [COMPLETED, ABORTED, FAILED, INIT])
            assert sum(still["t"].values()) == 4 - expired["t"]

    async def test_refresh_keeps_uids_and_order_and_counts_once(self, new: New) -> None:
        buffer = await new()
        uids = await put_all(
            buffer, "t", *(group(name, versions=v) for name, v in zip("abc", (1, 8, 1), strict=True))
        )
        ticks = [row.timestamp_id for row in await buffer.query({})]
        thresholds = {"t": 3, "nobody": 1}
        first = await buffer.refresh_staleness(task_stale_thresholds=thresholds, current_train_step=9)
        again = await buffer.refresh_staleness(task_stale_thresholds=thresholds, current_train_step=9)
        assert (first, again) == ({"t": 2, "nobody": 0}, {"t": 0, "nobody": 0})
        rows = await buffer.query({})
        assert [(row.uid, row.timestamp_id) for row in rows] == list(zip(uids, ticks, strict=True))
        assert [row.staleness for row in rows] == [7, 0, 7]
        assert await bucket(buffer, "expired") == Amount(0, 4)
        handed = await buffer.get(2, "t", EXPIRED)
        assert names(handed) == ["a", "c"]
        assert [(m.status, m.seq_staleness, len(m.response_ids)) for (m,) in handed] == [(EXPIRED, 7, 0)] * 2

    async def test_refresh_drops_where_nobody_rolls_again(self, new: New) -> None:
        buffer = await new()
        for task in ("t", "u"):
            await put_all(buffer, task, group(versions=1), group(versions=1, status=ABORTED))
        result = await buffer.refresh_staleness(
            task_stale_thresholds={"t": 1, "u": 1},
            current_train_step=9,
            expired_groups_retryable_by_task={"t": False},
        )
        assert result == {"t": 2, "u": 2}
        assert await buffer.count_statuses(["t", "u"], [EXPIRED]) == {"t": {EXPIRED: 0}, "u": {EXPIRED: 2}}
        assert await bucket(buffer, "expired", "t") == Amount(2, 10)
        assert await bucket(buffer, "expired", "u") == Amount(0, 4)

    async def test_refresh_by_token(self, new: New) -> None:
        buffer = await new()
        await put_all(
            buffer, "t", group("mixed", versions=[1, 7]), group("old", versions=[1, 5]), group("none")
        )
        result = await buffer.refresh_staleness(
            task_stale_thresholds={}, task_token_stale_thresholds={"t": 3}, current_train_step=9
        )
        assert result == {"t": 1}
        assert names(await buffer.get(3, "t", EXPIRED)) == ["old"]

    async def test_refresh_by_member_waits_for_the_missing_ones(self, new: New) -> None:
        buffer = await new(expire="member")
        uid = await buffer.put([rollout(versions=1, reward=1.0), rollout(versions=6, reward=0.0)], "t")
        refresh = buffer.refresh_staleness
        assert await refresh(task_stale_thresholds={"t": 5}, current_train_step=9) == {"t": 1}
        row = await row_of(buffer, uid)
        assert (row.status, row.num_tokens, row.reward_mean, row.version) == (EXPIRED, 8, 0.0, 6)
        assert await refresh(task_stale_thresholds={"t": 5}, current_train_step=12) == {"t": 0}
        assert (await row_of(buffer, uid)).num_tokens == 6
        ((first, second),) = await buffer.get(1, "t", EXPIRED)
        assert [first.status, second.status] == [EXPIRED, EXPIRED]
        assert [first.seq_staleness, second.seq_staleness] == [7, 5]

    async def test_what_expires_keeps_its_staleness(self, new: New) -> None:
        for expire in ("group", "member"):
            buffer = await new(expire=expire)
            uid = await buffer.put(group(versions=1), "t")
            await buffer.refresh_staleness(task_stale_thresholds={"t": 3}, current_train_step=5)
            assert (await row_of(buffer, uid)).staleness == 3
            assert (await buffer.peek([uid]))[0][0].seq_staleness == 3

    async def test_a_group_that_is_expired_does_not_expire_again(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group(versions=1, status=EXPIRED), "t")
        result = await buffer.refresh_staleness(
            task_stale_thresholds={"t": 1},
            current_train_step=9,
            statuses=[EXPIRED],
            expired_groups_retryable_by_task={"t": False},
        )
        assert result == {"t": 0}
        assert (await row_of(buffer, uid)).num_tokens == 5

    @pytest.mark.parametrize(
        ("arguments", "named"), WRONG_REFRESHES, ids=lambda value: value if isinstance(value, str) else ""
    )
    async def test_a_wrong_refresh_changes_nothing(
        self, new: New, arguments: dict[str, Any], named: str
    ) -> None:
        buffer = await new()
        await put_all(buffer, "t", group(versions=1))
        await put_all(buffer, "u", group(versions=1))
        call = {"task_stale_thresholds": {"t": 1}, "current_train_step": 9, **arguments}
        async with refused(buffer, InvalidArgument, named):
            await buffer.refresh_staleness(**call)

    # --- room and limits

    async def test_a_put_waits_for_room(self, new: New) -> None:
        buffer = await new(capacity=1)
        await buffer.put(group("a"), "t")
        async with refused(buffer, WaitTimeout):
            await buffer.put(group("b"), "t", timeout=0, current_train_step=5)
        assert await buffer.put(group("c"), "u", timeout=0) == 2
        assert names(await buffer.get(9, "t", COMPLETED)) == ["a"]
        assert await buffer.put(group("b"), "t", timeout=0) == 3

    async def test_only_completed_groups_wait(self, new: New) -> None:
        buffer = await new(capacity=1, rate_limiter=Queue(1))
        await buffer.put(group(versions=1), "t")
        for status in (ABORTED, EXPIRED, FAILED, FILTERED, INIT):
            assert await buffer.put(group(status=status), "t", timeout=0) is not None
        stale = {"current_train_step": 9, "stale_threshold": 1, "timeout": 0}
        assert await buffer.put(group(versions=1), "t", **stale) is not None
        assert await buffer.put(group(versions=1), "t", expired_groups_retryable=False, **stale) is None

    async def test_a_remover_makes_room(self, new: New) -> None:
        buffer = await new(capacity=2, remover="fifo")
        await buffer.put(group("slow"), "u")
        await put_all(buffer, "t", *(group(name) for name in "abcd"))
        assert [row.group_id for row in await buffer.query({})] == ["slow", "c", "d"]
        assert await bucket(buffer, "evicted") == Amount(2, 10)

    async def test_the_remover_may_choose_the_newcomer(self, new: New) -> None:
        buffer = await new(capacity=1, remover="min_heap")
        await buffer.put(group("a"), "t", priority=2.0)
        assert await buffer.put(group("b"), "t", priority=1.0) is None
        assert await buffer.put(group("c"), "t", priority=3.0) == 3
        assert [row.group_id for row in await buffer.query({})] == ["c"]
        assert (await bucket(buffer, "evicted")).groups == 2

    async def test_a_queue_limiter_is_refunded_what_was_never_taken(self, new: New) -> None:
        buffer = await new(rate_limiter=Queue(2))
        uids = await put_all(buffer, "t", group(versions=1), group(versions=9))
        async with refused(buffer, WaitTimeout):
            await buffer.put(group(versions=9), "t", timeout=0)
        await buffer.refresh_staleness(task_stale_thresholds={"t": 5}, current_train_step=10)
        await buffer.put(group(versions=9), "t", timeout=0)
        await buffer.delete(uids[1:])
        await buffer.put(group(versions=9), "t", timeout=0)
        assert await buffer.take_batch({"t": 2}, wait=True, timeout=0)
        await put_all(buffer, "t", group(), group(), timeout=0)
        async with refused(buffer, WaitTimeout):
            await buffer.put(group(), "t", timeout=0)

    async def test_max_bytes_bounds_the_whole(self, new: New) -> None:
        probe = await new()
        size = (await row_of(probe, await probe.put(group(tokens=100), "t"))).num_bytes
        buffer = await new(max_bytes=2 * size)
        await buffer.put(group(tokens=100), "t", timeout=0)
        await buffer.put(group(tokens=100), "u", timeout=0)
        async with refused(buffer, WaitTimeout):
            await buffer.put(group(tokens=100), "v", timeout=0)
        async with refused(buffer, InvalidArgument, "max_bytes"):
            await buffer.put(group(tokens=300), "v")
        await buffer.get(1, "u", COMPLETED)
        await buffer.put(group(tokens=100), "v", timeout=0)

    async def test_tasks_have_their_own_settings(self, new: New) -> None:
        buffer = await new(capacity=1, tasks={"big": TaskConfig(capacity=3, sampler="lifo")})
        await put_all(buffer, "big", *(group(name) for name in "abc"), timeout=0)
        await buffer.put(group(), "t", timeout=0)
        async with refused(buffer, WaitTimeout):
            await buffer.put(group(), "t", timeout=0)
        assert names(await buffer.get(3, "big", COMPLETED)) == ["c", "b", "a"]

    # --- count and look

    async def test_the_matrix_of_counts_is_complete(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group(), group(), group(status=ABORTED))
        counts = await buffer.count_statuses(["t", "nobody"], [COMPLETED, "aborted", FAILED])
        assert counts == {
            "t": {COMPLETED: 2, ABORTED: 1, FAILED: 0},
            "nobody": {COMPLETED: 0, ABORTED: 0, FAILED: 0},
        }
        assert counts["t"]["aborted"] == await buffer.count("t", "aborted") == 1
        assert await buffer.count_statuses([], [COMPLETED]) == {}
        assert len(buffer) == 3

    async def test_is_ready_says_what_take_batch_would_give(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group(), group(status=ABORTED))
        assert await buffer.is_ready({"t": 1})
        assert await buffer.is_ready({"t": 1}, group_status="aborted")
        assert await buffer.is_ready({"t": 0, "u": -1})
        assert await buffer.is_ready({})
        assert not await buffer.is_ready({"t": 2})
        assert not await buffer.is_ready({"t": 1, "u": 1})
        assert await buffer.wait_ready({"t": 1}, timeout=0) is None

    async def test_rows_tell_what_is_known(self, new: New) -> None:
        buffer = await new()
        items = [
            rollout(3, versions=[2, 4, 4], reward=1.0, group_id="g"),
            rollout(1, versions=5, reward={"score": 0.0}),
        ]
        await buffer.put(items, "t", priority=2.5, tags={"level": 3}, current_train_step=6)
        row = await row_of(buffer, 1)
        assert (row.task_name, row.status, row.staleness, row.version) == ("t", COMPLETED, 3, 2)
        assert (row.priority, row.times_sampled, row.attempts, row.deliveries) == (2.5, 0, 1, 0)
        assert (row.num_rollouts, row.num_tokens, row.reward_mean, row.reward_std) == (2, 10, 0.5, 0.5)
        assert (row.group_id, row.tags) == ("g", {"level": 3})
        assert row.num_bytes > 0

    async def test_query_finds_orders_and_limits(self, new: New) -> None:
        buffer = await new()
        for index, reward in enumerate((0.5, None, 1.0, 0.5)):
            await buffer.put(group(index, reward=reward), "tu"[index % 2], tags={"even": index % 2 == 0})

        async def found(where: Any, **options: Any) -> list[int]:
            return [row.uid for row in await buffer.query(where, **options)]

        assert await found({}) == [1, 2, 3, 4]
        assert await found({"task_name": "u"}) == [2, 4]
        assert await found({"tags.even": True, "reward_mean": {"$lt": 1.0}}) == [1]
        assert await found({"$not": {"uid": {"$in": [1, 2]}}}) == [3, 4]
        assert await found({}, order_by="reward_mean") == [1, 4, 3, 2]
        assert await found({}, order_by="-reward_mean", limit=2) == [3, 1]
        assert await found({}, limit=0) == []
        with pytest.raises(QueryError, match="above"):
            await buffer.query({"uid": {"$above": 1}})

    async def test_rows_can_be_ordered_by_group_ids_of_several_kinds(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group("b"), group(2), group(None), group("a"), group(1))
        found = [row.group_id for row in await buffer.query({}, order_by="group_id")]
        assert found[-1] is None
        assert [name for name in found if isinstance(name, str)] == ["a", "b"]
        assert [name for name in found if isinstance(name, int)] == [1, 2]

    async def test_peek_takes_nothing(self, new: New) -> None:
        buffer = await new()
        uids = await put_all(buffer, "t", group("a"), group("b", status=FAILED))
        before = await picture(buffer)
        assert names(await buffer.peek([uids[1], uids[0], uids[1]])) == ["b", "a", "b"]
        assert await buffer.peek([]) == []
        assert await picture(buffer) == before
        async with refused(buffer, UnknownUid, "99"):
            await buffer.peek([uids[0], 99])
        with pytest.raises(KeyError):
            await buffer.peek([0])

    # --- change

    async def test_delete_by_uid_or_query(self, new: New) -> None:
        buffer = await new()
        uids = await put_all(buffer, "t", *(group(index, reward=index) for index in range(4)))
        assert await buffer.delete([uids[0], 99, uids[0]]) == 1
        assert await buffer.delete({"reward_mean": {"$gte": 2}}) == 2
        assert [row.uid for row in await buffer.query({})] == [uids[1]]
        assert await bucket(buffer, "deleted") == Amount(3, 15)
        assert await buffer.delete({}) == 1
        assert await buffer.delete([]) == 0

    async def test_priorities_can_change(self, new: New) -> None:
        buffer = await new(sampler="max_heap")
        uids = await put_all(buffer, "t", *(group(name) for name in "abc"))
        assert await buffer.update_priorities({uids[1]: 3, 99: 1.0, uids[0]: 2.0}) == [99]
        async with refused(buffer, InvalidPriority, "priority of"):
            await buffer.update_priorities({uids[2]: 9.0, uids[0]: -1.0})
        assert [row.priority for row in await buffer.query({})] == [2.0, 3.0, 1.0]
        assert names(await buffer.get(3, "t", COMPLETED)) == ["b", "a", "c"]
        assert await buffer.update_priorities({uids[0]: 1.0}) == [uids[0]]

    async def test_patch_adds_late_fields(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group(members=2), "t", tags={"x": 1, "y": 1})
        await buffer.patch(uid, reward=[1.0, {"score": 0.0}], ref_logprobs=[[0.1], [0.2]], tags={"y": 2})
        row = await row_of(buffer, uid)
        assert (row.reward_mean, row.reward_std, row.tags) == (0.5, 0.5, {"x": 1, "y": 2})
        (members,) = await buffer.get(1, "t", COMPLETED)
        assert [member.extra_fields["ref_logprobs"] for member in members] == [[0.1], [0.2]]
        assert members[0].reward == 1.0
        async with refused(buffer, UnknownUid):
            await buffer.patch(uid, reward=[1.0, 1.0])

    async def test_patch_of_an_expired_group_stays(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group(versions=1, reward=0.0), "t")
        await buffer.refresh_staleness(task_stale_thresholds={"t": 1}, current_train_step=9)
        await buffer.patch(uid, reward=[0.5])
        assert (await row_of(buffer, uid)).reward_mean == 0.5
        ((member,),) = await buffer.get(1, "t", EXPIRED)
        assert (member.reward, len(member.response_ids)) == (0.5, 0)

    async def test_patch_of_the_mask_counts_for_expiry(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group(versions=[1, 8]), "t")
        await buffer.patch(uid, response_mask=[[1, 0]])
        result = await buffer.refresh_staleness(
            task_stale_thresholds={}, task_token_stale_thresholds={"t": 3}, current_train_step=9
        )
        assert result == {"t": 1}

    # --- ledger, close

    async def test_every_group_is_in_one_bucket(self, new: New) -> None:
        buffer = await new(capacity=3, remover="fifo", rejected_capacity=1)
        groups = {name: group(name, versions=8) for name in "abcd"}
        await put_all(buffer, "t", *groups.values())  # evicts a
        await buffer.get(1, "t", COMPLETED)  # consumes b
        await buffer.put(group("old", versions=1), "t", current_train_step=9, stale_threshold=4)  # wiped
        await buffer.put(group("f1", status=FAILED), "t")
        await buffer.put(group("f2", status=FILTERED), "t")  # f1 leaves the ring
        await buffer.put(group("p", status=ABORTED), "t")
        await buffer.get(1, "t", ABORTED)  # out
        await buffer.delete([3])
        books = (await buffer.ledger())["t"]
        assert closes(books)
        assert {name: amount for name, amount in books.items() if any(amount)} == {
            "put": Amount(8, 40, 1, 5),
            "resident": Amount(3, 13),
            "out": Amount(1, 5),
            "consumed": Amount(1, 5, 1, 5),
            "expired": Amount(0, 2),
            "evicted": Amount(1, 5),
            "failed": Amount(1, 5),
            "deleted": Amount(1, 5),
        }

    @pytest.mark.parametrize("verb", EVERY_VERB.values(), ids=EVERY_VERB)
    async def test_a_closed_buffer_does_nothing(
        self, new: New, verb: Callable[[Any], Awaitable[Any]]
    ) -> None:
        buffer = await new()
        await buffer.put(group(), "t")
        await buffer.close()
        with pytest.raises(Closed):
            await verb(buffer)
        await buffer.close()


class BufferSuite(VerbSuite):
    """Calls that overlap, besides: waiting, order, cancellation."""

    async def settle(self) -> None:
        """Let every call that was started get as far as it can: until it waits, or ends."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def start(self, call: Awaitable[Any]) -> "asyncio.Future[Any]":
        """Start a call that has to wait."""
        started = asyncio.ensure_future(call)
        await self.settle()
        return started

    async def test_a_taker_waits_for_all_it_wants(self, new: New) -> None:
        buffer = await new()
        taker = await self.start(buffer.take_batch({"t": 2, "u": 1}, wait=True))
        for task, name in (("t", "a"), ("u", "b")):
            await buffer.put(group(name), task)
            await self.settle()
            assert not taker.done()
        assert len(buffer) == 2
        await buffer.put(group("c"), "t")
        groups, counts = await taker
        assert ({task: names(taken) for task, taken in groups.items()}, counts) == (
            {"t": ["a", "c"], "u": ["b"]},
            {"t": 2, "u": 1},
        )
        assert len(buffer) == 0

    async def test_takers_of_one_pool_keep_their_order(self, new: New) -> None:
        buffer = await new()
        large = await self.start(buffer.take_batch({"t": 2}, wait=True))
        small = await self.start(buffer.take_batch({"t": 1}, wait=True))
        await buffer.put(group("a"), "t")
        await self.settle()
        assert not small.done(), "overtook a taker that was there before"
        await put_all(buffer, "t", group("b"), group("c"))
        assert names((await large)[0]["t"]) == ["a", "b"]
        assert names((await small)[0]["t"]) == ["c"]

    async def test_other_tasks_and_statuses_pass(self, new: New) -> None:
        buffer = await new()
        large = await self.start(buffer.take_batch({"t": 1000}, wait=True))
        other_task = await self.start(buffer.take_batch({"u": 1}, wait=True))
        other_status = await self.start(buffer.take_batch({"t": 1}, group_status=ABORTED, wait=True))
        await buffer.put(group("a"), "u")
        await buffer.put(group("b", status=ABORTED), "t")
        await buffer.put(group("c"), "t")
        assert names((await other_task)[0]["u"]) == ["a"]
        assert names((await other_status)[0]["t"]) == ["b"]
        assert not large.done()
        large.cancel()

    async def test_takers_of_several_tasks_do_not_lock_each_other_out(self, new: New) -> None:
        buffer = await new()
        both = await self.start(buffer.take_batch({"t": 1, "u": 1}, wait=True))
        reverse = await self.start(buffer.take_batch({"u": 1, "t": 1}, wait=True))
        single = await self.start(buffer.take_batch({"u": 1}, wait=True))
        await put_all(buffer, "u", group(1), group(2), group(3))
        await self.settle()
        assert not single.done()
        await put_all(buffer, "t", group(4), group(5))
        assert [names((await taker)[0]["u"]) for taker in (both, reverse, single)] == [[1], [2], [3]]

    async def test_a_late_comer_does_not_overtake(self, new: New) -> None:
        buffer = await new()
        large = await self.start(buffer.take_batch({"t": 2}, wait=True))
        await buffer.put(group("a"), "t")
        late = await self.start(buffer.take_batch({"t": 1}, wait=True))
        assert not late.done(), "it could go on, but it is not its turn"
        await put_all(buffer, "t", group("b"), group("c"))
        assert names((await large)[0]["t"]) == ["a", "b"]
        assert names((await late)[0]["t"]) == ["c"]

    async def test_a_taker_is_behind_in_one_of_its_tasks(self, new: New) -> None:
        buffer = await new()
        first = await self.start(buffer.take_batch({"t": 1, "u": 1}, wait=True))
        second = await self.start(buffer.take_batch({"u": 1, "v": 1}, wait=True))
        await buffer.put(group("a"), "u")
        await buffer.put(group("b"), "v")
        await self.settle()
        assert not second.done(), "the first waits for the same group"
        first.cancel()
        assert names((await second)[0]["u"]) == ["a"]

    async def test_a_cancelled_taker_has_taken_nothing_and_lets_the_next_go_on(self, new: New) -> None:
        buffer = await new()
        first = await self.start(buffer.take_batch({"t": 2}, wait=True))
        second = await self.start(buffer.take_batch({"t": 1}, wait=True))
        await buffer.put(group("a"), "t")
        first.cancel()
        assert names((await second)[0]["t"]) == ["a"]
        third = await self.start(buffer.take_batch({"t": 1}, wait=True))
        await buffer.put(group("b"), "t")  # wakes the third, which is cancelled before it runs
        third.cancel()
        await self.settle()
        taken = names((await third)[0]["t"]) if not third.cancelled() else []
        assert taken + names(await buffer.get(9, "t", COMPLETED)) == ["b"]

    async def test_a_taker_that_times_out_lets_the_next_go_on(self, new: New) -> None:
        buffer = await new()
        first = await self.start(buffer.take_batch({"t": 2}, wait=True, timeout=0.01))
        second = await self.start(buffer.take_batch({"t": 1}, wait=True))
        await buffer.put(group("a"), "t")
        with pytest.raises(WaitTimeout):
            await first
        assert names((await second)[0]["t"]) == ["a"]

    async def test_producers_are_held_back_in_order(self, new: New) -> None:
        buffer = await new(capacity=1)
        await buffer.put(group("a"), "t")
        producers = [await self.start(buffer.put(group(name), "t")) for name in "bcd"]
        other = await self.start(buffer.put(group("x"), "u"))
        assert other.done()
        assert await buffer.count("t", COMPLETED) == 1
        producers[1].cancel()
        taken: list[Any] = []
        while len(taken) < 3:
            groups, _ = await buffer.take_batch({"t": 1}, wait=True)
            taken += names(groups["t"])
            assert await buffer.count("t", COMPLETED) <= 1
        assert taken == ["a", "b", "d"]
        assert [await producers[0], await producers[2]] == [3, 4]
        assert (await bucket(buffer, "put")).groups == 3

    async def test_groups_of_other_statuses_pass_a_waiting_producer(self, new: New) -> None:
        buffer = await new(capacity=1)
        await buffer.put(group(), "t")
        producer = await self.start(buffer.put(group(), "t"))
        parked = await self.start(buffer.put(group(status=ABORTED), "t"))
        assert parked.done(), "a weight update must always be able to park its groups"
        options = {"current_train_step": 9, "stale_threshold": 1}
        expired = await self.start(buffer.put(group(versions=1), "t", **options))
        assert expired.done()
        assert not producer.done()
        for started in (producer, parked, expired):
            started.cancel()

    async def test_whatever_makes_room_wakes_a_producer(self, new: New) -> None:
        buffer = await new(capacity=1)
        uid = await buffer.put(group(versions=1), "t")
        producer = await self.start(buffer.put(group(versions=8), "t"))
        await buffer.delete([uid])
        uid = await producer
        producer = await self.start(buffer.put(group(versions=9), "t"))
        await buffer.refresh_staleness(task_stale_thresholds={"t": 2}, current_train_step=11)
        await producer
        assert await buffer.count_statuses(["t"], [COMPLETED, EXPIRED]) == {"t": {COMPLETED: 1, EXPIRED: 1}}

    async def test_a_group_that_becomes_stale_while_its_put_waits_expires(self, new: New) -> None:
        buffer = await new(capacity=1)
        await buffer.put(group(versions=9), "t")
        options = {"current_train_step": 4, "stale_threshold": 3}
        producer = await self.start(buffer.put(group(versions=3), "t", **options))
        assert not producer.done()
        await buffer.refresh_staleness(task_stale_thresholds={"t": 3}, current_train_step=8)
        row = await row_of(buffer, await producer)
        assert (row.status, row.staleness) == (EXPIRED, 4)

    async def test_a_put_whose_id_is_stored_meanwhile_needs_no_room(self, new: New) -> None:
        buffer = await new(capacity=1)
        await buffer.put(group(), "t")
        calls = [await self.start(buffer.put(group("twice"), "t", put_id="x")) for _ in range(2)]
        await buffer.get(1, "t", COMPLETED)
        await self.settle()
        assert calls[0].done()
        assert calls[1].done(), "waits for room for a group that is there"
        assert await calls[0] == await calls[1] == 2
        assert (await bucket(buffer, "put")).groups == 2

    async def test_wait_ready_only_looks(self, new: New) -> None:
        buffer = await new()
        looker = await self.start(buffer.wait_ready({"t": 2}))
        taker = await self.start(buffer.take_batch({"t": 1}, wait=True))
        await buffer.put(group(), "t")
        await taker
        assert not looker.done()
        await put_all(buffer, "t", group(), group())
        assert await looker is None
        assert len(buffer) == 2

    async def test_close_wakes_everybody(self, new: New) -> None:
        buffer = await new(capacity=1)
        await buffer.put(group(), "t")
        waiting = [
            await self.start(call)
            for call in (
                buffer.put(group(), "t"),
                buffer.put(group(), "t"),
                buffer.take_batch({"u": 1}, wait=True),
                buffer.take_batch({"u": 1}, wait=True),
                buffer.wait_ready({"u": 1}),
            )
        ]
        await buffer.close()
        for call in waiting:
            with pytest.raises(Closed):
                await call

    @pytest.mark.parametrize("seed", range(3))
    async def test_producers_and_consumers_lose_and_double_nothing(self, new: New, seed: int) -> None:
        dice = random.Random(seed)
        buffer = await new(capacity=3, tasks={"u": {"rate_limiter": Queue(2)}})
        taken: dict[str, list[Any]] = {"t": [], "u": []}

        async def produce(task: str, first: int) -> None:
            for name in range(first, first + 20):
                status = ABORTED if dice.random() < 0.3 else COMPLETED
                await buffer.put(group(name, status=status), task)

        async def resume(task: str) -> None:
            while True:
                groups, _ = await buffer.take_batch({task: 1}, group_status=ABORTED, wait=True)
                for member in groups[task][0]:
                    member.status = COMPLETED
                await buffer.put(groups[task][0], task)

        async def consume(task: str) -> None:
            while len(taken[task]) < 60:
                wanted = min(dice.randint(1, 2), 60 - len(taken[task]))
                groups, _ = await buffer.take_batch({task: wanted}, wait=dice.random() < 0.5)
                taken[task] += names(groups[task])
                await asyncio.sleep(0)

        producers = [produce("tu"[index % 2], index * 20) for index in range(6)]
        resumers = [asyncio.ensure_future(resume(task)) for task in taken]
        await asyncio.gather(*producers, *map(consume, taken))
        for resumer in resumers:
            resumer.cancel()
        await asyncio.gather(*resumers, return_exceptions=True)
        assert sorted(taken["t"] + taken["u"]) == list(range(120))
        assert len(buffer) == 0
        for task in taken:
            assert (await bucket(buffer, "put", task)) == (await bucket(buffer, "consumed", task))
