"""References to objects of a Ray cluster: how they are told, and who turns them into numbers and back."""

import sys
from typing import Any, Protocol


class RefWriter(Protocol):
    """Stores what references stand for, outside of the blob. The codec only writes the numbers."""

    def store(self, ref: Any) -> int:
        """Return the number under which a `RefReader` gives this reference, or its successor, again."""
        ...


class RefReader(Protocol):
    """Knows what the numbers of references in a blob stand for."""

    def load(self, number: int) -> Any:
        """Return the reference of a number; a number that was never given is a LookupError."""
        ...


def is_ref(value: Any) -> bool:
    """Tell whether a value is a Ray ObjectRef; where ray is not loaded, nothing is."""
    kind = getattr(sys.modules.get("ray"), "ObjectRef", None)
    return isinstance(kind, type) and isinstance(value, kind)
