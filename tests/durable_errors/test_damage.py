"""What was altered on disk is told by group, with file and remedy, or passed over and counted; the rest stays usable."""

import re
import shutil
import sqlite3

import pytest

from durable.stores import picture, stalled, while_writing
from durable_errors.samples import (
    TASK,
    alter_payload,
    alter_row,
    check_books,
    config,
    filled,
    flip,
    group,
    kept,
    numbers,
    opened,
    payload,
    saved,
    state,
)
from reroll import CorruptData, SavedNotFound, StoreFailed, UnsupportedFormat, WaitTimeout
from reroll.store import FILE_NAME, open_store

# Who skips damaged groups is told which; tests/durable/test_resumed.py looks at that.
pytestmark = pytest.mark.filterwarnings("ignore:groups .* are damaged")


def never_used(buffer):
    """Whether a buffer is as it was made."""
    return len(buffer) == 0 and buffer.ledger() == {} and buffer.put(group(9), TASK) == 1


# --- payloads

BYTES_OF_A_PAYLOAD = pytest.mark.parametrize("at", [0, 5, 40, -1], ids=["magic", "checksum", "head", "end"])


@BYTES_OF_A_PAYLOAD
def test_a_damaged_group_is_told_at_resume(make, tmp_path, at):
    path = saved(make, tmp_path / "saved")
    alter_payload(path, 3, at)
    buffer = make()
    with pytest.raises(CorruptData, match=r'group 3 in .*replay_buffer.sqlite.*on_corrupt="skip"'):
        buffer.resume(path)
    assert never_used(buffer)


@BYTES_OF_A_PAYLOAD
@pytest.mark.parametrize("is_durable", [False, True])
def test_a_damaged_group_is_left_out_at_resume(make, tmp_path, at, is_durable):
    path = saved(make, tmp_path / "saved")
    alter_payload(path, 3, at)
    alter_payload(path, 5, at)
    buffer = make(store=tmp_path / "store") if is_durable else make()
    buffer.resume(path, on_corrupt="skip")
    assert buffer.uids() == [1, 2, 4, 6]
    assert check_books(buffer)["lost"].groups == 2
    buffer.save(tmp_path / "again")
    assert buffer.put(group(7), TASK) == 7, "uids are never used twice"
    again = make()
    again.resume(tmp_path / "again")
    assert check_books(again)["lost"].groups == 2
    assert again.take_all() == [1, 2, 4, 6]
    assert buffer.take_all() == [1, 2, 4, 6, 7]
    check_books(buffer)


def test_a_damaged_group_that_was_consumed_is_left_out_as_well(make, tmp_path):
    buffer = filled(make, max_uncommitted_steps=4)
    buffer.get(2, TASK, "completed", train_step=5)
    buffer.save(tmp_path)
    alter_payload(tmp_path, 2)
    again = make(max_uncommitted_steps=4)
    again.resume(tmp_path, on_corrupt="skip")
    ledger = check_books(again)
    assert (ledger["uncommitted"].groups, ledger["lost"].groups) == (1, 1)
    assert again.rewind(4) == 1
    check_books(again)
    assert again.take_all() == [1, 3, 4, 5, 6]


@BYTES_OF_A_PAYLOAD
def test_a_damaged_group_is_told_when_a_durable_buffer_hands_it_out(make, tmp_path, at):
    path = kept(make, tmp_path)
    alter_payload(path, 2, at)
    buffer = make(store=path)
    assert len(buffer) == 6
    message = r"group 2 in .*replay_buffer.sqlite is damaged.*delete\(\[2\]\) removes it"
    for call in (
        lambda: buffer.get(3, TASK, "completed"),
        lambda: buffer.peek([2]),
        lambda: buffer.lease({TASK: 3}),
        lambda: buffer.patch(2, reward=[1.0] * 4),
    ):
        before = buffer.ledger()
        with pytest.raises(CorruptData, match=message):
            call() if not hasattr(call(), "take") else call().take()
        assert buffer.ledger() == before
    assert buffer.delete([2]) == 1
    assert buffer.take_all() == [1, 3, 4, 5, 6]
    check_books(buffer)


def taken(lease):
    return lease.take() if hasattr(lease, "take") else lease


def handed_out(buffer, verb):
    """Ask for three groups, and return which came."""
    if verb == "get":
        return numbers(buffer.get(3, TASK, "completed"))
    samples = buffer.sample(3, TASK) if verb == "sample" else taken(buffer.lease({TASK: 3})).samples[TASK]
    return [sample.info.uid for sample in samples]


@BYTES_OF_A_PAYLOAD
@pytest.mark.parametrize("verb", ["get", "sample", "lease"])
def test_a_damaged_group_is_passed_over_by_a_durable_buffer(make, tmp_path, at, verb):
    path = kept(make, tmp_path)
    for uid in (2, 5):
        alter_payload(path, uid, at)
    buffer = make(store=path, on_corrupt="skip", max_times_sampled=2)
    with pytest.warns(UserWarning, match="group 2 in .* is damaged"):
        assert handed_out(buffer, verb) == [1, 3, 4], "as if it had not been there"
    assert buffer.ledger()[TASK]["lost"].groups == 1
    buffer.close()
    again = make(store=path, on_corrupt="skip", max_times_sampled=2)
    assert check_books(again)["lost"].groups == 1
    with pytest.warns(UserWarning, match="group 5 in .* is damaged"):
        assert 2 not in again.take_all()
    assert check_books(again)["lost"].groups == 2
    again.save(tmp_path / "saved")
    assert again.put(group(7), TASK) == 7


@pytest.mark.parametrize("verb", ["take_batch", "sample", "lease"])
def test_a_call_that_waits_goes_on_waiting_if_a_damaged_group_makes_it_short(make, tmp_path, verb):
    path = kept(make, tmp_path)
    alter_payload(path, 2)
    buffer = make(store=path, on_corrupt="skip")
    call = {
        "take_batch": lambda: buffer.take_batch({TASK: 6}, wait=True, train_step=5, timeout=0),
        "sample": lambda: buffer.sample(6, TASK, train_step=5, timeout=0),
        "lease": lambda: taken(buffer.lease({TASK: 6}, wait=True, train_step=5, timeout=0)),
    }[verb]
    with pytest.warns(UserWarning, match="group 2 in .* is damaged"), pytest.raises(WaitTimeout):
        call()
    ledger = check_books(buffer)
    assert (ledger["resident"].groups, ledger["lost"].groups, ledger["resident"].trained_groups) == (5, 1, 0)
    counters = state(path)["engine"]["tasks"][TASK]["counters"]
    assert (counters["inserts"], counters["samples"], counters["deletes"]) == (5, 0, 0)
    assert buffer.stats().tasks[TASK].trained.groups == 0
    assert buffer.put(group(7), TASK) == 7
    call()
    assert check_books(buffer)["lost"].groups == 1


@pytest.mark.parametrize("status", ["aborted", "failed"])
def test_damaged_groups_of_other_statuses_are_passed_over_as_well(make, tmp_path, status):
    buffer = make(store=tmp_path)
    for number in (1, 2, 3):
        rollouts = group(number)
        for item in rollouts:
            item.status = status
        buffer.put(rollouts, TASK)
    buffer.close()
    alter_payload(tmp_path, 1)
    again = make(store=tmp_path, on_corrupt="skip")
    with pytest.warns(UserWarning, match="group 1 in .* is damaged"):
        groups, counts = again.take_batch({TASK: 2}, group_status=status, wait=True, timeout=60)
    assert (numbers(groups[TASK]), counts) == ([2, 3], {TASK: 2})
    assert check_books(again)["lost"].groups == 1


async def test_a_batch_whose_step_is_committed_meanwhile_is_short_of_what_is_damaged(tmp_path):
    buffer = config(store=tmp_path).build()
    for number in (1, 2, 3):
        await buffer.put(group(number), TASK)
    await buffer.close()
    alter_payload(tmp_path, 2)
    buffer = config(store=tmp_path, on_corrupt="skip").build()
    with stalled(buffer):
        call = await while_writing(buffer.take_batch({TASK: 3}, wait=True, train_step=5))
        committing = await while_writing(buffer.commit(5))
    with pytest.warns(UserWarning, match="group 2 in .* is damaged"):
        groups, counts = await call
    assert await committing == 3
    assert (numbers(groups[TASK]), counts) == ([1, 3], {TASK: 2})
    await picture(buffer)
    await buffer.close()


def test_a_look_at_a_damaged_group_tells_of_it_also_where_it_is_passed_over(make, tmp_path):
    path = kept(make, tmp_path)
    alter_payload(path, 2)
    buffer = make(store=path, on_corrupt="skip")
    with pytest.warns(UserWarning, match="group 2"), pytest.raises(CorruptData, match=r"groups \[2\]"):
        buffer.peek([1, 2, 3])
    assert check_books(buffer)["lost"].groups == 1
    assert len(buffer.peek([1, 3])) == 2


@pytest.mark.parametrize("at", [0, 40, -1])
def test_a_durable_buffer_with_a_damaged_group_is_saved(make, tmp_path, at):
    path = kept(make, tmp_path / "store")
    alter_payload(path, 4, at)
    buffer = make(store=path, on_corrupt="skip")
    buffer.save(tmp_path / "saved")
    again = make()
    with pytest.raises(CorruptData, match="group 4"):
        again.resume(tmp_path / "saved")
    again.resume(tmp_path / "saved", on_corrupt="skip")
    assert again.uids() == [1, 2, 3, 5, 6]
    check_books(again)


# --- rows

DAMAGED_ROWS = pytest.mark.parametrize(
    ("column", "value"),
    [
        ("priority", 7.0),
        ("task", "other"),
        ("uses", "many"),
        ("members", b"\x00"),
        ("tags", None),
        ("uid", 77),
    ],
)


@DAMAGED_ROWS
def test_a_damaged_row_is_told(make, tmp_path, column, value):
    path = saved(make, tmp_path / "saved")
    store = kept(make, tmp_path / "store")
    for place in (path, store):
        alter_row(place, 2, column, value)
    uid = value if column == "uid" else 2
    message = rf'replay_buffer.sqlite.*row of group {uid} was altered.*copy.*on_corrupt="skip"'
    with pytest.raises(CorruptData, match=message):
        make(store=store)
    buffer = make()
    with pytest.raises(CorruptData, match=message):
        buffer.resume(path)
    assert never_used(buffer)


@DAMAGED_ROWS
@pytest.mark.parametrize("how", ["resume", "resume into a store", "reopen"])
def test_only_a_damaged_row_is_left_out(make, tmp_path, column, value, how):
    path = kept(make, tmp_path / "path")
    alter_row(path, 2, column, value)
    if how == "reopen":
        buffer = make(store=path, on_corrupt="skip")
    else:
        buffer = make(store=tmp_path / "store") if "store" in how else make()
        buffer.resume(path, on_corrupt="skip")
    assert buffer.uids() == [1, 3, 4, 5, 6]
    ledger = check_books(buffer)
    assert ledger["lost"] == (1, 28, 0, 0)
    buffer.save(tmp_path / "again")
    again = make()
    again.resume(tmp_path / "again")
    assert again.take_all() == [1, 3, 4, 5, 6]
    check_books(again)
    assert buffer.put(group(8), TASK) == 7
    if how != "resume":
        buffer.close()
        buffer = make(store=path if how == "reopen" else tmp_path / "store")
        assert check_books(buffer)["lost"].groups == 1
    assert buffer.take_all() == [1, 3, 4, 5, 6, 8]


def test_limits_follow_rows_that_are_left_out(make, tmp_path):
    path = saved(make, tmp_path, capacity=6)
    alter_row(path, 2, "uses", 5)
    buffer = make(capacity=6)
    buffer.resume(path, on_corrupt="skip")
    assert buffer.put(group(7), TASK, timeout=5) == 7
    with pytest.raises(TimeoutError):
        buffer.put(group(8), TASK, timeout=0)


def test_a_row_that_is_missing_is_told(make, tmp_path):
    path = saved(make, tmp_path)
    with opened(path) as connection:
        connection.execute("DELETE FROM records WHERE kind = 'row' AND key = 2")
    for on_corrupt in ("raise", "skip"):
        with pytest.raises(CorruptData, match="5 of 6"):
            make().resume(path, on_corrupt=on_corrupt)


# --- state, facts, the file


@pytest.mark.parametrize("kind", ["put_id", "lease", "uses"])
def test_damaged_facts_are_told(make, tmp_path, kind):
    buffer = filled(make, store=tmp_path, max_times_sampled=3)
    buffer.sample(2, TASK, train_step=5)
    batch = buffer.lease({TASK: 1})
    del batch
    if hasattr(buffer.target, "_target"):
        buffer.target.lease({TASK: 1}).take()
    buffer.close()
    with opened(tmp_path) as connection:
        found = connection.execute("UPDATE records SET value = x'c1' WHERE kind = ?", (kind,)).rowcount
    if not found:
        pytest.skip("closing gave it back")
    with pytest.raises(CorruptData, match=r"replay_buffer.sqlite is damaged.*restore the file"):
        make(store=tmp_path, max_times_sampled=3)
    with pytest.raises(CorruptData, match=r"replay_buffer.sqlite is damaged.*restore the file"):
        make(max_times_sampled=3).resume(tmp_path, on_corrupt="skip")


def test_a_damaged_state_is_told(make, tmp_path):
    path = kept(make, tmp_path)
    flip(path, b"last_reservation")
    for on_corrupt in ("raise", "skip"):
        with pytest.raises(CorruptData, match=r"replay_buffer.sqlite is damaged.*state.*restore the file"):
            make(store=path, on_corrupt=on_corrupt)
        with pytest.raises(CorruptData, match=r"replay_buffer.sqlite is damaged.*state.*restore the file"):
            make().resume(path, on_corrupt=on_corrupt)


def test_a_byte_in_the_file(make, tmp_path):
    path = saved(make, tmp_path)
    flip(path, payload(path, 4)[:200], 150)  # of the first group with this body
    buffer = make()
    with pytest.raises(CorruptData, match=r"group \d in ") as raised:
        buffer.resume(path)
    damaged = int(re.findall(r"group (\d) in ", str(raised.value))[0])
    buffer.resume(path, on_corrupt="skip")
    assert buffer.uids() == [uid for uid in range(1, 7) if uid != damaged]


@pytest.mark.parametrize("left", [0, 10, 100, 32768, -1])
def test_a_truncated_file(make, tmp_path, left):
    path = saved(make, tmp_path) / FILE_NAME
    path.write_bytes(path.read_bytes()[:left])
    buffer = make()
    with pytest.raises(CorruptData, match=r"replay_buffer.sqlite.*(truncated|damaged).*copy"):
        buffer.resume(path)
    with pytest.raises(CorruptData, match=r"replay_buffer.sqlite.*(truncated|damaged).*copy"):
        make(store=path.parent)
    assert never_used(buffer)


def test_a_newer_format(make, tmp_path):
    path = saved(make, tmp_path)
    with opened(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    buffer = make()
    with pytest.raises(UnsupportedFormat, match=r"replay_buffer.sqlite has format 99.*upgrade reroll"):
        buffer.resume(path)
    with pytest.raises(UnsupportedFormat, match=r"replay_buffer.sqlite has format 99.*upgrade reroll"):
        make(store=path)
    assert never_used(buffer)


def test_a_foreign_file(make, tmp_path):
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("CREATE TABLE users (name)")
    connection.close()
    with pytest.raises(UnsupportedFormat, match="another application"):
        make().resume(tmp_path)
    with pytest.raises(UnsupportedFormat, match="another application"):
        make(store=tmp_path)
    (tmp_path / FILE_NAME).write_text("no database at all " * 100)
    with pytest.raises(CorruptData, match="restore it from a copy"):
        make().resume(tmp_path)
    with pytest.raises(CorruptData, match="restore it from a copy"):
        make(store=tmp_path)


def test_nothing_there(make, tmp_path):
    buffer = make()
    for place in (tmp_path, tmp_path / "no", tmp_path / "no" / FILE_NAME):
        with pytest.raises(SavedNotFound, match=f"{place}.*nothing was saved there") as caught:
            buffer.resume(place)
        assert isinstance(caught.value, FileNotFoundError)
    assert never_used(buffer)


def test_a_path_that_is_a_file(make, tmp_path):
    file = tmp_path / "file"
    file.write_text("text")
    buffer = filled(make)
    for place in (file, file / "below"):
        with pytest.raises(StoreFailed, match=f"{place} cannot be"):
            buffer.save(place)
        with pytest.raises(StoreFailed, match=f"{place} cannot be"):
            make(store=place)
    with pytest.raises(CorruptData, match=f"{file}.*restore it from a copy"):
        make().resume(file)
    assert file.read_text() == "text"
    assert len(buffer) == 6
    path = saved(make, tmp_path / "saved")
    again = make()
    again.resume(path / FILE_NAME)
    assert len(again) == 6, "the file itself may be named as well"


def test_a_store_of_no_buffer_holds_nothing_to_resume(make, tmp_path):
    open_store(tmp_path).close()
    with pytest.raises(CorruptData, match=r"replay_buffer.sqlite holds no buffer; name the directory"):
        make().resume(tmp_path)


def test_a_resume_that_was_interrupted_leaves_an_empty_store(make, tmp_path):
    """Payloads are there, and a state from before: as after a crash within `resume`."""
    path = saved(make, tmp_path / "saved")
    store = make(store=tmp_path / "store")
    store.advance(1)
    store.close()
    blank = state(tmp_path / "store")
    assert blank["engine"]["last_uid"] == 0
    with opened(tmp_path / "store") as connection:
        connection.execute("ATTACH ? AS other", (str(path / FILE_NAME),))
        connection.execute("INSERT INTO payloads SELECT * FROM other.payloads")
    store = make(store=tmp_path / "store")
    assert len(store) == 0
    store.resume(path)
    assert len(store) == 6
    check_books(store)
    store.close()
    assert make(store=tmp_path / "store").take_all() == [1, 2, 3, 4, 5, 6]


def test_books_close_after_every_reopening(make, tmp_path):
    """What was lent or out when the process ended is back, once."""
    buffer = filled(make, store=tmp_path / "0", max_times_sampled=1)
    buffer.put([*group(7)][:1], TASK)
    if hasattr(buffer.target, "_target"):
        buffer.target.lease({TASK: 2}).take()
    else:
        buffer.lease({TASK: 2})
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    for number in range(3):
        again = make(store=tmp_path / "1", max_times_sampled=1)
        assert check_books(again)["resident"].groups == 7 + number
        again.put(group(10 + number), TASK)
        again.close()
