"""Replay and durability in verl, on a CPU: real TransferQueue and verl's own trainer, with stand-ins for the engines.

Run it in an environment with verl 0.9.1 and TransferQueue 0.1.11, such as that of `make test-verl`:

    .venv-verl/bin/python examples/verl/replay.py

It trains twelve steps of four groups. Half of each batch is new, the other half is replayed, and each group is trained three times at most.
"""

import os
import tempfile

os.environ.update(TQ_LOGGING_LEVEL="ERROR", VERL_LOGGING_LEVEL="WARNING", RAY_AUTH_MODE="disabled")

import ray
import transfer_queue as tq
from cpu_trainer import CpuTrainer, Generator, read_config

directory = tempfile.mkdtemp()
config = read_config(
    f"{directory}/checkpoints",
    # The two keys. In a run of your own: python -m verl.trainer.main_ppo ... with the same words.
    "transfer_queue.backend.storage_backend=Reroll",
    "trainer.v1.sampler.custom_sampler={path: pkg://reroll.integrations.verl, name: RerollSampler}",
    # And what the sampler does.
    "++trainer.v1.sampler.sampler_kwargs={fresh_share: 0.5, max_uses: 3, max_staleness: 6, priority_signal: reward_std, seed: 0}",
    # Where rows are kept; a single storage unit suffices here.
    f"++transfer_queue.backend.Reroll={{path: {directory}/queue, num_data_storage_units: 1}}",
)
ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
tq.init(config.transfer_queue)
trainer = CpuTrainer(config, Generator())
metrics = trainer.run(12, save_every=6)

for step in range(1, 13):
    print(
        f"step {step:2}:",
        ", ".join(prompt for number, prompt in trainer.actor_rollout_wg.trained if number == step),
    )
for name, value in sorted(metrics[-1].items()):
    if name.startswith("replay_buffer/"):
        print(f"{name} = {value:g}")

prompts = [prompt for _, prompt in trainer.actor_rollout_wg.trained]
assert len(prompts) == 48
assert max(map(prompts.count, prompts)) <= 3
print(f"48 groups were trained from {len(set(prompts))} that were generated")
trainer.replay_buffer.clear()
tq.close()
ray.shutdown()
