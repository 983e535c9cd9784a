"""The engine: a deterministic, synchronous state machine over rows.

rows         the metadata of each group: one row in growable numpy columns
selectors/   the order, or the probabilities, in which rows leave: samplers and removers
pool         the resident rows of one task and status, in the orders of its selectors
options      selectors and limiters in configuration files, and the checks of their values
limits       rate limiters, staleness window, deadlock check
ledger       the counts of rows by status and place, and of exits
task         settings, pools, limiter counters, ledger and training step of a task
moves        the only place where a row's status or place changes, and all counts with it
engine       the verbs, and one seeded generator
uses         the log of uses that may be undone; rewind: commit and rewind
query        rows as the query language sees them
state        the whole state as plain values, and back

The engine never waits, reads no clock, takes no lock and does no I/O. A verb succeeds, or raises WouldBlock or a typed
error before anything has changed. Verbs work on arrays of slots. Only modules of this package write columns.
"""
