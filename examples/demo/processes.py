"""The three processes of a crash run: buffer, trainer, producer. Each can be killed at any moment.

    python -m demo.processes ROLE DIRECTORY MODE SEED STEPS

They share a directory: the buffer's socket and store, the weights, and the trainer's checkpoint. They print events as
lines of JSON.
"""

import json
import os
import sys
import threading
import warnings
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from demo.grpo import new_optimizer, train
from demo.modes import MODES, Mode
from demo.policy import Policy, publish
from demo.producer import Producer
from reroll import Closed, InvalidArgument, Superseded, connect_blocking
from reroll.cli import main as reroll
from reroll.prepare.service import RemotePreparer

_CHECKPOINT_EVERY: Final = 4
_RESTARTED: Final = (Closed, InvalidArgument)
"""Errors of a preparer that was restarted, alone or with its server: it does not know the step."""


class Groups(NamedTuple):
    """The groups of a trained step, with a checksum of their tokens, log-probabilities and advantages."""

    uids: list[int]
    digest: int

    @classmethod
    def of(cls, data: Any) -> "Groups":
        columns = (
            column
            for batch in data
            for column in (batch.input_ids, batch.logprobs, batch.sequence_advantages)
        )
        return cls(data.uids, zlib.crc32(b"".join(column.tobytes() for column in columns)))


def serve(directory: Path) -> None:
    """Run `reroll serve`, as a user would."""
    address, config = f"ipc://{directory}/socket", str(directory / "prepare.json")
    sys.argv = ["reroll", "serve", "--bind", address, "--prepare", config, "--client-ttl-s", "2"]
    reroll()


def connect(directory: Path) -> tuple[Any, RemotePreparer]:
    """Return clients of the buffer and of its preparer; both reconnect when the server restarts."""
    client = connect_blocking(f"ipc://{directory}/socket", heartbeat_s=0.2)
    return client, RemotePreparer(client)


def produce_forever(directory: Path, mode: Mode, seed: int) -> None:
    """Produce, and begin again whenever the preparer does."""
    client, preparer = connect(directory)
    while True:
        try:
            Producer(preparer, _PutEvents(client), directory, seed).produce(mode)
        except (*_RESTARTED, Superseded) as error:
            emit("producer continues", after=type(error).__name__)


def train_to_the_end(directory: Path, last_step: int) -> None:
    """Train from the newest checkpoint; if the buffer restarts, go back to the checkpoint as after a crash."""
    client, preparer = connect(directory)
    while True:
        try:
            _train(directory, client, preparer, last_step)
        except _RESTARTED as error:
            emit("trainer continues", after=type(error).__name__)
        else:
            emit("trained all")
            return


def _train(directory: Path, client: Any, preparer: RemotePreparer, last_step: int) -> None:
    saved = torch.load(directory / "checkpoint.pt", weights_only=True)
    policy = Policy()
    policy.load_state_dict(saved["policy"])
    optimizer = new_optimizer(policy)
    publish(directory, saved["step"], policy)
    if saved["preparer"] is None:
        save_checkpoint(directory, 0, policy, optimizer, preparer.state())
    else:
        optimizer.load_state_dict(saved["optimizer"])
        preparer.restore(saved["preparer"])  # the groups of later steps are available again
    client.advance(saved["step"])
    emit("begins", step=saved["step"] + 1)
    for trained in train(policy, optimizer, preparer, directory, range(saved["step"] + 1, last_step + 1)):
        step = trained.data.step
        emit("trained", step=step, **Groups.of(trained.data)._asdict())
        if step % _CHECKPOINT_EVERY == 0 or step == last_step:
            save_checkpoint(directory, step, policy, optimizer, preparer.state(step=step))
            preparer.commit(step)  # the buffer may drop its groups


def save_checkpoint(directory: Path, step: int, policy: Policy, optimizer: Any, state: Any) -> None:
    """Replace the trainer's checkpoint in one move."""
    new = directory / "checkpoint.new"
    with new.open("wb") as file:
        weights = {"policy": policy.state_dict(), "optimizer": optimizer and optimizer.state_dict()}
        torch.save({"step": step, "preparer": state, **weights}, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(directory / "checkpoint.pt")


class _PutEvents:
    """A client that emits an event for each acknowledged put."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def put(self, *args: Any, **kwargs: Any) -> None:
        emit("put", uid=self._client.put(*args, **kwargs))


def emit(event: str, **facts: Any) -> None:
    """Print an event."""
    print(json.dumps({"event": event, **facts}), flush=True)


def main() -> None:
    """Run one of the processes; it ends with the process that started it."""
    role, directory, mode, seed, last_step = sys.argv[1:]

    def end_with_the_parent() -> None:
        sys.stdin.read()  # returns when the parent has ended
        os._exit(1)

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    if role == "buffer":
        serve(Path(directory))
    elif role == "producer":
        produce_forever(Path(directory), MODES[mode], int(seed))
    else:
        train_to_the_end(Path(directory), int(last_step))


if __name__ == "__main__":
    main()
