"""The engine: a deterministic, synchronous state machine over rows.

columns      metadata of each group: one row in growable numpy columns, slots reused
selectors/   in which order rows leave, or by which chance: sampler and remover alike
pool         the rows of one (task, status), kept by its selectors
limiters     how many inserts and samples may go ahead of each other
task         what belongs to all pools of one task: settings, counters, ledger
ledger       where every group and token is, or how it left
proceeds     refuses configurations that can never proceed
ages         which rows are too stale, by policy version
moves        how rows move between pools, places and buckets
engine       the verbs, and one seeded generator
lending      leases, on rows
window       how many groups producers may start
rows         rows as the query language sees them; ordering: in order of a field
state        everything it knows, as plain values, and back

It never waits, reads no clock, takes no lock and does no I/O. A verb succeeds, or raises WouldBlock or a
typed error before anything has changed. Every verb works on arrays of slots.
"""
