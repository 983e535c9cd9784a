"""Save a buffer to a file, and restore it from one."""

import threading
import warnings
from os import PathLike

from reroll.buffer.journal import Damaged
from reroll.buffer.runtime import Runtime
from reroll.buffer.snapshot import Snapshot, load_saved
from reroll.store import find_saved, write_snapshot


async def save(runtime: Runtime, path: str | PathLike[str]) -> None:
    """Write the buffer as it is now to a directory, while other calls run."""
    if runtime.disk is not None:
        await runtime.disk.save(path)
        return
    groups = runtime.groups
    snapshot = Snapshot(groups, runtime.entries, runtime.small_state(), allow_pickle=runtime.allow_pickle)
    groups.witnesses.append(snapshot)
    try:
        await runtime.waits.aside(lambda: write_snapshot(path, snapshot.changes()), snapshot.end)
    finally:
        snapshot.end()
        groups.witnesses.remove(snapshot)


async def resume(runtime: Runtime, path: str | PathLike[str], on_corrupt: Damaged) -> None:
    """Restore an unused buffer from a directory. On error nothing has changed."""
    stopped = threading.Event()
    saved, lost = await runtime.waits.aside(
        lambda: load_saved(
            path,
            runtime.entries,
            keep=runtime.disk is None,
            on_corrupt=on_corrupt,
            allow_pickle=runtime.allow_pickle,
            stopped=stopped,
        ),
        stopped.set,
    )
    file = find_saved(path)
    runtime.restore(saved, file)
    runtime.groups.lose(lost)
    if lost or saved.damaged:
        warnings.warn(
            f"groups {sorted({*lost, *saved.damaged})} in {file} are damaged: they are left out, and counted as lost",
            UserWarning,
            stacklevel=2,
        )
    if runtime.disk is not None:
        # A store that holds half of a buffer could not be used.
        await runtime.waits.to_the_end(runtime.disk.import_saved(path))
    runtime.leases.recheck(saved.leased())
    runtime.groups.enforce_bounds()  # max_staleness may have changed in the configuration
