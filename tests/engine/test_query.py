"""Rows in order of a field: from columns as from rows, for every field, both ways, with missing values and ties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll import Rollout, SyncReplayBufferConfig
from reroll.engine.query import parse_order, rows_at, rows_of, sort_rows, sort_slots
from reroll.engine.rows import RESIDENT
from reroll.errors import InvalidArgument
from reroll.query import FIELDS
from reroll.testing.probe import probe

_groups = st.lists(
    st.tuples(
        st.sampled_from(["b", "a", "c"]),
        st.sampled_from(["completed", "failed", "aborted"]),
        st.sampled_from([None, 0.0, 0.5, 1.0]),
        st.sampled_from([None, 1, 2, "x", "y"]),
        st.sampled_from([0.0, 1.0, 2.5]),
    ),
    max_size=8,
)


@given(groups=_groups, field=st.sampled_from(sorted(FIELDS)), descending=st.booleans())
def test_columns_give_the_order_of_rows(groups, field, descending):
    with SyncReplayBufferConfig().build_blocking() as buffer:
        for task, status, reward, group_id, priority in groups:
            made = Rollout(response_ids=[1], reward=reward, status=status, group_id=group_id)
            version = None if reward is None else int(reward * 2)
            buffer.put([made], task, priority=priority, model_step=version)
        engine = probe(buffer).engine
        slots = rows_at(engine, RESIDENT)
        expected = sort_rows(rows_of(engine, slots), field, descending)
        assert rows_of(engine, sort_slots(engine, slots, field, descending)) == expected
        order = f"{'-' if descending else ''}{field}"
        assert buffer.query({}, order_by=order) == expected
        assert buffer.query({}, order_by=order, limit=3, offset=2) == expected[2:5]


def test_a_field_that_there_is_not():
    assert parse_order("-uid") == ("uid", True)
    for wrong in ("length", "--uid", "", 5):
        with pytest.raises(InvalidArgument, match="order_by must be one of uid"):
            parse_order(wrong)
