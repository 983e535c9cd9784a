"""Refuses configurations that can never proceed, and warns of those that waste."""

import math
import warnings

from reroll.engine.limiters import Limiter
from reroll.engine.selectors.selector import SelectorSpec
from reroll.engine.selectors.specs import Fifo, Mixture, Prioritized, Stalest
from reroll.errors import InvalidConfig


def check_proceeds(
    *,
    capacity: int | None,
    sampler: SelectorSpec,
    remover: SelectorSpec | None,
    max_times_sampled: int | None,
    limiter: Limiter,
) -> None:
    """Raise InvalidConfig, with the consequence, if producers or trainers would wait for ever; warn of waste."""
    if max_times_sampled is None and isinstance(sampler, Fifo | Stalest):
        raise InvalidConfig(
            f"a {sampler.type} sampler without a use limit returns the same items for ever; set max_times_sampled, "
            "or use LeastUsed(), which moves on"
        )
    if isinstance(remover, Mixture):
        raise InvalidConfig("Mixture composes training batches; it cannot be a remover. Use one of its parts")
    full_of_used = capacity is not None and remover is None and max_times_sampled != 1
    if full_of_used and isinstance(sampler, Mixture) and sampler.fresh_share > 0:
        raise InvalidConfig(
            f"this dead-locks as soon as {capacity} groups were sampled once: samples wait for fresh groups, and inserts "
            "for room; name a remover, or set fresh_share to 0"
        )
    uses = math.inf if max_times_sampled is None else max_times_sampled
    if isinstance(sampler, Mixture) and sampler.fresh_share > 0:
        spi, _, _, max_diff = limiter.window
        if min(spi, uses) * sampler.fresh_share > 1 and max_diff < math.inf:
            raise InvalidConfig(
                f"this dead-locks: with a fresh share of {sampler.fresh_share} each group is sampled "
                f"{1 / sampler.fresh_share:g} times on average, then samples wait for fresh groups; but inserts wait until "
                f"each was sampled {spi:g} times. Lower fresh_share or the limiter's samples per insert"
            )
    if capacity is not None:
        _check_capacity(capacity, remover, max_times_sampled, limiter)
    if isinstance(remover, Prioritized):
        _warn("a prioritized remover evicts the most valuable first; MinHeap() evicts the least valuable")
    if remover is not None and capacity is None:
        _warn("without a capacity the remover never has anything to evict")


def _check_capacity(
    capacity: int, remover: SelectorSpec | None, max_times_sampled: int | None, limiter: Limiter
) -> None:
    spi, min_size, min_diff, max_diff = limiter.window
    if min_size > capacity:
        raise InvalidConfig(
            f"the limiter lets nobody sample before {min_size} items are there, but at most {capacity} fit; raise the "
            "capacity or lower min_size"
        )
    uses = math.inf if max_times_sampled is None else max_times_sampled
    if uses < spi and max_diff < math.inf:
        _warn(
            f"items leave after {max_times_sampled} samples, so {spi} samples per insert are never reached, and "
            "inserts go on only while there are fewer than min_size items"
        )
    if remover is not None:
        if spi * capacity < max_diff < math.inf:
            _warn(
                f"the limiter lets in more than the {capacity} items that fit, so the remover evicts items that were "
                "never sampled; lower the limiter's upper bound, or name no remover"
            )
        return
    # Full, inserts wait for room, which comes only from items that are sampled to their use limit. The limiter must
    # let them be: also when every resident item lacks just one use.
    if min_diff > -math.inf and (uses > spi or capacity * (spi - uses + 1) - 1 < min_diff):
        raise InvalidConfig(
            f"this dead-locks as soon as {capacity} items are there: inserts wait for room, which comes when items are "
            f"sampled {max_times_sampled or 'for ever'} times, and samples wait for inserts, since the limiter allows "
            f"{spi} samples per insert (lower bound {min_diff}); name a remover, or set max_times_sampled to {spi:g} "
            "and widen the window"
        )
    if uses == math.inf:
        _warn(
            f"nothing ever leaves: without a remover and a use limit, inserts wait for ever once {capacity} items "
            "are there, unless items are deleted"
        )


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=5)
