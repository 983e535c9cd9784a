"""The three processes of `reroll demo --crash`: buffer, producer, trainer. Each may be killed at any moment.

    python -m reroll.demo.lives ROLE DIRECTORY MODE SEED STEPS

They share a directory: the socket of the buffer, its store, and the trainer's checkpoint. What happens is told on the
standard output, as one line of JSON each.
"""

import json
import os
import sys
import threading
import warnings
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from reroll import Closed, InvalidArgument, Superseded
from reroll.demo.modes import MODES, Mode
from reroll.demo.serving import Remote, serve
from reroll.prepare import StepData

CHECKPOINT_EVERY = 4
_ANEW = (Closed, InvalidArgument)
"""What a preparer raises that was started anew, or is of a server that was: it does not know the step."""


class Place(NamedTuple):
    """Where a run lives."""

    directory: Path

    @property
    def socket(self) -> Path:
        return self.directory / "socket"

    @property
    def store(self) -> Path:
        return self.directory / "buffer"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint.pt"


def digest_of(data: StepData) -> int:
    """Return a number that tells whether two steps train the same: tokens, log-probabilities and advantages."""
    parts = ((batch.input_ids, batch.logprobs, batch.advantage) for batch in data)
    return zlib.crc32(b"".join(column.tobytes() for columns in parts for column in columns))


def own_buffer(place: Place, mode: Mode, seed: int) -> None:
    """Be the process of the buffer."""
    serve(place.socket, mode.config(seed, place.store), lambda: _tell("ready"))


def produce_for_ever(place: Place, mode: Mode, seed: int) -> None:
    """Be the process of the producer: go on whenever the buffer does."""
    from reroll.demo.producing import Ahead, Unheard, produce_in_turn  # noqa: PLC0415  (torch: the buffer does without)

    remote = Remote(place.socket)
    while True:
        try:
            if mode.is_ahead:
                Ahead(_Telling(remote.buffer), remote.board, seed, Unheard()).produce()
            else:
                produce_in_turn(remote.preparer, remote.board, mode, seed, Unheard())
        except (*_ANEW, Superseded) as error:
            _tell("producer goes on", after=type(error).__name__)


def train_to_the_end(place: Place, last_step: int) -> None:
    """Be the process of the trainer: if the buffer is lost, go on from the checkpoint as after a crash of its own."""
    remote = Remote(place.socket)
    while True:
        try:
            _train(place, remote, last_step)
        except _ANEW as error:
            _tell("trainer goes on", after=type(error).__name__)
        else:
            _tell("trained all")
            return


def _train(place: Place, remote: Remote, last_step: int) -> None:
    import torch  # noqa: PLC0415

    from reroll.demo.grpo import new_optimizer, train  # noqa: PLC0415
    from reroll.demo.policy import Policy, weights_of  # noqa: PLC0415

    policy = Policy()
    optimizer = new_optimizer(policy)
    saved = torch.load(place.checkpoint, weights_only=True)
    policy.load_state_dict(saved["policy"])
    if saved["optimizer"] is not None:
        optimizer.load_state_dict(saved["optimizer"])
    remote.begin(saved["preparer"])
    if saved["preparer"] is None:
        save_checkpoint(place, 0, policy, optimizer, remote.preparer.state())
    _tell("begins", step=saved["step"] + 1)
    remote.board.publish(saved["step"], weights_of(policy))
    steps = range(saved["step"] + 1, last_step + 1)
    for trained in train(policy, optimizer, remote.preparer, remote.board, steps):
        step = trained.data.step
        _tell("trained", step=step, uids=trained.data.uids, digest=digest_of(trained.data))
        if step % CHECKPOINT_EVERY == 0 or step == last_step:
            save_checkpoint(place, step, policy, optimizer, remote.preparer.state(step=step))
            remote.preparer.commit(step)  # its groups need not be kept any longer
            _tell("checkpoint", step=step)


def save_checkpoint(place: Place, step: int, policy: Any, optimizer: Any, state: Any) -> None:
    """Write the trainer's checkpoint to the disk; the old one stays until the new one is whole."""
    import torch  # noqa: PLC0415

    beside = place.checkpoint.with_suffix(".new")
    with beside.open("wb") as file:
        torch.save(
            {
                "step": step,
                "policy": policy.state_dict(),
                "optimizer": None if optimizer is None else optimizer.state_dict(),
                "preparer": state,
            },
            file,
        )
        file.flush()
        os.fsync(file.fileno())
    beside.replace(place.checkpoint)


class _Telling:
    """The verbs of a buffer; each put that was acknowledged is told."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)

    def put(self, *args: Any, **kwargs: Any) -> Any:
        uid = self._buffer.put(*args, **kwargs)
        _tell("put", uid=uid)
        return uid


def _tell(event: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def _end_with_the_parent() -> None:
    sys.stdin.read()  # whose end is the end of the process that holds the other side
    os._exit(1)


def main() -> None:
    """Live one life."""
    role, directory, mode, seed, last_step = sys.argv[1:]
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    place = Place(Path(directory))
    if role == "buffer":
        own_buffer(place, MODES[mode], int(seed))
        return
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to it
    if role == "producer":
        produce_for_ever(place, MODES[mode], int(seed))
    else:
        train_to_the_end(place, int(last_step))


if __name__ == "__main__":
    main()
