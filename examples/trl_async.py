"""TRL's asynchronous trainer with a buffer that loses nothing: kill -9 in the middle, and each prompt is trained once.

A worker generates groups with a copy of the policy while the trainer trains; here it is a thread with a tiny model, where you
have TRL's own worker and vLLM. `RerollRolloutWorker` takes the place of the worker in the trainer. The first process is killed in step 6;
the second one goes on from the checkpoint of step 4. Needs `pip install 'reroll[trl]' requests`, TRL 1.16 or newer, and neither
a GPU nor a network.

    python examples/trl_async.py
"""

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import numpy as np
import torch
from datasets import Dataset
from torch.nn.functional import scaled_dot_product_attention
from transformers import PrinterCallback, TrainerCallback
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from reroll.integrations.trl import RerollRolloutWorker
from trl_replay import LETTERS, make_model, make_tokenizer

STEPS, GROUP = 8, 4


class Engine:
    """Rolls prompts one after the other with a copy of the policy: a worker, and where the trainer sends its weights."""

    def __init__(self):
        self.rollout_buffer, self.metrics_queue = queue.Queue(maxsize=16), queue.Queue()
        self._model, self._lock, self._version = make_model(), threading.Lock(), 0
        self._stopping, self._thread = threading.Event(), None

    def send_weights(self, iterator):
        with self._lock:
            self._model.load_state_dict(dict(iterator), strict=False)

    def update_model_version(self, model_version):
        self._version = model_version

    def start(self):
        self._thread = threading.Thread(target=self._roll, daemon=True)
        self._thread.start()

    def stop(self):
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def check_health(self, stale_after_s):
        pass

    init_weight_transfer = pause = resume = destroy = lambda self: None

    def _roll(self):
        for number in range(10_000):
            letter = 2 + number % len(LETTERS)
            with self._lock, torch.no_grad():
                version = self._version
                logprobs = self._model(torch.tensor([[letter]])).logits[0, -1].log_softmax(-1)
            answers = torch.multinomial(logprobs.exp(), GROUP, replacement=True).tolist()
            rewards = np.array([float(answer == letter) for answer in answers])
            for answer, reward in zip(answers, rewards, strict=True):
                sample = RolloutSample(
                    prompt=[{"role": "user", "content": LETTERS[letter - 2]}],
                    completion=[{"role": "assistant", "content": str(answer)}],
                    input_ids=np.array([letter, answer]),
                    completion_mask=np.array([0, 1]),
                    old_log_probs=np.array([0, logprobs[answer]], np.float32),
                    advantage=float((reward - rewards.mean()) / (rewards.std() + 1e-8)),
                    model_version=version,
                    group_id=number,
                    metrics={"reward": reward},
                )
                while not self._stopping.is_set():
                    try:
                        self.rollout_buffer.put(sample, timeout=0.1)
                        break
                    except queue.Full:
                        continue
            if self._stopping.is_set():
                return


def run_without_a_gpu():
    """Give TRL a plain attention, and a speed; on a GPU it has its own."""

    class Plain:
        @staticmethod
        def flash_attn_varlen_func(q, k, v, ends_q, ends_k, *_, softmax_scale, **__):
            parts = zip(
                *(ends.tolist() for ends in (ends_q[:-1], ends_q[1:], ends_k[:-1], ends_k[1:])), strict=True
            )
            rows = []
            for q0, q1, k0, k1 in parts:
                one, keys, values = (x.transpose(0, 1) for x in (q[q0:q1], k[k0:k1], v[k0:k1]))
                seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(k1 - k0 - (q1 - q0))
                found = scaled_dot_product_attention(one, keys, values, attn_mask=seen, scale=softmax_scale)
                rows.append(found.transpose(0, 1))
            return torch.cat(rows)

    packing._flash_attn = lambda: Plain  # noqa: SLF001  (there is no other way)
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: 1e12


class Kill(TrainerCallback):
    """Ends the process without a word when this step is done."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(where, *, kill_at=0, resume=False):
    """Train two groups a step; return the worker."""
    run_without_a_gpu()
    engine = Engine()
    trainer = AsyncGRPOTrainer(
        model=str(where / "model"),
        args=AsyncGRPOConfig(
            output_dir=str(where / "run"),
            max_steps=STEPS,
            per_device_train_batch_size=2 * GROUP,
            num_generations=GROUP,
            gradient_accumulation_steps=1,
            gradient_checkpointing=False,
            max_staleness=100,
            token_budget=0,
            save_strategy="steps",
            save_steps=4,
            use_cpu=True,
            bf16=False,
            dtype="float32",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": list(LETTERS)}),
        processing_class=make_tokenizer(),
        callbacks=[Kill(kill_at)],
        rollout_worker=engine,
        weight_transfer=engine,
    )
    trainer.remove_callback(PrinterCallback)
    worker = RerollRolloutWorker(trainer, {"store": where / "buffer", "capacity": 16})
    trainer.train(resume_from_checkpoint=resume)
    return worker


def main():
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        make_model().save_pretrained(where / "model")
        make_tokenizer().save_pretrained(where / "model")
        first = subprocess.run([sys.executable, __file__, folder], stderr=subprocess.DEVNULL, check=False)
        print(
            f"the first process ended in step 6 with {first.returncode}; the last checkpoint is that of step 4"
        )
        worker = train(where, resume=True)
        books = worker.replay_buffer.ledger()["train"]
        trained = books["uncommitted"].groups + books["consumed"].groups
        print(f"{STEPS} steps of 2 groups: {trained} groups trained, each once")
        assert trained == 2 * STEPS
        worker.replay_buffer.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]), kill_at=6)
    else:
        main()
