"""Groups of rollouts in few words."""

from typing import Any

from reroll import Rollout, Status


def rollout(
    tokens: int = 2, *, versions: Any = None, status: Any = Status.COMPLETED, **fields: Any
) -> Rollout:
    """Return a rollout of three prompt tokens and some response tokens; `versions` may be one for all of them."""
    if isinstance(versions, int):
        versions = [versions] * tokens
    fields = {"prompt_ids": [1, 2, 3], "response_ids": list(range(tokens)), **fields}
    return Rollout(response_model_steps=versions, status=status, **fields)


def group(name: Any = None, members: int = 1, **fields: Any) -> list[Rollout]:
    """Return a group of equal rollouts, known by its group_id."""
    return [rollout(group_id=name, rollout_id=index, **fields) for index in range(members)]


def names(groups: list[list[Any]]) -> list[Any]:
    """Return what the groups are known by."""
    return [rollouts[0].group_id for rollouts in groups]
