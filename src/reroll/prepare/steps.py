"""The steps between the last trained and the newest prepared one: a `Step` record for each, in one dict.

`Steps` records which rank requested and received which step, and derives from it what may be prepared, what is acknowledged to
the buffer, and what is discarded. It waits only for the buffer.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from reroll.errors import InvalidArgument, LeaseExpired, StepGone, WaitTimeout
from reroll.prepare.generation import Generated
from reroll.prepare.step_data import PreparedStep


@dataclass(slots=True)
class Step:
    """One step, from its lease until it is trained and no rank can read it again."""

    lease: Any = None
    """The leased groups; None for an empty step, and after they were acknowledged or returned."""
    generated: Generated = field(default_factory=Generated)
    """The results that are counted for the step."""
    prepared: PreparedStep | None = None
    """The batches of all ranks; None before they are prepared, and when no rank can request them any more."""


class Steps:
    """The steps of a preparer, by number.

    Args:
        buffer: Holds the leases, and is advanced when steps are trained.
        num_ranks: Ranks that request steps.
        async_steps: Steps that may be prepared ahead of the requests.
        last: The step before the first one.

    """

    def __init__(self, buffer: Any, num_ranks: int, async_steps: int, last: int) -> None:
        self._buffer = buffer
        self._num_ranks = num_ranks
        self._async_steps = async_steps
        self.lock = asyncio.Lock()
        """Held while steps are acknowledged; its holder sees the buffer between two steps."""
        self.restart(last)

    def restart(self, last: int) -> None:
        """Begin after step `last`, without any step."""
        self._steps: dict[int, Step] = {}
        self._first = last + 1
        self._requested = [last] * self._num_ranks  # the newest step that each rank requested
        self._received = [last] * self._num_ranks  # the newest step that each rank received
        self._advanced = last  # the step that the buffer was advanced to
        self.trained = last
        """The last trained step; all steps before it are trained, too."""
        self.newest = last
        """The newest prepared step."""

    # --- requests of ranks

    def check(self, rank: int, step: int) -> None:
        """Raise InvalidArgument if a rank cannot request a step, StepGone if the step was discarded."""
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < self._num_ranks:
            raise InvalidArgument(
                f"rank must be a number from 0 to {self._num_ranks - 1}, not {rank!r}; see num_ranks"
            )
        if not isinstance(step, int) or isinstance(step, bool):
            raise InvalidArgument(f"step must be an integer, not {step!r}")
        slowest = min(self._requested)
        oldest = max(self._first, slowest - 1)
        if step < oldest:
            why = (
                f"this preparer begins with step {self._first}"
                if slowest < self._first
                else f"every rank has asked for step {slowest}, and only the one before it is kept"
            )
            raise StepGone(
                f"step {step} is gone: {why}; rank {rank} may ask for step {oldest} or later, and a trainer that restarts "
                "from a checkpoint has to restore() it"
            )
        if step > self._received[rank] + 1:  # a request says that the steps before it are trained
            raise InvalidArgument(
                f"step {step} is ahead: rank {rank} has not got step {self._received[rank] + 1} yet; ask for one after the "
                "other (a trainer that restarts has to restore() its checkpoint, or set first_step)"
            )

    def request(self, rank: int, step: int) -> None:
        """Record the request of a rank: it has finished all steps before."""
        self._requested[rank] = max(self._requested[rank], step)
        self._discard()

    def is_requested(self, step: int) -> bool:
        """Return whether a rank requested this step."""
        return max(self._requested) >= step

    def receive(self, rank: int, step: int) -> PreparedStep | None:
        """Return a prepared step, and record that the rank has it; None if it is not prepared."""
        found = self._steps.get(step)
        if found is None or found.prepared is None:
            return None
        self._received[rank] = max(self._received[rank], step)
        return found.prepared

    def finish(self, step: int) -> None:
        """Record that a step and all before it are trained. Raises InvalidArgument if no rank received it."""
        if not isinstance(step, int) or isinstance(step, bool) or step > max(self._received):
            raise InvalidArgument(f"step {step!r} cannot be done: no rank has got it; call get_data first")
        self.trained = max(self.trained, step)

    # --- preparation

    def can_prepare(self, step: int) -> bool:
        """Return whether a step is near enough to the requests: one rank does not run away from the others."""
        slowest = min(self._requested)
        return step <= min(max(self._requested), slowest + 1) + self._async_steps

    def open(self, number: int, lease: Any) -> Step:
        """Add a step whose groups are leased; `lease` is None for an empty step."""
        step = self._steps[number] = Step(lease)
        return step

    def offer(self, number: int, prepared: PreparedStep) -> None:
        """Make a prepared step available to the ranks."""
        self._steps[number].prepared = prepared
        self.newest = number
        self._discard()

    def is_prepared(self, step: int) -> bool:
        """Return whether a step is prepared and not discarded."""
        return step in self._steps and self._steps[step].prepared is not None

    def untrained(self) -> list[Generated]:
        """Return what was generated for the steps that are not trained."""
        return [step.generated for number, step in sorted(self._steps.items()) if number > self.trained]

    # --- leases

    def is_acknowledged(self) -> bool:
        """Return whether the buffer knows of all trained steps."""
        return self._advanced >= self._due()

    async def acknowledge(self, *, version: int | None = None) -> None:
        """Acknowledge the leases of the steps that every rank has finished. Raises LeaseExpired."""
        async with self.lock:
            for number in sorted(number for number in self._steps if number <= self._due()):
                step = self._steps[number]
                if step.lease is None:
                    continue
                try:
                    await step.lease.ack()
                except LeaseExpired:
                    step.lease = None
                    raise
                step.lease = None
                self.trained = max(self.trained, number)
            last = self._due()
            if self._advanced < last:
                await self._buffer.advance(last, version=version)
                self._advanced = last
                self.trained = max(self.trained, last)
        self._discard()

    async def acknowledge_by(self, deadline: float | None) -> None:
        """Acknowledge until a deadline of `time.monotonic`. Raises WaitTimeout, LeaseExpired."""
        if self.is_acknowledged():
            return
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - time.monotonic())):
                await self.acknowledge()
        except (WaitTimeout, LeaseExpired):
            raise
        except TimeoutError:
            raise WaitTimeout(
                "the buffer did not acknowledge the trained steps in time; ask again, nothing is lost"
            ) from None

    async def give_back(self, number: int | None = None) -> None:
        """Return the leased groups of one step, or of all steps, to the buffer."""
        async with self.lock:
            for key, step in list(self._steps.items()):
                if step.lease is not None and number in (None, key):
                    await step.lease.nack()
                    step.lease = None

    def is_leased(self, uid: int) -> bool:
        """Return whether the group with this uid is leased for a step; O(groups of the open steps)."""
        leases = [step.lease for step in self._steps.values() if step.lease is not None]
        return any(
            sample.info.uid == uid
            for lease in leases
            for samples in lease.samples.values()
            for sample in samples
        )

    def _due(self) -> int:
        """Return the last step that every rank has finished."""
        return max(self.trained, min(self._requested) - 1)

    def _discard(self) -> None:
        """Drop the batches that no rank can request any more, and steps of which nothing is left."""
        oldest = min(self._requested) - 1
        for number in [number for number in self._steps if number < oldest]:
            step = self._steps[number]
            step.prepared = None
            if step.lease is None and number <= self.trained:
                del self._steps[number]
