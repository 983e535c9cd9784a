"""The prioritized cycle of other libraries, each in the way it is fastest, as a process that speaks JSON lines.

It runs in an interpreter that has the peers, and needs nothing of reroll:

    <- {"peers": {"cpprb": "11.0.0", ...}, "missing": {"torchrl": "why"}}
    -> {"open": "cpprb", "rows": 10000}      <- {"levels": ["cpprb buffer"]}
    -> {"run": "cpprb buffer", "rows": 10000, "cycles": 20}      <- {"seconds": 0.0001}
    -> {"close": 10000}                      <- {}

A cycle samples 256 items, with importance weights, and updates their priorities. Peers draw with replacement.
"""

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from time import thread_time

import numpy as np

BATCH, ALPHA, BETA = 256, 0.6, 0.4

Cycle = Callable[[], object]


def _priorities(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).random(rows) + 0.01


def cpprb_cycles(rows: int) -> dict[str, Cycle]:
    from cpprb import PrioritizedReplayBuffer  # noqa: PLC0415

    buffer = PrioritizedReplayBuffer(rows, {"x": {"shape": 1, "dtype": np.float32}}, alpha=ALPHA)
    buffer.add(x=np.zeros((rows, 1), np.float32), priorities=_priorities(rows))
    new = _priorities(BATCH)

    def cycle() -> None:
        sample = buffer.sample(BATCH, beta=BETA)
        buffer.update_priorities(sample["indexes"], new)

    return {"cpprb buffer": cycle}


def torchrl_cycles(rows: int) -> dict[str, Cycle]:
    import torch  # noqa: PLC0415
    from tensordict import TensorDict  # noqa: PLC0415
    from torchrl.data import LazyTensorStorage, PrioritizedSampler, ReplayBuffer  # noqa: PLC0415

    storage = LazyTensorStorage(rows)
    sampler = PrioritizedSampler(rows, alpha=ALPHA, beta=BETA)
    buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=BATCH)
    buffer.extend(TensorDict({"x": torch.zeros(rows, 1)}, batch_size=[rows]))
    buffer.update_priority(torch.arange(rows), torch.as_tensor(_priorities(rows), dtype=torch.float32))
    new = torch.as_tensor(_priorities(BATCH), dtype=torch.float32)

    def buffer_cycle() -> None:
        _, info = buffer.sample(return_info=True)
        buffer.update_priority(info["index"], new)

    def sampler_cycle() -> None:
        index, _ = sampler.sample(storage, BATCH)
        sampler.update_priority(index, new)

    return {"torchrl sampler": sampler_cycle, "torchrl buffer": buffer_cycle}


PEERS = {"cpprb": cpprb_cycles, "torchrl": torchrl_cycles}


def _found() -> tuple[dict[str, str], dict[str, str]]:
    """Which peers can run a cycle here, and why the others cannot."""
    peers, missing = {}, {}
    for name, build in PEERS.items():
        try:
            for cycle in build(2 * BATCH).values():
                cycle()
            peers[name] = version(name)
        except Exception as error:  # noqa: BLE001  (whatever a peer raises, the others go on)
            missing[name] = f"{type(error).__name__}: {error}"
    return peers, missing


def main() -> None:
    # Libraries may print; the answers have the original stdout for themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(message: dict) -> None:
        print(json.dumps(message), file=answers, flush=True)

    peers, missing = _found()
    answer({"peers": peers, "missing": missing})
    cycles: dict[tuple[str, int], Cycle] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "open" in request:
            built = PEERS[request["open"]](request["rows"])
            cycles |= {(name, request["rows"]): cycle for name, cycle in built.items()}
            answer({"levels": list(built)})
        elif "run" in request:
            cycle = cycles[request["run"], request["rows"]]
            start = thread_time()
            for _ in range(request["cycles"]):
                cycle()
            answer({"seconds": (thread_time() - start) / request["cycles"]})
        else:
            cycles = {key: cycle for key, cycle in cycles.items() if key[1] != request["close"]}
            answer({})


if __name__ == "__main__":
    main()
