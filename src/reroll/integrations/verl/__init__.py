"""Replay for verl's v1 trainers: a sampler in the place of verl's own. `docs/verl.md` shows it.

options  what `trainer.v1.sampler.sampler_kwargs` may say
sampler  `RerollSampler`: reroll decides which groups are trained, their data stay in TransferQueue
seams    every private name of verl that the sampler overrides, calls or wraps

Payloads that outlive crashes are the business of `reroll.integrations.transfer_queue`.
"""

from reroll.integrations.pins import require

TESTED_VERSION = "0.9.1"
"""The release of verl that the sampler is tested with; it overrides private names of that release."""
require("verl", TESTED_VERSION, "reroll.integrations.verl")

from reroll.integrations.verl.options import ReplayOptions  # noqa: E402
from reroll.integrations.verl.sampler import RerollSampler  # noqa: E402

__all__ = ["TESTED_VERSION", "ReplayOptions", "RerollSampler"]
