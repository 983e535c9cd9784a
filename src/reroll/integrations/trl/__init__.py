"""Replay and durable training for TRL; see `docs/trl.md`.

batches   conversion of TRL's padded batches to rollouts and back
replay    `ReplayMixin`, `ReplayGRPOTrainer`: a GRPO trainer that trains groups again
worker    `RerollRolloutWorker`: a buffer between an asynchronous worker and its trainer

This package needs TRL: `pip install 'reroll[trl]'`.
"""

from reroll.errors import missing_extra

try:
    import trl as _trl  # noqa: F401
except ImportError as error:
    raise missing_extra("reroll.integrations.trl", "trl", "trl") from error

from reroll.integrations.trl.replay import ReplayBufferCallback, ReplayGRPOTrainer, ReplayMixin
from reroll.integrations.trl.worker import RerollRolloutWorker

__all__ = ["ReplayBufferCallback", "ReplayGRPOTrainer", "ReplayMixin", "RerollRolloutWorker"]
