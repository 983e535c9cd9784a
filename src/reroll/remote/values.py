"""Arguments and results as bytes: the codec, which also knows what the verbs of a buffer return."""

from typing import Any

from reroll.buffer.flow import Wait
from reroll.buffer.reservations import Reservation
from reroll.buffer.stats import Distribution, Lengths, ResponseStats, Stats, TaskStats
from reroll.codec import decode, encode, register
from reroll.engine.ledger import Amount
from reroll.engine.rows import Row
from reroll.sample import SampleInfo

for _kind in (
    *(Amount, Row, SampleInfo, Reservation),
    *(Stats, TaskStats, ResponseStats, Distribution, Lengths, Wait),
):
    register(_kind, name=f"reroll.{_kind.__name__}")


def to_bytes(value: Any, name: str = "value") -> bytes:
    """Return a value as bytes. Raises NotStorable, with the path under this name to what cannot be sent."""
    return encode(value, root=name)


def to_value(blob: bytes | memoryview) -> Any:
    """Return the value again; runs nothing that it reads. Raises CorruptData, UnsupportedFormat."""
    return decode(blob)
