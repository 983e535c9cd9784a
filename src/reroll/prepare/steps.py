"""Which steps are prepared, who asked for which, and what follows from that. Bookkeeping only: it never waits."""

from typing import Generic, TypeVar

from reroll.errors import InvalidArgument, StepGone

T = TypeVar("T")


class Steps(Generic[T]):
    """The steps between the last that was trained and the newest that is prepared."""

    def __init__(self, num_ranks: int, async_steps: int, last: int) -> None:
        """Begin after step `last`."""
        self._async_steps = async_steps
        self._asked = [last] * num_ranks
        self._given = [last] * num_ranks
        self._ready: dict[int, T] = {}
        self._begin = last
        self.done = last
        """The last step that was trained; all before it were, too."""
        self.newest = last
        """The last step that is prepared."""

    def check(self, rank: int, step: int) -> None:
        """Raise InvalidArgument for what can never be given, StepGone for what is not kept any more."""
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < len(self._asked):
            raise InvalidArgument(
                f"rank must be a number from 0 to {len(self._asked) - 1}, not {rank!r}; num_ranks is configured"
            )
        if not isinstance(step, int) or isinstance(step, bool):
            raise InvalidArgument(f"step must be a whole number, not {step!r}")
        oldest = max(self._begin + 1, min(self._asked) - 1)
        if step < oldest:
            raise StepGone(
                f"step {step} is gone: {self._why_gone()}; rank {rank} may ask for step {oldest} or later, and a trainer "
                "that restarts from a checkpoint has to restore() it"
            )
        if step > self._given[rank] + 1:
            # To ask for a step says that those before it are trained.
            raise InvalidArgument(
                f"step {step} is ahead: rank {rank} has not got step {self._given[rank] + 1} yet; ask for one after the "
                "other (a trainer that restarts has to restore() its checkpoint, or set first_step)"
            )

    def _why_gone(self) -> str:
        if min(self._asked) == self._begin:
            return f"this preparer begins with step {self._begin + 1}"
        return f"every rank has asked for step {min(self._asked)}, and only the one before it is kept"

    def ask(self, rank: int, step: int) -> None:
        """Note that a rank asks for a step, which means that it is done with all before it."""
        self._asked[rank] = max(self._asked[rank], step)
        self._forget()

    def finish(self, step: int) -> None:
        """Note that a step, and all before it, was trained. Raises InvalidArgument for one that nobody has got."""
        if not isinstance(step, int) or isinstance(step, bool) or step > max(self._given):
            raise InvalidArgument(f"step {step!r} cannot be done: no rank has got it")
        self.done = max(self.done, step)

    def is_asked_for(self, step: int) -> bool:
        """Return whether a rank waits for this step, or has it."""
        return max(self._asked) >= step

    def may_prepare(self, step: int) -> bool:
        """Return whether a step is close enough to the trainer; one rank does not run away from the others."""
        return step <= min(max(self._asked), min(self._asked) + 1) + self._async_steps

    def offer(self, step: int, prepared: T) -> None:
        """Let a step be asked for."""
        self._ready[step] = prepared
        self.newest = step
        self._forget()

    def is_ready(self, step: int) -> bool:
        """Return whether a step is prepared, and not gone."""
        return step in self._ready

    def give(self, rank: int, step: int) -> T | None:
        """Return a step to a rank, None if it is not prepared."""
        if step in self._ready:
            self._given[rank] = max(self._given[rank], step)
        return self._ready.get(step)

    def due(self) -> int:
        """Return up to which step all ranks are done."""
        return max(self.done, min(self._asked) - 1)

    def _forget(self) -> None:
        oldest = min(self._asked) - 1
        for step in [step for step in self._ready if step < oldest]:
            del self._ready[step]
