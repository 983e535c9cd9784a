"""Reports of groups that leave without having been trained."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from reroll.engine.ledger import Dropped
from reroll.testing.buffer.builders import (
    ABORTED,
    COMPLETED,
    EXPIRED,
    FAILED,
    FILTERED,
    New,
    bucket,
    group,
    put_all,
)
from reroll.testing.buffer.hooks import Hooks

REASONS: Final = ("expired", "evicted", "deleted", "failed", "filtered", "lost")


class DropLog:
    """An `on_drop` that writes a line for each call to a file, which other processes can read; fails then, if asked."""

    def __init__(self, path: str | Path, *, fails: bool = False) -> None:
        self.path = str(path)
        self.fails = fails

    def __call__(self, dropped: Sequence[Dropped]) -> None:
        with Path(self.path).open("a") as file:
            file.write(json.dumps(dropped) + "\n")
        if self.fails:
            raise RuntimeError("on_drop of a test")

    def calls(self) -> list[list[Dropped]]:
        """Return the arguments of all calls so far."""
        if not Path(self.path).exists():
            return []
        lines = Path(self.path).read_text().splitlines()
        return [[Dropped(*dropped) for dropped in json.loads(line)] for line in lines]

    def drops(self) -> list[tuple[str, Any, str]]:
        """Return task, group_id and reason of all dropped groups, sorted."""
        return sorted((d.task_name, d.group_id, d.reason) for call in self.calls() for d in call)


class DropSuite(Hooks):
    """What `on_drop` of the configuration is called with."""

    async def test_on_drop_reports_deleted_and_forgotten_groups(self, new: New, tmp_path: Path) -> None:
        log = DropLog(tmp_path / "drops")
        buffer = await new(on_drop=log)
        uids = await put_all(
            buffer, "t", group("a"), group("b", status=ABORTED), group("c"), group("d", status=FAILED)
        )
        await buffer.delete([uids[0]])
        assert log.calls() == [[Dropped(uids[0], "t", "a", "deleted")]]
        await buffer.get(1, "t", ABORTED)
        await buffer.forget([uids[1]])
        assert log.calls()[1:] == [[Dropped(uids[1], "t", "b", "deleted")]]
        await buffer.delete({"status": "failed"})
        assert await buffer.delete({}) == 1
        await buffer.delete({})
        assert log.drops() == [("t", name, "deleted") for name in "abcd"]

    async def test_on_drop_reports_expired_groups_in_one_call(self, new: New, tmp_path: Path) -> None:
        log = DropLog(tmp_path / "drops")
        buffer = await new(on_drop=log)
        stale = [await buffer.put(group(name, versions=1), "t", put_id=name) for name in "ab"]
        await buffer.put(group("c", versions=5), "t")
        refresh = {"task_stale_thresholds": {"t": 3}, "current_train_step": 6}
        await buffer.refresh_staleness(**refresh, expired_groups_retryable_by_task={"t": False})
        assert log.drops() == [("t", name, "expired") for name in "ab"]
        assert sorted(d.uid for call in log.calls() for d in call) == sorted(stale)
        late = {"current_train_step": 6, "stale_threshold": 3, "expired_groups_retryable": False}
        assert await buffer.put(group("d", versions=1), "t", **late) is None
        assert log.drops() == [("t", name, "expired") for name in "abd"]
        assert await buffer.put(group("e", versions=1), "t", **{**late, "expired_groups_retryable": True})
        assert await buffer.count("t", EXPIRED) == 1
        assert len(log.drops()) == 3

    async def test_on_drop_reports_groups_that_a_newcomer_evicts(self, new: New, tmp_path: Path) -> None:
        log = DropLog(tmp_path / "drops")
        buffer = await new(on_drop=log, capacity=2, remover="fifo", rejected_capacity=1)
        await put_all(buffer, "t", group("a"), group("b"), group("c"))
        assert log.drops() == [("t", "a", "evicted")]
        await put_all(buffer, "u", group("d", status=FAILED), group("e", status=FILTERED))
        await put_all(buffer, "u", group("f", status=FAILED))
        assert log.drops()[1:] == [("u", "d", "failed"), ("u", "e", "filtered")]
        uncomfortable = await new(on_drop=log, capacity=1, remover="lifo")
        await put_all(uncomfortable, "v", group("g"), group("h"))
        assert log.drops()[3:] == [("v", "h", "evicted")]

    async def test_on_drop_reports_no_group_that_was_trained(self, new: New, tmp_path: Path) -> None:
        log = DropLog(tmp_path / "drops")
        buffer = await new(on_drop=log, max_times_sampled=2)
        await put_all(buffer, "t", *(group(name, versions=1) for name in "abcdefg"))
        await buffer.sample(1, "t")
        await buffer.get(2, "t", COMPLETED)
        assert log.calls() == []
        await buffer.delete({})
        books = (await buffer.ledger())["t"]
        untrained = books["deleted"].groups - books["deleted"].trained_groups
        assert untrained >= 4
        assert [reason for _, _, reason in log.drops()] == ["deleted"] * untrained

    async def test_on_drop_agrees_with_the_ledger(self, new: New, tmp_path: Path) -> None:
        log = DropLog(tmp_path / "drops")
        buffer = await new(on_drop=log, capacity=9, remover="fifo", rejected_capacity=3)
        for number in range(60):
            status = (COMPLETED, ABORTED, COMPLETED, FAILED, FILTERED)[number % 5]
            await buffer.put(group(number, versions=number // 5, status=status), "t")
            if number % 7 == 0:
                await buffer.get(1, "t", COMPLETED)
            if number % 13 == 0:
                await buffer.refresh_staleness(
                    task_stale_thresholds={"t": 3},
                    current_train_step=number // 5 + 1,
                    expired_groups_retryable_by_task={"t": False},
                )
            if number % 11 == 0:
                await buffer.delete({"status": "aborted"})
        counted = Counter(reason for _, _, reason in log.drops())
        for reason in REASONS:
            amount = await bucket(buffer, reason)
            assert counted[reason] == amount.groups - amount.trained_groups
        assert counted["expired"]
        assert counted["evicted"]
        assert counted["failed"]

    async def test_an_exception_of_on_drop_is_not_raised(self, new: New, tmp_path: Path) -> None:
        log = DropLog(tmp_path / "drops", fails=True)
        buffer = await new(on_drop=log)
        await put_all(buffer, "t", group("a"), group("b"))
        assert await buffer.delete({}) == 2
        assert await buffer.put(group("c"), "t")
        assert log.drops() == [("t", "a", "deleted"), ("t", "b", "deleted")]
