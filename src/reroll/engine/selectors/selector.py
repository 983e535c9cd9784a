"""The interface of selectors: which rows of a pool come next.

Users write a specification (`Fifo()`, `Prioritized(alpha=0.6)`), and files store it; `build` makes the live selector of one
pool from it. The same interface serves samplers, which choose rows to deliver, and removers, which choose rows to
evict. Selectors read columns by slot and own no row.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from reroll.engine.rows import Columns, FloatArray, IntArray

Role = Literal["sampler", "remover"]
Rng = np.random.Generator


class Picks(NamedTuple):
    """The rows of one pick, in order, and their probabilities."""

    slots: IntArray
    probability: FloatArray
    """Probability of the row at the start of the call; 1 if the selector has no chance."""
    log_importance: FloatArray
    """log((N x probability)^-beta) before the batch is normalised; 0 if the selector has no chance; NaN for a row of
    weight zero, which counts as the largest of the batch."""

    def weights(self) -> FloatArray:
        """Return the importance weights, divided by the largest of the batch."""
        # Subtract logarithms instead of dividing: N x probability may be too small for its inverse to exist.
        largest = np.maximum.reduce(self.log_importance, initial=-np.inf)
        has_zero_weights = np.isnan(largest)
        if has_zero_weights:
            largest = np.fmax.reduce(self.log_importance, initial=-np.inf)  # ignores NaN
        weights: FloatArray = np.exp(self.log_importance - largest)
        if has_zero_weights:
            weights[np.isnan(weights)] = 1.0
        return weights

    @classmethod
    def even(cls, slots: IntArray, rows: int = 1) -> "Picks":
        """Return picks that were equally probable among `rows`; by default, picks without chance."""
        zeros = np.zeros(len(slots))
        return cls(slots, zeros + 1 / max(rows, 1), zeros)

    @classmethod
    def joined(cls, parts: "list[Picks]") -> "Picks":
        """Return the picks of several calls as those of one."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Selector(Protocol):
    """Rows in an order, or with probabilities. All slots of one call are distinct."""

    def __len__(self) -> int:
        """Return the number of rows. O(1)."""

    def add(self, slots: IntArray) -> None:
        """Add rows."""

    def remove(self, slots: IntArray) -> None:
        """Remove rows, all of which it has."""

    def touch(self, slots: IntArray) -> None:
        """Update rows whose `priority`, `touched`, `uses` or `staleness` changed."""

    def can_pick(self, n: int, rng: Rng) -> bool:  # noqa: ARG002
        """Return whether `pick(n, ...)` gives n rows now."""
        return len(self) >= n

    def pick(self, n: int, rng: Rng, *, step: int | None = None, replace: bool = False) -> Picks:
        """Pick n distinct rows (all, if there are fewer) without removing them.

        `step` is the training step of the task (None before the first). With `replace`, selectors that draw by chance
        may draw a row more than once.
        """

    def slots(self) -> IntArray:
        """Return all rows, in any order. O(rows)."""

    def state(self) -> Mapping[str, Any]:
        """Return what later picks depend on besides the columns of the rows, as few plain values."""
        return {}

    def restore(self, state: Mapping[str, Any], slots: IntArray) -> None:  # noqa: ARG002
        """Restore an empty selector from `state`; `slots` are its rows, whose columns are restored."""
        self.add(slots)


@runtime_checkable
class Tunable(Protocol):
    """A selector whose parameters can change without a rebuild."""

    def tune(self, spec: Any) -> bool:
        """Use the parameters of a specification of its kind; return False, unchanged, if it must be rebuilt."""


class SelectorSpec(Protocol):
    """A specification: immutable, comparable, and able to build live selectors."""

    @property
    def type(self) -> str:
        """The name of the selector in configuration files."""

    def build(self, columns: Columns, role: Role) -> Selector:
        """Return an empty live selector over these columns."""
