"""The file of a steady buffer does not grow without end, nor does its log."""

from reroll.store import FILE_NAME, Change, folding, open_saved, open_store
from store.samples import blob, row, written


def test_a_steady_buffer_keeps_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(folding, "LOG_BYTES", 2 << 20)
    file, log = tmp_path / FILE_NAME, tmp_path / f"{FILE_NAME}-wal"
    sizes, logs = [], []
    with open_store(tmp_path) as store:
        for turn in range(200):
            uids = range(turn * 10, turn * 10 + 10)
            written(
                store,
                *(
                    Change(
                        rows=[row(uid)],
                        payloads=[(uid, blob(uid, 20_000 + uid % 7 * 3000))],
                        gone=[uid - 50],
                        facts=[("put_id", uid, b"1"), ("put_id", uid - 50, None)],
                    )
                    for uid in uids
                ),
            )
            sizes.append(file.stat().st_size)
            logs.append(log.stat().st_size)
        assert len(list(store.rows())) == 50
    held = 50 * 38_000
    assert max(sizes[20:]) <= 1.1 * max(sizes[:20])
    assert file.stat().st_size < 3 * held
    assert max(logs) < 8 * (2 << 20)  # of 100 MB that went through it
    assert not log.exists()


def test_the_log_is_folded_aside_while_somebody_reads_and_after(tmp_path, monkeypatch):
    monkeypatch.setattr(folding, "LOG_BYTES", 1 << 20)
    file, log = tmp_path / FILE_NAME, tmp_path / f"{FILE_NAME}-wal"

    def write(store, first):
        for turn in range(first, first + 30):
            uids = range(turn * 10, turn * 10 + 10)
            written(
                store,
                *(
                    Change(rows=[row(uid)], payloads=[(uid, blob(uid, 30_000))], gone=[uid - 50])
                    for uid in uids
                ),
            )

    with open_store(tmp_path) as store:
        write(store, 0)
        with store.begin_copy() as copy:  # holds up the log: what it sees must stay
            write(store, 30)
            held_up = log.stat().st_size
            copy.run(tmp_path / "copy")
        write(store, 60)
        assert log.stat().st_size < held_up
        uids = [row[0] for row in store.rows()]
        assert uids == list(range(850, 900))
        assert list(map(len, store.read(uids))) == [len(blob(uid, 30_000)) for uid in uids]
    assert not log.exists()
    with open_saved(tmp_path / "copy") as copied:
        assert [row[0] for row in copied.rows()] == list(range(250, 300))
    assert file.stat().st_size < 5 << 20
