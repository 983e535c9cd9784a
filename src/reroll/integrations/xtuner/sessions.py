"""Trace sessions of groups: those of a group that leaves untrained are released."""

import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from reroll.engine.ledger import Dropped

Release = Callable[[list[str]], Awaitable[object]]
"""A coroutine function that releases the sessions of these ids."""

_MODULE: Final = "xtuner.v1.rl.rollout.trace_store"
_FEWEST: Final = 1_024
_log = logging.getLogger("reroll")


class Sessions:
    """The `session_id`s of the groups in a buffer, by uid.

    They are released with `release`; without one, by xtuner's trace store, if the process has imported it.
    """

    def __init__(
        self,
        release: Release | None,
        on_drop: Callable[[list[Dropped]], object] | None,
        known: Callable[[int], object],
    ) -> None:
        self._release = release
        self._on_drop = on_drop
        self._known = known
        self._of: dict[int, list[str]] = {}
        self._limit = _FEWEST
        self._ended: list[str] = []

    def add(self, uid: int | None, sessions: list[str]) -> None:
        """Remember the sessions of a group that was put; a group without a uid was dropped."""
        if uid is None:
            self._ended += sessions
        elif sessions:
            self._of[uid] = sessions
            if len(self._of) > self._limit:  # most of these groups were trained meanwhile
                self._of = {uid: of for uid, of in self._of.items() if self._known(uid) is not None}
                self._limit = max(_FEWEST, 2 * len(self._of))

    def dropped(self, dropped: list[Dropped]) -> None:
        """Note the sessions of groups that left untrained; an `on_drop`."""
        for each in dropped:
            self._ended += self._of.pop(each.uid, ())
        if self._on_drop is not None:
            self._on_drop(dropped)

    async def release(self) -> None:
        """Release the sessions of the groups that left since the last call. A failure is logged."""
        ended, self._ended = self._ended, []
        release = self._release or getattr(sys.modules.get(_MODULE), "release_existing_sessions", None)
        if ended and release is not None:
            try:
                await release(ended)
            except Exception:  # noqa: BLE001  (of the user's function)
                _log.exception(
                    "%d sessions of dropped groups were not released; the buffer goes on", len(ended)
                )


def sessions_of(items: Sequence[Any] | Iterable[Any]) -> list[str]:
    """Return the session ids of rollouts, as texts."""
    found = (getattr(item, "session_id", None) for item in items)
    return [str(session) for session in found if session is not None]
