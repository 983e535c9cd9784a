"""From generation results to the batches of each trainer rank.

results     `GenerationResult`, what an engine returns for a prompt, and its group
filters     verdicts: which groups teach nothing, and why
advantages  how much better each member is than the others
sequences   `Sequences`, the one table of what is indexed together; members reads rollouts for it
packing     rows of bounded length and micro-batches; building writes them into a `PackedBatch` (packed), padding pads
ranks       the part of each rank, balanced, with the counts of the whole
metrics     numbers about what was generated, what is trained, how it was packed

All of these are pure functions over numpy arrays: nothing waits, nothing is sent.
"""

from reroll.prepare.advantages import advantages_of, priority_of
from reroll.prepare.filters import Screened, Verdict, judge, screen, solve_rate
from reroll.prepare.metrics import generation_metrics, packing_metrics, training_metrics
from reroll.prepare.packed import PackedBatch
from reroll.prepare.packing import micro_batches, pack
from reroll.prepare.padding import PaddedBatch, pad
from reroll.prepare.ranks import GlobalCounts, RankBatch, split
from reroll.prepare.results import GenerationResult, to_group
from reroll.prepare.sequences import Sequences, sequences_of

__all__ = [
    "GenerationResult",
    "GlobalCounts",
    "PackedBatch",
    "PaddedBatch",
    "RankBatch",
    "Screened",
    "Sequences",
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
