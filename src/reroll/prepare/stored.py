"""What of this package is stored and sent as it is, under names that stay when classes move."""

from reroll.codec import register
from reroll.prepare.packed import PackedBatch
from reroll.prepare.ranks import GlobalCounts, RankBatch
from reroll.prepare.results import GenerationResult
from reroll.prepare.step import StepData

for _kind in (GenerationResult, StepData, RankBatch, PackedBatch, GlobalCounts):
    register(_kind)  # read by this name too: some have registered it themselves
    register(_kind, name=f"reroll.prepare.{_kind.__name__}")
