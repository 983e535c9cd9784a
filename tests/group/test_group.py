"""Groups from an engine's output and from columns, changed copies, and how a group reads."""

from array import array
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from group.cases import alike
from reroll import GroupBatch, InvalidArgument, Rollout, RolloutGroup, Sample, SampleInfo, Status

PROMPT, RESPONSES = [1, 2, 3], [[7, 8, 9], [10], []]
LOGPROBS, MASKS = [[-0.5, -0.25, 0.0], [-1.0], []], [[1, 0, 1], [1], []]
EXPERTS = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3)


def expected(**fields):
    """Return the same group as Rollouts; a field has one value per member."""
    return [
        Rollout(
            prompt_ids=PROMPT,
            response_ids=ids,
            **{"status": "completed"} | {name: values[place] for name, values in fields.items()},
        )
        for place, ids in enumerate(RESPONSES)
    ]


def as_arrays(lists, dtype):
    return [np.array(each, dtype) for each in lists]


@pytest.mark.parametrize("kind", ["lists", "arrays", "wide", "tuples"])
def test_pack_takes_lists_and_arrays(kind):
    responses, logprobs, masks, prompt = RESPONSES, LOGPROBS, MASKS, PROMPT
    if kind == "arrays":
        prompt, responses = np.array(PROMPT, np.int32), as_arrays(RESPONSES, np.int32)
        logprobs, masks = as_arrays(LOGPROBS, np.float32), as_arrays(MASKS, np.uint8)
    elif kind == "wide":
        prompt, responses = np.array(PROMPT), [np.array(each, np.int64) for each in RESPONSES]
        logprobs, masks = as_arrays(LOGPROBS, np.float64), as_arrays(MASKS, bool)
    elif kind == "tuples":
        prompt, responses = tuple(PROMPT), [tuple(each) for each in RESPONSES]
        logprobs, masks = [tuple(each) for each in LOGPROBS], [array("b", each) for each in MASKS]
    group = RolloutGroup.pack(
        prompt,
        responses,
        logprobs=logprobs,
        masks=masks,
        rewards=[1.0, None, {"score": 0.5}],
        finish_reasons=["stop", "LENGTH", "abort"],
        versions=[[3, 3, 4], None, []],
        model_step=5,
        group_id="g",
        fields={"response": ["a", "b", ""], "rollout_id": [0, 1, 2]},
    )
    wanted = expected(
        logprobs=LOGPROBS,
        response_mask=MASKS,
        reward=[1.0, None, {"score": 0.5}],
        finish_reason=["stop", "LENGTH", "abort"],
        status=["completed", "completed", "aborted"],
        response_model_steps=[[3, 3, 4], [5], []],
        group_id="ggg",
        response=["a", "b", ""],
        rollout_id=[0, 1, 2],
    )
    assert all(map(alike, group, wanted))
    assert group == wanted
    assert RolloutGroup.of(wanted).head == group.head
    assert RolloutGroup.of(wanted).body == group.body


@given(
    st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), min_size=1, max_size=6),
    st.lists(st.integers(0, 9), max_size=4),
)
def test_packed_columns_are_the_same_group(responses, prompt):
    lengths, flat = list(map(len, responses)), np.array([*chain.from_iterable(responses)], np.int32)
    logprobs = (-np.arange(len(flat))).astype(np.float32)
    mask, rewards = (np.arange(len(flat)) % 2).astype(np.uint8), np.arange(len(lengths)) / 2
    group = RolloutGroup.from_columns(
        prompt,
        np.array(lengths),
        flat,
        logprobs,
        mask,
        rewards,
        model_step=2,
        columns={"a": logprobs * 2},
        group_id=4,
    )
    starts = np.cumsum([0, *lengths])
    wanted = [
        Rollout(
            prompt_ids=prompt,
            response_ids=flat[start:end],
            logprobs=logprobs[start:end],
            response_mask=mask[start:end],
            response_model_steps=[2] * (end - start),
            columns={"a": logprobs[start:end] * 2},
            reward=float(reward),
            status="completed",
            group_id=4,
        )
        for start, end, reward in zip(starts, starts[1:], rewards, strict=False)
    ]
    assert group == wanted
    assert group.head == RolloutGroup.of(wanted).head


def test_own_prompts_and_missing_parts():
    group = RolloutGroup.pack(
        [[1], [2, 3], None], RESPONSES, logprobs=[LOGPROBS[0], None, None], masks=[None, [0], None]
    )
    assert [None if r.prompt_ids is None else r.prompt_ids.tolist() for r in group] == [[1], [2, 3], None]
    assert [r.logprobs is None for r in group] == [False, True, True]
    assert [r.response_mask is None for r in group] == [True, False, True]
    assert group.logprobs is None
    assert group.response_mask is None
    assert RolloutGroup.pack(None, [[1]])[0].prompt_ids is None
    assert RolloutGroup.pack([], [[1]])[0].prompt_ids.tolist() == []
    assert RolloutGroup.pack([1], [None, [2]])[0].response_ids is None


@pytest.mark.parametrize("flat", [True, False])
def test_columns_of_any_dtype_and_shape(flat):
    whole = np.arange(13, dtype=">i2")  # three prompts, and four response tokens
    bounds = [(0, 3), (3, 4), (4, 4)]
    parts = [EXPERTS[start:end] for start, end in bounds]
    wholes = [whole[:6], whole[6:10], whole[10:]]
    columns = {
        "routed_experts": EXPERTS if flat else parts,
        "w": whole if flat else wholes,
        "l": [[1, 2, 3], [4], []],
    }
    group = RolloutGroup.pack(PROMPT, RESPONSES, columns=columns)
    assert group.column("routed_experts").shape == (4, 2, 3)
    assert group.column("w").dtype == ">i2"
    assert [rollout.routed_experts.tolist() for rollout in group] == [part.tolist() for part in parts]
    assert [rollout.columns["w"].tolist() for rollout in group] == [part.tolist() for part in wholes]
    assert [rollout.columns["l"].tolist() for rollout in group] == [[1, 2, 3], [4], []]
    assert sorted(group.column_names) == ["l", "routed_experts", "w"]
    with pytest.raises(InvalidArgument, match="no column 'x'; its further columns are"):
        group.column("x")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"responses": []}, "responses is empty"),
        ({"responses": [[1.5]]}, "responses must be integers"),
        ({"responses": [[2**40]]}, "do not fit into int32"),
        ({"responses": [[[1]]]}, "one dimension"),
        ({"logprobs": [[0.0]]}, "logprobs must have one entry per response, 3 of them"),
        ({"logprobs": [[0.0], [0.0], []]}, "logprobs of member 0 has 1 entries, its response 3"),
        ({"logprobs": [[None, 0, 0], [0], []]}, "logprobs must be numbers"),
        ({"masks": [[1, 2, 1], [1], []]}, "masks must be zeros and ones"),
        ({"masks": [[1, 1], [1], []]}, "masks of member 0 has 2 entries"),
        ({"rewards": ["a", 1, 2]}, "reward must be a number"),
        ({"rewards": "abc"}, "rewards must have one entry"),
        ({"versions": [[1], [1], []], "model_step": None}, None),
        ({"versions": [[1], [1, 2], []]}, "rollout 1: response_model_steps has 2 entries"),
        ({"versions": [["a"], [1], []]}, "versions"),
        ({"model_step": 1.5}, "must be an integer"),
        ({"prompt_ids": [[1], [2]]}, "prompt_ids has 2 prompts for 3 responses"),
        ({"status": "done"}, "is not a status"),
        ({"status": ["completed"]}, "status must be one for all"),
        ({"columns": {"a": [1, 2]}}, "column 'a' must be one array per member"),
        (
            {"columns": {"a": [[1], [1], []]}},
            "column 'a' of member 0 has 1 entries, its response 3, prompt and response 6",
        ),
        ({"columns": {"a": [[1, 2, 3], [1.5], []]}}, "column 'a' differs in dtype"),
        ({"columns": {"logprobs": np.zeros(4)}}, "columns has the name 'logprobs'"),
        ({"fields": {"reward": [1, 2, 3]}}, "fields has 'reward'; use one of"),
        ({"fields": {"message": "abc"}}, "message must have one entry per response"),
        ({"fields": {"num_tokens": [1, -2, 3]}}, "num_tokens must be at least 0"),
    ],
)
def test_pack_refuses_what_does_not_fit(options, problem):
    options = {"prompt_ids": PROMPT, "responses": RESPONSES} | options
    if problem is None:
        assert RolloutGroup.pack(**options)
        return
    with pytest.raises(InvalidArgument, match=problem):
        RolloutGroup.pack(**options)


@pytest.mark.parametrize(("lengths", "flat"), [([2, 1], [1, 2]), ([], []), ([-1, 3], [1, 2])])
def test_from_columns_refuses_lengths_that_do_not_add_up(lengths, flat):
    with pytest.raises(InvalidArgument, match="lengths"):
        RolloutGroup.from_columns([1], lengths, flat)


def test_a_status_follows_from_finish_reasons():
    reasons = [
        "stop",
        "EOS_TOKEN",
        "end_turn",
        "Stop_Sequence",
        "length",
        "MAX_TOKENS",
        "tool_calls",
        "tool_use",
        "Abort",
        "error",
    ]
    group = RolloutGroup.pack([1], [[2]] * 10, finish_reasons=reasons)
    assert group.statuses == [Status.COMPLETED] * 8 + [Status.ABORTED, Status.FAILED]
    assert group.status is Status.FAILED
    assert [rollout.error_msg for rollout in group] == [None] * 9 + ["finish_reason 'error'"]
    with pytest.warns(UserWarning, match="finish_reason 'sneezed' is unknown"):
        group = RolloutGroup.pack([1], [[2]], finish_reasons=["sneezed"])
    assert (group[0].status, group[0].error_msg) == (Status.FAILED, "finish_reason 'sneezed'")
    assert RolloutGroup.pack([1], [[2]]).status is Status.COMPLETED
    assert (
        RolloutGroup.pack([1], [[2]], finish_reasons=["abort"], status="completed").status is Status.COMPLETED
    )


# --- engines


def completion(**changes):
    choices = [
        {
            "index": 1,
            "token_ids": [9],
            "finish_reason": "length",
            "text": "b",
            "logprobs": {"token_logprobs": [-1.0]},
        },
        {
            "index": 0,
            "token_ids": [7, 8],
            "finish_reason": "stop",
            "text": "a",
            "logprobs": {"token_logprobs": [-0.5, 0.0]},
        },
    ]
    return {"choices": choices, "prompt_token_ids": [1, 2], "metadata": {"weight_version": "4"}} | changes


WANTED = [
    Rollout(
        prompt_ids=[1, 2],
        response_ids=ids,
        logprobs=logprobs,
        finish_reason=reason,
        response=text,
        response_model_steps=[4] * len(ids),
        status="completed",
    )
    for ids, logprobs, reason, text in (([7, 8], [-0.5, 0.0], "stop", "a"), ([9], [-1.0], "length", "b"))
]


def as_objects(value):
    if isinstance(value, dict):
        return SimpleNamespace(**{name: as_objects(each) for name, each in value.items()})
    return [as_objects(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("convert", [dict, as_objects])
def test_completions_of_a_server(convert):
    assert RolloutGroup.from_openai(convert(completion())) == WANTED


def test_chat_completions_of_a_server():
    choices = []
    for member in WANTED:
        content = [
            {"token": f"token_id:{t}", "logprob": p}
            for t, p in zip(member.response_ids, member.logprobs, strict=True)
        ]
        message = {"role": "assistant", "content": member.response}
        choices.append(
            {"message": message, "logprobs": {"content": content}, "finish_reason": member.finish_reason}
        )
    response = completion(choices=choices, metadata={"weight_version": "default"})
    assert RolloutGroup.from_openai(response, model_step=4) == WANTED
    choices[0]["message"]["tool_calls"] = [{"id": "x"}]
    assert RolloutGroup.from_openai(response, model_step=4)[0].tool_calls == [{"id": "x"}]


def test_sglang_meta_info():
    members = []
    for member in WANTED:
        scored = [[float(p), int(t), None] for t, p in zip(member.response_ids, member.logprobs, strict=True)]
        meta = {
            "output_token_logprobs": scored,
            "finish_reason": {"type": member.finish_reason},
            "weight_version": 4,
        }
        members.append(
            {"text": member.response, "output_ids": member.response_ids.tolist(), "meta_info": meta}
        )
    assert RolloutGroup.from_openai(members, prompt_ids=[1, 2]) == WANTED
    assert RolloutGroup.from_openai(members[0], prompt_ids=[1, 2]) == WANTED[:1]


def test_request_outputs_of_vllm():
    outputs = [
        SimpleNamespace(
            index=place,
            token_ids=tuple(member.response_ids.tolist()),
            text=member.response,
            finish_reason=member.finish_reason,
            logprobs=[
                {0: SimpleNamespace(logprob=-9.0), t: SimpleNamespace(logprob=p)}
                for t, p in zip(member.response_ids.tolist(), member.logprobs.tolist(), strict=True)
            ],
        )
        for place, member in enumerate(WANTED)
    ]
    output = SimpleNamespace(prompt_token_ids=[1, 2], outputs=outputs)
    assert RolloutGroup.from_openai(output, model_step=4) == WANTED
    group = RolloutGroup.from_openai(output, rewards=[1.0, 0.0], group_id="g", fields={"rollout_id": [0, 1]})
    assert group.rewards.tolist() == [1.0, 0.0]
    assert (group[1].rollout_id, group[1].response, group.group_id) == (1, "b", "g")


def test_responses_without_token_ids_are_refused():
    with pytest.raises(InvalidArgument, match="has no choices and no outputs"):
        RolloutGroup.from_openai({"error": "x"})
    with pytest.raises(
        InvalidArgument, match="choice 0 has no token ids; ask vLLM with return_token_ids=True"
    ):
        RolloutGroup.from_openai({"choices": [{"text": "a", "logprobs": {"tokens": ["a"]}}]})


# --- changed copies


def test_replaced_shares_the_body():
    group = RolloutGroup.pack(PROMPT, RESPONSES, columns={"a": EXPERTS}, group_id="g")
    group.uid = 5
    new = group.replaced(
        rewards=np.array([1.0, 0.0, 0.5]),
        status=["completed", "filtered", "completed"],
        staleness=3,
        finish_reasons=["stop", "odd", None],
        model_step=9,
        fields={"extra_fields": [{"n": 1}, {}, None]},
    )
    assert new.body is group.body
    assert new.uid == 5
    assert (new.rewards.tolist(), new.status, new.staleness, new.version) == (
        [1.0, 0.0, 0.5],
        Status.FILTERED,
        3,
        9,
    )
    assert [rollout.extra_fields for rollout in new] == [{"n": 1}, {}, {}]
    assert new.finish_reasons == ["stop", "odd", None]
    assert (np.isnan(group.rewards).all(), group.staleness, group.version) == (True, 0, None)
    assert new.replaced(staleness=[1, 2, 4])[2].seq_staleness == 4
    for wrong in (
        {"rewards": [1]},
        {"staleness": [1]},
        {"status": ["completed"]},
        {"fields": {"reward": [1, 2, 3]}},
    ):
        with pytest.raises(InvalidArgument):
            group.replaced(**wrong)


def test_replaced_adds_replaces_and_removes_columns():
    group = RolloutGroup.pack(PROMPT, RESPONSES, logprobs=LOGPROBS, columns={"a": EXPERTS, "b": np.arange(4)})
    new = group.replaced(columns={"b": np.arange(4) / 2, "c": np.ones(13, bool), "a": None})
    assert new == RolloutGroup.pack(
        PROMPT, RESPONSES, logprobs=LOGPROBS, columns={"b": np.arange(4) / 2, "c": np.ones(13, bool)}
    )
    assert new.logprobs.tolist() == group.logprobs.tolist()
    assert group.column("b").tolist() == [0, 1, 2, 3]
    found = RolloutGroup.open(*new.frames())
    assert found.column_names == ["b", "c"]
    assert found.column("b").tolist() == [0, 0.5, 1, 1.5]


def test_extended_continues_a_partial_rollout():
    group = RolloutGroup.pack(
        PROMPT,
        RESPONSES,
        logprobs=LOGPROBS,
        masks=MASKS,
        finish_reasons=["abort", "stop", "abort"],
        model_step=3,
        group_id="g",
    )
    group.uid, group.checkout = 7, "b.7.1"
    new = group.extended(
        [[20], None, [21, 22]],
        [[-2.0], None, [-3.0, -4.0]],
        model_step=4,
        finish_reasons=["stop", None, "length"],
    )
    assert [rollout.response_ids.tolist() for rollout in new] == [[7, 8, 9, 20], [10], [21, 22]]
    assert [rollout.response_model_steps.tolist() for rollout in new] == [[3, 3, 3, 4], [3], [4, 4]]
    assert new[0].response_mask.tolist() == [1, 0, 1, 1]
    assert new[2].logprobs.tolist() == [-3, -4]
    assert (new.status, new.uid, new.checkout) == (Status.COMPLETED, 7, "b.7.1")
    assert group.status is Status.ABORTED
    assert [rollout.finish_reason for rollout in new] == ["stop", "stop", "length"]
    assert group.extended([[20], [], []], [[0.0], None, None]).statuses == [
        Status.COMPLETED,
        Status.COMPLETED,
        Status.ABORTED,
    ]
    with pytest.raises(InvalidArgument, match="member 0: logprobs must be given"):
        group.extended([[20], None, None])
    with pytest.raises(InvalidArgument, match="responses must have one entry per member"):
        group.extended([[20]])


# --- how a group reads


def test_a_group_reads_as_a_sequence():
    group = RolloutGroup.pack(PROMPT, RESPONSES, rewards=[1, 0, 1])
    wanted = expected(reward=[1, 0, 1])
    assert len(group) == 3
    assert group[-1] == wanted[-1]
    assert type(group[:2]) is list
    assert group[:2] == wanted[:2]
    assert group == wanted
    assert group == tuple(wanted)
    assert wanted == group
    assert group != wanted[:2]
    assert group != 3
    assert list(reversed(group)) == wanted[::-1]
    assert wanted[1] in group
    assert group.index(wanted[1]) == 1
    assert group == RolloutGroup(wanted)
    assert group[0] is group[0]
    with pytest.raises(TypeError):
        hash(group)


def test_a_group_shows_itself_on_one_line():
    group = RolloutGroup.pack(
        PROMPT, RESPONSES, rewards=[1.0, 0.0, 0.5], model_step=3, columns={"a": EXPERTS}, group_id="p-7"
    )
    group.uid = 4
    assert repr(group) == (
        "<RolloutGroup uid=4 group_id='p-7' 3 completed, 13 tokens (4 of responses), version 3, reward 0.5 +- 0.408, columns a>"
    )
    mixed = RolloutGroup.pack(None, [[1], [2]], status=["completed", "aborted"], versions=[[1], [4]])
    assert repr(mixed) == "<RolloutGroup 1 completed, 1 aborted, 2 tokens (2 of responses), versions 1 to 4>"


def test_tensors_are_copies():
    torch = pytest.importorskip("torch")
    group = RolloutGroup.pack(
        PROMPT, RESPONSES, logprobs=LOGPROBS, rewards=[1.0, 0.0, 0.5], columns={"a": EXPERTS}
    )
    tensors = group.to_torch()
    assert tensors["response_ids"].tolist() == [7, 8, 9, 10]
    assert tensors["a"].dtype == torch.uint8
    assert tensors["a"].shape == (4, 2, 3)
    assert "response_mask" not in tensors
    tensors["logprobs"][0] = 9
    assert group.logprobs[0] == -0.5


# --- batches


def test_a_batch_is_a_sequence_of_samples():
    samples = [
        Sample([place], SampleInfo(place + 1, 0.5 * place, 0.25, 1.0, 2, place - 1, 10, "math"))
        for place in range(3)
    ]
    batch = GroupBatch.of(samples)
    assert batch == samples
    assert batch[1:] == samples[1:]
    assert batch[-1] == samples[-1]
    assert type(batch[0].info.uid) is int
    assert type(batch[0].info.weight) is float
    assert batch.groups == [[0], [1], [2]]
    assert batch.uids.tolist() == [1, 2, 3]
    assert batch.priorities.tolist() == [0.0, 0.5, 1.0]
    assert (batch.probabilities.tolist(), batch.weights.tolist()) == ([0.25] * 3, [1.0] * 3)
    assert (batch.times_sampled.tolist(), batch.staleness.tolist()) == ([2] * 3, [-1, 0, 1])
    assert (batch.table_sizes.tolist(), batch.task_names) == ([10] * 3, ("math",) * 3)
    assert not batch.uids.flags.writeable
    assert repr(batch) == "<GroupBatch 3 groups of math, staleness -1 to 1>"
    assert repr(GroupBatch.of([])) == "<GroupBatch empty>"
    assert batch != samples[:2]
    assert batch != 3
    numbers = dict.fromkeys(
        ("priorities", "probabilities", "weights", "times_sampled", "staleness", "table_sizes"), 1
    )
    assert GroupBatch([[0], [1]], uids=[3, 4], task_names="m", **numbers)[1].info == SampleInfo(
        4, 1, 1, 1, 1, 1, 1, "m"
    )
    with pytest.raises(InvalidArgument, match=r"uids has shape \(3,\) for 2 groups"):
        GroupBatch([[0], [1]], uids=[3, 4, 5], **numbers)
    with pytest.raises(InvalidArgument, match="task_names has 1 entries"):
        GroupBatch([[0], [1]], uids=[3, 4], task_names=["m"], **numbers)
