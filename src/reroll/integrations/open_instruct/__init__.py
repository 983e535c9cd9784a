"""The names of open-instruct's replay buffer. Change the import; `docs/from-open-instruct.md` says what behaves differently.

selectors      `Uniform`, `Prioritized`, `Fifo`, `Lifo`, which also answer `select(keys, metadata, n)`
limiters       `MinSize`, which also answers for a table
results        `ProcessedResult`, and what a result tells, whoever made it
results_queue  `ResultsQueue`, in place of a queue of inference results: filtered, fresh enough, by priority
data_preparer  `DataPreparer`, in place of the data preparation actor

`Table` and `ReplayBufferConfig` are those of reroll.
"""

from reroll.config import ReplayBufferConfig
from reroll.integrations.open_instruct.data_preparer import CollatedBatch, DataPreparer
from reroll.integrations.open_instruct.limiters import MinSize, RateLimiter
from reroll.integrations.open_instruct.results import ProcessedResult
from reroll.integrations.open_instruct.results_queue import ResultsQueue
from reroll.integrations.open_instruct.selectors import (
    Fifo,
    ItemMetadata,
    Lifo,
    Prioritized,
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
