"""Log lines of a server: plain text for people, or JSON for programs, with all extra fields of a record."""

import json
import logging
import sys
import warnings
from typing import Any, Final, TextIO

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class PlainLines(logging.Formatter):
    """Time, level, message, and extra fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        extra = " ".join(f"{name}={value}" for name, value in _extra_of(record).items())
        line = f"{self.formatTime(record)} {record.levelname.lower()} {record.getMessage()} {extra}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line = {
            "time": record.created,
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **_extra_of(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(*, as_json: bool) -> None:
    """Write the log of servers, and Python's warnings, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    log = logging.getLogger("reroll")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    warnings.showwarning = _log_warning


def _log_warning(  # noqa: PLR0917  (Python's signature)
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    extra = {"kind": category.__name__, "at": f"{filename}:{lineno}"}
    logging.getLogger("reroll.server").warning("%s", message, extra=extra)


def _extra_of(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
