"""From generation results to the batches of each trainer rank.

Pure functions over numpy arrays:

results      `GenerationResult`, the output of an engine for one prompt, and its group
filters      verdicts on groups: which carry no training signal
advantages   advantages of the members of a group, and its priority
sequences    `Sequences`, one table of all sequences of a step
packing      rows of bounded length, as `PackedBatch` and `PaddedBatch` (batches, array_pool)
ranks        the part of each rank: balanced micro-batches and mini-batches, with the totals over all ranks
metrics      `gen/*`, `train/*` and `pack/*` metrics; generation: the numbers of generated groups
step_data    one step: from groups to the batch of each rank

The preparer over them:

config       `PrepareConfig`, with the configuration of the buffer inside
preparer     `Preparer`, its two loops; blocking_preparer: its twin for threads
intake       results into the buffer; sources: where results come from; prompts: callbacks and the prompt cursor
steps        one `Step` record for each step, and which rank requested which; leases: leasing the groups of a step
checkpoint   where a state leaves the buffer, and how a restart finds it
service      a preparer on a server, and its client; dataset: a torch data set
"""

import typing as _typing

from reroll.prepare.advantages import advantages_of, priority_of
from reroll.prepare.array_pool import ArrayPool
from reroll.prepare.batches import PackedBatch, PaddedBatch
from reroll.prepare.blocking_preparer import BlockingPreparer
from reroll.prepare.config import PrepareConfig
from reroll.prepare.filters import Screened, Verdict, judge, screen, solve_rate
from reroll.prepare.metrics import generation_metrics, packing_metrics, training_metrics
from reroll.prepare.packing import micro_batches, pack, pad
from reroll.prepare.preparer import Preparer
from reroll.prepare.prompts import PromptCursor, PromptRequest, Prompts
from reroll.prepare.ranks import GlobalCounts, RankBatch, split
from reroll.prepare.results import GenerationResult, to_group
from reroll.prepare.sequences import Sequences, sequences_of
from reroll.prepare.step_data import StepData, Update

if _typing.TYPE_CHECKING:
    from reroll.prepare.dataset import (
        PreparedDataset as PreparedDataset,
    )  # not in __all__: a * works without torch

__all__ = [
    "ArrayPool",
    "BlockingPreparer",
    "GenerationResult",
    "GlobalCounts",
    "PackedBatch",
    "PaddedBatch",
    "PrepareConfig",
    "Preparer",
    "PromptCursor",
    "PromptRequest",
    "Prompts",
    "RankBatch",
    "Screened",
    "Sequences",
    "StepData",
    "Update",
    "Verdict",
    "advantages_of",
    "generation_metrics",
    "judge",
    "micro_batches",
    "pack",
    "packing_metrics",
    "pad",
    "priority_of",
    "screen",
    "sequences_of",
    "solve_rate",
    "split",
    "to_group",
    "training_metrics",
]


def __getattr__(name: str) -> _typing.Any:
    if name == "PreparedDataset":  # needs torch
        from reroll.prepare.dataset import PreparedDataset  # noqa: PLC0415

        return PreparedDataset
    raise AttributeError(f"module 'reroll.prepare' has no attribute {name!r}")
