"""The interface of every selector, live: which rows of a pool come next.

A specification (`Fifo()`, `Prioritized(alpha=0.6)`) is what a user writes and a file stores; `build` makes the
live selector of one pool from it. The same interface serves as sampler (who is trained next) and as remover
(who is evicted). Selectors read columns by slot and own no row.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from reroll.engine.columns import Columns, FloatArray, IntArray

Role = Literal["sampler", "remover"]


class Picks(NamedTuple):
    """What one call picked, in order, and by which chance."""

    slots: IntArray
    probability: FloatArray
    """Chance of the row at the start of the call; 1 where the selector leaves nothing to chance."""
    log_importance: FloatArray
    """log((N x probability)^-beta) before the batch is normalised; 0 where nothing is left to chance;
    NaN for a row of weight zero, which counts as the batch's largest."""

    def weights(self) -> FloatArray:
        """Return the importance weights, divided by the batch's largest."""
        # Subtracting logarithms, not dividing: N x probability may be too small for its inverse to exist.
        largest = np.maximum.reduce(self.log_importance, initial=-np.inf)
        has_zero_weights = np.isnan(largest)
        if has_zero_weights:
            largest = np.fmax.reduce(self.log_importance, initial=-np.inf)  # passes over NaN
        weights: FloatArray = np.exp(self.log_importance - largest)
        if has_zero_weights:
            weights[np.isnan(weights)] = 1.0
        return weights

    @classmethod
    def certain(cls, slots: IntArray) -> "Picks":
        """Return picks that were no matter of chance."""
        zeros = np.zeros(len(slots))
        return cls(slots, zeros + 1.0, zeros)

    @classmethod
    def joined(cls, parts: "list[Picks]") -> "Picks":
        """Return the picks of several calls as those of one."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Selector(Protocol):
    """Rows in an order, or with chances. All slots given to one call are distinct."""

    def __len__(self) -> int:
        """Return how many rows it holds. O(1)."""

    def add(self, slots: IntArray) -> None:
        """Take rows in."""

    def remove(self, slots: IntArray) -> None:
        """Let rows go; all of them are held."""

    def touch(self, slots: IntArray) -> None:
        """Follow a change of `priority`, `touched`, `uses` or `staleness` of rows that are held."""

    def can_pick(self, n: int, rng: np.random.Generator) -> bool:
        """Return whether `pick(n, ...)` gives n rows now."""

    def pick(
        self, n: int, rng: np.random.Generator, *, step: int | None = None, replace: bool = False
    ) -> Picks:
        """Pick n distinct rows (all, if fewer are held) without letting them go.

        `step` is the training step of the task (None: it has not seen one). With `replace`, selectors that draw
        by chance may draw a row more than once.
        """

    def slots(self) -> IntArray:
        """Return all rows it holds, in any order. O(rows)."""

    def state(self) -> Mapping[str, Any]:
        """Return all that the next picks depend on besides the columns of its rows: small, plain values."""

    def restore(self, state: Mapping[str, Any], slots: IntArray) -> None:
        """Become what `state` told; the selector is empty, and these are its rows, back in the columns as they were."""


@runtime_checkable
class Tunable(Protocol):
    """A selector that can take over some parameters without being built anew."""

    def tune(self, spec: Any) -> bool:
        """Take over the parameters of a specification of its own kind; False, and no change, where rows must be filed anew."""


class SelectorSpec(Protocol):
    """What a user writes: immutable, comparable, and able to build live selectors."""

    @property
    def type(self) -> str:
        """The name of the selector in configuration files."""

    def build(self, columns: Columns, role: Role) -> Selector:
        """Make an empty live selector over these columns."""
