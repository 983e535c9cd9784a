"""ReplayBuffer: groups of rollouts between the engines that generate them and the trainer.

Verbs, which check arguments and wait:
replay_buffer  the asyncio buffer: putting, handing (out), changing, looking; shell is what they share
blocking       the same verbs for threads
arguments      checks of what callers hand in

What happens, synchronous, never waiting:
groups         what the verbs do to groups; payloads: which group is where; expiring: what is too stale
group          one group: its rollouts, and what is known of each
put            a put as a plan: decided without changing anything, carried out in one step
signals        what a group is worth training on
patch          late fields
storable       whether what is put could be saved
out            groups that producers took to roll them again
leases, batch  groups that are consumed when their holder says so
reservations   groups that producers may start

What it tells:
flow           what was put and what was trained, counted as it passes
stats, report  stats()
metrics        metrics()
"""
