"""A run of verl's trainer over the durable backend that is killed in the middle of a step, and its continuation."""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/verl"))
import transfer_queue as tq
from cpu_trainer import CpuTrainer, Generator, read_config
from drivers import start_queue

address, directory, kill_at = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
start_queue(address, directory / "store", units=1)
config = read_config(
    directory / "checkpoints",
    "trainer.v1.sampler.custom_sampler={path: pkg://reroll.integrations.verl, name: RerollSampler}",
    "++trainer.v1.sampler.sampler_kwargs={fresh_share: 0.5, max_uses: 2, seed: 0}",
)
trainer = CpuTrainer(config, Generator(seed=kill_at))
log = (directory / "log").open("a", buffering=1)
workers, sampler = trainer.actor_rollout_wg, trainer.replay_buffer
update = workers.update_actor


def update_or_die(batch):
    if workers.step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    before = len(workers.trained)
    result = update(batch)
    trained = [prompt for _, prompt in workers.trained[before:]]
    waiting = [key for key, tag in tq.kv_list("train")["train"].items() if tag.get("is_prompt")]
    entry = {
        "run": kill_at,
        "step": workers.step,
        "trained": trained,
        "waiting": len(waiting),
        "fetched": trainer.train_dataloader.number,
        "left": len(tq.kv_list("train")["train"]),
        "missing": [int(p.split()[1]) for p in prompts_of(waiting)],
    }
    if workers.step == 12:
        sampler.clear()
        tq.kv_clear(keys=batch.keys, partition_id="train")
        trainer.agent_loop_manager.under_way.clear()
        entry["left"] = len((tq.kv_list("train") or {}).get("train", {}))
    log.write(json.dumps(entry) + "\n")
    return result


def prompts_of(uids):
    if not uids:
        return []
    return [
        str(prompt)
        for prompt in tq.kv_batch_get(keys=uids, partition_id="train", select_fields=["raw_prompt"])[
            "raw_prompt"
        ]
    ]


workers.update_actor = update_or_die
trainer.run(12, save_every=5)
tq.close()
