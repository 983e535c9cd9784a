"""Small values of the standard library, to and from what MessagePack holds."""

import re
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, Final
from uuid import UUID

from reroll.codec.limits import Refusal
from reroll.errors import CorruptData, UnsupportedFormat

_PATHS: Final[dict[str, type[PurePath]]] = {
    "path": Path,
    "posix": PurePosixPath,
    "windows": PureWindowsPath,
}
_PATH_NAMES: Final[dict[type, str]] = {
    type(Path()): "path",
    PurePosixPath: "posix",
    PureWindowsPath: "windows",
}
PATH_TYPES: Final = frozenset(_PATH_NAMES)
_DECIMAL: Final = re.compile(r"-?(?:\d+(?:\.\d*)?(?:E[+-]?\d+)?|s?NaN\d*|Infinity)", re.ASCII)


def write_complex(value: complex) -> list[Any]:
    return [value.real, value.imag]


def read_complex(written: list[Any]) -> complex:
    real, imaginary = written
    if type(real) is not float or type(imaginary) is not float:
        raise CorruptData(f"a complex number of {written!r}")
    return complex(real, imaginary)


def write_datetime(value: datetime) -> list[Any]:
    """Return the local time and its zone; raises Refusal for zones of other classes than the standard ones."""
    return [value.replace(tzinfo=None).isoformat(), value.fold, _write_zone(value.tzinfo)]


def _write_zone(zone: tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is timezone:
        offset: timedelta = zone.utcoffset(None)
        name = zone.tzname(None)
        return [*write_timedelta(offset), None if name == timezone(offset).tzname(None) else name]
    key = getattr(zone, "key", None)
    if type(zone).__module__ == "zoneinfo" and type(key) is str:
        return key
    raise Refusal(
        f"a time in a zone of class {type(zone).__name__}; use datetime.timezone or zoneinfo.ZoneInfo"
    )


def read_datetime(written: list[Any]) -> datetime:
    text, fold, zone = written
    return datetime.fromisoformat(text).replace(fold=fold, tzinfo=_read_zone(zone))


def _read_zone(zone: Any) -> tzinfo | None:
    if zone is None:
        return None
    if type(zone) is str:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415  (nobody else needs it)

        try:
            return ZoneInfo(zone)
        except ZoneInfoNotFoundError as error:
            raise UnsupportedFormat(f"time zone {zone!r} is not known here; install tzdata") from error
    *offset, name = zone
    if offset == [0, 0, 0] and name is None:
        return timezone.utc  # noqa: UP017  (datetime.UTC is the same object)
    return timezone(read_timedelta(offset)) if name is None else timezone(read_timedelta(offset), name)


def write_timedelta(value: timedelta) -> list[Any]:
    return [value.days, value.seconds, value.microseconds]


def read_timedelta(written: list[Any]) -> timedelta:
    days, seconds, microseconds = written
    if not {type(days), type(seconds), type(microseconds)} <= {int}:
        raise CorruptData(f"a duration of {written!r}")
    return timedelta(days, seconds, microseconds)


def read_date(written: str) -> date:
    return date.fromisoformat(written)


def read_uuid(data: bytes) -> UUID:
    return UUID(bytes=data)


def read_decimal(written: str) -> Decimal:
    if _DECIMAL.fullmatch(written) is None:
        raise CorruptData(f"a decimal number of {written!r}")
    return Decimal(written)


def write_path(value: PurePath) -> list[Any]:
    return [_PATH_NAMES[type(value)], str(value)]


def read_path(written: list[Any]) -> PurePath:
    kind, text = written
    return _PATHS[kind](text)
