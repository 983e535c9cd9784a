"""Every exception that reroll raises.

RerollError
├── WouldBlock                         the engine cannot do this now; shells wait instead
├── WaitTimeout      (TimeoutError)    a wait ended by its timeout; the call stored and handed out nothing
├── UnknownUid       (KeyError)        no group has this uid (any more)
├── LeaseExpired     (TimeoutError)    groups of a lease were handed out again before it was acknowledged
├── Superseded       (RuntimeError)    a group that another producer has put since
├── Closed           (RuntimeError)    the table, buffer or preparer was shut down
├── ForkedProcess    (RuntimeError)    an object of the parent was used in a forked child
├── Unreachable      (ConnectionError)  the server did not answer for too long
├── ProtocolMismatch (ConnectionError)  the other side speaks another version, or is no reroll server
├── LimitReached     (RuntimeError)    a client has more calls or bytes under way than the server allows
├── StepGone         (LookupError)     a training step whose data every rank is done with
├── SourceEnded      (EOFError)        a source has ended, and what is left does not fill a training step
├── Deadlock         (RuntimeError)    a simulated run in which every part waits for another
├── LoopFailed       (RuntimeError)    a loop in the background failed; its error is the cause
├── NotEmpty         (RuntimeError)    a buffer that was used before cannot become another
├── InvalidArgument  (ValueError)      an argument that can never be right; nothing was changed
│   ├── InvalidPriority                a priority that is negative, NaN, infinite or no number
│   ├── InvalidConfig                  a configuration that can never proceed
│   ├── CannotRewind                   a training step that was committed or finalized is to be undone
│   ├── NotStorable  (TypeError)       a value that cannot be written as bytes; names the path
│   └── QueryError                     a query that cannot be understood; names the path
├── CorruptData      (ValueError)      what was saved was cut, altered or never written by reroll
├── UnsupportedFormat (ValueError)     what was saved is whole, but needs more than this process has
├── SavedNotFound    (FileNotFoundError)  nothing was saved there
└── StoreError       (RuntimeError)    a directory that cannot be written to
    ├── StoreFailed                    the disk is full or fails, or the permissions forbid it
    └── StoreLocked                    another process is writing there

UncommittedWarning                     a warning: groups of a training step were finalized before its commit

All are picklable (they cross process borders) and say what to do next.
"""

import reprlib
from collections.abc import Sequence
from typing import Final

_repr: Final = reprlib.Repr()
_repr.maxstring = _repr.maxother = 100


class RerollError(Exception):
    """The root of all exceptions of this library."""


class WouldBlock(RerollError):  # noqa: N818  (a condition, not an error: shells turn it into waiting)
    """The engine cannot do this now; it may be able to after other calls."""


class WaitTimeout(RerollError, TimeoutError):  # noqa: N818  (named like TimeoutError's other children)
    """A wait ended by its timeout. The call stored, handed out and reserved nothing, and nothing will land later.

    A training step that the call named stays learned, and may have expired groups.
    """


class UnknownUid(RerollError, KeyError):  # noqa: N818
    """No group has this uid, or no longer. Nothing was changed."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError would show the repr of the message


class LeaseExpired(RerollError, TimeoutError):  # noqa: N818
    """The lease had ended, and groups of it were handed out again: `uids`. The others were consumed."""

    def __init__(self, message: str, uids: Sequence[int] = ()) -> None:
        super().__init__(message, uids)
        self.uids = tuple(uids)

    def __str__(self) -> str:
        return str(self.args[0])


class Superseded(RerollError, RuntimeError):  # noqa: N818
    """Another producer has put this group since it was taken: this result was not stored.

    Go on with the next group. To keep the result as a group of its own, set `group_uid` to None, remove "_reroll" from
    `extra_fields`, and put it without `uid`.
    """


class Closed(RerollError, RuntimeError):  # noqa: N818
    """The table, buffer or preparer was shut down; this call was not carried out."""


class ForkedProcess(RerollError, RuntimeError):  # noqa: N818
    """An object of the parent process was used in its forked child; nothing was changed in either.

    Start the child with the spawn method and build or connect there, or serve the buffer and connect in the child.
    """


class Unreachable(RerollError, ConnectionError):  # noqa: N818
    """The server did not answer for too long. A put may have been stored: repeated with its `put_id`, it is stored once."""


class ProtocolMismatch(RerollError, ConnectionError):  # noqa: N818
    """The other side speaks another version of the protocol, or is no reroll server."""


class LimitReached(RerollError, RuntimeError):  # noqa: N818
    """More clients, calls or bytes than the server allows. The call was not carried out; make it again later."""


class StepGone(RerollError, LookupError):  # noqa: N818
    """The data of this training step are gone: every rank has asked for later ones."""


class SourceEnded(RerollError, EOFError):  # noqa: N818
    """The source of generation results has ended, and what is left does not fill a training step."""


class Deadlock(RerollError, RuntimeError):  # noqa: N818  (a state of the run)
    """A simulated run stops for ever: every part waits for another. The message names the calls that wait."""


class LoopFailed(RerollError, RuntimeError):  # noqa: N818
    """A loop in the background failed, and with it every call that waits for it; `__cause__` is its error."""


class NotEmpty(RerollError, RuntimeError):  # noqa: N818
    """Only a new buffer can resume; this one was used before. Nothing was changed."""


class CorruptData(RerollError, ValueError):  # noqa: N818
    """What was saved was cut, altered or never written by reroll; the message names it and the remedy."""


class UnsupportedFormat(RerollError, ValueError):  # noqa: N818
    """Stored bytes that are whole, but need more than this process has; the message names what is missing.

    A newer format, a type that is not registered or has changed, a library that is not installed, leave to unpickle.
    """


class InvalidArgument(RerollError, ValueError):  # noqa: N818
    """An argument that can never be right. Nothing was changed."""


class InvalidPriority(InvalidArgument):
    """A priority that is negative, NaN, infinite or not a number. Nothing was changed."""


class InvalidConfig(InvalidArgument):
    """A configuration that can never proceed; the message names the consequence."""


class CannotRewind(InvalidArgument):
    """What was consumed after that step is no longer kept. Nothing was changed."""


class NotStorable(InvalidArgument, TypeError):  # noqa: N818
    """A value that cannot be written as bytes; the message names its path and what to do. Nothing was written."""


class QueryError(InvalidArgument):
    """A query that cannot be understood; the message names the path inside it."""


class SavedNotFound(RerollError, FileNotFoundError):  # noqa: N818
    """Nothing was saved there; the message names the file."""


class StoreError(RerollError, RuntimeError):
    """A directory cannot be written to."""


class StoreFailed(StoreError):  # noqa: N818
    """The disk is full or fails, or the permissions forbid it. A durable store writes nothing any more; reading goes on."""


class StoreLocked(StoreError):  # noqa: N818
    """Another process writes to this directory; the message names it."""


class UncommittedWarning(UserWarning):
    """Groups of a training step were finalized before its commit; `rewind` can no longer undo it."""


def missing_extra(subject: str, package: str | None, extra: str) -> ImportError:
    """Return the error of a feature whose extra is not installed. It names the command that installs it."""
    return ImportError(
        f"{subject} needs {package}: pip install 'reroll[{extra}]' (in a clone: pip install '.[{extra}]')",
        name=package,
    )


def shown(value: object) -> str:
    """Return a value as a message can show it: short, whatever its size, and without fail."""
    try:
        return _repr.repr(value)
    except Exception:  # noqa: BLE001  (an integer too long to print, or an object that cannot be shown)
        return f"a value of type {type(value).__name__}"
