"""Hypothesis strategies for what can be stored."""

from datetime import UTC, timedelta, timezone
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reroll import DictRollout, Rollout, Status
from reroll.rollout import VersionRuns

# Hypothesis leaves out lone surrogates, which text from outside may have.
texts = st.text(max_size=20) | st.text(st.characters(), max_size=5)
integers = st.integers() | st.sampled_from(
    [0, -1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**40, -(10**40)]
)
floats = st.floats() | st.sampled_from([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 5e-324])
zones = st.sampled_from([None, UTC, timezone(timedelta(hours=-3, seconds=7)), timezone(timedelta(0), "Z")])
small = st.one_of(
    *(st.complex_numbers(), st.decimals(allow_nan=False), st.uuids(), st.dates(), st.timedeltas()),
    st.builds(
        lambda when, zone, fold: when.replace(tzinfo=zone, fold=fold),
        st.datetimes(),
        zones,
        st.integers(0, 1),
    ),
    st.sampled_from([Path("a/b"), PurePosixPath("/x"), PureWindowsPath("c:/d")]),
    st.sampled_from(Status),
)

dtypes = st.one_of(
    hnp.boolean_dtypes(),
    *(
        kind(endianness="<") | kind(endianness=">")
        for kind in (hnp.integer_dtypes, hnp.unsigned_integer_dtypes)
    ),
    hnp.floating_dtypes(endianness="<") | hnp.floating_dtypes(endianness=">"),
    hnp.complex_number_dtypes() | hnp.datetime64_dtypes() | hnp.timedelta64_dtypes(),
    hnp.byte_string_dtypes(max_len=5) | hnp.unicode_string_dtypes(max_len=5),
)
any_dtypes = dtypes | hnp.array_dtypes(dtypes, allow_subarrays=True)
arrays = hnp.arrays(any_dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
scalars = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, ())).map(lambda array: array[()])

hashable_atoms = st.one_of(st.none(), st.booleans(), integers, floats, texts, st.binary(max_size=10), small)
hashables = st.recursive(
    hashable_atoms,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
long_lists = st.one_of(
    st.lists(integers, min_size=30, max_size=40),
    st.lists(st.integers(0, 255), min_size=32, max_size=40),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=32, max_size=40),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=32, max_size=40),
    st.lists(floats, min_size=30, max_size=40),
    st.lists(st.booleans(), min_size=32, max_size=40),
    st.lists(st.one_of(st.booleans(), st.integers(0, 3), st.none(), floats), min_size=30, max_size=40),
)
leaves = st.one_of(
    hashables,
    hashables,
    st.decimals(),
    long_lists,
    arrays,
    scalars,
    st.binary(max_size=2000),
    st.binary(max_size=9).map(bytearray),
)


def containers(inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(texts, inner, max_size=4),
        st.dictionaries(hashables, inner, max_size=3),
        st.sets(hashables, max_size=4),
    )


values = st.recursive(leaves, containers, max_leaves=15)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    """Return Rollouts of any shape, shared prompts among them, with anything in their plain fields."""
    prompt = draw(st.sampled_from([None, *PROMPTS]))
    ids = draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=10))
    size = len(ids)
    whole = [*([] if prompt is None else prompt.tolist()), *ids]
    return Rollout(
        group_uid=draw(st.none() | st.integers(1, 2**63)),
        group_id=draw(st.none() | st.integers() | texts),
        rollout_id=draw(hashables),
        session_id=draw(texts),
        message=draw(leaves),
        prompt_ids=prompt,
        tokens=draw(st.sampled_from([None, whole, [*whole, 7]])),
        response=draw(st.none() | texts),
        response_ids=ids,
        logprobs=draw(st.none() | st.just([draw(st.floats(width=32))] * size)),
        response_mask=draw(st.none() | st.just([i % 2 for i in range(size)])),
        response_model_steps=VersionRuns.of(
            sorted(draw(st.lists(st.integers(0, 2**60), min_size=size, max_size=size)))
        ),
        seq_staleness=draw(st.integers(-1, 2**60)),
        reward=draw(st.none() | floats | st.dictionaries(texts, floats, max_size=2)),
        status=draw(st.sampled_from(Status)),
        finish_reason=draw(st.none() | texts),
        error_msg=draw(st.none() | texts),
        routed_experts=draw(st.none() | arrays),
        mm_info=draw(st.none() | arrays),
        tool_calls=draw(st.none() | scalars),
        num_tokens=draw(st.none() | st.integers(0, 2**60)),
        input_ids=draw(st.none() | st.just(whole)),
        labels=draw(st.none() | st.just(whole)),
        extra_fields=draw(values),
        columns=draw(st.none() | st.just({"a": np.arange(2 * size, dtype=np.uint8).reshape(size, 2)})),
    )


PROMPTS = [np.arange(3, dtype=np.int32), np.empty(0, np.int32), np.arange(40, dtype=np.int32)]

dict_rollouts = st.dictionaries(texts, values, max_size=4).map(DictRollout)
