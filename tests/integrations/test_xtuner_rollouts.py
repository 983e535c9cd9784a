"""RolloutState, and the rules of groups as functions, from section by section of what they promise."""

import numpy as np
import pydantic
import pytest

from integrations.states import state
from reroll import InvalidArgument, Rollout, RolloutGroup
from reroll.codec import decode, encode
from reroll.integrations import xtuner
from reroll.integrations.xtuner import (
    FIFOReplayPolicy,
    NaiveStorage,
    ReplayBuffer,
    RolloutState,
    Status,
    calculate_seq_staleness,
    get_group_status,
    maybe_expire_group,
    refresh_seq_staleness,
    reset_rollout_response,
    update_sample_version,
    update_status_from_finish_reason,
)
from reroll.rollout.rollout import FIELDS

NAMES = [
    "RolloutState",
    "Status",
    "ReplayBuffer",
    "SyncReplayBufferConfig",
    "AsyncReplayBufferConfig",
    "StorageItem",
    "StorageBackend",
    "ReplayPolicy",
    "FIFOReplayPolicy",
    "StalenessReplayPolicy",
    "NaiveStorage",
    "PandasStorage",
    "QueryDict",
    "QueryKey",
    "QueryType",
    "QUERY_KEYS",
    "QueryNode",
    "LogicNode",
    "ConditionNode",
    "ScalarNode",
    "SetNode",
    "BetweenNode",
    "LogicOperator",
    "Operators",
    "parse_query",
    "get_group_status",
    "update_sample_version",
    "refresh_seq_staleness",
    "reset_rollout_response",
    "maybe_expire_group",
    "calculate_seq_staleness",
    "update_status_from_finish_reason",
]


def test_the_names():
    assert set(xtuner.__all__) == {*NAMES, "convert_checkpoint"}
    assert all(hasattr(xtuner, name) for name in xtuner.__all__)


def test_the_fields_are_those_of_a_rollout():
    assert set(RolloutState.model_fields) == set(FIELDS) - {"columns"}
    assert RolloutState().status is Status.INIT
    assert RolloutState().extra_fields == {}
    assert RolloutState(status="aborted").status is Status.ABORTED


@pytest.mark.parametrize("fields", [{"nonsense": 1}, {"status": "done"}, {"response_ids": "text"}])
def test_what_is_wrong_is_refused(fields):
    with pytest.raises(pydantic.ValidationError):
        RolloutState(**fields)


def test_a_state_is_stored_with_its_lists():
    made = state(mm_info={"pixels": np.arange(3)}, extra_fields={"outer": [{"inner": (1, 2)}]})
    back = decode(encode(made))
    assert back == made
    assert type(back) is RolloutState
    assert type(back.response_ids) is type(back.logprobs) is list
    back.mm_info["pixels"] = np.arange(4)
    assert back != made


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["completed", "completed"], "completed"),
        (["completed", "failed", "aborted"], "failed"),
        (["expired", "aborted"], "aborted"),
        (["completed", "expired", "filtered"], "expired"),
        (["completed", "filtered"], "filtered"),
        (["completed", "init"], "init"),  # not finished, so not completed
        (["archived"], "init"),
        ([], "init"),
    ],
)
def test_group_status(statuses, expected):
    group = [state(status=status) for status in statuses]
    assert get_group_status(group) is Status(expected)
    assert [member.status for member in group] == statuses


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        *[(reason, "completed") for reason in ("stop", "length", "tool_calls", "STOP")],
        ("abort", "aborted"),
        *[(reason, "failed") for reason in ("error", None, "whatever")],
    ],
)
@pytest.mark.filterwarnings("ignore:finish_reason")
def test_status_from_finish_reason(reason, status):
    assert update_status_from_finish_reason(reason) is Status(status)


def test_staleness_of_a_version():
    assert [calculate_seq_staleness(version, 5) for version in (4, 2, 5)] == [0, 2, -1]


def test_only_tokens_without_a_version_get_one():
    made = state(response_ids=[1, 2, 3], response_model_steps=[2])
    assert update_sample_version(made, 4) is made
    assert made.response_model_steps == [2, 4, 4]
    assert update_sample_version(made, 9).response_model_steps == [2, 4, 4]
    group = [state(1), state(2)]
    assert update_sample_version(group, 3) is group
    assert [member.response_model_steps for member in group] == [[3, 3]] * 2


def test_staleness_is_that_of_the_oldest_token():
    group = [state(response_model_steps=[3, 1]), state(seq_staleness=7, response_model_steps=[])]
    assert refresh_seq_staleness(group, 5) is group
    assert [member.seq_staleness for member in group] == [3, 0]
    assert refresh_seq_staleness(group[0], 6).seq_staleness == 4


def test_reset():
    info = {"pixels": np.ones(2)}
    made = state(
        tokens=[9],
        response_model_steps=[1, 1],
        seq_staleness=3,
        error_msg="old",
        routed_experts=np.ones(2),
        tool_calls=[{"name": "search"}],
        mm_info=info,
        extra_fields={"kept": 1},
    )
    assert reset_rollout_response(made) is made
    assert (made.tokens, made.response) == ([1, 1001], "")
    assert made.response_ids == made.logprobs == made.response_model_steps == []
    cleared = ("response_mask", "reward", "finish_reason", "error_msg", "routed_experts", "tool_calls")
    assert [getattr(made, name) for name in cleared] == [None] * 6
    assert made.mm_info is info
    assert (made.prompt_ids, made.seq_staleness, made.extra_fields) == ([1, 1001], 3, {"kept": 1})
    assert made.message == [{"role": "user", "content": "prompt 1"}]
    made.tokens.append(5)
    assert made.prompt_ids == [1, 1001]  # a copy
    assert reset_rollout_response(state(prompt_ids=None)).tokens is None


class TestMaybeExpireGroup:
    def test_one_stale_member_expires_all(self):
        group = [state(1, seq_staleness=2), state(2, seq_staleness=3)]
        assert maybe_expire_group(group, 3) is group
        assert [member.status for member in group] == ["expired", "expired"]
        assert [member.response_ids for member in group] == [[], []]
        assert [member.seq_staleness for member in group] == [2, 3]

    def test_by_member_the_fresh_ones_stay(self):
        group = [state(1, seq_staleness=2), state(2, seq_staleness=3)]
        maybe_expire_group(group, 3, expire="member")
        assert [member.status for member in group] == ["completed", "expired"]
        assert group[0].response_ids == [10, 11]

    @pytest.mark.parametrize(("status", "threshold"), [("failed", 1), ("init", 1), ("completed", None)])
    def test_others_stay(self, status, threshold):
        group = [state(status=status, seq_staleness=5)]
        maybe_expire_group(group, threshold)
        assert group == [state(status=status, seq_staleness=5)]

    def test_fresh_groups_stay(self):
        assert maybe_expire_group([state(seq_staleness=2)], 3) == [state(seq_staleness=2)]

    @pytest.mark.parametrize("threshold", [0, -1])
    def test_thresholds_are_checked(self, threshold):
        group = [state(seq_staleness=5)]
        with pytest.raises(InvalidArgument, match="at least 1"):
            maybe_expire_group(group, threshold)
        assert group[0].status == "completed"


def test_rules_work_on_groups_of_columns():
    group = RolloutGroup.of(
        [Rollout(response_ids=[1, 2], logprobs=[-0.5, -0.5], status="completed") for _ in range(2)]
    )
    assert get_group_status(group) is Status.COMPLETED
    assert update_sample_version(group, 2) is group
    refresh_seq_staleness(group, 6)
    assert [member.seq_staleness for member in group] == [3, 3]
    assert maybe_expire_group(group, 3) is group
    assert group.status is Status.EXPIRED
    assert group.lengths.tolist() == [0, 0]


async def test_a_buffer_takes_groups_of_columns():
    storage = NaiveStorage()
    buffer = ReplayBuffer(policy=FIFOReplayPolicy(), storage_backend=storage)
    made = [Rollout(response_ids=[1, 2], session_id="s", status="completed") for _ in range(2)]
    uid = await buffer.put(RolloutGroup.of(made), "math", model_step=1)
    (item,) = await storage.get({"uid": uid})
    assert await storage.get({"item": {"$in": [list(item.item)]}}) == [item]
    assert [member.response_ids.tolist() for member in item.item] == [[1, 2], [1, 2]]
    (group,) = await buffer.get(1, "math", "completed")
    assert [member.session_id for member in group] == ["s", "s"]
