"""Arguments, results and errors as bytes.

Most values are a dict of a few numbers and names: those are plain MessagePack, which is several times faster than the codec.
An error is the name of its class and its arguments. Only classes of a fixed list are created, so a peer cannot choose what
runs here.
"""

import builtins
from typing import Any, Final

import msgspec

from reroll import errors
from reroll.buffer.reservations import Reservation
from reroll.codec import decode, encode, register
from reroll.engine.ledger import Amount, LedgerReport
from reroll.engine.query import Row
from reroll.errors import CorruptData, RerollError
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
register(LedgerReport, name="reroll.Ledger", encode=dict, decode=LedgerReport)

_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})
_SCALARS_OR_DICT: Final = _SCALARS | {dict}
_NAMES: Final = frozenset({str})
_CODEC_MARK: Final = b"R"
"""First byte of the codec's output. As MessagePack it would be an integer, and values that are integers use the codec."""
MAX_PLAIN_BYTES: Final = 1 << 16
"""Larger values use the codec, which bounds the memory of what it decodes; plain MessagePack may grow 70-fold."""
_write: Final = msgspec.msgpack.Encoder().encode
_read: Final = msgspec.msgpack.Decoder().decode


def to_bytes(value: Any, name: str = "value") -> bytes:
    """Return a value as bytes. Raises NotStorable with the path to the part that cannot be encoded, under `name`."""
    if _is_flat(value, _SCALARS_OR_DICT) and all(
        _is_flat(inner, _SCALARS) for inner in value.values() if type(inner) is dict
    ):
        try:
            plain = _write(value)
        except (OverflowError, UnicodeEncodeError):  # a large integer, a lone surrogate
            pass
        else:
            if len(plain) <= MAX_PLAIN_BYTES:
                return plain
    return encode(value, root=name)


def _is_flat(value: Any, kinds: frozenset[type]) -> bool:
    """Return whether a value is a dict by name whose values have these types: MessagePack returns it unchanged."""
    return (
        type(value) is dict
        and _NAMES.issuperset(map(type, value))
        and kinds.issuperset(map(type, value.values()))
    )


def to_value(blob: Blob, *, max_bytes: int | None = None) -> Any:
    """Return the value of `to_bytes`; executes nothing that it reads.

    Args:
        blob: the bytes.
        max_bytes: memory that the decoded value may take.

    Raises:
        CorruptData: the bytes are not a value, or the value is too large.
        UnsupportedFormat: another version of reroll wrote them.

    """
    if blob[:1] == _CODEC_MARK:
        return decode(blob, max_bytes=max_bytes)
    if len(blob) > MAX_PLAIN_BYTES:
        raise CorruptData(f"plain value too large: {len(blob)} bytes, the limit is {MAX_PLAIN_BYTES}")
    try:
        return _read(blob)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CorruptData(f"value cannot be decoded: {error}") from None


_STANDARD: Final = (
    "ValueError",
    "TypeError",
    "KeyError",
    "RuntimeError",
    "ImportError",
    "NotImplementedError",
)
_ERRORS: Final[dict[str, type[Exception]]] = {
    **{name: getattr(builtins, name) for name in _STANDARD},
    **{
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, RerollError)
    },
}


def error_to_bytes(error: BaseException) -> bytes:
    """Return an error as bytes. An unknown class becomes its nearest known parent, and its name part of the message."""
    kind = next((kind for kind in type(error).__mro__ if _ERRORS.get(kind.__name__) is kind), RerollError)
    args: tuple[Any, ...] = error.args
    if kind is not type(error):
        args = (f"{type(error).__name__}: {error}",)
    try:
        return to_bytes((kind.__name__, args))
    except ValueError:  # an argument that cannot be encoded
        return to_bytes((kind.__name__, (str(error),)))


def to_error(blob: Blob) -> Exception:
    """Return the error of `error_to_bytes`. Raises CorruptData."""
    match to_value(blob):
        case (str(name), tuple(args)) if name in _ERRORS:
            return _ERRORS[name](*args)
    raise CorruptData("bytes are not an encoded error")
