"""Drop-ins for trainers that have a buffer of their own: change the import, keep the code. And extensions of one that has none.

xtuner         the names of xtuner's replay buffer, its rollout model and its queries, over `ReplayBuffer`
open_instruct  the names of open-instruct's replay buffer, over `Table`, buffers and `reroll.prepare`
trl            replay for TRL's GRPO trainer, and a buffer for its asynchronous one

Thin: what happens is decided below. No framework is needed, or imported, but TRL for `trl`.
"""
