"""Blobs that were cut, altered or made up: a typed error or a harmless value, never a crash, never code."""

import os
import pickle
import struct
import tracemalloc
import zlib
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from codec.strategies import rollouts, values
from reroll import CorruptData, DictRollout, RerollError, Rollout, UnsupportedFormat, register
from reroll.codec import FORMAT_VERSION, decode, encode
from reroll.codec.arrays import STANDARD
from reroll.codec.frame import MAX_DEPTH, Code

pack = msgspec.msgpack.encode


@register
@dataclass
class Known:
    x: Any = None


def sealed(blob: bytes) -> bytes:
    """Return a blob with the checksum that fits it."""
    return blob[:4] + struct.pack("<I", zlib.crc32(blob[8:])) + blob[8:]


def sealed_parts(table: bytes, body: bytes, data: bytes = b"") -> bytes:
    """Return a blob of parts as an attacker writes them."""
    head = struct.pack("<II", len(table), len(body)) + table + body
    gap = bytes(-(len(head) + 8) % 64)
    return sealed(b"RRL" + bytes([FORMAT_VERSION]) + bytes(4) + head + gap + data)


def sealed_body(body: Any, arrays: Any = ()) -> bytes:
    """Return a blob of any body with some arrays."""
    table = [(STANDARD.index(array.dtype), len(array)) for array in arrays]
    data = b"".join(array.tobytes() + bytes(-array.nbytes % 64) for array in arrays)
    return sealed_parts(pack(table), pack(body), data)


def body_of(blob: bytes) -> bytes:
    table, body = struct.unpack_from("<II", blob, 8)
    return blob[16 + table : 16 + table + body]


def refused(blob: bytes, **options: Any) -> RerollError:
    with pytest.raises((CorruptData, UnsupportedFormat)) as caught:
        decode(blob, **options)
    assert str(caught.value)
    return caught.value


def a_group():
    prompt = np.arange(9, dtype=np.int32)
    return [
        Rollout(
            prompt_ids=prompt,
            response_ids=[1, 2, 3],
            logprobs=[-0.5] * 3,
            response_mask=[1, 0, 1],
            response_model_steps=[1, 1, 2],
            reward={"score": 1.0},
            mm_info=(np.ones((2, 2)), np.array(["a"]), np.float32(2), [1.5] * 40),
            tool_calls=[DictRollout({"a": {1, 2}})],
            extra_fields={"known": Known([1, 2**70]), 3: b"x" * 2000},
        )
        for _ in range(2)
    ]


BLOB = encode(a_group())


def test_cut_anywhere():
    for size in range(len(BLOB)):
        assert isinstance(refused(BLOB[:size]), CorruptData)
    refused(BLOB + b"\0")
    refused(b"")


def test_any_byte_altered():
    for at in range(len(BLOB)):
        altered = bytearray(BLOB)
        altered[at] ^= 1 + at % 255
        refused(bytes(altered))


@given(st.binary(max_size=200))
def test_any_bytes(data):
    refused(data)
    refused(sealed(b"RRL" + bytes([FORMAT_VERSION]) + bytes(4) + data + bytes(8)))


def read_or_refused(blob: bytes) -> None:
    """Read what an attacker wrote: a value or one of our errors."""
    try:
        value = decode(blob)
    except (CorruptData, UnsupportedFormat):
        return
    encode(value)  # what was read is whole


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(BLOB) - 1), st.integers(0, 255)), min_size=1, max_size=4))
@example([(16, 0xDD)])
def test_altered_with_a_checksum_that_fits(changes):
    altered = bytearray(BLOB)
    for at, byte in changes:
        altered[at] = byte
    read_or_refused(sealed(bytes(altered)))


def test_every_byte_of_the_parts_altered_with_a_checksum_that_fits():
    table, body = struct.unpack_from("<II", BLOB, 8)
    for at in range(8, 16 + table + body):
        for byte in (BLOB[at] ^ 1, BLOB[at] ^ 0x80, 0xFF, 0x00, 0xC1, 0xDD):
            read_or_refused(sealed(BLOB[:at] + bytes([byte]) + BLOB[at + 1 :]))


@settings(max_examples=150)
@given(st.data(), values | st.lists(rollouts(), min_size=1, max_size=2))
def test_other_values_altered_with_a_checksum_that_fits(data, value):
    blob = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        blob[data.draw(st.integers(8, len(blob) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del blob[data.draw(st.integers(16, len(blob))) :]
    read_or_refused(sealed(bytes(blob)))


def made_up(inner: st.SearchStrategy) -> st.SearchStrategy:
    extension = st.builds(
        lambda code, content: Ext(code, pack(content)), st.sampled_from(CODES) | st.integers(-128, 127), inner
    )
    return st.one_of(
        st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=3), inner, max_size=3), extension
    )


CODES = [value for name, value in vars(Code).items() if name.isupper()]
MADE_UP = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=9)),
        *(st.binary(max_size=20), st.builds(Ext, st.sampled_from(CODES), st.binary(max_size=20))),
        st.builds(
            lambda code, at: Ext(code, at.to_bytes(4, "little")), st.sampled_from(CODES), st.integers(0, 3)
        ),
        st.just(f"{Known.__module__}.{Known.__qualname__}"),
    ),
    made_up,
    max_leaves=12,
)


@settings(max_examples=300)
@given(st.sampled_from([0, 1, 2]), MADE_UP)
def test_made_up_bodies(form, content):
    read_or_refused(
        sealed_body((form, content), [np.arange(3), np.ones(40, np.uint8), np.ones(2, np.float32)])
    )


@settings(max_examples=200)
@given(MADE_UP, st.binary(max_size=300))
def test_made_up_tables(table, data):
    read_or_refused(
        sealed_parts(pack(table), pack((0, Ext(Code.ARRAY, bytes(4)))), data + bytes(-len(data) % 64))
    )
    read_or_refused(sealed_parts(pack([table]), pack((0, Ext(Code.ARRAY, bytes(4)))), data))


HUGE = 2**62
TABLES = {
    "more entries than bytes": [(3, 17)],
    "huge": [(3, HUGE)],
    "negative": [(3, -1)],
    "negative then positive": [(5, -64), (5, 128)],
    "a product beyond 64 bits": [(3, [2**40, 2**40])],
    "a product that wraps to zero": [(3, [2**32, 2**32])],
    "two negatives": [(3, [-4, -4])],
    "empty but huge": [(3, [0, HUGE, HUGE])],
    "many dimensions": [(3, [1] * 65)],
    "a shape of text": [(3, "16")],
    "a shape of floats": [(3, [4.0, 4.0])],
    "a shape of truth": [(3, True)],
    "a nested shape": [(3, [[[16]]])],
    "an unknown code": [(99, 16)],
    "a negative code": [(-1, 16)],
    "a code that is true": [(True, 16)],
    "Python objects": [("|O", 8)],
    "Python objects by name": [("object", 8)],
    "Python objects in a list": [([8, False, [["a", "|O", 0, None]]], [8])],
    "a list of types in a text": [("i4,O", 4)],
    "a text that numpy evaluates": [("{'names': ['a'], 'formats': ['O']}", 4)],
    "a size beyond int": [("S999999999999", 0)],
    "entries without bytes": [("|V0", [HUGE])],
    "no entries without bytes": [("|S0", [0])],
    "a field before the start": [([8, False, [["a", "<i4", -4, None]]], [8])],
    "a field after the end": [([8, False, [["a", "<i4", 6, None]]], [8])],
    "a field of a huge part": [([8, False, [["a", [3, [2**30, 2**30]], 0, None]]], [8])],
    "two fields of one name": [([8, False, [["a", 3, 0, None], ["a", 3, 4, None]]], [8])],
    "a deep dtype": [(__import__("functools").reduce(lambda inner, _: [inner, [1]], range(200), 3), [16])],
    "no pair": [(3,)],
    "three": [(3, 16, 0)],
    "a number": [5],
    "no list": {"a": 1},
    "bytes left over": [(3, 0)],
    "an unknown unit": [("<M8[parsec]", 8)],
}


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_tables_that_lie(table):
    tracemalloc.start()
    try:
        refused(sealed_parts(pack(table), pack((0, Ext(Code.ARRAY, bytes(4)))), bytes(64)))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20, "memory was taken for what was only declared"
    finally:
        tracemalloc.stop()


def test_the_table_of_these_tests_would_be_read():
    blob = sealed_parts(pack([(3, 16)]), pack((0, Ext(Code.ARRAY, bytes(4)))), bytes(64))
    assert decode(blob).tolist() == [0] * 16


def test_lengths_that_lie():
    for table, body in ((2**32 - 1, 5), (5, 2**32 - 1), (2**31, 2**31), (0, 0), (len(BLOB), 0)):
        refused(sealed(BLOB[:8] + struct.pack("<II", table, body) + BLOB[16:]))


DECLARED = {
    "list": b"\xdd\xff\xff\xff\xff",
    "lists in lists": b"\xdd\x7f\xff\xff\xff" * 50,
    "dict": b"\xdf\xff\xff\xff\xff\xa1a",
    "text": b"\xdb\xff\xff\xff\xffabc",
    "bytes": b"\xc6\xff\xff\xff\xffabc",
    "extension": b"\xc9\xff\xff\xff\xff\x01abc",
    "nothing": b"",
    "two values": b"\x92\x00\x00\x00",
    "a code that MessagePack lacks": b"\x92\x00\xc1",
}


@pytest.mark.parametrize("body", DECLARED.values(), ids=list(DECLARED))
def test_sizes_that_are_only_declared(body):
    tracemalloc.start()
    try:
        for start in (b"", b"\x92\x00"):
            refused(sealed_parts(pack([]), start + body))
        refused(sealed_parts(body, pack((0, None))))
        refused(sealed_body((0, Ext(Code.TUPLE, body))))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20, "memory was taken for what was only declared"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\x92\x01", b"\xdc\x00\x01"], ids=bytes.hex)
@pytest.mark.parametrize("levels", [MAX_DEPTH + 10, 900, 100_000])
def test_deep_nesting(opening, levels):
    assert "deep" in str(refused(sealed_parts(pack([]), b"\x92\x00" + opening * levels + b"\xc0")))
    refused(sealed_parts(opening * levels + b"\xc0", pack((0, None))))


@pytest.mark.parametrize("code", [Code.TUPLE, Code.ROLLOUT, Code.OBJECT])
def test_deep_nesting_of_extensions(code):
    value: Any = None
    for _ in range(300):
        value = Ext(code, pack([value]))
    refused(sealed_body((0, value)))


# --- no code runs

RAN = []


def touch(*args: Any) -> None:
    RAN.append(args)


class Bomb:
    def __reduce__(self):
        return touch, ("ran",)


@pytest.fixture(autouse=True)
def nothing_ran(monkeypatch):
    monkeypatch.setattr(os, "system", touch)
    RAN.clear()
    yield
    assert not RAN


def test_pickles_are_not_read():
    for protocol in range(6):
        payload = pickle.dumps(Bomb(), protocol)
        for blob in (
            payload,
            sealed_body((0, Ext(Code.PICKLE, payload))),
            sealed_body((0, [{"a": Ext(65, payload)}])),
        ):
            refused(blob)
        for code in CODES:
            refused(sealed_body((0, Ext(code, payload)))) if code not in RAW else read_or_refused(
                sealed_body((0, Ext(code, payload)))
            )
        read_or_refused(sealed_body((0, payload)))
        refused(sealed_parts(payload, pack((0, None))))
        refused(sealed_parts(pack([(["O", "pickle"], 1)]), payload, payload))
    blob = encode([Bomb()], allow_pickle=True)
    refused(blob)


RAW = (Code.INTEGER, Code.TEXT)


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.eval",
        "builtins.object",
        "subprocess.Popen",
        "reroll.codec.registry.register",
        "",
        None,
        5,
    ],
)
@pytest.mark.parametrize("state", ["touch /tmp/x", ["x"], {"x": 1}, [{"x": 1}, None, None]], ids=repr)
def test_names_lead_only_to_what_is_registered(name, state):
    error = refused(sealed_body((0, Ext(Code.OBJECT, pack([name, state])))))
    assert isinstance(error, UnsupportedFormat)


@pytest.mark.parametrize(
    "state",
    [
        *(
            None,
            5,
            "x",
            [],
            {},
            [{}],
            [[], None, None],
            [{"y": 1}, None, None],
            [{"x": 1}, {"y": 1}],
            [{"x": 1}, 5, None],
        ),
        *([{"x": 1}, {5: 1}, None], [{"x": 1}, {"__class__": 1, "__dict__": 2}, None], [{}, None, 5]),
    ],
    ids=repr,
)
def test_states_of_a_known_class(state):
    name = f"{Known.__module__}.{Known.__qualname__}"
    blob = sealed_body((0, Ext(Code.OBJECT, pack([name, state]))))
    try:
        value = decode(blob)
    except (CorruptData, UnsupportedFormat):
        return
    assert type(value) is Known


def test_unknown_codes():
    for code in set(range(-128, 128)) - set(CODES) - {-1}:
        assert "unknown type" in str(refused(sealed_body((0, Ext(code, b"abc")))))
    refused(sealed_body((5, None)))
    refused(sealed_body((1, None)))
    refused(sealed_body((1, [None])))


ROW = msgspec.msgpack.decode(body_of(encode([Rollout(response_ids=[1, 2], response_model_steps=[1, 1])])))[1][
    0
]
ARRAYS = [np.arange(2, dtype=np.int32), np.ones(2, np.float32), np.ones(2, np.uint8)]


def test_the_row_of_these_tests_would_be_read():
    (rollout,) = decode(sealed_body((1, [ROW]), ARRAYS))
    assert rollout.response_ids.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("at", "value"),
    [
        *(
            (0, 1),
            (0, 2),
            (0, 3),
            (0, -1),
            (0, True),
            (0, "x"),
            (0, 1.0),
            (0, [0]),
            (1, 1),
            (1, False),
            (3, 0),
            (4, 0),
        ),
        *(
            (7, None),
            (7, [[1], [2, 3]]),
            (7, [[1], [0]]),
            (7, [[1], [-1]]),
            (7, [[1, 2], [2, 2]]),
            (7, [["a"], [2]]),
        ),
        *(
            (7, [[1], [2.0]]),
            (7, [[True], [2]]),
            (7, 5),
            (7, [[1]]),
            (7, [5, 6]),
            (8, None),
            (8, "0"),
            (8, 1.5),
        ),
        *((9, "nothing"), (9, None), (9, 5), (9, []), (10, "x"), (10, 1.5)),
    ],
    ids=repr,
)
def test_rows_that_no_rollout_has(at, value):
    row = [*ROW]
    row[at] = value
    refused(sealed_body((1, [row]), ARRAYS))
    refused(sealed_body((0, Ext(Code.ROLLOUT, pack(row))), ARRAYS))


def test_rows_of_other_lengths():
    assert isinstance(refused(sealed_body((1, [ROW[:-1]]), ARRAYS)), CorruptData)
    error = refused(sealed_body((1, [[*ROW, None]]), ARRAYS))
    assert isinstance(error, UnsupportedFormat)
    assert "upgrade reroll" in str(error)


# --- versions of the format


def test_a_newer_format_names_the_remedy():
    for version in (FORMAT_VERSION + 1, 255):
        error = refused(BLOB[:3] + bytes([version]) + BLOB[4:])
        assert isinstance(error, UnsupportedFormat)
        assert "upgrade reroll" in str(error)
    assert isinstance(refused(BLOB[:3] + bytes([0]) + BLOB[4:]), CorruptData)


def test_what_is_no_bytes():
    for blob in (None, "text", 5, [1], memoryview(bytes(200))[::2]):
        refused(blob)


def test_a_blob_of_the_first_version_is_still_read():
    """These bytes were written once and stay readable for ever."""
    value = {"a": [1, (2.5, None)], 3: np.arange(3, dtype=np.int32)}
    blob = bytes.fromhex(FIRST)
    restored = decode(blob)
    assert list(restored) == ["a", 3]
    assert restored["a"] == value["a"]
    assert restored[3].tolist() == [0, 1, 2]
    assert encode(value) == blob


FIRST = (
    "52524c01bb321994040000001f000000919203039200c71a0494a1619201c70b0192cb4004000000000000c003d62000"
    "000000000000000000000000000000000000000001000000020000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000"
)
