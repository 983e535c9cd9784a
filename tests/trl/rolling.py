"""An asynchronous training that tells which samples each step has trained, and kills its process if asked to."""

import json
import os
import signal
import sys
from pathlib import Path

from scripted import ScriptedWorker, async_trainer
from transformers import TrainerCallback
from trl.experimental.async_grpo import AsyncGRPOTrainer

from reroll.integrations.trl import RerollRolloutWorker


class Told(AsyncGRPOTrainer):
    """Knows the samples of each micro-batch from what its collator is given."""

    def get_train_dataloader(self):
        loader, self.batches = super().get_train_dataloader(), []
        collate = loader.base_dataloader.collate_fn

        def noting(examples):
            samples = [sample for row in examples[0] for sample in row.samples]
            self.batches.append([(sample["group_id"], *sample["input_ids"].tolist()) for sample in samples])
            return collate(examples)

        loader.base_dataloader.collate_fn = noting
        return loader


class Tracing(TrainerCallback):
    """Writes down what a step has trained, after its checkpoint would have been written."""

    def __init__(self, where, kill_at):
        self.where, self.kill_at, self.trainer = where, kill_at, None

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        every = args.gradient_accumulation_steps
        trained, self.trainer.batches[:every] = self.trainer.batches[:every], []
        with (self.where / "trace").open("a") as trace:
            trace.write(
                json.dumps([state.global_step, [list(one) for batch in trained for one in batch]]) + "\n"
            )
            trace.flush()


def train(where, *, kill_at=None, resume=None, size=4, sizes=None, buffer=None, start_index=None, **options):
    """Train, and return the worker and what makes its samples."""
    where.mkdir(exist_ok=True)
    made = ScriptedWorker(size=size, sizes=sizes, start_index=start_index)
    config = {"capacity": 8, "store": where / "store"} if buffer is None else buffer
    tracing = Tracing(where, kill_at)
    trainer = async_trainer(where, made, [tracing], Told, **options)
    tracing.trainer = trainer
    worker = RerollRolloutWorker(trainer, config, group_size=None if sizes else size)
    trainer.train(resume_from_checkpoint=resume)
    return worker, made


def trace(where):
    """Return the samples of each step, as they were trained last."""
    return dict(json.loads(line) for line in (where / "trace").read_text().splitlines())


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    train(Path(sys.argv[1]), kill_at=int(sys.argv[2]), **json.loads(sys.argv[3]))
