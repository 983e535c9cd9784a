"""A driver of TransferQueue that checks what earlier ones left, works, kills its storage unit, and then itself.

The log has a line before each call and one after it: "start put k3 7", "done put k3 7". After a kill the last call may have happened or
not; all others must have.
"""

import os
import random
import signal
import sys
import threading
from itertools import count
from pathlib import Path

os.environ.update(
    TQ_SIMPLE_STORAGE_SEND_RECV_TIMEOUT="3", TQ_SIMPLE_STORAGE_MAX_ATTEMPTS="300", TQ_LOGGING_LEVEL="ERROR"
)

import ray
import torch
import transfer_queue as tq
from drivers import start_queue
from tensordict import NonTensorStack, TensorDict

from reroll.integrations.transfer_queue import backend

address, directory, life, kills = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
log = (directory / "log").open("a", buffering=1)
chance = random.Random(life)


def fields(version):
    size = 1000 + 37 * version % 500
    return TensorDict(
        {
            "ids": torch.nested.as_nested_tensor([torch.full((size,), version)], layout=torch.jagged),
            "info": NonTensorStack({"version": version}),
        },
        batch_size=1,
    )


def replayed():
    """Return what the log says is there, and the key of the call that a kill may have cut."""
    model, open_key = {}, None
    for line in (directory / "log").read_text().splitlines() if (directory / "log").exists() else ():
        word, *rest = line.split()
        if word == "start":
            open_key = rest[1]
        elif word == "done":
            name, key, version = rest[0], rest[1], int(rest[2])
            open_key = None
            row = model.setdefault(key, {"tag": None, "data": None})
            if name == "put":
                row["data"] = row["tag"] = version
            elif name == "tag":
                row["tag"] = version
            else:
                del model[key]
    return model, open_key


def check():
    model, open_key = replayed()
    listed = (tq.kv_list("train") or {}).get("train", {})
    assert set(listed) - {open_key} == set(model) - {open_key}, (sorted(listed), sorted(model), open_key)
    for key, row in model.items():
        if key != open_key:
            assert listed[key]["n"] == row["tag"], (key, listed[key], row)
            if row["data"] is not None:
                data = tq.kv_batch_get(keys=[key], partition_id="train")
                assert data["info"][0] == {"version": row["data"]}, key
                assert data["ids"].unbind()[0].equal(fields(row["data"])["ids"].unbind()[0]), key
    if open_key in listed:  # as if it had not been: the model does not know how it ended
        tq.kv_clear(keys=open_key, partition_id="train")
    if open_key is not None:
        log.write(f"done clear {open_key} 0\n" if open_key in model else f"skipped {open_key}\n")
    log.write(f"checked {len(model)}\n")


def work():
    """Make a call, logged before and after."""
    key, version = f"k{chance.randint(0, 30)}", next(versions)
    name = chance.choice(("put", "put", "tag", "clear")) if key in known else chance.choice(("put", "tag"))
    log.write(f"start {name} {key} {version}\n")
    if name == "put":
        tq.kv_batch_put(keys=[key], partition_id="train", fields=fields(version), tags=[{"n": version}])
    elif name == "tag":
        tq.kv_put(key=key, partition_id="train", tag={"n": version})
    else:
        tq.kv_clear(keys=key, partition_id="train")
    log.write(f"done {name} {key} {version}\n")
    (known.discard if name == "clear" else known.add)(key)


def pid_of(unit):
    """Return the process of a unit, when Ray has started it."""
    return ray.get(unit.__ray_call__.options(max_task_retries=-1).remote(lambda _: os.getpid()))


def work_and_kill(pids):
    """Make calls, and kill processes at any moment of a later one."""

    def kill():
        for pid in pids:
            log.write(f"kill {pid}\n")
            os.kill(pid, signal.SIGKILL)

    for _ in range(chance.randint(5, 15)):
        work()
    killer = threading.Timer(chance.uniform(0, 0.02), kill)
    killer.start()
    while killer.is_alive():
        work()


start_queue(address, directory / "store", units=2)
check()
known, versions = set((tq.kv_list("train") or {}).get("train", {})), count(life * 100_000)
for _ in range(kills):
    work_and_kill([pid_of(unit) for unit in backend._started])
if kills:
    work_and_kill([os.getpid()])
tq.close()
