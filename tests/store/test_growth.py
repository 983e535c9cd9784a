"""The file of a steady buffer does not grow without end, nor does its log."""

import threading

from reroll.store import FILE_NAME, Change, copy_of, durable, open_saved, open_store, write_snapshot
from store.samples import blob, gone, keys, row, stored_keys, written


def test_a_steady_buffer_keeps_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "LOG_BYTES", 2 << 20)
    file, log = tmp_path / FILE_NAME, tmp_path / f"{FILE_NAME}-wal"
    sizes, logs = [], []
    with open_store(tmp_path) as store:
        for turn in range(200):
            uids = range(turn * 10, turn * 10 + 10)
            written(
                store,
                *(
                    Change(
                        records=[
                            row(uid),
                            ("put_id", uid, b"1"),
                            ("put_id", uid - 50, None),
                            *gone(uid - 50).records,
                        ],
                        payloads=[(uid, blob(uid, 20_000 + uid % 7 * 3000)), (uid - 50, None)],
                    )
                    for uid in uids
                ),
            )
            sizes.append(file.stat().st_size)
            logs.append(log.stat().st_size)
        assert len(stored_keys(store)) == 50
    held = 50 * 38_000
    assert max(sizes[20:]) <= 1.1 * max(sizes[:20])
    assert file.stat().st_size < 3 * held
    assert max(logs) < 8 * (2 << 20)  # of 100 MB that went through it
    assert not log.exists()


def test_the_log_is_folded_aside_while_somebody_reads_and_after(tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "LOG_BYTES", 1 << 20)
    file, log = tmp_path / FILE_NAME, tmp_path / f"{FILE_NAME}-wal"

    def write(store, first):
        for turn in range(first, first + 30):
            uids = range(turn * 10, turn * 10 + 10)
            written(
                store,
                *(
                    Change(
                        records=[row(uid), *gone(uid - 50).records],
                        payloads=[(uid, blob(uid, 30_000)), (uid - 50, None)],
                    )
                    for uid in uids
                ),
            )

    with open_store(tmp_path) as store:
        write(store, 0)
        with store.begin_copy() as copy:  # holds up the log: what it sees must stay
            write(store, 30)
            held_up = log.stat().st_size
            write_snapshot(tmp_path / "copy", copy_of(copy, None, threading.Event()))
        write(store, 60)
        assert log.stat().st_size < held_up
        uids = stored_keys(store)
        assert uids == list(range(850, 900))
        assert list(map(len, store.read(uids))) == [len(blob(uid, 30_000)) for uid in uids]
    assert not log.exists()
    with open_saved(tmp_path / "copy") as copied:
        assert keys(copied) == list(range(250, 300))
    assert file.stat().st_size < 5 << 20
