"""The verbs that make a buffer outlive its process, and follow the trainer's own checkpoints."""

import threading
import warnings
from os import PathLike
from typing import Final, Literal

from reroll.buffer.arguments import checked_choice, checked_count, checked_path, checked_step
from reroll.buffer.journal import Damaged
from reroll.buffer.shell import Shell
from reroll.buffer.snapshot import Snapshot, load_saved
from reroll.engine.rewind import commit, rewind
from reroll.errors import InvalidArgument, NotEmpty
from reroll.store import find_saved, write_snapshot

_SAVE: Final = "save"
"""The queue of saves."""


class Saving(Shell):
    """For trainers."""

    async def save(self, path: str | PathLike[str]) -> None:
        """Save the buffer as it is now to a directory, which is made with its parents; others go on meanwhile.

        One file, `replay_buffer.sqlite`, takes the place of the one that was there, as a whole: a crash leaves the old or
        the new one. Leases count as returned, reservations as released, groups that are out as back, up to the last token
        that all fields of a rollout tell of. Raises NotStorable (naming the path inside a group), StoreFailed, StoreLocked,
        CorruptData for a group of a durable buffer that was altered on disk: then the old file is untouched. Saves of one
        buffer run one after another. A cancelled one stops its thread first, and leaves the old file or the new one.
        """
        self._check_open()
        path = checked_path(path)
        await self._wait([_SAVE], lambda: not self._is_saving, None, lambda: "save", ())
        self._is_saving = True
        try:
            await self._save(path)
        finally:
            self._is_saving = False
            self._waits.wake()

    async def _save(self, path: str | PathLike[str]) -> None:
        if self._disk is not None:
            await self._disk.save(path)
            return
        snapshot = Snapshot(self._groups, self._entries, self._rest(), allow_pickle=self._allow_pickle)
        self._groups.witnesses.append(snapshot)
        try:
            await self._waits.aside(lambda: write_snapshot(path, snapshot.changes()), snapshot.end)
        finally:
            snapshot.end()
            self._groups.witnesses.remove(snapshot)

    async def resume(self, path: str | PathLike[str], *, on_corrupt: Damaged = "raise") -> None:
        """Become what was saved, or what a durable buffer left behind, and go on with the same samples.

        With `on_corrupt="skip"` groups whose data were altered are left out and counted as lost. Raises NotEmpty (a
        RuntimeError) if this buffer was used before, InvalidConfig for another sampler or remover, SavedNotFound,
        CorruptData, UnsupportedFormat: then nothing has changed. Calls made meanwhile raise Closed.
        """
        self._check_open()
        path = checked_path(path)
        checked_choice("on_corrupt", on_corrupt, ("raise", "skip"))
        self._check_unused()
        self._is_resuming = True
        try:
            await self._resume(path, on_corrupt)
        finally:
            self._is_resuming = False
        self._changed()
        await self._written()

    async def _resume(self, path: str | PathLike[str], on_corrupt: Damaged) -> None:
        stopped = threading.Event()
        saved, lost = await self._waits.aside(
            lambda: load_saved(
                path,
                self._entries,
                keep=self._disk is None,
                on_corrupt=on_corrupt,
                allow_pickle=self._allow_pickle,
                stopped=stopped,
            ),
            stopped.set,
        )
        file = find_saved(path)
        self._become(saved, file)
        self._groups.lose(lost)
        if lost or saved.damaged:
            warnings.warn(
                f"groups {sorted({*lost, *saved.damaged})} in {file} are damaged: they are left out, and counted as lost",
                UserWarning,
                stacklevel=2,
            )
        if self._disk is not None:
            # A buffer whose store holds half of it could not go on.
            await self._waits.to_the_end(self._disk.import_saved(path))
        self._leases.recheck(saved.leased())
        self._groups.enforce_bounds()  # they may be configured since

    async def commit(self, step: int) -> int:
        """Tell that the trainer's own checkpoint of this step is on disk; return how many groups are used for good.

        What was consumed up to this step is no longer kept for a rewind.
        """
        self._check_open()
        done = _told("step", step)
        finished = 0
        for task in self._engine.tasks.values():
            slots = commit(task, done)
            self._groups.forget_rows(slots)
            finished += len(slots)
        await self._written()
        return finished

    async def rewind(self, step: int, *, newer: Literal["keep", "expire"] = "keep") -> int:
        """Tell that the trainer goes on after this step, from an earlier checkpoint; return how many groups are back.

        All that was used after it is available again, at its old place; priorities and what was put since stay. Groups
        of versions above `step` are kept, and their staleness is the distance, or expire with `newer="expire"`. -1 is before
        step 0, with the weights of version 0. Raises CannotRewind, and changes nothing, if some of that was committed or is
        no longer kept.
        """
        self._check_open()
        last = checked_count("step", step)
        if last != -1:
            _told("step", last)
        version = max(last, 0)
        checked_choice("newer", newer, ("keep", "expire"))
        for task in self._engine.tasks.values():
            task.log.check_rewind(task.name, last)
        self._engine.version = version
        advanced, serving = self._engine.advanced
        self._engine.advanced = (min(advanced, version), None if serving is None else min(serving, version))
        for task in self._engine.named_tasks():
            task.rewind(last, self._engine.last_tick)
        count = 0
        for task in self._engine.tasks.values():
            back, gone = rewind(self._engine, task, last)
            count += len(back)
            self._groups.come_back(back, gone)
            if newer == "expire":
                self._groups.expire_newer(task, version)
        self._groups.enforce_bounds()  # versions ahead of the step may be too far away
        self._changed()
        await self._written()
        return count

    def _check_unused(self) -> None:
        if self._engine.last_uid:
            raise NotEmpty(
                f"a buffer that was used cannot resume: {self._engine.last_uid} groups were put into this one, and uids "
                "are never used twice; build a new one"
            )


def _told(name: str, step: int) -> int:
    checked = checked_step(name, step)
    if checked is None:
        raise InvalidArgument(f"{name} must be told: the training step")
    return checked
