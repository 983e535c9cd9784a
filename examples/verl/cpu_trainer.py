"""verl's own trainer on a CPU: its configuration, its steps and its checkpoints, with stand-ins for the engines that need a GPU.

`Generator` stands for the rollout engines: it answers each prompt with a few made-up trajectories, some prompts later than others.
`Workers` stands for the actor: it records what it would train.
"""

import random
import uuid
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import transfer_queue as tq
import verl
from hydra import compose, initialize_config_dir
from tensordict import NonTensorStack, TensorDict
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

CONFIG = Path(verl.__file__).parent / "trainer/config"


def read_config(directory, *overrides, batch=4, mode="colocate_async"):
    """Return verl's default configuration with small numbers."""
    small = [
        f"trainer.v1.trainer_mode={mode}",
        f"trainer.default_local_dir={directory}",
        f"data.train_batch_size={batch}",
        "++data.gen_batch_size=1",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={batch}",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.rollout.name=vllm",
        "algorithm.rollout_correction.bypass_mode=True",
        "algorithm.adv_estimator=grpo",
        "trainer.critic_warmup=0",
    ]
    with initialize_config_dir(str(CONFIG), version_base=None):
        return compose("ppo_trainer", overrides=[*small, *overrides])


class Prompts:
    """A dataloader of numbered prompts that remembers where it is."""

    def __init__(self):
        self.number = 0

    def __iter__(self):
        while True:
            self.number += 1
            yield {"raw_prompt": np.array([f"prompt {self.number}"], dtype=object)}

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


class Generator:
    """Answers prompts: a few at once, the others when the trainer waits.

    Args:
        n: trajectories of a prompt.
        seed: of the rewards, the lengths and the order.
        tied: share of groups whose rewards are all the same.
        failing: share of groups that fail.

    """

    def __init__(self, n=2, seed=0, tied=0.2, failing=0.0):
        self.n, self.chance, self.tied, self.failing = n, random.Random(seed), tied, failing
        self.under_way = deque()
        self.submitted = 0

    def generate_sequences(self, batch):
        steps = batch["global_steps"]
        step = int(steps if isinstance(steps, int) else getattr(steps, "data", steps))
        prompts = batch["raw_prompt"]
        for uid, prompt in zip(batch["uid"], prompts, strict=True):
            self.under_way.append((uid, str(prompt), step))
        self.submitted += len(batch)
        self.finish(max(1, int(0.7 * len(self.under_way))))

    def finish(self, number=1):
        """Finish some of the prompts that are under way, not always the oldest."""
        for _ in range(min(number, len(self.under_way))):
            self.under_way.rotate(-self.chance.choice([0, 0, 0, 1, 2]))
            self._finish(*self.under_way.popleft())

    def _finish(self, uid, prompt, step):
        chance = self.chance
        lengths = [chance.randint(2, 9) for _ in range(self.n)]
        rewards = [float(chance.randint(0, 1)) for _ in range(self.n)]
        if chance.random() < self.tied:
            rewards = [rewards[0]] * self.n
        if chance.random() < self.failing:
            tq.kv_put(key=uid, partition_id="train", tag={"status": "failure"})
            return

        def jagged(values):
            return torch.nested.as_nested_tensor(values, layout=torch.jagged)

        responses = [torch.randint(5, 99, (length,)) for length in lengths]
        scores = [torch.zeros(length) for length in lengths]
        for score, reward in zip(scores, rewards, strict=True):
            score[-1] = reward
        fields = TensorDict(
            {
                "uid": NonTensorStack(*[uid] * self.n),
                "raw_prompt": NonTensorStack(*[prompt] * self.n),
                "prompts": jagged([torch.arange(3)] * self.n),
                "responses": jagged(responses),
                "response_mask": jagged([torch.ones_like(response) for response in responses]),
                "input_ids": jagged([torch.cat([torch.arange(3), response]) for response in responses]),
                "rm_scores": jagged(scores),
                "num_turns": NonTensorStack(*[1] * self.n),
                "rollout_log_probs": jagged([torch.full((length,), -1.0) for length in lengths]),
            },
            batch_size=self.n,
        )
        steps = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), step)
        tags = [
            {"status": "success", "prompt_len": 3, "response_len": n, "seq_len": n + 3, **steps}
            for n in lengths
        ]
        keys = [f"{uid}_{session}_0" for session in range(self.n)]
        tq.kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=tags)
        tq.kv_put(key=uid, partition_id="train", tag={"status": "finished"})


class Workers:
    """Records which prompts are trained; `trained` has (step, prompt) for each group of a batch."""

    def __init__(self):
        self._dispatch_info = {"actor": [0]}
        self.trained = []
        self.step = 0

    def update_actor(self, batch):
        data = tq.kv_batch_get(
            keys=batch.keys,
            partition_id=batch.partition_id,
            select_fields=["raw_prompt", "advantages", "uid"],
        )
        prompts = dict.fromkeys(
            zip(
                data["uid"].tolist() if hasattr(data["uid"], "tolist") else data["uid"],
                data["raw_prompt"],
                strict=True,
            )
        )
        self.trained += [(self.step, str(prompt)) for _, prompt in prompts]
        return {"metrics": {"mfu": [0.0], "loss": [0.0]}}

    def save_checkpoint(self, path, *_, **__):
        Path(path).mkdir(parents=True, exist_ok=True)

    def load_checkpoint(self, **_):
        pass


class CpuTrainer(PPOTrainer):
    """verl's trainer, set up without engines; `run` is the part of `fit` that needs none."""

    def __init__(self, config, generator):
        numbers = random.Random(0)
        self._uid = lambda: uuid.UUID(int=numbers.getrandbits(128))
        super().__init__(config)
        self.actor_rollout_wg, self.agent_loop_manager = Workers(), generator
        self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
        self.tokenizer = SimpleNamespace(eos_token_id=0)
        self.train_dataloader, self.train_dataloader_it = Prompts(), None
        self.replay_buffer._wait_for_next_poll = lambda *_: generator.finish() or 0.0  # noqa: SLF001  (no clock)
        self.history = []
        self._load_checkpoint()
        numbers.seed(self.global_steps)  # a run that resumes names new prompts

    def on_step_begin(self):
        self.actor_rollout_wg.step = self.global_steps

    def on_step_end(self):
        pass

    def on_sample_end(self):
        pass

    def _fetch_one_gen_batch(self):
        real, trainer_base.uuid.uuid4 = trainer_base.uuid.uuid4, self._uid  # so that two runs are the same
        try:
            return super()._fetch_one_gen_batch()
        finally:
            trainer_base.uuid.uuid4 = real

    def run(self, steps, save_every=0, warm_up=1):
        """Train until this step. Returns the metrics of each."""
        first, self.global_steps = self.global_steps == 0, self.global_steps + 1
        self._reissue_inflight_prompts()
        if first and warm_up:
            self._add_prompts_to_generate(warm_up * self.config.data.train_batch_size)
        found = []
        while self.global_steps <= steps:
            metrics = {}
            self.on_step_begin()
            batch = self.step(metrics, {})
            if save_every and self.global_steps % save_every == 0:
                self._save_checkpoint()
            tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
            self.history.append(batch.keys)
            found.append(metrics)
            self.global_steps += 1
        self.global_steps -= 1
        return found
