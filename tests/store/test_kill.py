"""After kill -9 a durable store holds what was acknowledged, each change as a whole; a checkpoint is the old or the new."""

import random

import pytest

from reroll.store import FILE_NAME, open_saved, open_store, write_snapshot
from store.samples import change, contents, start, stored_keys, written

# Change n: row and payload n, and fact and state n; the rows of all multiples of 10 go with the next.
WRITER = """
from reroll.store import open_store
from store.samples import change, gone
store, first = open_store(sys.argv[1], sync=sys.argv[2]), int(sys.argv[3])
for number in range(first, first + 100_000):
    one = change(number, 20_000)
    if number % 10 == 1 and number > 1:
        one.records += gone(number - 1).records
        one.payloads += gone(number - 1).payloads
    if number - first > 20:
        credit = sys.stdin.readline()  # so that it is never far ahead
    store.write(one, lambda error, number=number: print(number, error, flush=True))
"""


def acknowledged_before_the_kill(directory, sync, first, count):
    """Let a process write, kill it after it has acknowledged `count` changes, and return the last that it did."""
    with start(WRITER, directory, sync, first) as process:
        last = first - 1

        def read():
            number, error = process.stdout.readline().split()
            assert (int(number), error) == (last + 1, "None")
            return int(number)

        process.stdin.write("\n" * count)
        process.stdin.flush()
        for _ in range(count):
            last = read()
        process.kill()
        for line in process.stdout:  # what it had told before the end
            if line.endswith("None\n"):
                last = int(line.split()[0])
    return last


def test_acknowledged_changes_survive(tmp_path):
    chance = random.Random(5)
    last = 0
    for kill in range(10):
        last_told = acknowledged_before_the_kill(
            tmp_path, ("os", "disk")[kill % 2], last + 1, chance.randrange(1, 40)
        )
        with open_saved(tmp_path) as saved:
            found = contents(saved)
        with open_store(tmp_path) as store:
            rows = stored_keys(store)
        last = max(rows)
        assert last >= last_told, "acknowledged, and lost"
        expected = [uid for uid in range(1, last + 1) if uid % 10 or uid == last]
        assert rows == expected, "in order, without gaps"
        assert list(found["payloads"]) == expected, "row and payload together"
        assert found["records"]["state"] == [(0, b"state %d" % last)]
        assert [key for key, _ in found["records"]["put_id"]] == [
            f"put {uid:06}" for uid in range(1, last + 1)
        ]


CHECKPOINTER = """
from reroll.store import write_snapshot
from store.samples import change
def changes():
    for number in range(1000, 2000):
        yield change(number, 50_000)
        print(number, flush=True)
        sys.stdin.readline()
write_snapshot(sys.argv[1], changes())
"""


@pytest.mark.parametrize("count", [1, 3, 40])
def test_a_checkpoint_that_is_killed_leaves_the_old_one(tmp_path, count):
    write_snapshot(tmp_path, [change(1)])
    (tmp_path / "other").write_text("somebody else's")
    with open_saved(tmp_path) as saved:
        before = contents(saved)
    with start(CHECKPOINTER, tmp_path) as process:
        for _ in range(count):
            process.stdout.readline()
            process.stdin.write("\n")
            process.stdin.flush()
        process.stdout.readline()
        process.kill()
    with open_saved(tmp_path) as saved:
        assert contents(saved) == before
    assert len(list(tmp_path.iterdir())) > 2, "it was killed in the middle"
    write_snapshot(tmp_path, [change(2)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", FILE_NAME], "leftovers are gone"
    with open_saved(tmp_path) as saved:
        assert list(contents(saved)["payloads"]) == [2]


def test_a_checkpoint_over_a_store_that_was_killed(tmp_path):
    acknowledged_before_the_kill(tmp_path, "os", 1, 5)
    assert (tmp_path / f"{FILE_NAME}-wal").stat().st_size > 0
    write_snapshot(tmp_path, [change(7)])
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME], (
        "the old log is not taken for the new one's"
    )
    with open_saved(tmp_path) as saved:
        assert list(contents(saved)["payloads"]) == [7]


def test_a_store_that_was_killed_can_be_continued(tmp_path):
    last = acknowledged_before_the_kill(tmp_path, "os", 1, 5)
    with open_store(tmp_path) as store:
        written(store, change(1000))
        assert last in stored_keys(store)
