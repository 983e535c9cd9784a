"""Who holds leases and reservations of a shard, and whether they are still alive.

Of an actor Ray tells the death, at once if it is busy, else at the next look. Drivers and tasks tell from time to time
that they live.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ray.exceptions import RayActorError, RayError

from reroll.ray.holding import this_process
from reroll.ray.wire import Holder

_log = logging.getLogger("reroll.ray")

Thing = tuple[str, Any]
"""("lease", its number), or ("reservation", itself)."""


class Holders:
    """All holders of one shard. For one event loop."""

    def __init__(
        self, give_back: Callable[[Thing], Awaitable[None]], is_open: Callable[[Thing], bool], ttl_s: float
    ) -> None:
        self._give_back = give_back
        self._is_open = is_open
        self._ttl_s = ttl_s
        self._holder_of: dict[Thing, str] = {}
        self._things: dict[str, set[Thing]] = {}
        self._heard: dict[str, float] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}

    def hold(self, holder: Holder | None, thing: Thing) -> None:
        """Note that somebody has something."""
        if holder is None:
            return
        self._holder_of[thing] = holder.id
        self._things.setdefault(holder.id, set()).add(thing)
        self._heard[holder.id] = time.monotonic()
        if holder.id not in self._watches:
            self._watches[holder.id] = asyncio.ensure_future(self._watch(holder))

    def settle(self, thing: Thing) -> None:
        """Note that somebody has it no longer."""
        holder = self._holder_of.pop(thing, None)
        if holder is not None:
            self._things[holder].discard(thing)

    def heard(self, holder: str) -> bool:
        """Note that a holder lives; return whether it has anything."""
        if holder in self._heard:
            self._heard[holder] = time.monotonic()
        return bool(self._things.get(holder))

    def stop(self) -> None:
        """Watch nobody any more."""
        for watch in self._watches.values():
            watch.cancel()

    async def _watch(self, holder: Holder) -> None:
        """Look after a holder as long as it has something."""
        pause = min(1.0, self._ttl_s / 4)
        while True:
            for thing in [thing for thing in self._things[holder.id] if not self._is_open(thing)]:
                self.settle(thing)  # its time was over, or it is used up
            if not self._things[holder.id]:
                break
            if await self._is_alive(holder) or not await self._gave_back_all(holder):
                await self._sleep(holder, pause)
        del self._watches[holder.id], self._things[holder.id], self._heard[holder.id]

    async def _sleep(self, holder: Holder, pause: float) -> None:
        """Sleep. A shard that was stopped, or busy, did not listen for that long: the holder gets the same time again."""
        started = time.monotonic()
        await asyncio.sleep(pause)
        now = time.monotonic()
        self._heard[holder.id] = min(now, self._heard[holder.id] + now - started - pause)

    async def _gave_back_all(self, holder: Holder) -> bool:
        """Give back what a dead holder had; return whether that could be done, or has to be tried again."""
        try:
            for thing in list(self._things[holder.id]):
                await self._give_back(thing)
                self.settle(thing)
        except Exception as error:  # noqa: BLE001  (whatever it is, what is held must not stay so for ever)
            _log.warning("what a dead holder had could not be given back yet: %s", error)
            return False
        return True

    async def _is_alive(self, holder: Holder) -> bool:
        if holder.actor is None:
            return time.monotonic() - self._heard[holder.id] < self._ttl_s
        try:
            asked = holder.actor.__ray_call__.remote(
                this_process
            )  # waits while it is busy, fails when it dies
            return bool(
                await asked == holder.id
            )  # else it died and was started again since it was last asked
        except RayActorError:
            return False
        except RayError as error:  # that says nothing of its death: look again
            _log.warning("whether a holder of leases lives could not be told: %s", error)
        return True
