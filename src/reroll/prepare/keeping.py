"""The buffer of a preparer and its states: where a state leaves it, and how it comes back from there.

A buffer with a store is where it was, and what later steps used is taken back. One in memory is saved with each state, in a
directory of its own that is never written again, so that every state finds its own buffer. A buffer that belongs to
somebody else is left to its owner.
"""

import asyncio
from collections.abc import Mapping
from itertools import count
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

from reroll.errors import CannotRewind, InvalidArgument, SavedNotFound

FORMAT: Final = 1


class Keeping:
    """Keeps the buffer of a preparer, from one process to the next."""

    def __init__(self, buffer: Any, *, store: Path | None, is_own: bool) -> None:
        """Keep a buffer that is in memory, or in a store; one that is not our own is only used."""
        self._buffer = buffer
        self._store = None if store is None else _absolute(store)
        self._is_own = is_own

    def check_can_save(self, save_to: object) -> None:
        """Raise InvalidArgument if a state without a directory to save to would lose groups."""
        if save_to is None and self._is_own and self._store is None:
            raise InvalidArgument(
                "the buffer is in memory only, and its groups would be lost; name a directory to save it to, or give "
                "the buffer a store"
            )

    async def save(self, save_to: str | PathLike[str] | None, step: int) -> dict[str, str | None]:
        """Save the buffer into a new directory inside of `save_to`, if one is given; return where it is now."""
        saved = None
        if save_to is not None:
            saved = await asyncio.to_thread(_unused, _absolute(save_to), step)
            await self._buffer.save(saved)
        store = self._store if self._is_own else None
        return {
            "buffer": None if saved is None else fspath(saved),
            "store": None if store is None else fspath(store),
        }

    async def begin(self, first_step: int) -> None:
        """Begin with a step, without a state: what it and later steps used is available again. Raises CannotRewind."""
        if not self._is_own or self._store is None:
            return
        try:
            await self._buffer.rewind(first_step - 1)
        except CannotRewind as error:
            raise CannotRewind(
                f"the store {self._store} was trained from before, and this preparer begins with step {first_step} without "
                f"a state: {error}. restore() the state of the trainer's last checkpoint before start(), set first_step to "
                "the step that comes next, or name another store"
            ) from error

    async def restore(self, state: Mapping[str, Any], saved: str | PathLike[str] | None) -> None:
        """Let the buffer be what it was after the step of a state.

        `saved` says where it is now, if it was moved. Raises InvalidArgument if it is not where this preparer has its own,
        SavedNotFound, and what `ReplayBuffer.resume` and `rewind` raise.
        """
        if not self._is_own:
            if saved is not None:
                raise InvalidArgument(
                    "the buffer belongs to somebody else, who resumes it; leave `saved` out"
                )
            return
        if self._store is not None:
            self._check_store(self._store, state, saved)
            await self._buffer.rewind(state["step"])
        else:
            await self._resume(state, saved)
        await self._check_whole(state)

    def _check_store(self, store: Path, state: Mapping[str, Any], saved: str | PathLike[str] | None) -> None:
        if saved is None and "store" not in state and state["buffer"] is None:
            return  # of a version that did not note where its store was
        now = saved if saved is not None else state.get("store")
        if now is not None and _is_same(_absolute(now), store):
            return
        if saved is None and state.get("store") is None and state["buffer"] is not None:
            remedy = (
                "configure this one without a store, or let a buffer with that store resume() what was saved, and then "
                "restore(state, saved=store)"
            )
        else:
            remedy = "configure that store; if its directory was moved here, restore(state, saved=store)"
        place = f"in {_absolute(saved)}, as `saved` says" if saved is not None else _whereabouts(state)
        raise InvalidArgument(
            f"the buffer of this state is {place}, and this preparer has the store {store}; {remedy}"
        )

    async def _resume(self, state: Mapping[str, Any], saved: str | PathLike[str] | None) -> None:
        known: str | None = state["buffer"]
        if known is None:
            raise InvalidArgument(
                f"the buffer of this state is {_whereabouts(state)}, and this preparer has a new one in memory, where its "
                "groups would be missing; configure replay_buffer.store, or give the same `buffer`, as for the preparer "
                "that made the state"
            )
        path = Path(known)
        if saved is not None:  # what was given as `save_to`, or the directory in there
            inside = _absolute(saved) / path.name
            path = inside if await asyncio.to_thread(inside.is_dir) else _absolute(saved)
        try:
            await self._buffer.resume(path)
        except SavedNotFound as error:
            raise SavedNotFound(
                f"the buffer of this state was saved to {known}, and is not in {path}; if it was moved, restore(state, "
                "saved=directory)"
            ) from error

    async def _check_whole(self, state: Mapping[str, Any]) -> None:
        """Raise InvalidArgument if groups that the state knows of were never in this buffer."""
        put = sum(buckets["put"].groups for buckets in (await self._buffer.ledger()).values())
        known = state["generated"]["last_uid"]
        if put < known:
            raise InvalidArgument(
                f"this is not the buffer of the state, or an older copy: {put} groups were ever put into it, and the state "
                f"knows of {known}. The state says that its buffer is {_whereabouts(state)}; bring that back"
            )


def checked_state(state: Any) -> Mapping[str, Any]:
    """Return a state. Raises InvalidArgument for what is none."""
    if isinstance(state, str | bytes):
        raise InvalidArgument(
            "restore takes what state() returned, not a text; json.loads a text that json.dumps made"
        )
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise InvalidArgument(f"this is no state of a preparer, or one of another version: {state!r}")
    missing = {"step", "cursor", "generated", "buffer"} - state.keys()
    if missing or not isinstance(state["step"], int):
        raise InvalidArgument(
            f"this state of a preparer is not whole: {', '.join(sorted(missing)) or 'step'} is missing in {state!r}"
        )
    return state


def _whereabouts(state: Mapping[str, Any]) -> str:
    if state.get("store") is not None:
        return f"in the store {state['store']}"
    if state["buffer"] is not None:
        return f"saved in {state['buffer']}"
    return "in a store, which the state does not name" if "store" not in state else "somebody else's"


def _unused(directory: Path, step: int) -> Path:
    """Return a directory that is not there yet, named after a step."""
    names = (f"step_{step}" if number == 1 else f"step_{step}.{number}" for number in count(1))
    return next(path for name in names if not (path := directory / name).exists())


def _absolute(path: str | PathLike[str]) -> Path:
    return Path(path).absolute()


def _is_same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
