"""Who this process is to shards, and that it lives: told from time to time, while it holds something."""

import contextlib
import threading
import uuid
from collections.abc import Hashable, Mapping
from typing import Any

import ray

from reroll.ray.wire import Holder

_ID = uuid.uuid4().hex


def this_process(_: object = None) -> str:
    """Return the id of this process; also for who asks an actor, which may be another process than it was."""
    return _ID


def this_holder() -> Holder:
    """Return this process; if it is an actor, Ray tells shards of its end."""
    context = ray.get_runtime_context()
    return Holder(_ID, context.current_actor if context.get_actor_id() is not None else None)


class Heart:
    """Tells shards that this process lives, in a thread of its own: event loops may be busy for long.

    A shard of which nothing is held any more says so, whoever gave it back, and is told nothing from then on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, dict[Hashable, tuple[Any, float]]] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, shard: str, thing: Hashable, actor: Any, every_s: float) -> None:
        """Something of a shard is held from now on."""
        with self._lock:
            self._held.setdefault(shard, {})[thing] = actor, every_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="reroll-heart", daemon=True)
                self._thread.start()
        self._wake.set()

    def settle(self, shard: str, thing: Hashable) -> None:
        """Something of a shard is not held any more."""
        with self._lock:
            self._drop(shard, thing)

    def _settle_all(self, shard: str, things: Mapping[Hashable, object]) -> None:
        """All these things of a shard are not held any more, unless one was got again since."""
        with self._lock:
            for thing, how in things.items():
                if self._held.get(shard, {}).get(thing) is how:
                    self._drop(shard, thing)

    def _drop(self, shard: str, thing: Hashable) -> None:
        held = self._held.get(shard, {})
        held.pop(thing, None)
        if not held:
            self._held.pop(shard, None)

    def _beat(self) -> None:
        while True:
            with self._lock:
                held = {shard: dict(things) for shard, things in self._held.items()}
                if not held:
                    self._thread = None
                    return
            told: dict[str, Any] = {}
            if ray.is_initialized():
                for shard, things in held.items():
                    with contextlib.suppress(Exception):  # a shard that is away hears of it later
                        told[shard] = next(iter(things.values()))[0].beat.remote(_ID)
            self._wake.wait(min(every_s for things in held.values() for _, every_s in things.values()))
            self._wake.clear()
            for shard, heard in told.items():
                with contextlib.suppress(Exception):  # no answer yet, or none at all
                    if not ray.get(heard, timeout=0):
                        self._settle_all(shard, held[shard])


heart = Heart()
