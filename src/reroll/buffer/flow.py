"""What was put and what was trained, counted as it passes. No clock, no I/O."""

from collections.abc import Mapping
from typing import Any

from reroll.buffer.group import Group
from reroll.rollout import GroupSummary, Status


class Flow:
    """What passed since the start, per task."""

    def put(self, task_name: str, summary: GroupSummary, status: Status) -> None:
        """Count a put that succeeded; `status` is what the group came to."""

    def trained(self, task_name: str, group: Group, step: int | None) -> None:
        """Count a COMPLETED group that is handed to a trainer, as of a training step."""

    def waited(self, verb: str, task_name: str, seconds: float) -> None:
        """Count that a verb had to wait."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what `state` told."""
