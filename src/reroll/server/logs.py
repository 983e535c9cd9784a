"""Logs of a server in lines: for people, or as JSON for machines, with all that is told besides the message."""

import json
import logging
import sys
import warnings
from typing import Any, Final, TextIO

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class PlainLines(logging.Formatter):
    """Time, level, message, and names with values."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        told = " ".join(f"{name}={value}" for name, value in _told(record).items())
        line = f"{self.formatTime(record)} {record.levelname.lower()} {record.getMessage()} {told}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line = {
            "time": record.created,
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **_told(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(*, as_json: bool) -> None:
    """Let the log of servers go to stderr, and what Python warns of, too: as lines like all others."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    log = logging.getLogger("reroll")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    warnings.showwarning = _log_warning


def _log_warning(  # noqa: PLR0917  (as Python calls it)
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    extra = {"kind": category.__name__, "at": f"{filename}:{lineno}"}
    logging.getLogger("reroll.server").warning("%s", message, extra=extra)


def _told(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}
