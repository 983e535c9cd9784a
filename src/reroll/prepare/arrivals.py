"""What was generated for a step: results as they came, until the step that they are counted for is drawn."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from reroll.prepare.filters import Verdict
from reroll.rollout import Rollout
from reroll.rollout.model import STATE_SLOTS

_PROMPT, _RESPONSE = STATE_SLOTS.index("_prompt_ids"), STATE_SLOTS.index("_response_ids")
_PER_TOKEN: Final = tuple(
    STATE_SLOTS.index(name) for name in ("_tokens", "_logprobs", "_response_mask", "_input_ids", "_labels")
)
_ZERO: Final = np.zeros((), np.int32)


class Arrival(NamedTuple):
    """One group that was generated, and what became of it."""

    group: list[Rollout]
    verdict: Verdict
    uid: int | None
    """In the buffer; None if it was left out."""


@dataclass(slots=True)
class Generated:
    """What is counted for one step."""

    arrivals: list[Arrival] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    """Results that became no group to train on, by what happened to them."""


class Arrivals:
    """Groups in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[Arrival] = deque()
        self._others: Counter[str] = Counter()
        self.results = 0
        """How many results came in all."""
        self.carried = 0
        """Groups that were in the buffer before: they count as the first that came and passed."""

    def add(self, group: Sequence[Rollout], verdict: Verdict, uid: int | None) -> None:
        """Note a group; its tokens are not kept, and what becomes of it in the buffer does not matter."""
        self._waiting.append(Arrival([_without_tokens(rollout) for rollout in group], verdict, uid))

    def count(self, what: str) -> None:
        """Note that something happened to a result."""
        self._others[what] += 1

    def others(self, what: str) -> int:
        """Return how often that happened since the last step."""
        return self._others[what]

    @property
    def counted(self) -> int:
        """How many results wait to be counted for a step."""
        return self.carried + len(self._waiting)

    def passed_of(self, count: int) -> int:
        """Return how many of the first so many results passed."""
        carried = min(count, self.carried)
        first = (self._waiting[place] for place in range(min(count - carried, len(self._waiting))))
        return carried + sum(arrival.uid is not None for arrival in first)

    def take(self, count: int) -> Generated:
        """Return the first so many results."""
        carried = min(count, self.carried)
        self.carried -= carried
        return self._taken(min(count - carried, len(self._waiting)))

    def take_up_to(self, newest: int) -> Generated:
        """Return what came up to the group with this uid; nothing if it came before."""
        count = max(
            (
                place + 1
                for place, arrival in enumerate(self._waiting)
                if arrival.uid is not None and arrival.uid <= newest
            ),
            default=0,
        )
        return self._taken(count)

    def take_all(self) -> Generated:
        """Return what came until now."""
        return self._taken(len(self._waiting))

    def _taken(self, count: int) -> Generated:
        others, self._others = self._others, Counter()
        return Generated([self._waiting.popleft() for _ in range(count)], others)


def _without_tokens(rollout: Rollout) -> Rollout:
    """Return a rollout with the lengths of this one and no tokens: what numbers about it are computed from."""
    state: list[Any] = list(rollout.state())
    for place in (_PROMPT, _RESPONSE):
        if state[place] is not None:
            state[place] = np.broadcast_to(_ZERO, len(state[place]))
    for place in _PER_TOKEN:
        state[place] = None
    return Rollout.from_state(state)
