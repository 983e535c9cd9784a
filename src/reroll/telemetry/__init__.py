"""Counters, statistics, warnings and metrics of a buffer. It reads summaries and the engine, and never sees a buffer.

counters  groups that were put or trained and calls that waited, counted as they pass
stats     `stats()`: records that can be merged over tasks and shards, and subtracted over time
health    warnings about a buffer, with remedies
metrics   METRICS, the table of names, kinds and help; the dict of `metrics()` and the Prometheus text
"""
