"""Ray ObjectRefs inside of groups: what they stand for is fetched and stored once, and put again when it is loaded."""

from collections.abc import Iterable
from typing import Any

from reroll.codec import decode, encode
from reroll.errors import CorruptData, UnsupportedFormat


class References:
    """A table of references by number. What they stand for is stored with `facts`."""

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self._allow_pickle = allow_pickle
        self._number_of: dict[Any, int] = {}
        self._ref_of: dict[int, Any] = {}
        self._blobs: dict[int, bytes] = {}  # of those that were stored before, and not loaded yet
        self._new: dict[int, bytes] = {}
        self.last = 0

    def store(self, ref: Any) -> int:
        """Return the number of a reference; its object is fetched when it is seen first."""
        number = self._number_of.get(ref)
        if number is None:
            import ray  # noqa: PLC0415  (whoever has a reference has it loaded)

            blob = encode(ray.get(ref), root="object of a reference", allow_pickle=self._allow_pickle)
            self.last = number = self.last + 1
            self._number_of[ref] = number
            self._ref_of[number] = ref
            self._new[number] = blob
        return number

    def load(self, number: int) -> Any:
        """Return the reference of a number; its object is put where it is not there yet. Raises LookupError."""
        ref = self._ref_of.get(number)
        if ref is None:
            value = decode(self._blobs[number], allow_pickle=self._allow_pickle)
            try:
                import ray  # noqa: PLC0415
            except ImportError as error:
                raise UnsupportedFormat(
                    "holds Ray references, and ray is not installed: pip install 'reroll[ray]'"
                ) from error
            ref = self._ref_of[number] = ray.put(value)
            self._number_of[ref] = number
            del self._blobs[number]
        return ref

    def facts(self, gone: Iterable[int]) -> Iterable[tuple[str, int | str | bytes, bytes | None]]:  # noqa: ARG002
        """Return what is to be written since the last call."""
        new, self._new = self._new, {}
        for number, blob in new.items():
            yield "ref", number, blob

    def write_again(self) -> None:
        """Let all that was loaded be written."""
        self._new.update(self._blobs)

    def restore(self, facts: Iterable[tuple[int | str | bytes, bytes]]) -> None:
        """Know what was written."""
        for number, blob in facts:
            if not isinstance(number, int):
                raise CorruptData(f"a reference has the number {number!r}; restore the file from a copy")
            self._blobs[number] = blob
            self.last = max(self.last, number)
