"""What viewers are sent: the points of the past, then a frame for each moment; each is written once, for all of them."""

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from reroll.observe import Moment, Poll

as_json: Final = msgspec.json.Encoder(enc_hook=str).encode


class Frames:
    """The moments of a poll as server-sent events."""

    def __init__(self, poll: Poll) -> None:
        self._poll = poll
        self.num_viewers = 0
        """Pages that are being sent events."""
        self._written: tuple[Moment | None, bytes] = None, b""

    async def events(self) -> AsyncIterator[bytes]:
        """Yield what one viewer is sent, as long as it looks."""
        self.num_viewers += 1
        try:
            points = [_point(moment) for moment in self._poll.history if moment.stats is not None]
            yield _event("history", points)
            async for moment in self._poll.moments():
                yield self._event_of(moment)
        finally:
            self.num_viewers -= 1

    def _event_of(self, moment: Moment) -> bytes:
        if self._written[0] is not moment:
            self._written = moment, self._write(moment)
        return self._written[1]

    def _write(self, moment: Moment) -> bytes:
        view = self._poll.view
        if moment.stats is None:
            return _event("problem", moment.error)
        told = {
            "source": view.title,
            "kind": view.kind,
            "point": _point(moment),
            "stats": moment.stats,
            "ledger": moment.ledger,
        }
        return _event("frame", told)


def _point(moment: Moment) -> dict[str, Any]:
    """Return what charts over time need of a moment that has stats."""
    stats, ledger = moment.stats, moment.ledger
    assert stats is not None  # noqa: S101  (asked for by the caller)
    return {
        "at": moment.at,
        "num_bytes": stats.num_bytes,
        "memory_bytes": stats.memory_bytes,
        "disk_bytes": None if stats.disk is None else stats.disk.file_bytes + stats.disk.log_bytes,
        "tasks": {
            name: {
                "statuses": {status: count for status, count in task.statuses.items() if count},
                "puts": task.num_puts,
                "used": task.trained.groups,
                "consumed": ledger[name]["consumed"].groups + ledger[name]["uncommitted"].groups,
            }
            for name, task in stats.tasks.items()
            if name in ledger
        },
    }


def _event(name: str, value: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), as_json(value))
