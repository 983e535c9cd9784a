"""The buffer in a process of its own, behind a few verbs over a local socket.

This is the place where reroll's server and its client will stand. It does as little as the demo needs: one thread for
each connection, one call after the other. Messages are bytes of `reroll.codec`, so nothing that is received is run.
What a connection holds when it breaks goes back to the buffer: groups that were taken to be continued, reservations.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Final

import reroll
from reroll import Closed, RerollError, Reservation, register
from reroll.codec import decode, encode
from reroll.demo.board import Board
from reroll.demo.modes import TASK
from reroll.prepare import (
    GenerationResult,
    GlobalCounts,
    PackedBatch,
    PrepareConfig,
    Preparer,
    RankBatch,
    StepData,
)

for _sent in (GenerationResult, GlobalCounts, PackedBatch, RankBatch, Reservation, StepData):
    register(_sent)

VERBS: Final = {
    "service": ("begin", "end"),
    "board": ("publish", "version", "newest"),
    "preparer": ("put", "get_data", "done", "state", "commit"),
    "buffer": ("get", "put", "reserve"),
}
"""All that can be called."""
_RECONNECT_S: Final = 30.0
_log = logging.getLogger(__name__)


class Service:
    """Owns the durable buffer, and answers trainer and producer."""

    def __init__(self, path: Path, config: PrepareConfig) -> None:
        """Serve at a path, which is made anew."""
        path.unlink(missing_ok=True)
        self._listener = Listener(str(path), "AF_UNIX")
        self._config = config
        self._board = Board()
        self._preparer: Preparer | None = None
        self._ended = threading.Event()

    def serve(self) -> None:
        """Answer, until `end` is called."""
        threading.Thread(target=self._accept, daemon=True).start()
        self._ended.wait()
        self._listener.close()
        if self._preparer is not None:
            self._preparer.shutdown()

    def begin(self, state: Mapping[str, Any] | None) -> None:
        """Go on from the state in a trainer's checkpoint; what later steps had consumed is available again."""
        self._board.clear()
        if self._preparer is not None:
            self._preparer.shutdown()
        preparer = Preparer(self._config)
        if state is not None:
            preparer.restore(state)
        self._preparer = preparer.start()

    def end(self) -> None:
        """Stop serving."""
        self._ended.set()

    @property
    def preparer(self) -> Preparer:
        if self._preparer is None:
            raise Closed("no trainer has begun yet")
        return self._preparer

    def verb(self, part: str, name: str) -> Callable[..., Any]:
        """Return what a message asks for. Raises KeyError for what is not offered."""
        if name not in VERBS[part]:
            raise KeyError(name)
        target: Any = self if part == "service" else self._board
        if part in ("preparer", "buffer"):
            target = self.preparer if part == "preparer" else self.preparer.buffer
        found: Callable[..., Any] = getattr(target, name)
        return found

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=_Caller(self, connection).serve, daemon=True).start()


class _Caller:
    """One connection, and what it holds."""

    def __init__(self, service: Service, connection: "Connection[Any, Any]") -> None:
        self._service, self._connection = service, connection
        self._groups: dict[int, tuple[Preparer, list[Any]]] = {}
        self._reservations: dict[int, tuple[Preparer, Reservation]] = {}

    def serve(self) -> None:
        try:
            while True:
                part, name, args, kwargs = decode(self._connection.recv_bytes())
                self._connection.send_bytes(encode(self._answer(part, name, args, kwargs)))
        except (EOFError, OSError):
            pass  # it is gone
        except Exception:  # noqa: BLE001  (whatever it was: the others go on)
            _log.exception("a connection is closed for what it sent")
        finally:
            self._connection.close()
            self._give_back()

    def _answer(self, part: str, name: str, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        try:
            result = self._service.verb(part, name)(*args, **kwargs)
        except RerollError as error:
            return ["error", type(error).__name__, str(error)]
        if part == "buffer":
            self._note(name, result, args, kwargs)
        return ["ok", result]

    def _note(self, name: str, result: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        preparer = self._service.preparer
        if name == "get":
            self._groups |= {group[0].group_uid: (preparer, group) for group in result}
        elif name == "reserve":
            self._reservations[result.id] = (preparer, result)
        elif (reservation := kwargs.get("reservation")) is not None:
            self._reservations.pop(reservation.id, None)
        else:
            self._groups.pop(args[0][0].group_uid, None)

    def _give_back(self) -> None:
        try:
            current = self._service.preparer
            for preparer, group in self._groups.values():
                if preparer is current:  # else it came back when the buffer was opened again
                    current.buffer.put(group, TASK)
            for preparer, reservation in self._reservations.values():
                if preparer is current:
                    current.buffer.release(reservation)
        except Closed:
            pass


class Remote:
    """A connection to the service, with the verbs that `train` and `produce` use."""

    def __init__(self, path: Path) -> None:
        """Connect; wait for the service for a while. Raises OSError."""
        deadline = time.monotonic() + _RECONNECT_S
        while True:
            try:
                self._connection: Connection[Any, Any] = Client(str(path), "AF_UNIX")
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)  # it is being started again
        self.service, self.board, self.preparer = (
            Verbs(self, part) for part in ("service", "board", "preparer")
        )

    def call(self, part: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a verb. Raises what it raised there; EOFError or OSError if the other side is gone."""
        self._connection.send_bytes(encode([part, name, list(args), kwargs]))
        answer = decode(self._connection.recv_bytes())
        if answer[0] == "ok":
            return answer[1]
        raise getattr(reroll, answer[1])(answer[2])


class Verbs:
    """The verbs of one part."""

    def __init__(self, remote: Remote, part: str) -> None:
        self._remote, self._part = remote, part

    @property
    def buffer(self) -> "Verbs":
        return Verbs(self._remote, "buffer")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._remote.call(self._part, name, args, kwargs)
