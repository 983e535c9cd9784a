"""Prompts: the callbacks of a preparer to the part that requests generation, and a cursor over a data set."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reroll.errors import InvalidArgument
from reroll.prepare.results import GenerationResult


class Prompts:
    """Callbacks of a preparer. Override the ones you need; each must return quickly.

    They are called one at a time from the event loop of the preparer, which is another thread with `BlockingPreparer`.
    """

    def on_stored(self, results: Sequence[GenerationResult]) -> None:
        """Handle results that are stored, or filtered for good: they need not be generated again.

        Args:
            results: the results.

        """

    def on_replacement_needed(self, count: int) -> None:
        """Handle groups that were filtered, failed or expired: other prompts replace them.

        Args:
            count: number of further prompts.

        """

    def on_solved(self, results: Sequence[GenerationResult]) -> None:
        """Handle prompts that are solved too often to be sampled again (`no_resampling_pass_rate`).

        Args:
            results: of these prompts.

        """

    def state(self) -> Any:
        """Return which prompts are finished, as plain values."""
        return None

    def restore(self, state: Any) -> None:
        """Continue from a state: request all prompts that were not finished.

        Args:
            state: what `state` returned.

        """


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """A prompt to generate for; its result carries `prompt_id` and `index`."""

    prompt_id: str
    """Names this request: the same prompt has another id in another epoch."""
    index: int
    """Position of the prompt in its data set."""
    prompt: Any


class PromptCursor(Prompts):
    """Hands out the prompts of a data set, epoch after epoch, and records which are finished. Thread-safe.

    After `restore`, prompts that were handed out and are not finished come first: no prompt is skipped, and with
    `unique_prompt_ids` none is trained twice.

    Args:
        prompts: The data set.
        epochs: Number of passes over it; None: no end.
        seed: Seed of a new order for each epoch; None: the order of the data set.

    """

    def __init__(self, prompts: Sequence[Any], *, epochs: int | None = None, seed: int | None = None) -> None:
        if not len(prompts):
            raise InvalidArgument("a cursor needs at least one prompt")
        self._prompts = prompts
        self._end = None if epochs is None else epochs * len(prompts)
        self._seed = seed
        self._lock = threading.Lock()
        self._next = 0  # number of the first request that was never handed out
        self._open: set[int] = set()  # numbers before it that are not finished
        self._again: list[int] = []
        self._excluded: set[int] = set()
        # Of two epochs: results of one arrive while the next begins.
        self._orders: dict[int, Sequence[int]] = {}
        self._owed = 0

    @property
    def owed(self) -> int:
        """Number of replacements that were needed and not taken yet."""
        with self._lock:
            return self._owed

    def take(self, count: int) -> list[PromptRequest]:
        """Return the next requests.

        Args:
            count: number of requests; fewer are returned at the end of the last epoch.

        """
        with self._lock:
            return self._take(count)

    def take_owed(self) -> list[PromptRequest]:
        """Return a request for each replacement that was needed since the last call (active sampling)."""
        with self._lock:
            count, self._owed = self._owed, 0
            return self._take(count)

    def on_stored(self, results: Sequence[GenerationResult]) -> None:
        with self._lock:
            for result in results:
                self._open.discard(self._number(result))

    def on_replacement_needed(self, count: int) -> None:
        with self._lock:
            self._owed += count

    def on_solved(self, results: Sequence[GenerationResult]) -> None:
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
            self._again = sorted(state["open"])
            self._open = set(self._again)

    def _take(self, count: int) -> list[PromptRequest]:
        taken: list[PromptRequest] = []
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
            taken.append(PromptRequest(f"{number}", index, self._prompts[index]))
        return taken

    def _place(self, number: int) -> int:
        """Return the position in the data set of a request number."""
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
                f"prompt_id {result.prompt_id!r} is not of this cursor; a result carries the prompt_id that `take` returned"
            ) from None
