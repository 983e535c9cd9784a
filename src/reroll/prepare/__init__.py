"""From generation results to the batches of each trainer rank.

results     `GenerationResult`, what an engine returns for a prompt, and its group
filters     verdicts: which groups teach nothing, and why
advantages  how much better each member is than the others
sequences   `Sequences`, the one table of what is indexed together; members reads rollouts for it
packing     rows of bounded length and micro-batches; building writes them into a `PackedBatch`
            (packed, columns), padding pads them
ranks       the part of each rank, balanced, with the counts of the whole
metrics     numbers about what was generated (outcomes), what is trained, how it was packed

All of these are pure functions over numpy arrays: nothing waits, nothing is sent. Over them stands what runs:

config      `PrepareConfig`, with the buffer's configuration inside
step        one step: from groups to the batch of each rank, with its metrics; arrivals: what is counted for it
intake      results into the buffer; sources: where they come from; prompts: who asks for them
taking      the groups of a step, under a lease; steps: which are prepared, and who asked for which; settling: which are
            consumed
keeping     where a state leaves the buffer, and how it comes back
stored      what is stored and sent as it is, under names that stay
preparer    `Preparer` for threads over `AsyncPreparer`: the loops, and the only place that waits
dataset     a data set of torch over it
remote      a preparer beside the buffer of a server, and its twin on the side of engines and ranks
"""

import typing as _typing

from reroll.prepare.advantages import advantages_of, priority_of
from reroll.prepare.async_preparer import AsyncPreparer
from reroll.prepare.columns import Memory
from reroll.prepare.config import PrepareConfig
from reroll.prepare.filters import Screened, Verdict, judge, screen, solve_rate
from reroll.prepare.metrics import generation_metrics, packing_metrics, training_metrics
from reroll.prepare.packed import PackedBatch
from reroll.prepare.packing import micro_batches, pack
from reroll.prepare.padding import PaddedBatch, pad
from reroll.prepare.preparer import Preparer
from reroll.prepare.prompts import Asked, PromptCursor, Prompts
from reroll.prepare.ranks import GlobalCounts, RankBatch, split
from reroll.prepare.results import GenerationResult, to_group
from reroll.prepare.sequences import Sequences, sequences_of
from reroll.prepare.step import StepData

if _typing.TYPE_CHECKING:
    from reroll.prepare.dataset import (
        PreparedDataset as PreparedDataset,
    )  # not in __all__: a * works without torch

__all__ = [
    "Asked",
    "AsyncPreparer",
    "GenerationResult",
    "GlobalCounts",
    "Memory",
    "PackedBatch",
    "PaddedBatch",
    "PrepareConfig",
    "Preparer",
    "PromptCursor",
    "Prompts",
    "RankBatch",
    "Screened",
    "Sequences",
    "StepData",
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
