"""GRPO through reroll: the part to copy. The trainer asks for a step, learns from its packed rows, and says that it is done."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from reroll.demo.policy import Policy, weights_of
from reroll.prepare import PackedBatch, StepData

LEARNING_RATE = 6e-4
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
TIMEOUT_S = 60.0


class Trained(NamedTuple):
    """A step that is done."""

    data: StepData
    began: float
    """When its batch was there, by the monotonic clock."""
    ended: float
    """When the optimizer had made its step."""


def new_optimizer(policy: Policy) -> torch.optim.Optimizer:
    """Return the optimizer of a policy."""
    return torch.optim.Adam(policy.parameters(), LEARNING_RATE)


def train(
    policy: Policy, optimizer: torch.optim.Optimizer, preparer: Any, board: Any, steps: Iterable[int]
) -> Iterator[Trained]:
    """Train step after step, and yield what was trained. Raises what `Preparer.get_data` does."""
    for step in steps:
        data = preparer.get_data(0, step, timeout=TIMEOUT_S)  # waits for a full batch
        began = time.monotonic()
        learn(policy, optimizer, data)
        ended = time.monotonic()
        board.publish(step, weights_of(policy))  # version `step` generates from now on
        preparer.done(step)  # its groups are consumed, and producers may start others
        yield Trained(data, began, ended)


def learn(policy: Policy, optimizer: torch.optim.Optimizer, data: StepData) -> None:
    """Make one optimizer step on the batch of this rank."""
    optimizer.zero_grad()
    for micro_batch in data:
        loss = grpo_loss(policy, micro_batch) / data.batch.counts.trainable_tokens
        loss.backward()
    optimizer.step()


def grpo_loss(policy: Policy, batch: PackedBatch) -> Tensor:
    """Return the clipped loss of a micro-batch, summed over its trainable tokens."""
    columns = batch.to_torch()
    ratio = (token_logprobs(policy, batch) - columns["logprobs"]).exp()
    clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    gain = torch.minimum(ratio * columns["advantages"], clipped * columns["advantages"])
    return -(gain * columns["weights"])[columns["response_mask"]].sum()


def token_logprobs(policy: Policy, batch: PackedBatch) -> Tensor:
    """Return the log-probability of each token of a micro-batch, given those before it; 0 for the first of a row."""
    rows = Rows.of(batch)
    logits = policy(rows.tokens, rows.positions, rows.mask)
    following = logits[:, :-1].log_softmax(-1).gather(-1, rows.tokens[:, 1:, None])[:, :, 0]
    return functional.pad(following, (1, 0)).flatten()[rows.place]


@dataclass(frozen=True, slots=True)
class Rows:
    """A micro-batch as a rectangle: one line for each packed row, for a model without variable-length attention."""

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    """Which token sees which: earlier ones of its own sequence."""
    place: Tensor
    """Where each token of the micro-batch is in the flattened rectangle."""

    @classmethod
    def of(cls, batch: PackedBatch) -> "Rows":
        lengths = np.diff(batch.row_offsets)
        shape = (batch.num_rows, int(lengths.max()))
        row = np.repeat(np.arange(batch.num_rows), lengths)
        place = torch.from_numpy(row * shape[1] + np.arange(len(row)) - batch.row_offsets[row])

        def rectangle(column: Any, filling: int) -> Tensor:
            flat = torch.full((shape[0] * shape[1],), filling, dtype=torch.long)
            flat[place] = torch.from_numpy(column).long()
            return flat.view(shape)

        document = rectangle(batch.document_ids, -1)
        mask = (document[:, :, None] == document[:, None, :]).tril()
        return cls(rectangle(batch.input_ids, 0), rectangle(batch.position_ids, 0), mask, place)
