"""Adapters for trainers: replacements for buffers that trainers have, and extensions of trainers that have none.

xtuner          xtuner's replay buffer, rollout model and queries, over `ReplayBuffer`
open_instruct   open-instruct's replay buffer, results queue and data preparation, over `Table` and `reroll.prepare`
trl             replay for TRL's GRPO trainer, and a buffer for its asynchronous trainer
transfer_queue  a storage backend for TransferQueue that survives crashes
verl            a sampler for verl's v1 trainers

Only `trl`, `transfer_queue` and `verl` need their frameworks installed.
"""
