"""The side of the prompts: what a preparer tells whoever asks the engines, and a cursor that skips and doubles none."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reroll.errors import InvalidArgument
from reroll.prepare.results import GenerationResult


class Prompts:
    """What a preparer tells, and what it asks for. Override what matters to you; each must return quickly.

    The methods are called one at a time, from the event loop of the preparer: with `Preparer`, that is another thread.
    """

    def settled(self, results: Sequence[GenerationResult]) -> None:
        """Learn that results are in the buffer, or were left out: they need not be generated again."""

    def replace(self, count: int) -> None:
        """Learn that so many groups were left out, and as many other prompts are wanted for them."""

    def exclude(self, results: Sequence[GenerationResult]) -> None:
        """Learn which prompts are solved too often to be worth asking again."""

    def state(self) -> Any:
        """Return the cursor, as plain values: which prompts are settled."""
        return None

    def restore(self, state: Any) -> None:
        """Go on from what `state` returned: ask for all that was not settled then."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt to be generated for; its result carries `prompt_id` and `index`."""

    prompt_id: str
    """Of this request: the same prompt has another one in another epoch."""
    index: int
    """Number of the prompt in its data set."""
    prompt: Any


class PromptCursor(Prompts):
    """Hands out the prompts of a data set, epoch after epoch, and remembers which are settled. Thread-safe.

    After `restore`, what was handed out and not settled comes first: no prompt is skipped, and with the preparer's
    `unique_prompt_ids` none is trained twice.
    """

    def __init__(self, prompts: Sequence[Any], *, epochs: int | None = None, seed: int | None = None) -> None:
        """Go through the prompts so many times (None: for ever), in their order, or shuffled by a seed."""
        if not len(prompts):
            raise InvalidArgument("a cursor needs at least one prompt")
        self._prompts = prompts
        self._end = None if epochs is None else epochs * len(prompts)
        self._seed = seed
        self._lock = threading.Lock()
        self._next = 0  # the first request that was never handed out
        self._open: set[int] = set()  # of those before it, the ones that are not settled
        self._again: list[int] = []
        self._excluded: set[int] = set()
        self._orders: dict[
            int, Sequence[int]
        ] = {}  # of two epochs, since one begins while results of the last come
        self._owed = 0

    @property
    def owed(self) -> int:
        """How many prompts are wanted for groups that were left out, and were not taken yet."""
        with self._lock:
            return self._owed

    def take(self, count: int) -> list[Asked]:
        """Return the next prompts to generate for; fewer when there are no more."""
        with self._lock:
            return self._take(count)

    def take_owed(self) -> list[Asked]:
        """Return a prompt for each group that was left out since the last call (active sampling)."""
        with self._lock:
            count, self._owed = self._owed, 0
            return self._take(count)

    def settled(self, results: Sequence[GenerationResult]) -> None:
        with self._lock:
            for result in results:
                self._open.discard(self._number(result))

    def replace(self, count: int) -> None:
        with self._lock:
            self._owed += count

    def exclude(self, results: Sequence[GenerationResult]) -> None:
        with self._lock:
            self._excluded.update(self._place(self._number(result)) for result in results)

    def state(self) -> dict[str, Any]:
        with self._lock:
            return {
                "next": self._next,
                "open": sorted(self._open),
                "excluded": sorted(self._excluded),
                "owed": self._owed,
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        with self._lock:
            self._next, self._owed = state["next"], state["owed"]
            self._excluded = set(state["excluded"])
            self._again = _open_in(state)
            self._open = set(self._again)

    def _take(self, count: int) -> list[Asked]:
        taken: list[Asked] = []
        while len(taken) < count:
            if self._again:
                number = self._again.pop(0)
            elif (self._end is None or self._next < self._end) and len(self._excluded) < len(self._prompts):
                number = self._next
                self._next += 1
                if self._place(number) in self._excluded:
                    continue
                self._open.add(number)
            else:
                break
            index = self._place(number)
            taken.append(Asked(f"{number}", index, self._prompts[index]))
        return taken

    def _place(self, number: int) -> int:
        epoch, place = divmod(number, len(self._prompts))
        if self._seed is None:
            return place
        if epoch not in self._orders:
            while len(self._orders) > 1:
                del self._orders[next(iter(self._orders))]
            order = np.random.default_rng([self._seed, epoch]).permutation(len(self._prompts))
            self._orders[epoch] = order.tolist()
        return self._orders[epoch][place]

    def _number(self, result: GenerationResult) -> int:
        try:
            return int(result.prompt_id)
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"prompt_id {result.prompt_id!r} is none of this cursor: a result carries the prompt_id that `take` gave"
            ) from None


def _open_in(state: Mapping[str, Any]) -> list[int]:
    """Return what was handed out and not settled, the oldest first."""
    if "open" in state:
        return sorted(state["open"])
    settled = set(state["settled"])  # a version before this one noted what was settled
    return [number for number in range(state["first_open"], state["next"]) if number not in settled]
