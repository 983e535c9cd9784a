"""Bytes that were cut, altered or made up: typed errors or the same data, no crash, no wrong data."""

import random
import struct
import zlib
from contextlib import suppress

import msgspec
import numpy as np
import pytest

from reroll import CorruptData, InvalidArgument, Rollout, RolloutGroup, UnsupportedFormat
from reroll.group.layout import RECORD

REFUSED = (CorruptData, UnsupportedFormat)
GROUPS = [
    RolloutGroup.pack(
        [1, 2],
        [[3, 4, 5], [6], []],
        logprobs=[[0, 0, 0], [0], []],
        masks=[[1, 0, 1], [1], []],
        rewards=[1.0, None, 0.5],
        model_step=3,
        group_id="g",
        columns={"a": np.arange(8, dtype=np.int16).reshape(4, 2), "b": np.arange(10)},
        fields={"message": [[{"role": "user"}], None, "x"], "response": ["a", "b", "c"]},
    ),
    RolloutGroup.pack([1], [[2]]),
    RolloutGroup.of(
        [
            Rollout(
                prompt_ids=[1],
                response_ids=[2, 3],
                response_model_steps=[1, 2],
                tokens=[1, 2, 3],
                num_tokens=7,
            ),
            Rollout(
                response_ids=[4], response_model_steps=[5], input_ids=[4, 4], labels=[1], reward={"score": 2}
            ),
            Rollout(extra_fields={"a": (1, 2)}, mm_info=np.arange(5), seq_staleness=4, finish_reason="odd"),
        ]
    ),
]


def sealed(head: bytes) -> bytes:
    """Return a head with the checksum that fits."""
    return head[:4] + struct.pack("<I", zlib.crc32(head[8:])) + head[8:]


def mutated(data: bytes, random_: random.Random) -> bytes:
    """Return bytes with a flipped bit, a cut, a repetition, or a number that lies."""
    kind, at = random_.randrange(5), random_.randrange(len(data))
    if kind == 0:
        return data[:at] + bytes([data[at] ^ 1 << random_.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + data[at // 2 :]
    if kind == 3:
        number = random_.choice([-1, 0, 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), random_.randrange(200)])
        size = random_.choice([4, 8])
        packed = (number % (1 << 8 * size)).to_bytes(size, "little")
        return (data[:at] + packed + data[at + size :])[: len(data)]
    return data[:at] + bytes([random_.randrange(256)]) + data[at + 1 :]


def use(group: RolloutGroup) -> None:
    """Read everything that a group has."""
    group.check()
    list(group)
    repr(group)
    for name in group.column_names:
        group.column(name)
    with suppress(InvalidArgument):  # versions of a part of the tokens
        group.summary()
    assert sum(group.lengths) == len(group.response_ids)
    RolloutGroup.open(*group.frames())


def attack(cases: int, seed: int) -> dict[str, int]:
    random_ = random.Random(seed)
    outcomes = {"refused": 0, "same": 0, "forged": 0}
    frames = [tuple(None if part is None else bytes(part) for part in group.frames()) for group in GROUPS]
    for case in range(cases):
        place = random_.randrange(len(GROUPS))
        parts = list(frames[place])
        target = random_.choice([0, 0, 0, 1, 2])
        if parts[target] is None:
            target = 0
        parts[target] = mutated(parts[target], random_)
        is_forged = target == 0 and case % 2 == 0 and len(parts[0]) > 8
        if is_forged:
            parts[0] = sealed(parts[0])
        try:
            group = RolloutGroup.open(*parts)
            use(group)
        except REFUSED:
            outcomes["refused"] += 1
            continue
        if is_forged:
            outcomes["forged"] += 1  # a head that agrees with itself is another group
        else:
            assert tuple(parts) == frames[place], "altered bytes were accepted"
            outcomes["same"] += 1
    return outcomes


def test_altered_bytes_are_refused():
    outcomes = attack(3_000, 0)
    assert outcomes["refused"] > 2_000
    assert outcomes["forged"] > 50


@pytest.mark.slow
def test_very_many_altered_bytes_are_refused():
    assert attack(100_000, 1)["refused"] > 70_000


@pytest.mark.parametrize("group", GROUPS)
def test_every_flipped_bit_is_found(group):
    head, body, objects = (None if part is None else bytes(part) for part in group.frames())
    for at in range(len(head)):
        altered = head[:at] + bytes([head[at] ^ 1 << at % 8]) + head[at + 1 :]
        with pytest.raises(REFUSED):
            RolloutGroup.open(altered, body, objects)
    for at in range(len(body)):
        altered = body[:at] + bytes([body[at] ^ 1 << at % 8]) + body[at + 1 :]
        with pytest.raises(REFUSED, match="checksum of a group's body"):
            RolloutGroup.open(head, altered, objects)


@pytest.mark.parametrize("group", GROUPS)
def test_every_cut_is_found(group):
    head, body, objects = (None if part is None else bytes(part) for part in group.frames())
    for size in range(len(head)):
        with pytest.raises(REFUSED):
            RolloutGroup.open(head[:size], body, objects)
    for size in range(len(body)):
        with pytest.raises(REFUSED):
            RolloutGroup.open(head, body[:size], objects)
        with pytest.raises(REFUSED):
            RolloutGroup.open(head, body[:size], objects, check_body=False)


def forged(group=GROUPS[1], meta=None, **numbers) -> bytes:
    """Return a head with other numbers in its record, or another meta, and the checksum that fits."""
    head = bytearray(group.head)
    for name, number in numbers.items():
        dtype, at = RECORD.fields[name]
        head[at : at + dtype.itemsize] = np.array(number).astype(dtype).tobytes()
    if meta is not None:
        written = msgspec.msgpack.encode(meta) if not isinstance(meta, bytes) else meta
        head = head[: RECORD.itemsize + 14 * len(group)] + written
        at = RECORD.fields["meta_size"][1]
        head[at : at + 4] = struct.pack("<I", len(written))
    return sealed(bytes(head))


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"RRL" * 100,
        forged(members=0),
        forged(members=2**32 - 1),
        forged(meta_size=2**32 - 1),
        forged(body_size=2**62),
        forged(prompt_tokens=2**40),
        forged(prompt_tokens=-1),
        forged(response_tokens=2),
        forged(num_tokens=99),
        forged(uid=-3),
        forged(version=7),
        forged(status=3),
        forged(reward_mean=1.0),
        forged(flags=4 | 8 | 1),
        forged(flags=16),
        forged(meta=b"\xdd\xff\xff\xff\xff"),
        forged(meta=b"\x91" * 5000),
        forged(meta=b"\xc1"),
        forged(meta=[1, 2]),
        forged(meta=[msgspec.msgpack.Ext(5, b"x")]),
        forged(meta=[None, None, None, [1, 2, 3]]),
        forged(meta=[None, None, None, None, None, [[1, 5]]]),
        forged(meta=[None, None, None, None, None, [[1]]]),
        forged(meta=[None, None, None, None, None, [[1, -1]]]),
        forged(meta=[None] * 7 + [[["a", "<i2", [2**30, 2**30], [2**39]]]]),
        forged(meta=[None] * 7 + [[["a", "|O8", [], None]]]),
        forged(meta=[None] * 7 + [[["a", "<U0", [], None]]]),
        forged(meta=[None] * 7 + [[["a", "=ff", [], None]]]),
        forged(meta=[None] * 7 + [[["tokens", "<f4", [], None]]]),
        forged(meta=[None] * 7 + [[["a", "|u1", [], [-2]]]]),
        forged(meta=[None] * 7 + [[], {"status": ["x"]}]),
        forged(meta=[None] * 7 + [[], {"response": ["x", "y"]}]),
        forged(meta=[None] * 7 + [[], {"num_tokens": ["x"]}]),
        forged(meta=[None] * 7 + [[], {"reward": ["x"]}]),
        forged(meta=[None] * 7 + [[], {}, [1]]),
    ],
)
def test_heads_that_lie_are_refused(head):
    with pytest.raises(REFUSED):
        use(RolloutGroup.open(head, GROUPS[1].body))


def test_another_format_is_named():
    with pytest.raises(UnsupportedFormat, match="a group in format 2, this reroll reads format 1"):
        RolloutGroup.open(forged(format=2), GROUPS[1].body)
    with pytest.raises(UnsupportedFormat, match="upgrade reroll"):
        RolloutGroup.open(forged(flags=1 | 16 | 1024), GROUPS[1].body)


def test_objects_that_lie_are_refused():
    from reroll.codec import encode  # noqa: PLC0415

    head, body, _ = GROUPS[2].frames()
    for objects in (
        [],
        {},
        {"mm_info": 3},
        {"mm_info": [1, 2]},
        {3: [1]},
        {"unknown": [1]},
        {"checkout": [(1,)]},
    ):
        with pytest.raises(REFUSED):
            RolloutGroup.open(head, body, encode(objects))
