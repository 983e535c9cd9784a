"""ReplayBuffer: groups of rollouts between the engines that generate them and the trainer.

group          one group: its rollouts, and what is known of each
put            a put as a plan: decided without changing anything, carried out in one step
groups         the rollouts behind the engine's rows: synchronous, never waits
flow           what was put and what was trained, counted as it passes
report         stats() and metrics()
replay_buffer  the asyncio shell: checks arguments and waits
blocking       the same verbs for threads, generated from the shell
"""
