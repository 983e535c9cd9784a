"""A buffer in memory takes what could not be saved, and says so: once for each class, with the path and the remedy."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest

from buffer.kinds import Slots
from durable_errors.samples import TASK, group
from reroll import Rollout, UnstorableWarning


class Simulator:
    """Not registered."""


class Renderer:
    """Not registered either."""


@dataclass
class Camera:
    """Nor this."""


def told(call):
    """Return the texts of the warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught if one.category is UnstorableWarning]


def test_the_first_group_of_a_class_is_told(make):
    buffer = make()
    assert told(lambda: buffer.put(group(1), TASK)) == []
    (text,) = told(lambda: buffer.put(group(2, extra_fields={"a": 1, "sim": Simulator()}), TASK))
    assert text.startswith(
        "this group could not be saved: rollouts[0].extra_fields['sim']: Simulator is not registered"
    )
    assert "reroll.register(Simulator, encode=..., decode=...)" in text
    assert told(lambda: buffer.put(group(3, extra_fields={"sim": Simulator()}), TASK)) == [], "once"
    (text,) = told(lambda: buffer.put(group(4, mm_info={"camera": Camera()}), TASK))
    assert "mm_info['camera']: Camera is not registered; call reroll.register(Camera)" in text
    (text,) = told(lambda: buffer.put(group(5, mm_info=Renderer()), TASK))
    assert "mm_info: Renderer" in text
    (text,) = told(lambda: buffer.put([Slots("completed", [1])], TASK))
    assert "rollouts[0]: Slots is not registered" in text
    assert len(buffer) == 6, "all were taken"


def test_plain_values_are_not_told(make):
    buffer = make()
    values = {"array": np.zeros(3), "list": [1, "a"], "none": None, "dict": {}, "bytes": b""}
    for info in (np.zeros((2, 2)), None, {}, {"pixels": np.zeros(2)}, [], "text"):
        assert told(lambda info=info: buffer.put(group(1, extra_fields=values, mm_info=info), TASK)) == []
    assert told(lambda: buffer.put([Rollout(status="aborted")], TASK)) == []


def test_with_leave_to_pickle_only_what_cannot_be_pickled_is_told(make):
    buffer = make(allow_pickle=True)
    assert told(lambda: buffer.put(group(1, extra_fields={"sim": Simulator()}), TASK)) == []
    assert len(told(lambda: buffer.put(group(1, extra_fields={"call": lambda: 1}), TASK))) == 1


def test_where_warnings_are_errors_nothing_is_put(make):
    buffer = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnstorableWarning)
        for _ in range(2):
            with pytest.raises(UnstorableWarning):
                buffer.put(group(1, extra_fields={"sim": Simulator()}), TASK)
    assert len(buffer) == 0


def test_a_durable_buffer_refuses_and_does_not_warn(make, tmp_path):
    buffer = make(store=tmp_path)
    with pytest.raises(TypeError, match="Simulator is not registered"):
        assert told(lambda: buffer.put(group(1, extra_fields={"sim": Simulator()}), TASK)) == []
