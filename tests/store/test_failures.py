"""Disks that are full and directories that cannot be written to: typed errors, nothing lost, reading goes on."""

import os
import pickle
import subprocess

import pytest

from reroll.errors import SavedNotFound, StoreFailed
from reroll.store import FILE_NAME, Change, open_saved, open_store, write_snapshot
from store.samples import blob, change, contents, copy_to, start, stored_keys, written


def test_a_full_disk_fails_the_store(small_disk):
    with open_store(small_disk) as store:
        written(store, change(1))
        answers = []
        for uid in range(2, 60):
            store.write(change(uid, 200_000), answers.append)
        with pytest.raises(StoreFailed, match=r"full.*space on the disk") as caught:
            written(store, change(60))
        assert {answer for answer in answers if answer is not None} == {caught.value}, "the same for all"
        acknowledged = 1 + answers.count(None)
        assert answers[: acknowledged - 1] == [None] * (acknowledged - 1), "and nothing after it"
        with pytest.raises(StoreFailed):
            written(store, Change())
        assert store.error is caught.value
        assert len(store.read(range(1, acknowledged + 1))) == acknowledged, "reading goes on"
        with open_saved(small_disk) as saved:
            assert len(contents(saved)["payloads"]) == acknowledged
    with open_store(small_disk) as store:
        assert len(stored_keys(store)) == acknowledged


def test_a_full_disk_leaves_the_old_checkpoint(small_disk):
    write_snapshot(small_disk, [change(1)])
    with pytest.raises(StoreFailed, match="space on the disk"):
        write_snapshot(small_disk, (change(uid, 200_000) for uid in range(2, 100)))
    assert [path.name for path in small_disk.iterdir()] == [FILE_NAME]
    with open_saved(small_disk) as saved:
        assert list(contents(saved)["payloads"]) == [1]
    write_snapshot(small_disk, [change(2)])


LIMITED = """
import resource, signal
from reroll.errors import StoreFailed
from reroll.store import Change, open_store, write_snapshot
from store.samples import blob, change, written
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
store = open_store(sys.argv[1])
written(store, change(1))
try:
    written(store, *(change(uid, 100_000) for uid in range(2, 50)))
except StoreFailed as error:
    print("store")
assert store.read([1]) == [blob(1)]
store.close()
write_snapshot(sys.argv[2], [change(1)])
try:
    write_snapshot(sys.argv[2], (change(uid, 100_000) for uid in range(2, 50)))
except StoreFailed as error:
    print("checkpoint")
"""


@pytest.mark.skipif(os.name == "nt", reason="limits of file sizes are POSIX")
def test_a_file_that_may_not_grow(tmp_path):
    with start(LIMITED, tmp_path / "store", tmp_path / "checkpoint") as process:
        assert process.communicate()[0].split() == ["store", "checkpoint"]
    assert process.returncode == 0
    for name in ("store", "checkpoint"):
        with open_saved(tmp_path / name) as saved:
            assert contents(saved)["payloads"][1] == blob(1)


def test_a_file_in_place_of_the_directory(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreFailed, match="cannot be"):
            open_store(place)
        with pytest.raises(StoreFailed, match="cannot be"):
            write_snapshot(place, [])


@pytest.fixture
def read_only(tmp_path):
    """Yield a function that makes a directory read-only, for root as well."""
    mounted = []

    def make(directory):
        if os.geteuid() != 0:
            directory.chmod(0o555)
        else:
            for options in (["--bind"], ["-o", "remount,bind,ro"]):
                try:
                    command = ["mount", *options, str(directory), str(directory)]
                    subprocess.run(command, check=True, capture_output=True)
                except (OSError, subprocess.CalledProcessError):
                    pytest.skip("root writes everywhere, and may not mount here")
                if not mounted:
                    mounted.append(directory)
        return directory

    yield make
    for directory in mounted:
        subprocess.run(["umount", str(directory)], check=True)  # noqa: S607


def test_a_directory_that_cannot_be_written_to(tmp_path, read_only):
    directory = tmp_path / "directory"
    with open_store(directory) as store:
        written(store, change(1))
        copy_to(store, directory / "copy")
    read_only(directory)
    with pytest.raises(StoreFailed, match="permissions"):
        open_store(directory)
    with pytest.raises(StoreFailed, match="permissions"):
        write_snapshot(directory, [])
    for place in (directory, directory / "copy"):
        with open_saved(place) as saved:
            assert list(contents(saved)["payloads"]) == [1], "what is at rest can be read there"


def test_nothing_was_saved(tmp_path):
    for place in (tmp_path, tmp_path / "no", tmp_path / FILE_NAME):
        with pytest.raises(SavedNotFound, match=str(place)) as caught:
            open_saved(place)
        assert isinstance(pickle.loads(pickle.dumps(caught.value)), FileNotFoundError)  # noqa: S301
