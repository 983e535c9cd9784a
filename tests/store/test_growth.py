"""The file of a steady buffer does not grow without end, nor does its log."""

from reroll.store import FILE_NAME, Change, open_store
from reroll.store import durable as durable_module
from store.samples import blob, row, written


def test_a_steady_buffer_keeps_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(durable_module, "LOG_BYTES", 2 << 20)
    file, log = tmp_path / FILE_NAME, tmp_path / f"{FILE_NAME}-wal"
    sizes, logs = [], []
    with open_store(tmp_path) as store:
        for turn in range(60):
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
    assert max(logs) < 3 * (2 << 20)
    assert not log.exists()
