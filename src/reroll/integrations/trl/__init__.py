"""Replay, and training that loses nothing, for TRL. `docs/trl.md` shows both.

rows      rows of TRL's padded batches as rollouts, and as a batch again
memory    `GroupMemory`: what one rank keeps of generated groups, and gives in place of others
replay    `ReplayMixin`, `ReplayGRPOTrainer`: a GRPO trainer that trains groups again
worker    `RerollRolloutWorker`: a buffer between an asynchronous worker and its trainer

Unlike the drop-ins beside it, this needs the framework: `pip install 'reroll[trl]'`.
"""

try:
    import trl as _trl  # noqa: F401
except ImportError as error:
    raise ImportError("reroll.integrations.trl needs TRL: pip install 'reroll[trl]'") from error

from reroll.integrations.trl.memory import GroupMemory
from reroll.integrations.trl.replay import ReplayGRPOTrainer, ReplayMixin
from reroll.integrations.trl.worker import RerollRolloutWorker

__all__ = ["GroupMemory", "ReplayGRPOTrainer", "ReplayMixin", "RerollRolloutWorker"]
