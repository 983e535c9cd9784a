"""Drop-ins for trainers that have a buffer of their own: change the import, keep the code.

xtuner         the names of xtuner's replay buffer, its rollout model and its queries, over `ReplayBuffer`
open_instruct  the names of open-instruct's replay buffer, over `Table`, buffers and `reroll.prepare`

Thin: what happens is decided below. Neither framework is needed, or imported.
"""
