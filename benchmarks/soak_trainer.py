"""The trainer of the soak: leases batches, acknowledges them, writes checkpoints, and restarts from the last of them.

    python soak_trainer.py ADDRESS FILE

Prints a line for each step that it has trained. FILE is its own checkpoint, lines that are only added: `step name` for each
group, and `checkpoint step` when all before it counts. What follows the last of these was trained by nobody. It ends with a
checkpoint when a line comes in.
"""

import os
import sys
import threading
from pathlib import Path

from reroll import BlockingReplayBuffer, LeaseExpired, WaitTimeout, connect_blocking
from soak_processes import STALE, TASK, told_by_a_line

BATCH = 16
CHECKPOINT_EVERY = 5


def history(path: Path) -> list[tuple[int, str]]:
    """Return the steps and names up to the last checkpoint."""
    kept: list[tuple[int, str]] = []
    since: list[tuple[int, str]] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        first, rest = line.split(" ", 1)
        if first == "checkpoint":
            kept += since
            since = []
        else:
            since.append((int(first), rest))
    return kept


def restart(path: Path) -> int:
    """Forget what came after the last checkpoint, and return its step."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    marks = [
        place for place, line in enumerate(lines) if line.startswith("checkpoint ") and line.endswith("\n")
    ]
    kept = lines[: marks[-1] + 1] if marks else []
    path.write_text("".join(kept))
    return int(kept[-1].split()[1]) if kept else 0


def train(buffer: BlockingReplayBuffer, path: Path, over: threading.Event) -> None:
    step = restart(path)
    buffer.rewind(step)
    with path.open("a") as file:
        is_over = False
        while not is_over:
            is_over = over.is_set()
            step += 1
            buffer.refresh_staleness(task_stale_thresholds={TASK: STALE}, current_train_step=step)
            names = trained(buffer, step)
            file.writelines(f"{step} {name}\n" for name in names)
            buffer.advance(step)
            if step % CHECKPOINT_EVERY == 0 or is_over:
                file.write(f"checkpoint {step}\n")
                file.flush()
                os.fsync(file.fileno())
                buffer.commit(step)
            print(len(names), flush=True)


def trained(buffer: BlockingReplayBuffer, step: int) -> list[str]:
    """Train a batch, or less if no more comes, and return the names of its groups."""
    try:
        batch = buffer.lease({TASK: BATCH}, wait=True, timeout=1, train_step=step).take()
    except WaitTimeout:
        batch = buffer.lease({TASK: BATCH}, train_step=step).take()
    gone: tuple[int, ...] = ()
    try:
        batch.ack()
    except LeaseExpired as error:
        gone = error.uids
    return [group[0].group_id for group, info in batch.samples[TASK] if info.uid not in gone]


def main() -> None:
    address, file = sys.argv[1:]
    with connect_blocking(address, heartbeat_s=0.2) as buffer:
        train(buffer, Path(file), told_by_a_line())


if __name__ == "__main__":
    main()
