"""StalenessWindow: admits producers before they spend GPU time on what could not be trained in time."""

from dataclasses import dataclass
from typing import ClassVar

from reroll.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class StalenessWindow:
    """How many groups may be under way, so that each is trained with at most `max_staleness`.

    Args:
        max_staleness: training step minus oldest version minus 1, at most; None: the `max_staleness` of the task.
        batch: groups per training step.
        sync_interval: the weights that generate are renewed every so many training steps.

    """

    type: ClassVar[str] = "staleness_window"
    max_staleness: int | None = None
    batch: int = 0  # must be given
    sync_interval: int = 1

    def __post_init__(self) -> None:
        for name, least in (("max_staleness", 0), ("batch", 1), ("sync_interval", 1)):
            value = getattr(self, name)
            if value is None and name == "max_staleness":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidConfig(
                    f"StalenessWindow: {name} must be a whole number of at least {least}, not {value!r}"
                )
        if self.max_staleness is not None and self.max_staleness < self.sync_interval - 1:
            raise InvalidConfig(
                f"StalenessWindow: with weights renewed every {self.sync_interval} steps, groups reach staleness "
                f"{self.sync_interval - 1} by waiting for them; nobody could start under max_staleness="
                f"{self.max_staleness}"
            )

    @property
    def _steps(self) -> int:
        """How many training steps of groups may be under way."""
        assert self.max_staleness is not None  # noqa: S101  (`TaskConfig.window` fills it in)
        return self.max_staleness + 1

    @property
    def largest(self) -> int:
        """More groups than this can never be under way."""
        return self._steps * self.batch

    @property
    def least_left(self) -> int:
        """So few groups may be left when a trainer lacks one of a batch, and nobody may start another."""
        return (self._steps - self.sync_interval) * self.batch + 1

    def may_start(self, advanced: int, serving: int, busy: int) -> int:
        """Return how many groups may start: `busy` are under way, ready, or trained since step `advanced` was done."""
        return max(0, (self._steps - (advanced - serving)) * self.batch - busy)
