"""Settings of the tests against TRL: one thread, no network, and a collector that need not look at all of torch."""

import gc
import os

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")

import torch
import trl

if trl.__version__ != os.environ.get("REROLL_TRL", trl.__version__):
    raise RuntimeError(
        f"these are tests against TRL {os.environ['REROLL_TRL']}, but {trl.__version__} is imported"
    )

torch.set_num_threads(1)
gc.freeze()
