"""How many groups each shard gives, so that the whole is drawn as from one buffer. Pure; the dice are handed in."""

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from reroll.sample import SampleInfo


class Drawn(NamedTuple):
    """What one shard would give, in the order in which it drew."""

    total: float
    """The weight of all that it could draw from."""
    size: int
    """How many groups that are."""
    beta: float
    """The exponent of the importance weights, as its sampler has it now."""
    infos: list[SampleInfo]


def by_count(wanted: int, held: Sequence[int], most: Sequence[int]) -> list[int]:
    """Divide what is wanted among shards in proportion to what they hold, none more than it can give now."""
    given = [0] * len(held)
    while (missing := min(wanted, sum(most)) - sum(given)) > 0:
        open_ = [index for index in range(len(held)) if given[index] < most[index]]
        total = sum(held[index] for index in open_)
        shares = {index: missing * held[index] / total for index in open_}
        for index in open_:
            given[index] = min(most[index], given[index] + int(shares[index]))
        largest = max(open_, key=lambda index: (shares[index] % 1, held[index]))
        if sum(given) < min(wanted, sum(most)):
            given[largest] = min(most[largest], given[largest] + 1)
    return given


def by_weight(wanted: int, drawn: Sequence[Drawn], dice: random.Random) -> list[int]:
    """Return how many of its draws each shard gives, so that it is as if all were drawn from one.

    Draws of each shard are in the order of drawing from it alone; at each turn the shard is chosen by the weight that is
    left in it. Groups of weight zero come when no other is left, each with the same chance.
    """
    weights = [[info.probability * part.total for info in part.infos] for part in drawn]
    left = [part.total for part in drawn]
    given = [0] * len(drawn)
    for _ in range(min(wanted, sum(map(len, weights)))):
        has_more = [given[i] < len(weights[i]) for i in range(len(drawn))]
        chances = [left[i] if has_more[i] and weights[i][given[i]] > 0 else 0.0 for i in range(len(drawn))]
        if not sum(chances) > 0:
            rest = [part.size - count for part, count in zip(drawn, given, strict=True)]  # all of weight zero
            chances = [max(1.0, count) if more else 0.0 for count, more in zip(rest, has_more, strict=True)]
        (chosen,) = dice.choices(range(len(drawn)), chances)
        left[chosen] = max(0.0, left[chosen] - weights[chosen][given[chosen]])
        given[chosen] += 1
    return given


def shares_of(totals: Sequence[tuple[float, int]]) -> list[float]:
    """Return the part that each shard has of the whole: of the weight, or of the groups where none has a weight."""
    weights = [weight for weight, _ in totals]
    if not sum(weights) > 0:
        weights = [float(size) for _, size in totals]
    whole = sum(weights) or 1.0
    return [weight / whole for weight in weights]


def multinomial(wanted: int, shares: Sequence[float], dice: random.Random) -> list[int]:
    """Return how often each shard is drawn from, with replacement."""
    chosen = dice.choices(range(len(shares)), shares, k=wanted)
    return [chosen.count(index) for index in range(len(shares))]


def weighed(infos: Sequence[SampleInfo], beta: float) -> list[SampleInfo]:
    """Return infos of draws from several shards, whose chances are of the whole, with the importance weights of one batch."""
    logs = [
        -beta * math.log(info.table_size * info.probability) if info.probability > 0 else None
        for info in infos
    ]
    largest = max((log for log in logs if log is not None), default=0.0)
    weights = [1.0 if log is None else math.exp(log - largest) for log in logs]
    return [info._replace(weight=weight) for info, weight in zip(infos, weights, strict=True)]
