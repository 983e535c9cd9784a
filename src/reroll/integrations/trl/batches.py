"""Conversion of TRL's batches to rollouts and back; each token keeps its log-probability, masks and further columns.

A batch is a dict of tensors, padded to its longest row: prompts on the left, completions on the right. Further entries with
one value per row, or per completion token, are kept under their own names.
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
"""The one entry that belongs to the whole batch."""
_FIELDS: Final = {"completion_ids": "response_ids", LOGPROBS: "logprobs"}
"""Fields of a rollout for entries of a batch."""
_PADDING: Final = {"tool_mask": 1, "importance_sampling_ratio": 1}


def loss_mask(batch: Mapping[str, Any]) -> Any:
    """Return which completion tokens are trained on."""
    return batch["completion_mask"] * batch.get("tool_mask", 1)


def score_of(reward: float | None) -> float | None:
    """Return the reward of a rollout: None where TRL has NaN."""
    return None if reward is None or np.isnan(reward) else reward


def rollouts_of(batch: Mapping[str, Any], lengths: Sequence[int], rewards: Sequence[float]) -> list[Rollout]:
    """Return each row as a rollout. Raises InvalidArgument for entries that are neither per row nor per token."""
    columns = {name: value for name, value in batch.items() if name != TOTAL}
    odd = [name for name, value in columns.items() if not torch.is_tensor(value) or value.ndim > 2]
    if odd or any(len(value) != len(lengths) for value in columns.values()):
        raise InvalidArgument(f"only entries per row or token can be replayed, not {odd or [*columns]}")
    columns = {name: value.detach().cpu() for name, value in columns.items()}
    prompts, masks = columns.pop("prompt_ids"), columns.pop("prompt_mask").bool()
    made = []
    for row, (length, reward) in enumerate(zip(lengths, rewards, strict=True)):
        rest = {
            name: _array(value[row, :length] if value.ndim == 2 else value[row])
            for name, value in columns.items()
        }
        named = {field: rest.pop(name) for name, field in _FIELDS.items()}
        named |= {"prompt_ids": _array(prompts[row][masks[row]]), "response_mask": loss_mask(rest)}
        made.append(Rollout(**named, reward=score_of(reward), status=Status.COMPLETED, extra_fields=rest))
    return made


def batch_of(
    rollouts: Sequence[Rollout], like: Mapping[str, Any], pad_token_id: int, multiple: int | None
) -> dict[str, Any]:
    """Return rollouts as a batch with the names, types and device of another, padded to the longest rollout.

    Raises InvalidArgument for rollouts that do not have one of the names.
    """
    rows = [_entries(one) for one in rollouts]
    names = [name for name in like if name != TOTAL]
    if missing := [name for name in names if any(name not in row for row in rows)]:
        raise InvalidArgument(
            f"the store has groups of other settings, without {missing}; give another store"
        )
    padding = {"prompt_ids": pad_token_id, "completion_ids": pad_token_id, **_PADDING}
    made = {}
    for name in names:
        column = [torch.tensor(row[name]).to(like[name]) for row in rows]
        if column[0].ndim == 0:
            made[name] = torch.stack(column)
            continue
        is_one = all(len(value) == 1 for value in column)  # one value per completion, broadcast to its tokens
        side = "left" if name.startswith("prompt") else "right"
        made[name] = pad(column, padding.get(name, 0), side, None if is_one else multiple)
    return made


def _entries(one: Rollout) -> dict[str, Any]:
    prompt = {"prompt_ids": one.prompt_ids, "prompt_mask": np.ones_like(one.prompt_ids)}
    return {**one.extra_fields, **prompt, **{name: getattr(one, field) for name, field in _FIELDS.items()}}


def _array(value: Any) -> Any:
    """Return a copy of a tensor as an array; masks as uint8, floats in a type that numpy has."""
    if value.is_floating_point():
        return value.float().clone().numpy()
    return value.to(torch.uint8 if ((value == 0) | (value == 1)).all() else value.dtype).clone().numpy()
