"""A training that kills its own process in the middle of a step, if asked to, and tells of each row that it trains."""

import json
import os
import signal
import sys
from pathlib import Path

from tiny import prompts
from watched import Watched, name_of, run

BUFFERS = {
    "memory": {"seed": 5, "max_times_sampled": 2},
    "disk": {"sampler": "fifo", "max_times_sampled": 1},
}


def buffer_of(where, kind):
    return BUFFERS[kind] | ({"store": where / "store"} if kind == "disk" else {})


def train(where, kind, *, kill_at=None, resume=None):
    """Train ten steps with a checkpoint every third; return the trainer, which has told `trace` of each step's rows."""

    class Traced(Watched):
        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            step, rows = self.losses[-1]
            with (where / "trace").open("a") as trace:
                trace.write(json.dumps([step, sorted(map(name_of, rows))]) + "\n")
                trace.flush()
            if step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return loss

    where.mkdir(exist_ok=True)
    return run(
        where,
        Traced,
        resume=resume,
        data=prompts(40),
        replay_buffer=buffer_of(where, kind),
        replay_share=0.5,
        max_steps=10,
        save_strategy="steps",
        save_steps=3,
    )


def trace(where):
    """Return the rows of each step, as they were trained last."""
    return dict(json.loads(line) for line in (where / "trace").read_text().splitlines())


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    train(Path(sys.argv[1]), sys.argv[2], kill_at=int(sys.argv[3]))
