"""Who this process is to shards, and that it lives: told from time to time, while it holds something."""

import contextlib
import threading
import uuid
from typing import Any

import ray

from reroll.ray.wire import Holder

_ID = uuid.uuid4().hex


def this_holder() -> Holder:
    """Return this process; if it is an actor, Ray tells shards of its end."""
    context = ray.get_runtime_context()
    return Holder(_ID, context.current_actor if context.get_actor_id() is not None else None)


class Heart:
    """Tells shards that this process lives, in a thread of its own: event loops may be busy for long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Any, float, int]] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, shard: str, actor: Any, every_s: float) -> None:
        """Something of this shard is held from now on."""
        with self._lock:
            self._held[shard] = actor, every_s, self._held.get(shard, (None, 0, 0))[2] + 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="reroll-heart", daemon=True)
                self._thread.start()
        self._wake.set()

    def settle(self, shard: str) -> None:
        """One thing less of this shard is held."""
        with self._lock:
            actor, every_s, count = self._held.get(shard, (None, 0, 0))
            if count > 1:
                self._held[shard] = actor, every_s, count - 1
            else:
                self._held.pop(shard, None)

    def _beat(self) -> None:
        while True:
            with self._lock:
                held = list(self._held.values())
                if not held:
                    self._thread = None
                    return
            if ray.is_initialized():
                for actor, _, _ in held:
                    with contextlib.suppress(Exception):  # a shard that is away hears of it later
                        actor.beat.remote(_ID)
            self._wake.wait(min(every_s for _, every_s, _ in held))
            self._wake.clear()


heart = Heart()
