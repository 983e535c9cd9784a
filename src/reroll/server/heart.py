"""A thread that tells the server that this process lives, also while its event loop is busy with a training step."""

import threading

import zmq

from reroll.server.wire import ToServer, frames_of


class Heart:
    """Beats for one session, on a connection of its own, until it is stopped or the process ends."""

    def __init__(self, socket: "zmq.Socket[bytes]", session: bytes, interval_s: float) -> None:
        self._socket = socket
        self._beat = frames_of(ToServer(session=session))
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reroll-heart", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and close the socket."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            try:
                self._socket.send_multipart(self._beat, zmq.NOBLOCK)
            except zmq.ZMQError:  # not connected, and enough beats wait already
                continue
        self._socket.close(linger=0)
