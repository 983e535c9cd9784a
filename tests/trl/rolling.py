"""An asynchronous training that tells which samples each step has trained, and kills its process if asked to."""

import json
import os
import signal
import sys
from pathlib import Path

import serving
import tiny
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


def train(where, *, size=4, sizes=None, start_index=None, **options):
    """Train samples that are scripted, and return the worker and what makes them."""
    made = ScriptedWorker(size=size, sizes=sizes, start_index=start_index)
    return train_with(made, where, group_size=None if sizes else size, **options), made


def train_served(where, *, url, **options):
    """Train what TRL's own worker makes with a server, and return the worker."""
    serving.without_vllm()
    parts = {
        "reward_funcs": tiny.is_even,
        "train_dataset": serving.chats(),
        "processing_class": serving.tokenizer(),
        "weight_transfer": serving.HttpTransfer(url),
    }
    own = {
        "vllm_server_base_url": url,
        "max_completion_length": 6,
        "max_inflight_tasks": 12,
        "queue_maxsize": 8,
        "token_budget": None,  # as long as the server says
    }
    return train_with(None, where, parts=parts, **own, **options)


def train_with(made, where, *, kill_at=None, resume=None, buffer=None, group_size=None, **options):
    """Train samples of a worker, or of TRL's own; return what stands before it."""
    where.mkdir(exist_ok=True)
    config = {"capacity": 8, "store": where / "store"} if buffer is None else buffer
    tracing = Tracing(where, kill_at)
    trainer = async_trainer(where, made, [tracing], Told, **options)
    tracing.trainer = trainer
    worker = RerollRolloutWorker(trainer, config, group_size)
    trainer.train(resume_from_checkpoint=resume)
    return worker


def trace(where):
    """Return the samples of each step, as they were trained last."""
    return dict(json.loads(line) for line in (where / "trace").read_text().splitlines())


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    options = json.loads(sys.argv[3])
    run = train_served if "url" in options else train
    run(Path(sys.argv[1]), kill_at=int(sys.argv[2]), **options)
