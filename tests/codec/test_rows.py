"""Blobs that can be decoded later: whatever is said to be right decodes, and can be put."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.strategies import rollouts, values
from codec.test_hostile import Known, sealed
from reroll import CorruptData, Rollout, Status
from reroll.codec import count_plain_rollouts, decode, encode
from reroll.rollout.summary import inspect_members

PROMPT = np.arange(9, dtype=np.int32)


def a_rollout(**fields: Any) -> Rollout:
    usual: dict[str, Any] = {
        "prompt_ids": PROMPT,
        "response_ids": [1, 2, 3],
        "logprobs": [-0.5] * 3,
        "response_mask": [1, 0, 1],
        "response_model_steps": [1, 1, 2],
        "status": "completed",
        "reward": 1.0,
    }
    return Rollout(**{**usual, **fields})


def said(group: Any, *, partial: bool = False) -> int | None:
    """Return what is said of a group, which decodes in any case."""
    blob = encode(group)
    decode(blob)
    return count_plain_rollouts(blob, partial=partial)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"message": [{"role": "user", "content": "hi"}], "extra_fields": {"seed": 3, "tries": [1, 2.5]}},
        {"logprobs": None, "response_mask": None, "response_model_steps": None, "reward": None},
        {"response_ids": [], "logprobs": [], "response_mask": [], "response_model_steps": []},
        {"prompt_ids": None, "tokens": [7, 8], "input_ids": [1, 2], "labels": [3, 4]},
        {"tokens": [*PROMPT, 1, 2, 3], "num_tokens": 12, "group_id": "a", "response": "text"},
        *({"status": status} for status in Status),
    ],
)
def test_usual_rollouts_can_wait(fields: dict[str, Any]) -> None:
    assert said([a_rollout(**fields)] * 3) == 3


@pytest.mark.parametrize(
    "group",
    [
        [a_rollout(extra_fields=Known(1))],
        [a_rollout(extra_fields={"a": (1, 2)})],
        [a_rollout(extra_fields={"a": np.arange(3)})],
        [a_rollout(extra_fields={"a": b"bytes"})],
        [a_rollout(extra_fields={3: "a"})],
        [a_rollout(extra_fields=[[[[[1]]]]])],
        [a_rollout(group_id=1 << 70)],
        [a_rollout(reward={"score": 1.0})],
        [Rollout(status="init")],
        [1, 2, 3],
        {"a": 1},
    ],
)
def test_of_others_nothing_is_said(group: Any) -> None:
    assert said(group) is None


@pytest.mark.parametrize("field", ["logprobs", "response_mask", "response_model_steps"])
def test_lengths_that_do_not_fit(field: str) -> None:
    rollout = a_rollout()
    rollout.response_ids = [1, 2, 3, 4]
    for other in {"logprobs", "response_mask", "response_model_steps"} - {field}:
        setattr(rollout, other, None)
    assert said([rollout]) is None
    assert said([rollout], partial=True) == (1 if field == "response_model_steps" else None)


def test_more_versions_than_tokens() -> None:
    rollout = a_rollout()
    rollout.response_ids = [1, 2]
    rollout.logprobs = rollout.response_mask = None
    assert said([rollout], partial=True) is None


def test_a_blob_that_was_altered() -> None:
    blob = bytearray(encode([a_rollout()]))
    blob[-70] ^= 1
    with pytest.raises(CorruptData, match="checksum"):
        count_plain_rollouts(bytes(blob), partial=False)


def holds(blob: bytes) -> None:
    """Look whether what is said of a blob is true: nothing is said of what cannot be decoded or put."""
    for partial in (False, True):
        count = count_plain_rollouts(blob, partial=partial)
        if count is not None:
            found = decode(blob)
            assert [type(rollout) for rollout in found] == [Rollout] * count
            inspect_members(found, 5 if partial else None)
            encode(found)


@given(values | st.lists(rollouts(), min_size=1, max_size=3))
def test_what_is_said_is_true(value: Any) -> None:
    holds(encode(value))


BLOB = encode([a_rollout(message=[{"role": "user"}], extra_fields={"a": [1, 2]}), a_rollout()])


def test_every_byte_of_the_parts_altered_with_a_checksum_that_fits() -> None:
    table, body = struct.unpack_from("<II", BLOB, 8)
    for at in range(8, 16 + table + body):
        for byte in (*range(0, 256, 7), 0xC0, 0xC2, 0xC3, 0xC1, 0xFF):
            altered = sealed(BLOB[:at] + bytes([byte]) + BLOB[at + 1 :])
            try:
                holds(altered)
            except CorruptData:
                assert at < 16  # lengths of the parts


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(16, len(BLOB) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_altered_with_a_checksum_that_fits(changes: list[tuple[int, int]]) -> None:
    altered = bytearray(BLOB)
    for at, byte in changes:
        altered[at] = byte
    holds(sealed(bytes(altered)))
