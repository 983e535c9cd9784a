"""Rows of TRL's batches as rollouts, and rollouts as a batch again: each token keeps its log-prob, masks and the rest.

A batch is a dict of tensors, padded to its longest row: prompts on the left, completions on the right. Whatever else has
one value for each row, or for each token of a completion, goes along under its own name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from trl.trainer.utils import pad

from reroll.errors import InvalidArgument
from reroll.rollout import Rollout, Status

LOGPROBS: Final = "old_per_token_logps"
TOTAL: Final = "num_items_in_batch"
_FIELDS: Final = ("prompt_ids", "prompt_mask", "completion_ids", LOGPROBS, TOTAL)
"""What a rollout has a field of its own for, or what is not of a row."""
_PADDING: Final = {"tool_mask": 1, "importance_sampling_ratio": 1}


def loss_mask(batch: Mapping[str, Any]) -> Any:
    """Return which tokens of the completions are trained on."""
    return batch["completion_mask"] * batch.get("tool_mask", 1)


def rollouts_of(batch: Mapping[str, Any], lengths: Sequence[int], rewards: Sequence[float]) -> list[Rollout]:
    """Return each row as a rollout. Raises InvalidArgument for a batch with values that belong to no row or token."""
    rows = {name: value for name, value in batch.items() if name != TOTAL}
    odd = [name for name, value in rows.items() if not torch.is_tensor(value) or value.ndim > 2]
    if odd or any(len(value) != len(lengths) for value in rows.values()):
        raise InvalidArgument(
            f"images or other values of no row or token cannot be replayed: {odd or list(rows)}"
        )
    rows = {name: value.detach().cpu() for name, value in rows.items()}
    rows["loss_mask"] = loss_mask(rows)
    made = []
    for row, (length, reward) in enumerate(zip(lengths, rewards, strict=True)):
        prompt = rows["prompt_ids"][row][rows["prompt_mask"][row].bool()]
        of = {
            name: _plain(value[row, :length] if value.ndim == 2 else value[row])
            for name, value in rows.items()
        }
        made.append(
            Rollout(
                prompt_ids=_plain(prompt),
                response_ids=of["completion_ids"],
                logprobs=of[LOGPROBS],
                response_mask=of.pop("loss_mask"),
                reward=reward if reward == reward else None,  # noqa: PLR0124  (NaN: nobody could score it)
                status=Status.COMPLETED,
                extra_fields={name: value for name, value in of.items() if name not in _FIELDS},
            )
        )
    return made


def batch_of(
    rollouts: Sequence[Rollout], like: Mapping[str, Any], pad_token_id: int, multiple: int | None
) -> dict[str, Any]:
    """Return rollouts as a batch with the names, types and device of another one, padded to the longest of them.

    Raises InvalidArgument for rollouts that lack one of the names.
    """
    rest = [name for name in like if name not in _FIELDS]
    if lacking := [name for name in rest if any(name not in one.extra_fields for one in rollouts)]:
        raise InvalidArgument(
            f"the store has groups of other settings, without {lacking}: give this run another one"
        )
    values: dict[str, list[Any]] = {
        "prompt_ids": [one.prompt_ids for one in rollouts],
        "prompt_mask": [np.ones_like(one.prompt_ids) for one in rollouts],
        "completion_ids": [one.response_ids for one in rollouts],
        LOGPROBS: [one.logprobs for one in rollouts],
        **{name: [one.extra_fields[name] for one in rollouts] for name in rest},
    }
    padding = {"prompt_ids": pad_token_id, "completion_ids": pad_token_id, **_PADDING}
    made = {}
    for name, arrays in values.items():
        rows = [torch.tensor(array).to(like[name]) for array in arrays]
        if rows[0].ndim == 0:
            made[name] = torch.stack(rows)
            continue
        is_one = all(len(row) == 1 for row in rows)  # for a whole completion: repeated for each token
        side = "left" if name.startswith("prompt") else "right"
        made[name] = pad(rows, padding.get(name, 0), side, None if is_one else multiple)
    return made


def _plain(value: Any) -> Any:
    """Return a tensor as an array of its own; masks small, and floats in a type that numpy has."""
    if value.is_floating_point():
        return value.float().clone().numpy()
    return value.to(torch.uint8 if ((value == 0) | (value == 1)).all() else value.dtype).clone().numpy()
