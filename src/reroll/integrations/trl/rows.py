"""Rows of TRL's batches as rollouts, and rollouts as a batch again: each token keeps its log-prob, masks and the rest.

A batch is a dict of tensors, padded to its longest row: prompts on the left, completions on the right. Whatever else has
one value for each row, or for each token of a completion, goes along under its own name.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from trl.trainer.utils import pad

from reroll.errors import InvalidArgument
from reroll.rollout import Rollout, Status

LOGPROBS: Final = "old_per_token_logps"
TOTAL: Final = "num_items_in_batch"
_FIELDS: Final = ("prompt_ids", "prompt_mask", "completion_ids", LOGPROBS, TOTAL)
"""What a rollout has fields of its own for, or what is not of a row."""
_PADDING: Final = {"tool_mask": 1, "importance_sampling_ratio": 1}
Rows = Mapping[str, Any]


def loss_mask(batch: Rows) -> Any:
    """Return which tokens of the completions are trained on."""
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def rollouts_of(batch: Rows, lengths: Sequence[int], rewards: Sequence[float]) -> list[Rollout]:
    """Return each row as a rollout. Raises InvalidArgument for a batch with values that belong to no row or token."""
    odd = [name for name, value in batch.items() if name != TOTAL and not _is_of_rows(value, len(lengths))]
    if odd:
        raise InvalidArgument(
            f"{odd} of this batch have no value for each row or token, as images do not: train such data without replay"
        )
    batch = {name: value.detach().cpu() for name, value in batch.items() if name != TOTAL}
    trained = loss_mask(batch)
    rest = [name for name in batch if name not in _FIELDS]
    return [
        Rollout(
            prompt_ids=_plain(batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]),
            response_ids=_plain(batch["completion_ids"][row, :length]),
            logprobs=_plain(batch[LOGPROBS][row, :length]),
            response_mask=_plain(trained[row, :length]),
            reward=None if reward != reward else reward,  # noqa: PLR0124  (NaN: nobody could score it)
            status=Status.COMPLETED,
            extra_fields={
                name: _plain(batch[name][row, :length] if batch[name].ndim == 2 else batch[name][row])
                for name in rest
            },
        )
        for row, (length, reward) in enumerate(zip(lengths, rewards, strict=True))
    ]


def batch_of(
    rollouts: Sequence[Rollout], like: Rows, pad_token_id: int, pad_to_multiple_of: int | None
) -> dict[str, Any]:
    """Return rollouts as a batch with the names, types and device of another one, padded to the longest of them."""

    def joined(name: str, values: Iterable[Any], padding: int = 0, side: str = "right") -> Any:
        rows = [torch.as_tensor(value).to(like[name]) for value in values]
        if rows[0].ndim == 0:
            return torch.stack(rows)
        # One value for a whole completion stays one; numpy and torch repeat it for each token.
        multiple = None if all(len(row) == 1 for row in rows) else pad_to_multiple_of
        return pad(rows, padding_value=padding, padding_side=side, pad_to_multiple_of=multiple)

    prompts = [_writable(rollout.prompt_ids) for rollout in rollouts]
    batch = {
        "prompt_ids": joined("prompt_ids", prompts, pad_token_id, "left"),
        "prompt_mask": joined("prompt_mask", [torch.ones(len(ids)) for ids in prompts], 0, "left"),
        "completion_ids": joined(
            "completion_ids", [_writable(one.response_ids) for one in rollouts], pad_token_id
        ),
        LOGPROBS: joined(LOGPROBS, [_writable(one.logprobs) for one in rollouts]),
    }
    for name in like:
        if name not in _FIELDS:
            values = [_writable(_field(rollout, name)) for rollout in rollouts]
            batch[name] = joined(name, values, _PADDING.get(name, 0))
    return batch


def _is_of_rows(value: Any, rows: int) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim in (1, 2) and len(value) == rows


def _plain(value: Any) -> Any:
    """Return a tensor as an array of its own; masks small, and floats in a type that numpy has."""
    if value.is_floating_point():
        return value.float().clone().numpy()
    return value.to(torch.uint8 if ((value == 0) | (value == 1)).all() else value.dtype).clone().numpy()


def _writable(array: Any) -> Any:
    """Return an array that torch takes without a warning; those from disk are read-only."""
    return array if array.flags.writeable else array.copy()


def _field(rollout: Rollout, name: str) -> Any:
    try:
        return rollout.extra_fields[name]
    except KeyError:
        raise InvalidArgument(
            f"groups in the buffer have no {name}: they were put by a run with other settings (beta, tools, vLLM). Give this "
            "run another store"
        ) from None
