"""A rollout worker for TRL's asynchronous trainer whose samples follow from their position, and a trainer on the CPU."""

import queue
import random
import threading

import numpy as np
import tiny
import torch
from torch.nn import functional
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample


def samples_of(position, version, *, size=4, form="arrays"):
    """Return the group at a position: its prompt says where it is, and its samples are of unequal length."""
    rng = random.Random(position)
    made = []
    for member in range(size):
        prompt = [2 + position % 10, 2 + member]
        response = [rng.randrange(2, 16) for _ in range(1 + rng.randrange(5))]
        fields = {
            "input_ids": prompt + response,
            "completion_mask": [0, 0] + [1] * len(response),
            "old_log_probs": [0.0, 0.0] + [-2.75] * len(response),
        }
        if form == "arrays":
            fields = {
                name: np.array(value, np.float32 if name == "old_log_probs" else np.int64)
                for name, value in fields.items()
            }
        made.append(
            RolloutSample(
                prompt=[{"role": "user", "content": str(position)}],
                completion=[{"role": "assistant", "content": str(member)}],
                advantage=float(member - (size - 1) / 2),
                model_version=version,
                group_id=position,
                metrics={"reward": float(member)},
                **fields,
            )
        )
    return made


class ScriptedWorker:
    """Makes groups one after the other, as fast as they are taken, in a thread."""

    def __init__(self, *, size=4, form="arrays", start_index=None, stop_at=None, sizes=None):
        self.rollout_buffer = queue.Queue(maxsize=8)
        self.metrics_queue = queue.Queue()
        self.size, self.form, self.stop_at, self.sizes = size, form, stop_at, sizes
        if start_index is not None:
            self._loop_kwargs = {"dataset_start_index": start_index}
        self.made = []
        self.version = 0
        self._stopping = threading.Event()
        self._thread = None

    def update_model_version(self, version):
        self.version = version

    def start(self):
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def check_health(self, stale_after_s):
        pass

    def _run(self):
        start = getattr(self, "_loop_kwargs", {}).get("dataset_start_index", 0)
        for number in range(10_000):
            if self.stop_at is not None and start + number >= self.stop_at:
                return
            size = self.size if self.sizes is None else self.sizes[(start + number) % len(self.sizes)]
            self.made.append(start + number)
            for sample in samples_of(start + number, self.version, size=size, form=self.form):
                sample.group_id = number  # as TRL counts: from the start of this process
                while not self._stopping.is_set():
                    try:
                        self.rollout_buffer.put(sample, timeout=0.05)
                        break
                    except queue.Full:
                        continue
                if self._stopping.is_set():
                    return


class NoTransfer:
    """Weights stay where they are."""

    def init_weight_transfer(self):
        pass

    def pause(self):
        pass

    def send_weights(self, iterator):
        for _ in iterator:
            pass

    def resume(self):
        pass

    def destroy(self):
        pass


class CpuKernel:
    """What the GPU's attention over packed sequences computes, in plain torch."""

    @staticmethod
    def flash_attn_varlen_func(q, k, v, cu_q, cu_k, *_, softmax_scale, **__):
        out = torch.empty_like(q)
        groups = q.shape[1] // k.shape[1]
        for first_q, end_q, first_k, end_k in zip(
            *(part.tolist() for part in (cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:])), strict=True
        ):
            queries = q[first_q:end_q].transpose(0, 1)
            keys, values = (x[first_k:end_k].transpose(0, 1).repeat_interleave(groups, dim=0) for x in (k, v))
            rows, columns = queries.shape[1], keys.shape[1]
            seen = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
            out[first_q:end_q] = functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=seen, scale=softmax_scale
            ).transpose(0, 1)
        return out


def use_cpu():
    """Let TRL run where it finds no GPU: its attention is a kernel for one, and it asks how fast that is."""
    packing._flash_attn = lambda: CpuKernel
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: 1e12


def async_trainer(where, worker, callbacks=None, trainer_class=AsyncGRPOTrainer, parts=None, **options):
    """Return TRL's asynchronous trainer over a tiny model, on the CPU; with `parts` in place of what does nothing."""
    use_cpu()
    model = where / "model"
    if not model.exists():
        tiny.model().save_pretrained(model)
        tiny.tokenizer().save_pretrained(model)
    args = AsyncGRPOConfig(
        output_dir=str(where / "out"),
        **{
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 1,
            "num_generations": 4,
            "max_steps": 5,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "report_to": [],
            "save_strategy": "no",
            "use_cpu": True,
            "bf16": False,
            "dtype": "float32",
            "seed": 3,
            "disable_tqdm": True,
            "token_budget": 0,
            "gradient_checkpointing": False,
            **options,
        },
    )
    return trainer_class(
        model=str(model),
        args=args,
        callbacks=callbacks,
        rollout_worker=worker,
        **{
            "reward_funcs": [],
            "train_dataset": tiny.prompts(),
            "processing_class": tiny.tokenizer(),
            "weight_transfer": NoTransfer(),
            **(parts or {}),
        },
    )
