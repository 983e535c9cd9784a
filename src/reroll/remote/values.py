"""Arguments and results as bytes: the codec, which also knows what the verbs of a buffer return.

Most are a few numbers and names; those are MessagePack as it is, which is several times quicker to write and to read.
"""

from typing import Any, Final

import msgspec

from reroll.buffer.reservations import Reservation
from reroll.codec import decode, encode, register
from reroll.engine.ledger import Amount
from reroll.engine.rows import Row
from reroll.errors import CorruptData
from reroll.sample import SampleInfo
from reroll.store import Blob
from reroll.telemetry.counters import Waiting, WaitStats
from reroll.telemetry.stats import (
    DiskUse,
    Distribution,
    Lengths,
    Limits,
    Magnitudes,
    OpenLease,
    ResponseStats,
    Stats,
    StatsWarning,
    TaskStats,
)

for _kind in (
    *(Amount, Row, SampleInfo, Reservation),
    *(Stats, TaskStats, ResponseStats, Distribution, Lengths, Magnitudes, WaitStats),
    *(Waiting, Limits, OpenLease, DiskUse, StatsWarning),
):
    register(_kind, name=f"reroll.{_kind.__name__}")


_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})
_PLAIN_OR_DICT: Final = _PLAIN | {dict}
_NAMES: Final = frozenset({str})
_ENCODED: Final = b"R"
"""How the codec begins. As MessagePack that would be a number, and those are never sent so."""
_write: Final = msgspec.msgpack.Encoder().encode
_read: Final = msgspec.msgpack.Decoder().decode


def to_bytes(value: Any, name: str = "value") -> bytes:
    """Return a value as bytes. Raises NotStorable, with the path under this name to what cannot be sent."""
    if _is_plain(value):
        try:
            return _write(value)
        except (OverflowError, UnicodeEncodeError):  # a large integer, broken text
            pass
    return encode(value, root=name)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a dict of numbers and names, or of dicts of these: MessagePack keeps such as they are."""
    return _is_flat(value, _PLAIN_OR_DICT) and all(
        _is_flat(inner, _PLAIN) for inner in value.values() if type(inner) is dict
    )


def _is_flat(value: Any, kinds: frozenset[type]) -> bool:
    return (
        type(value) is dict
        and _NAMES.issuperset(map(type, value))
        and kinds.issuperset(map(type, value.values()))
    )


def to_value(blob: Blob, *, max_bytes: int | None = None) -> Any:
    """Return the value again, of at most so many bytes; runs nothing that it reads. Raises CorruptData, UnsupportedFormat."""
    if blob[:1] == _ENCODED:
        return decode(blob, max_bytes=max_bytes)
    try:
        return _read(blob)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CorruptData(f"these bytes are no value: {error}") from None
