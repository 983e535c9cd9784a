"""MinSize, which also answers for a table, as its users ask."""

from dataclasses import dataclass

from reroll.engine import limits
from reroll.engine.limits import Counters
from reroll.engine.limits import Limiter as RateLimiter
from reroll.table import Table

__all__ = ["MinSize", "RateLimiter"]


@dataclass(frozen=True, slots=True)
class MinSize(limits.MinSize):
    """Samples wait until `min_size` items are there; inserts never wait."""

    def can_sample(self, counters: Counters | Table, k: int = 1) -> bool:
        """Return whether k samples may follow: of these counters, or of a table."""
        if isinstance(counters, Table):
            return len(counters) >= self.min_size
        return limits.MinSize.can_sample(self, counters, k)
