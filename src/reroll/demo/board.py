"""Where the trainer leaves its newest weights, and the producer finds them."""

import threading
from typing import Any

from reroll import Closed

Weights = dict[str, Any]


class Board:
    """The newest weights and their version. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version: int | None = None
        self._weights: Weights = {}
        self._is_closed = False

    def publish(self, version: int, weights: Weights) -> None:
        """Let these weights generate from now on."""
        with self._changed:
            self._version, self._weights = version, weights
            self._changed.notify_all()

    def version(self) -> int | None:
        """Return the version that generates now; None before the first."""
        return self._version

    def newest(self, *, other_than: int | None = None) -> tuple[int, Weights]:
        """Return the newest version and its weights; wait for another one. Raises Closed at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._version not in (None, other_than))
            if self._is_closed or self._version is None:
                raise Closed("training is over")
            return self._version, self._weights

    def clear(self) -> None:
        """Forget the weights; whoever asks for them waits for others."""
        with self._changed:
            self._version = None

    def close(self) -> None:
        """End all waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
