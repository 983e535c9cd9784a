"""Files that somebody made up, checksums included: nothing in them is run, and whatever they say is a typed error."""

import base64
import contextlib
import copy
import json
import math
import pickle
import random
import shutil
import tempfile
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reroll
from durable_errors.samples import (
    TASK,
    config,
    group,
    payload,
    records,
    replace_in_row,
    replace_payload,
    replace_record,
    replace_state,
    row_of,
    state,
)
from reroll import CorruptData, RerollError, Rollout, UnsupportedFormat
from reroll.buffer.group import Record
from reroll.codec import encode
from reroll.codec.frame import Code, join

RAN: list[str] = []


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return RAN.append, ("code was run",)


@reroll.register
@dataclass
class Late:
    """A registered class that is no rollout."""

    value: Any = None


@pytest.fixture(autouse=True)
def _nothing_was_run():
    RAN.clear()
    yield
    assert RAN == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Return where a durable buffer was saved, with something of everything."""
    directory = tmp_path_factory.mktemp("whole")
    buffer = config(**CONFIG, store=directory / "store").build_blocking()
    for number in range(1, 9):
        buffer.put(group(number), TASK, put_id=number, tags={"part": number}, model_step=number % 3)
    buffer.put(group(9), TASK, current_train_step=9, model_step=0, stale_threshold=1)
    buffer.put([Rollout(status="aborted", response_ids=[1])], "other", model_step=1)
    buffer.sample(2, TASK, train_step=9)
    buffer.lease({TASK: 2}).take()
    buffer.get(1, TASK, "completed", train_step=10)
    buffer.get(1, "other", "aborted")
    buffer.refresh_staleness(task_stale_thresholds={TASK: 9}, current_train_step=10)
    buffer.save(directory / "saved")
    buffer.close()
    return Path(directory / "saved")


CONFIG: dict[str, Any] = {
    "sampler": {"type": "mixture", "fresh_share": 0.5},
    "remover": "stalest",
    "capacity": 50,
    "max_times_sampled": 3,
    "max_uncommitted_steps": 4,
}


@pytest.fixture
def crafted(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "crafted"))


def use_all(buffer: Any) -> None:
    """Call everything that looks at what was read."""
    for task in (TASK, "other"):
        buffer.refresh_staleness(task_stale_thresholds={task: 30}, current_train_step=12)
        buffer.count(task, "completed")
    buffer.query({"tags.part": {"$gt": 3}})
    buffer.query({}, order_by="group_id")
    buffer.ledger()
    buffer.stats()
    buffer.metrics()
    buffer.peek([row.uid for row in buffer.query({})])
    for lease in (1, 2):
        with contextlib.suppress(RerollError):
            buffer.ack_lease(lease)
    buffer.put(group(20), TASK, put_id="new", model_step=2, timeout=0)
    buffer.sample(2, TASK, allow_short=True, train_step=12)
    buffer.get(3, TASK, "completed", train_step=13)
    for status in ("aborted", "expired", "failed"):
        for task in (TASK, "other"):
            for items in buffer.get(10, task, status):
                buffer.put(items, task)
    buffer.commit(10)
    buffer.rewind(10)
    buffer.take_batch({TASK: 100})


def check_refusal(error: RerollError, buffer: Any, places: tuple[str, str]) -> None:
    """An error names the file, and a buffer that could not resume is as new."""
    if isinstance(error, CorruptData | UnsupportedFormat):
        assert any(place in str(error) for place in places), f"no file named: {error}"
    if buffer is not None and not len(buffer):
        assert buffer.put(group(1), TASK) == 1, "it was left half-way"


WAYS = ("resume", "skip", "reopen", "into a store")


def attempt(directory: Path, ways: tuple[str, ...] = WAYS, *, is_strict: bool = True) -> bool:
    """Resume and reopen what was made up, and use it; return whether it was refused. Only typed errors come out.

    Unless it is strict, an opened buffer may raise anything: its numbers were made up, together with their checksums.
    """
    refused = False
    for how in ways:
        with tempfile.TemporaryDirectory(dir=directory.parent) as place, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            store = {"into a store": Path(place) / "new", "reopen": Path(place) / "copy"}.get(how)
            if how == "reopen":
                shutil.copytree(directory, store)
            buffer = None
            try:
                buffer = config(**CONFIG, **({"store": store} if store else {})).build_blocking()
                if how != "reopen":
                    buffer.resume(directory, on_corrupt="skip" if how == "skip" else "raise")
                with contextlib.nullcontext() if is_strict else contextlib.suppress(Exception):
                    use_all(buffer)
            except RerollError as error:
                refused = True
                check_refusal(error, buffer if how in ("resume", "skip") else None, (str(directory), place))
            finally:
                if buffer is not None:
                    with contextlib.nullcontext() if is_strict else contextlib.suppress(RerollError):
                        buffer.close()
    return refused


def test_a_file_that_nobody_altered(crafted):
    assert not attempt(crafted)


# --- what would run code


PICKLED = pickle.dumps(Trap())
HOSTILE = {
    "a pickle": PICKLED,
    "a pickle in a frame": join(
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode([0, msgspec.msgpack.Ext(Code.PICKLE, PICKLED)]),
        [],
    ),
    "a pickled rollout": encode([Trap()] * 4, allow_pickle=True),
    "a class that is not registered": join(
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode(
            [
                0,
                msgspec.msgpack.Ext(
                    Code.OBJECT, msgspec.msgpack.encode(["builtins.eval", ["RAN.append(1)"]])
                ),
            ]
        ),
        [],
    ),
    "another class": encode([Late(1)] * 4),
    "no list": encode(5),
    "too few": encode(group(1)[:3]),
    "none at all": encode([]),
    "numbers": encode([1, 2, 3, 4]),
    "a rollout that is none": encode([Late([1]), *group(1)[:3]]),
    "nothing": b"",
    "text": b"text",
    "deep": join(msgspec.msgpack.encode([]), b"\x92\x00" + b"\x91" * 100_000 + b"\x00", []),
    "large": join(msgspec.msgpack.encode([]), b"\xdd\xff\xff\xff\xff", []),
    "an array without end": join(
        msgspec.msgpack.encode([["<i8", [1 << 40]]]), msgspec.msgpack.encode([0, 1]), []
    ),
    "a reference": join(
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode([0, msgspec.msgpack.Ext(Code.REF, msgspec.msgpack.encode(1))]),
        [],
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_payloads(crafted, name):
    replace_payload(crafted, 2, HOSTILE[name])
    assert attempt(crafted)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_ids_and_records(crafted, name, tmp_path):
    blob = HOSTILE[name]
    for number, values in enumerate(
        ({"group_id": {"encoded": blob}}, {"members": blob}, {"tags": blob.decode("latin-1")})
    ):
        directory = Path(shutil.copytree(crafted, tmp_path / str(number)))
        replace_in_row(directory, 2, **values)
        refused = attempt(directory, ("skip",))
        assert refused or "group_id" in values, "any value may be the id of a group"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_records_and_states(crafted, name, tmp_path):
    blob = HOSTILE[name]
    for number, (kind, key, value) in enumerate(
        [
            ("put_id", 1, msgspec.msgpack.encode((blob, 1))),
            ("put_id", 1, b"\x91" + blob),
            ("put_id", "1", msgspec.msgpack.encode((encode("a"), 1))),
            ("lease", 1, blob),
            ("lease", "1", b"\xc0"),
            ("uses", 1, blob),
            ("uses", b"1", records(crafted, "uses")[0][1]),
        ]
    ):
        directory = Path(shutil.copytree(crafted, tmp_path / str(number)))
        replace_record(directory, kind, key, value)
        refused = attempt(directory, ("resume",))
        assert refused or number == 0, "any hashable value may be the id of a put"
    replace_state(crafted, blob)
    assert attempt(crafted)


def test_an_id_that_is_not_hashable(crafted):
    replace_record(crafted, "put_id", 1, msgspec.msgpack.encode((encode([1, {"a": 2}]), 1)))
    assert attempt(crafted)


def test_a_newer_state(crafted):
    new = state(crafted)
    new["engine"]["format"] += 1
    replace_state(crafted, new)
    with pytest.raises(UnsupportedFormat, match=r"replay_buffer.sqlite.*format.*upgrade reroll"):
        config(**CONFIG).build_blocking().resume(crafted)


def test_the_state_of_something_else(crafted):
    new = state(crafted)
    new["kind"] = "table"
    replace_state(crafted, new)
    with pytest.raises(CorruptData, match=r"replay_buffer.sqlite.*not that of a replay buffer"):
        config(**CONFIG).build_blocking().resume(crafted)


# --- altered in structure

ODD = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        7,
        255,
        1 << 31,
        (1 << 31) - 1,
        1 << 40,
        (1 << 62),
        (1 << 63) - 1,
        -(1 << 63),
        (1 << 64) - 1,
    ),
    *(
        0.5,
        -1.0,
        math.inf,
        -math.inf,
        math.nan,
        1e308,
        "",
        "completed",
        "math",
        "9" * 400,
        "\x00",
        b"",
        b"\xff",
        [],
        {},
        [1],
        [[]],
    ),
    *([None] * 3, {"a": 1}, {1: 1}, {"": {}}, [{}, {}], {"sampler": {}, "remover": {}}),
]


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every part."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in inside for found in paths_of(part, (*path, key)))]


def mutated(value: Any, data: st.DataObject) -> Any:
    """Return a value with one part replaced, dropped, doubled or added."""
    value = copy.deepcopy(value)
    path = data.draw(st.sampled_from(paths_of(value)))
    how = data.draw(st.sampled_from(["replace", "replace", "drop", "add", "nudge"]))
    odd = copy.deepcopy(data.draw(st.sampled_from(ODD)))
    if not path:
        return odd
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    if how == "drop":
        del parent[key]
    elif how == "add" and isinstance(parent, list):
        parent.insert(key, odd)
    elif how == "add":
        parent["odd"] = odd
    elif how == "nudge" and isinstance(parent[key], int):
        parent[key] += data.draw(st.sampled_from([-1, 1, 100]))
    else:
        parent[key] = odd
    return value


def in_a_copy(whole: Path, way: str, alter: Any) -> None:
    with tempfile.TemporaryDirectory(dir=whole.parent) as place:
        directory = Path(shutil.copytree(whole, Path(place) / "crafted"))
        alter(directory)
        attempt(directory, (way,), is_strict=False)


ANY_WAY = st.sampled_from([*WAYS, "resume", "resume"])  # which is quick


@settings(max_examples=50)
@given(st.data())
def test_states_altered_in_structure(whole, data):
    new = mutated(state(whole), data)
    in_a_copy(whole, data.draw(ANY_WAY), lambda directory: replace_state(directory, new))


@settings(max_examples=25)
@given(st.data())
def test_records_of_groups_altered_in_structure(whole, data):
    uid = data.draw(st.sampled_from([1, 2, 9, 10]))
    found = record_of(whole, uid)
    new = msgspec.msgpack.encode(mutated(found, data))
    in_a_copy(whole, data.draw(ANY_WAY), lambda directory: replace_in_row(directory, uid, members=new))


@settings(max_examples=25)
@given(st.data())
def test_leases_and_uses_altered_in_structure(whole, data):
    kind = data.draw(st.sampled_from(["lease", "uses", "put_id"]))
    key, value = records(whole, kind)[0]
    new = msgspec.msgpack.encode(mutated(msgspec.msgpack.decode(value), data))
    in_a_copy(whole, data.draw(ANY_WAY), lambda directory: replace_record(directory, kind, key, new))


NUMBERS = [name for name in reroll.store.COLUMNS if name not in ("uid", "group_id", "tags", "members")]


@settings(max_examples=40)
@given(st.data())
def test_rows_with_numbers_that_cannot_be(whole, data):
    uid = data.draw(st.sampled_from([1, 2, 3, 9, 10]))
    names = data.draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=2, unique=True))
    fitting = [
        odd
        for odd in ODD
        if type(odd) in (int, float, str) and not (type(odd) is int and abs(odd) > 1 << 63 - 1)
    ]
    values = {name: data.draw(st.sampled_from(fitting)) for name in names}

    def alter(directory: Path) -> None:
        try:
            replace_in_row(directory, uid, **values)
        except Exception:  # noqa: BLE001  (no checksum is possible for it: the store finds that)
            shutil.rmtree(directory)
            shutil.copytree(whole, directory)

    in_a_copy(whole, data.draw(ANY_WAY), alter)


TAGS = [*ODD, {"a": [1]}, {"a": {"b": 1}}, ["a"], "[" * 100_000, "{", "nul", "NaN"]


def test_tags_that_cannot_be(whole):
    for odd in TAGS:
        if isinstance(odd, bytes):
            continue
        text = odd if isinstance(odd, str) else json.dumps(odd)
        in_a_copy(whole, "resume", lambda directory, text=text: replace_in_row(directory, 2, tags=text))


def test_uids_that_cannot_be(whole):
    for uid in (0, -5, 1000, (1 << 63) - 1):
        in_a_copy(whole, "reopen", lambda directory, uid=uid: replace_in_row(directory, 2, uid=uid))


def test_bytes_of_payloads_with_checksums_that_fit(whole):
    """The body of a payload altered anywhere, its checksums repaired: rollouts, or a typed error."""
    chance = random.Random(1)
    blob = payload(whole, 2)
    for number in range(16):
        altered = bytearray(blob)
        for _ in range(chance.choice([1, 1, 3])):
            altered[chance.randrange(8, len(blob))] = chance.randrange(256)
        body = bytes(altered[8:])
        new = blob[:4] + zlib.crc32(body).to_bytes(4, "little") + body
        in_a_copy(whole, WAYS[number % 4], lambda directory, new=new: replace_payload(directory, 2, new))


def record_of(directory: Path, uid: int) -> Any:
    found = msgspec.msgpack.decode(base64.b64decode(row_of(directory, uid)["members"]))
    assert len(found) == len(Record._fields)
    return found
