"""verify: whether a saved buffer or a durable store is whole: every checksum, and a ledger that closes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from typing import Final

from reroll.buffer.read_only import ReadOnlyBuffer
from reroll.buffer.recording import read_rows
from reroll.codec.frame import split
from reroll.engine.ledger import PUT, Amount, closes
from reroll.engine.rows import PLACES
from reroll.errors import CorruptData, RerollError, UnsupportedFormat
from reroll.store import COLUMNS, ROW, Saved, open_saved

_SHOWN: Final = 20
"""Of one kind of damage, so many are told one by one."""
_TASK, _PLACE, _TOKENS = (COLUMNS.index(name) for name in ("task", "place", "num_tokens"))

Progress = Callable[[int, int], None]
"""Is told how many groups were read, and of how many."""


@dataclass(slots=True)
class Verdict:
    """What was read, and what is wrong with it."""

    path: str
    groups: int = 0
    payload_bytes: int = 0
    facts: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(path: str | PathLike[str], progress: Progress = lambda _done, _total: None) -> Verdict:
    """Read all of a file as it is now, also while somebody writes it, and return what is wrong with it.

    Reads each group once and decodes none, so classes need not be registered. Raises SavedNotFound, UnsupportedFormat,
    StoreFailed: then nothing was found out.
    """
    try:
        saved = open_saved(path)
    except CorruptData as error:
        return Verdict(str(path), problems=[str(error)])
    with saved:
        verdict = Verdict(str(saved.path))
        for check in (_rows, _facts, _payloads, _ledger):
            try:
                verdict.problems += check(saved, verdict, progress)
            except CorruptData as error:
                verdict.problems.append(str(error))
        return verdict


def _rows(saved: Saved, verdict: Verdict, _progress: Progress) -> Iterator[str]:
    damaged: list[int] = []
    for _ in saved.records(ROW, damaged.append):
        verdict.groups += 1
    yield from _told("the rows of groups", damaged)


def _facts(saved: Saved, verdict: Verdict, _progress: Progress) -> Iterator[str]:
    for kind in saved.kinds():
        if kind == ROW:
            continue
        try:
            for _ in saved.records(kind):
                verdict.facts += 1
        except CorruptData as error:
            yield str(error)


def _payloads(saved: Saved, verdict: Verdict, progress: Progress) -> Iterator[str]:
    total = saved.commit().totals.get(ROW, 0)
    damaged: list[int] = []
    unread: list[int] = []
    for done, (uid, blob) in enumerate(saved.all_payloads(damaged.append), 1):
        try:
            split(blob)
        except UnsupportedFormat:
            unread.append(uid)
        except CorruptData:
            damaged.append(uid)
        verdict.payload_bytes += len(blob)
        progress(done, total)
    yield from _told("the rollouts of groups", damaged)
    if unread:
        yield f"the rollouts of {len(unread)} groups are of a newer format: read them with a newer reroll"
    here = set(saved.payload_uids())
    missing = [uid for uid, _ in saved.records(ROW, lambda _uid: None) if uid not in here]
    yield from _told("the rollouts of groups", missing, "missing")


def _ledger(saved: Saved, _verdict: Verdict, _progress: Progress) -> Iterator[str]:
    try:
        ledger = ReadOnlyBuffer(saved).ledger()
    except UnsupportedFormat as error:
        yield str(error)
        return
    except RerollError as error:
        yield f"its books cannot be read: {error}"
        return
    counted: dict[tuple[str, str], Amount] = {}
    for row in read_rows(saved):
        key = row[_TASK], row[_PLACE]
        counted[key] = counted.get(key, Amount()).plus(Amount(1, row[_TOKENS]))
    for task, books in ledger.items():
        if not closes(books):
            told = ", ".join(f"{bucket} {amount.groups}" for bucket, amount in books.items())
            yield f"the books of task {task!r} do not close: {PUT} is not the sum of the others ({told})"
        for place in PLACES:
            found, expected = counted.get((task, place), Amount()), books[place]
            if found[:2] != expected[:2]:
                yield (
                    f"the books of task {task!r} say {expected.groups} groups and {expected.tokens} tokens are {place}, and "
                    f"there are {found.groups} and {found.tokens}"
                )


def _told(what: str, uids: list[int], how: str = "damaged") -> Iterator[str]:
    if uids:
        shown = ", ".join(map(str, sorted(uids)[:_SHOWN]))
        more = f" and {len(uids) - _SHOWN} more" if len(uids) > _SHOWN else ""
        yield f"{what} {shown}{more} are {how}; restore the file from a copy, or resume with on_corrupt='skip'"
