"""The GRPO trainer over reroll: the part to copy. It asks for a step, learns from its packed rows, and finishes it."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from demo.policy import Policy, publish
from reroll.prepare import PackedBatch, StepData

LEARNING_RATE = 6e-4
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
TIMEOUT_S = 60.0


class Trained(NamedTuple):
    """A finished step, with the moments (of `time.monotonic`) between which it was trained."""

    data: StepData
    began: float
    ended: float


def new_optimizer(policy: Policy) -> torch.optim.Optimizer:
    """Return the optimizer of a policy."""
    return torch.optim.Adam(policy.parameters(), LEARNING_RATE)


def train(
    policy: Policy, optimizer: torch.optim.Optimizer, preparer: Any, weights: Path, steps: Iterable[int]
) -> Iterator[Trained]:
    """Train step after step, and yield each. Raises what `get_data` raises."""
    for step in steps:
        data = preparer.get_data(0, step, timeout=TIMEOUT_S)  # waits for a full batch
        began = time.monotonic()
        learn(policy, optimizer, data)
        ended = time.monotonic()
        publish(weights, step, policy)
        preparer.done(step)  # its groups are consumed, and version `step` generates from now on
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
    """Return the log-probability of each token given those before it; 0 for the first of a row.

    This model has no variable-length attention. So the rows become a rectangle, with a mask that lets a token see the
    earlier tokens of its own sequence only.
    """
    lengths = np.diff(batch.row_offsets)
    row = np.repeat(np.arange(batch.num_rows), lengths)
    place = torch.from_numpy(row * lengths.max() + np.arange(len(row)) - batch.row_offsets[row])

    def rectangle(column: Any, filling: int = 0) -> Tensor:
        flat = torch.full((batch.num_rows * int(lengths.max()),), filling, dtype=torch.long)
        flat[place] = torch.from_numpy(column).long()
        return flat.view(batch.num_rows, -1)

    tokens, sequence = rectangle(batch.input_ids), rectangle(batch.document_ids, -1)
    mask = (sequence[:, :, None] == sequence[:, None, :]).tril()
    logits = policy(tokens, rectangle(batch.position_ids), mask)
    following = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[:, :, 0]
    return functional.pad(following, (1, 0)).flatten()[place]
