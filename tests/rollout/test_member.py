"""The quick look at a usual rollout says what the general one says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll import InvalidArgument, Rollout, Status
from reroll.rollout.member import look_at


class _Unusual(Rollout):
    """A subclass is looked at in the general way, which is the oracle."""

    __slots__ = ()


@st.composite
def _fields(draw):
    length = draw(st.integers(0, 5))
    versions = draw(st.lists(st.integers(0, 3), max_size=length))
    fields = {
        "prompt_ids": draw(st.none() | st.just([1, 2])),
        "response_ids": list(range(length)),
        "response_model_steps": versions,
        "response_mask": draw(st.none() | st.lists(st.integers(0, 1), min_size=length, max_size=length)),
        "logprobs": draw(st.none() | st.just([0.5] * length)),
        "input_ids": draw(st.none() | st.just([1])),
        "status": draw(st.sampled_from(Status)),
        "reward": draw(st.none() | st.floats(-1, 1) | st.just({"score": 2.0})),
        "seq_staleness": draw(st.integers(-1, 5)),
        "num_tokens": draw(st.none() | st.integers(0, 9)),
    }
    return {name: value for name, value in fields.items() if value is not None}


@given(_fields(), st.none() | st.integers(0, 4))
def test_the_quick_look_agrees_with_the_general_one(fields, model_step):
    try:
        expected = look_at(_Unusual(**fields), model_step)
    except InvalidArgument as error:
        with pytest.raises(InvalidArgument) as raised:
            look_at(Rollout(**fields), model_step)
        assert str(raised.value) == str(error)
    else:
        assert look_at(Rollout(**fields), model_step) == expected


@given(_fields())
def test_a_field_that_no_longer_fits_is_found_either_way(fields):
    for kind in (Rollout, _Unusual):
        rollout = kind(**fields)
        rollout.logprobs = [0.0] * (len(rollout.response_ids) + 2)
        with pytest.raises(InvalidArgument, match="logprobs"):
            look_at(rollout, 1)
