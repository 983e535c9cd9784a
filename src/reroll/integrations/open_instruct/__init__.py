"""open-instruct's replay buffer: change the import. `docs/from-open-instruct.md` lists the differences.

selectors      `Uniform`, `Prioritized`, `Fifo`, `Lifo` with `select(keys, metadata, n)`; `MinSize` for tables
results        `ProcessedResult`, and the conversion of results
results_queue  `ResultsQueue`: a queue of inference results over a buffer
data_preparer  `DataPreparer`: the data preparation actor over `reroll.prepare`

`Table` and `ReplayBufferConfig` are those of reroll.
"""

from reroll.config import ReplayBufferConfig
from reroll.integrations.open_instruct.data_preparer import CollatedBatch, DataPreparer
from reroll.integrations.open_instruct.results import ProcessedResult
from reroll.integrations.open_instruct.results_queue import ResultsQueue
from reroll.integrations.open_instruct.selectors import (
    Fifo,
    ItemMetadata,
    Lifo,
    MinSize,
    Prioritized,
    RateLimiter,
    Selector,
    Uniform,
    make_selector,
)
from reroll.table import Table

__all__ = [
    "CollatedBatch",
    "DataPreparer",
    "Fifo",
    "ItemMetadata",
    "Lifo",
    "MinSize",
    "Prioritized",
    "ProcessedResult",
    "RateLimiter",
    "ReplayBufferConfig",
    "ResultsQueue",
    "Selector",
    "Table",
    "Uniform",
    "make_selector",
]
