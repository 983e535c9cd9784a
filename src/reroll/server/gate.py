"""Who may connect: CURVE handshakes against a list of public keys; and what the log says of those who may not."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from reroll.server.keys import KeyPair
from reroll.server.port import Port
from reroll.server.silence import Silent

log: Final = logging.getLogger("reroll.server")
_ASKED_AT: Final = "inproc://zeromq.zap.01"
_DENIED_EVERY_S: Final = 10.0
_DENIED_KEPT: Final = 1024
_FAILURES: Final[Mapping[int, str]] = {
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "the handshake broke off",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "no handshake with keys, or none of ZeroMQ",
    zmq.Event.HANDSHAKE_FAILED_AUTH: "its key is not on the list",
}

_CONNECTIONS: Final = (
    *(zmq.Event.ACCEPTED, zmq.Event.ACCEPT_FAILED),
    *(zmq.Event.CLOSED, zmq.Event.DISCONNECTED),
)


class Gate:
    """Lets nobody in who is not on the list; without keys, everybody."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        socket: "zmq.Socket[bytes]",
        pair: KeyPair | None,
        allowed: Mapping[str, str] | None,
        silent: Silent,
    ) -> None:
        self._context = context
        self._socket = socket
        self._pair = pair
        self._allowed = allowed or {}
        self._silent = silent
        self._ports: list[Port] = []
        self._denied: dict[tuple[str, ...], tuple[float, int]] = {}

    def open(self) -> None:
        """Guard the socket, before it is bound."""
        watching = self._socket.get_monitor_socket(sum(_FAILURES) + sum(_CONNECTIONS))
        self._ports.append(Port(watching, self._tell))
        if self._pair is None:
            return
        self._socket.setsockopt(zmq.CURVE_SERVER, 1)
        self._socket.setsockopt_string(zmq.CURVE_SECRETKEY, self._pair.secret)
        self._socket.setsockopt_string(zmq.CURVE_PUBLICKEY, self._pair.public)
        self._socket.setsockopt(zmq.ZAP_DOMAIN, b"reroll")
        self._judging = self._context.socket(zmq.REP)
        self._judging.bind(_ASKED_AT)
        self._ports.append(Port(self._judging, self._judge))

    def close(self) -> None:
        """Let go of the sockets."""
        if not self._socket.closed:
            self._socket.disable_monitor()
        for port in self._ports:
            port.close()

    def _judge(self, frames: Sequence[Any]) -> None:
        """Answer whether a key may come in."""
        version, request, _, address, _, mechanism, *credentials = [frame.bytes for frame in frames]
        key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and credentials else ""
        name = self._allowed.get(key)
        if name is None:
            self._deny(reason="its key is not on the list", peer=address.decode(), key=key)
            verdict = [b"400", b"not on the list", b""]
        else:
            log.info("admitted", extra={"peer": address.decode(), "key_of": name})
            verdict = [b"200", b"", name.encode()]
        self._ports[-1].send([version, request, *verdict, b""])

    def _tell(self, frames: Sequence[Any]) -> None:
        event = parse_monitor_message([frame.bytes for frame in frames])
        kind, value = event["event"], int(event["value"])
        if kind == zmq.Event.ACCEPTED:
            self._silent.opened(value)
        elif kind == zmq.Event.ACCEPT_FAILED:
            self._silent.make_room()
        elif kind in _CONNECTIONS:
            self._silent.closed(value)
        reason = _FAILURES.get(kind)
        if reason is not None and kind != zmq.Event.HANDSHAKE_FAILED_AUTH:  # told above, with the key
            self._deny(reason=reason, at=event["endpoint"].decode(errors="replace"))

    def _deny(self, **told: str) -> None:
        """Log it, with how many were like it since: whoever is denied tries again, many times a second."""
        now, same = time.monotonic(), tuple(told.values())
        until, more = self._denied.get(same, (0.0, 0))
        if now < until:
            self._denied[same] = (until, more + 1)
            return
        if len(self._denied) >= _DENIED_KEPT:
            self._denied = {kind: seen for kind, seen in self._denied.items() if now < seen[0]}
        if len(self._denied) < _DENIED_KEPT:
            self._denied[same] = (now + _DENIED_EVERY_S, 0)
        log.warning("denied", extra={**told, **({"times": more + 1} if more else {})})
