"""The buffer in the state of a preparer: where a state says it is, and how a restart finds it.

A buffer with a store stays in place, and a restart rewinds it. A buffer in memory is saved with each state, into a new
directory that is never written again, so that every state finds its own copy. A buffer that the preparer does not own is left
to its owner.
"""

import asyncio
from collections.abc import Mapping
from itertools import count
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

from reroll.errors import CannotRewind, InvalidArgument, SavedNotFound

FORMAT: Final = 1


class PreparerCheckpoint:
    """Saves and restores the buffer of a preparer.

    Args:
        buffer: The buffer.
        store: Directory of its store; None: it is in memory.
        is_own: Whether the preparer owns the buffer.

    """

    def __init__(self, buffer: Any, *, store: Path | None, is_own: bool) -> None:
        self._buffer = buffer
        self._store = None if store is None else _absolute(store)
        self._is_own = is_own

    def check_can_save(self, save_to: object) -> None:
        """Raise InvalidArgument if a state without `save_to` would lose the groups of the buffer."""
        if save_to is None and self._is_own and self._store is None:
            raise InvalidArgument(
                "the buffer is in memory only, and its groups would be lost; name a directory to save it to, or give "
                "the buffer a store"
            )

    async def save(self, save_to: str | PathLike[str] | None, step: int) -> dict[str, str | None]:
        """Save the buffer into a new directory inside `save_to`, if given; return where the buffer is."""
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
        """Start without a state: return the groups of `first_step` and later steps. Raises CannotRewind."""
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
        """Bring the buffer to the step of a state; `saved` is its directory if it was moved.

        Raises InvalidArgument if the state belongs to another buffer, SavedNotFound, and the errors of
        `ReplayBuffer.resume` and `rewind`.
        """
        if not self._is_own:
            if saved is not None:
                raise InvalidArgument(
                    "the preparer does not own its buffer, and cannot resume it; leave `saved` out"
                )
            return
        if self._store is not None:
            self._check_store(self._store, state, saved)
            await self._buffer.rewind(state["step"])
        else:
            await self._resume(state, saved)
        put = sum(buckets["put"].groups for buckets in (await self._buffer.ledger()).values())
        known = state["generated"]["last_uid"]
        if put < known:
            raise InvalidArgument(
                f"this is not the buffer of the state, or an older copy: {put} groups were ever put into it, and the state "
                f"knows of {known}. The state says that its buffer is {_location(state)}; bring that back"
            )

    def _check_store(self, store: Path, state: Mapping[str, Any], saved: str | PathLike[str] | None) -> None:
        """Raise InvalidArgument if the buffer of a state is not in `store`."""
        now = saved if saved is not None else state["store"]
        if now is not None and Path(now).resolve() == store.resolve():
            return
        if saved is None and state["store"] is None and state["buffer"] is not None:
            remedy = (
                "configure this one without a store, or let a buffer with that store resume() the saved one, and then "
                "restore(state, saved=store)"
            )
        else:
            remedy = "configure that store; if its directory was moved here, restore(state, saved=store)"
        place = f"in {_absolute(saved)}, as `saved` says" if saved is not None else _location(state)
        raise InvalidArgument(
            f"the buffer of this state is {place}, and this preparer has the store {store}; {remedy}"
        )

    async def _resume(self, state: Mapping[str, Any], saved: str | PathLike[str] | None) -> None:
        known: str | None = state["buffer"]
        if known is None:
            raise InvalidArgument(
                f"the buffer of this state is {_location(state)}, and this preparer has a new one in memory, where its "
                "groups would be missing; configure replay_buffer.store, or give the same `buffer`, as for the preparer "
                "that made the state"
            )
        path = Path(known)
        if saved is not None:  # the directory that was given as `save_to`, or the one inside it
            inside = _absolute(saved) / path.name
            path = inside if await asyncio.to_thread(inside.is_dir) else _absolute(saved)
        try:
            await self._buffer.resume(path)
        except SavedNotFound as error:
            raise SavedNotFound(
                f"the buffer of this state was saved to {known}, and is not in {path}; if it was moved, restore(state, "
                "saved=directory)"
            ) from error


def checked_state(state: Any) -> Mapping[str, Any]:
    """Return a state unchanged. Raises InvalidArgument if it is not the state of a preparer."""
    if isinstance(state, str | bytes):
        raise InvalidArgument(
            "restore takes what state() returned, not a text; json.loads a text that json.dumps made"
        )
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise InvalidArgument(
            f"this is no state of a preparer, or one of another version: {state!r}; pass what state() returned"
        )
    missing = {"step", "cursor", "generated", "buffer", "store"} - state.keys()
    if missing or not isinstance(state["step"], int):
        raise InvalidArgument(
            f"this state of a preparer is incomplete: {', '.join(sorted(missing)) or 'step'} is missing in {state!r}; pass "
            "what state() returned"
        )
    return state


def _location(state: Mapping[str, Any]) -> str:
    if state["store"] is not None:
        return f"in the store {state['store']}"
    return f"saved in {state['buffer']}" if state["buffer"] is not None else "not owned by its preparer"


def _unused(directory: Path, step: int) -> Path:
    """Return a directory that does not exist yet, named after a step."""
    names = (f"step_{step}" if number == 1 else f"step_{step}.{number}" for number in count(1))
    return next(path for name in names if not (path := directory / name).exists())


def _absolute(path: str | PathLike[str]) -> Path:
    return Path(path).absolute()
