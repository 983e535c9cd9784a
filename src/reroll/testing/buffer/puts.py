"""Put: uids, stamping, staleness, status, expiry, refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reroll.engine.ledger import Amount
from reroll.errors import InvalidArgument
from reroll.rollout import Rollout, Status
from reroll.testing.buffer.builders import (
    ABORTED,
    COMPLETED,
    EXPIRED,
    FAILED,
    FILTERED,
    INIT,
    New,
    bucket,
    group,
    names,
    picture,
    put_all,
    refused,
    rollout,
    row_of,
)
from reroll.testing.buffer.hooks import Hooks
from reroll.testing.buffer.wrong_calls import WRONG_PUTS, WRONG_ROLLOUTS


class PutSuite(Hooks):
    """What a put does."""

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

    @pytest.mark.parametrize("expire", ["group", "member"])
    async def test_an_expired_group_that_is_not_to_be_rolled_again_is_dropped(
        self, new: New, expire: str
    ) -> None:
        buffer = await new(expire=expire)
        stale = [rollout(versions=1, status=EXPIRED), rollout(versions=8)]
        assert await buffer.put(stale, "t", expired_groups_retryable=False) is None
        assert len(buffer) == 0
        assert await bucket(buffer, "expired") == Amount(1, 10)
        kept = [await buffer.put(group(versions=8, status=status), "t") for status in (EXPIRED, COMPLETED)]
        asked = {"task_stale_thresholds": {"t": 3}, "current_train_step": 9}
        assert await buffer.refresh_staleness(**asked) == {"t": 0}
        assert len(buffer) == 2
        terminal = {**asked, "expired_groups_retryable_by_task": {"t": False}}
        assert await buffer.refresh_staleness(**terminal, statuses=[COMPLETED]) == {"t": 0}
        assert len(buffer) == 2
        assert await buffer.refresh_staleness(**terminal) == {"t": 0}, "none expired newly"
        assert [row.uid for row in await buffer.query({})] == kept[1:]
        assert (await bucket(buffer, "expired")).groups == 2

    async def test_other_statuses_do_not_expire(self, new: New) -> None:
        buffer = await new()
        for status in (FAILED, FILTERED, INIT, EXPIRED):
            uid = await buffer.put(
                group(versions=1, status=status), "t", current_train_step=9, stale_threshold=1
            )
            assert (await row_of(buffer, uid)).status is status
            assert (await row_of(buffer, uid)).num_tokens == 5
            assert (await row_of(buffer, uid)).staleness == 7

    @pytest.mark.parametrize(("expire", "tokens"), [("group", 6), ("member", 8)])
    async def test_one_stale_member_expires_all_or_itself(self, new: New, expire: str, tokens: int) -> None:
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

    async def test_numbers_and_names_of_numpy_become_plain(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(
            group(reward=np.float32(0.5)),
            np.str_("t"),
            model_step=np.int64(3),
            current_train_step=np.array(5),
            stale_threshold=np.int32(9),
            priority=np.float64(2),
            tags={np.str_("x"): np.int64(4), "y": np.bool_(True)},
            timeout=np.float32(1),
        )
        row = await row_of(buffer, uid)
        assert (row.task_name, row.version, row.staleness, row.priority) == ("t", 3, 1, 2.0)
        assert row.tags == {"x": 4, "y": True}
        assert {type(value) for value in (row.task_name, row.version, *row.tags, *row.tags.values())} == {
            *(str, int, bool)
        }
        assert await buffer.update_priorities({np.int64(1): np.int64(5)}) == []
        sizes = {np.str_("t"): np.int64(1)}
        groups, counts = await buffer.take_batch(sizes, train_step=np.uint8(6))
        assert (len(groups["t"]), counts, groups["t"][0][0].seq_staleness) == (1, {"t": 1}, 2)

    async def test_log_probs_of_masked_tokens_may_be_missing(self, new: New) -> None:
        buffer = await new()
        nan = float("nan")
        assert await buffer.put([rollout(logprobs=[nan, -0.5], response_mask=[0, 1])], "t") == 1
        assert await buffer.put([rollout(logprobs=[float("-inf"), -0.5], reward=-1e300)], "t") == 2
        assert await buffer.put([rollout(reward=nan, status=FAILED)], "t") == 3

    @pytest.mark.parametrize(
        ("wrong", "reason"),
        [
            ({"reward": float("nan")}, "reward is nan"),
            ({"logprobs": [0.0, float("nan")]}, "logprobs has NaN"),
        ],
    )
    async def test_an_invalid_rollout_fails_alone_where_that_is_configured(
        self, new: New, wrong: dict[str, Any], reason: str
    ) -> None:
        buffer = await new(on_invalid="fail_member")
        mine = [rollout(reward=1.0), rollout(**wrong)]
        uid = await buffer.put(mine, "t", model_step=3)
        assert await buffer.count("t", FAILED) == 1
        ((good, bad),) = await buffer.peek([uid])
        assert (good.status, good.error_msg, bad.status) == (COMPLETED, None, FAILED)
        assert reason in bad.error_msg
        assert mine[1].status is COMPLETED, "the caller's object was changed"
        dropping = await new(on_invalid="fail_member", on_failed="drop_member")
        await dropping.put([rollout(reward=1.0), rollout(**wrong)], "t")
        assert (await dropping.query({}))[0].num_rollouts == 1

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
