"""ReplayBuffer: groups of rollouts between the engines that generate them and the trainer.

Verbs, which check arguments and wait:
buffer         ReplayBuffer: every public verb; runtime: open, wait, deliver, persist
scan           reading many groups in slices, while other calls run
blocking       the same verbs for threads; plain_calls: coroutines as plain calls
read_only      the verbs that only read, over a file
arguments      checks of arguments

What happens, synchronous, never waiting:
groups         what the verbs do to groups, on hand_outs (taking, sampling, lending, and undoing that), expiring (what is
               too stale), payloads (which group is where)
group          one group: its rollouts, and what is known of each; packed: one that stays bytes
handed         the groups of one hand-out, on their way
put            a put as a plan: decided without changing anything, carried out in one step
signals        what a group is worth training on
patch          late fields
out            groups that producers took to roll them again
leases, batch  groups that are consumed when their holder says so
reservations   groups that producers may start
tracked        maps that know their dirty keys; the put ids

How it outlives its process:
records        the persisted state as records, one list of parts that commit, save and restore iterate over
journal        a durable buffer: changes are committed before a call returns; rollouts are loaded and evicted
snapshot       a buffer at one moment, to be saved; and the load of a saved one
references     Ray references inside of groups

What it tells:
arrow          to_arrow() and to_pandas()
"""
