"""`verify`: check every checksum of a saved buffer or a durable store, and that its ledger closes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from typing import Final

from reroll.buffer.read_only import ReadOnlyBuffer
from reroll.buffer.records import check_payload, read_rows
from reroll.engine.ledger import PUT, Amount, closes
from reroll.engine.rows import PLACES
from reroll.errors import CorruptData, RerollError, UnsupportedFormat
from reroll.store import COLUMNS, ROW, Saved, open_saved

_SHOWN: Final = 20
"""Uids that a problem lists."""
_TASK, _PLACE, _TOKENS = (COLUMNS.index(name) for name in ("task", "place", "num_tokens"))

Progress = Callable[[int, int], None]
"""Receives the number of read groups and the total."""


@dataclass(slots=True)
class Verdict:
    """What was read, and its problems."""

    path: str
    groups: int = 0
    payload_bytes: int = 0
    facts: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def verify(path: str | PathLike[str], progress: Progress = lambda _done, _total: None) -> Verdict:
    """Read a whole file, also one in use, and return its problems.

    Reads each group once and decodes none, so classes need not be registered.

    Args:
        path: the directory of a saved or durable buffer.
        progress: receives the number of read groups and the total.

    Raises:
        SavedNotFound: the path has no saved buffer.
        UnsupportedFormat: another version of reroll wrote the file.
        StoreFailed: the file cannot be read.

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
    yield from _problem("the rows of groups", damaged)


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
    unsupported = 0
    for done, (uid, blob) in enumerate(saved.all_payloads(damaged.append), 1):
        try:
            check_payload(saved, uid, blob)
        except UnsupportedFormat:
            unsupported += 1
        except CorruptData:
            damaged.append(uid)
        verdict.payload_bytes += len(blob)
        progress(done, total)
    yield from _problem("the rollouts of groups", damaged)
    if unsupported:
        yield f"the rollouts of {unsupported} groups are of a newer format; read them with a newer reroll"
    here = set(saved.payload_uids())
    missing = [uid for uid, _ in saved.records(ROW, lambda _uid: None) if uid not in here]
    yield from _problem("the rollouts of groups", missing, "missing")


def _ledger(saved: Saved, _verdict: Verdict, _progress: Progress) -> Iterator[str]:
    try:
        ledger = ReadOnlyBuffer(saved).ledger()
    except UnsupportedFormat as error:
        yield str(error)
        return
    except RerollError as error:
        yield f"the ledger cannot be read: {error}"
        return
    counted: dict[tuple[str, str], Amount] = {}
    for row in read_rows(saved):
        key = row[_TASK], row[_PLACE]
        counted[key] = counted.get(key, Amount()).plus(Amount(1, row[_TOKENS]))
    for task, amounts in ledger.items():
        if not closes(amounts):
            buckets = ", ".join(f"{bucket} {amount.groups}" for bucket, amount in amounts.items())
            yield f"the ledger of task {task!r} does not close: {PUT} is not the sum of the other buckets ({buckets})"
        for place in PLACES:
            found, expected = counted.get((task, place), Amount()), amounts[place]
            if found[:2] != expected[:2]:
                yield (
                    f"the ledger of task {task!r} counts {expected.groups} groups and {expected.tokens} tokens as {place}, but "
                    f"the file has {found.groups} and {found.tokens}"
                )


def _problem(subject: str, uids: list[int], state: str = "damaged") -> Iterator[str]:
    if uids:
        shown = ", ".join(map(str, sorted(uids)[:_SHOWN]))
        more = f" and {len(uids) - _SHOWN} more" if len(uids) > _SHOWN else ""
        yield f"{subject} {shown}{more} are {state}; restore the file from a backup, or resume with on_corrupt='skip'"
