"""Ray ObjectRefs inside of groups: what they stand for is stored once, beside the groups, as long as one refers to it.

In a blob a reference is a number. Objects of Ray never change, so a group is encoded at once and its objects are fetched
later, outside of the call: `Held.store` gives numbers, `blob` fetches. Records of kind "ref" hold the objects by number,
records of kind "holder" the numbers by group.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from reroll.codec import decode, encode
from reroll.errors import CorruptData, NotStorable, WaitTimeout, missing_extra
from reroll.store import MAX_PAYLOAD_BYTES, Record

OBJECT: Final = "ref"
HOLDER: Final = "holder"
Read = Callable[[int], bytes]
"""The stored object of a number, as bytes. Raises LookupError, CorruptData."""

_ROOT: Final = "object of a reference"
_read_numbers: Final = msgspec.msgpack.Decoder(list[int]).decode


class Objects:
    """Resolve references to the stored objects, for readers without Ray."""

    def __init__(self, read: Read, *, allow_pickle: bool = False) -> None:
        self._read = read
        self._allow_pickle = allow_pickle
        self._made: dict[int, Any] = {}

    def load(self, number: int) -> Any:
        """Return what a number stands for; the same object each time. Raises LookupError, CorruptData."""
        if number not in self._made:
            self._made[number] = self._make(decode(self._read(number), allow_pickle=self._allow_pickle))
        return self._made[number]

    def _make(self, value: Any) -> Any:
        return value


class PutAgain(Objects):
    """New references to what was stored."""

    def _make(self, value: Any) -> Any:
        return _ray().put(value)


class Whole:
    """Nothing in place of references, but a look whether what they stand for is there and whole."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._seen: set[int] = set()

    def load(self, number: int) -> None:
        """Look at it, once. Raises LookupError, CorruptData."""
        if number not in self._seen:
            self._read(number)
            self._seen.add(number)


class Held:
    """The references of one value that is encoded. They are known at least until `release`."""

    def __init__(self, references: "References") -> None:
        self._references = references
        self.numbers: set[int] = set()

    def store(self, ref: Any) -> int:
        """Return the number of a reference, the same for all who refer to it."""
        number = self._references.number_of(ref)
        if number not in self.numbers:
            self.numbers.add(number)
            self._references.use([number])
        return number

    def release(self) -> None:
        """Say that the value is stored, or will not be. Idempotent."""
        numbers, self.numbers = self.numbers, set()
        self._references.unuse(numbers)


class References:
    """All references of the groups of a buffer, by number. For several threads."""

    def __init__(self, read: Read, *, allow_pickle: bool = False) -> None:
        self._read = read
        self._allow_pickle = allow_pickle
        self._lock = threading.RLock()
        self._ref_of: dict[int, Any] = {}  # those that were seen or loaded
        self._number_of: dict[Any, int] = {}
        self._users: Counter[int] = Counter()  # groups, and values that are being encoded
        self._of_group: dict[int, tuple[int, ...]] = {}  # by uid; only groups that have any
        self._stored: set[int] = set()
        self._blobs: dict[int, bytes] = {}  # fetched, not yet stored
        self._changed: list[Record] = []  # to be written
        self._last = 0

    # --- what is encoded

    def number_of(self, ref: Any) -> int:
        """Return the number of a reference, which is a new one where it was never seen."""
        with self._lock:
            number = self._number_of.get(ref)
            if number is None:
                self._last = number = self._last + 1
                self._number_of[ref] = number
                self._ref_of[number] = ref
            return number

    def use(self, numbers: Iterable[int]) -> None:
        """Keep these until `unuse`."""
        with self._lock:
            self._users.update(numbers)

    def unuse(self, numbers: Iterable[int]) -> None:
        """Drop references without other users, and their stored objects."""
        with self._lock:
            for number in numbers:
                self._users[number] -= 1
                if not self._users[number]:
                    self._forget(number)

    def fetch(self, held: Held, deadline: float | None = None) -> None:
        """Fetch what is stored nowhere yet. Waits for Ray. Raises NotStorable, WaitTimeout."""
        for number in self.missing(held):
            blob = self.blob(number, deadline)
            with self._lock:  # others may have stored it meanwhile, or all have given it up
                if self._users[number] and number not in self._stored:
                    self._blobs[number] = blob

    def missing(self, held: Held) -> list[int]:
        """Return what is stored nowhere yet."""
        with self._lock:
            return sorted(held.numbers - self._stored - self._blobs.keys())

    def blob(self, number: int, deadline: float | None = None) -> bytes:
        """Return what a reference stands for, as bytes. Waits for Ray. Raises NotStorable, WaitTimeout."""
        ref, ray = self._ref_of[number], _ray()
        try:
            value = ray.get(ref, timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except ray.exceptions.GetTimeoutError as error:
            raise WaitTimeout(
                f"put timed out; nothing was changed. {ref} in the group is not ready"
            ) from error
        except Exception as error:  # the task that makes it has failed, or its node is gone
            raise NotStorable(
                f"cannot fetch {ref}: {type(error).__name__}: {error}; remove the reference and put again"
            ) from error
        blob = encode(value, root=_ROOT, allow_pickle=self._allow_pickle)
        if len(blob) > MAX_PAYLOAD_BYTES:
            raise NotStorable(
                f"what {ref} stands for takes {len(blob)} bytes, and {MAX_PAYLOAD_BYTES} can be stored; split it"
            )
        return blob

    # --- who refers to it

    def hold(self, uid: int, held: Held) -> None:
        """Learn that a group, as it is stored from now on, refers to these and to no others. They were fetched."""
        self._hold(uid, tuple(sorted(held.numbers)))

    def _hold(self, uid: int, numbers: tuple[int, ...]) -> None:
        with self._lock:
            old = self._of_group.pop(uid, ())
            if numbers:
                self.use(numbers)
                self._of_group[uid] = numbers
                self._changed.append((HOLDER, uid, msgspec.msgpack.encode(numbers)))
                for number in numbers:
                    if (blob := self._blobs.pop(number, None)) is not None:
                        self._changed.append((OBJECT, number, blob))
                        self._stored.add(number)
            elif old:
                self._changed.append((HOLDER, uid, None))
            self.unuse(old)

    def _forget(self, number: int) -> None:
        del self._users[number]
        ref = self._ref_of.pop(number, None)
        if ref is not None:
            del self._number_of[ref]
        self._blobs.pop(number, None)
        if number in self._stored:
            self._stored.discard(number)
            self._changed.append((OBJECT, number, None))

    def numbers(self) -> list[int]:
        """Return all that some group refers to."""
        return sorted({number for numbers in self._of_group.values() for number in numbers})

    # --- what is written, and comes back

    @property
    def has_changed(self) -> bool:
        """Whether something is to be written."""
        return bool(self._changed)

    def records(self, gone: Iterable[int]) -> list[Record]:
        """Return what is to be written since the last call, as these groups go."""
        with self._lock:
            if self._of_group:
                for uid in gone:
                    self._hold(uid, ())
            records, self._changed = self._changed, []
            return records

    def totals(self) -> dict[str, int]:
        """Return how many records of each kind there are."""
        return {HOLDER: len(self._of_group), OBJECT: len(self._stored)}

    def restore(self, holders: Iterable[tuple[int | str | bytes, bytes]]) -> None:
        """Know what is stored, by the records of kind "holder"."""
        for uid, record in holders:
            numbers = tuple(_read_numbers(record))
            if not isinstance(uid, int) or not numbers:
                raise CorruptData(f"references of a group {uid!r}: {numbers}")
            self._of_group[uid] = numbers
            self.use(numbers)
            self._stored.update(numbers)
            self._last = max(self._last, *numbers)

    def load(self, number: int) -> Any:
        """Return the reference of a number; its object is put where it is not there yet. Raises LookupError."""
        with self._lock:
            if (ref := self._ref_of.get(number)) is not None:
                return ref
        # Two who do this at once put it twice, and keep the first.
        made = _ray().put(decode(self._read(number), allow_pickle=self._allow_pickle))
        with self._lock:
            if not self._users[number]:
                return made  # of a group that has gone meanwhile
            ref = self._ref_of.setdefault(number, made)
            self._number_of[ref] = number
            return ref


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415  (optional)
    except ImportError as error:
        raise missing_extra("a group that holds Ray references", "ray", "ray") from error
    return ray


def nothing_is_stored(number: int) -> bytes:
    raise KeyError(number)
