"""The engine: generates all responses of a batch at once, with a cache, and can be stopped between two tokens.

A response that was aborted continues from the tokens that it has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from demo.policy import Cache, Policy
from demo.sorting_task import END, MAX_RESPONSE, MAX_TOKENS


@dataclass(slots=True)
class Response:
    """One response, complete or not."""

    prompt: Sequence[int]
    draws: np.ndarray
    """The random number that draws each token."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def finish_reason(self) -> str:
        """`stop`, `length`, or `abort` for a response that can be continued."""
        if self.tokens and self.tokens[-1] == END:
            return "stop"
        return "length" if len(self.tokens) >= MAX_RESPONSE else "abort"


@torch.inference_mode()
def generate(
    policy: Policy, responses: Sequence[Response], *, should_stop: Callable[[], bool] = lambda: False
) -> int:
    """Continue responses until they end or `should_stop` returns True; return the number of new tokens."""
    running = [response for response in responses if response.finish_reason == "abort"]
    if not running:
        return 0
    lengths = torch.tensor([len(response.tokens) for response in running])
    draws = torch.from_numpy(np.stack([response.draws for response in running]))
    is_running = torch.ones(len(running), dtype=torch.bool)
    steps = []
    cache, logits = _prefill(policy, running)
    while True:
        logprobs = logits.log_softmax(-1)
        draw = draws.gather(1, lengths.clamp(max=MAX_RESPONSE - 1)[:, None])
        tokens = (logprobs.double().exp().cumsum(-1) < draw).sum(-1).clamp(max=logits.shape[-1] - 1)
        steps.append((is_running, tokens, logprobs.gather(-1, tokens[:, None])[:, 0]))
        lengths = lengths + is_running
        is_running = is_running & (tokens != END) & (lengths < MAX_RESPONSE)
        if should_stop() or not is_running.any():
            break
        # Rows that have ended are computed as well, and ignored.
        cache.next = position = (cache.next + 1).clamp(max=MAX_TOKENS - 1)
        mask = torch.arange(MAX_TOKENS) <= position[:, None]
        logits = policy(tokens[:, None], position[:, None], mask[:, None], cache)[:, 0]
    is_new, made, logs = (torch.stack(column, 1).numpy() for column in zip(*steps, strict=True))
    for row, response in enumerate(running):
        count = int(is_new[row].sum())
        response.tokens += made[row, :count].tolist()
        response.logprobs += logs[row, :count].tolist()
    return int(is_new.sum())


def _prefill(policy: Policy, running: Sequence[Response]) -> tuple[Cache, torch.Tensor]:
    """Read prompts and begun responses; return the cache and the logits after the last token of each."""
    known = [[*response.prompt, *response.tokens] for response in running]
    lengths = torch.tensor([len(tokens) for tokens in known])
    longest = int(lengths.max())
    padded = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in known])
    cache = Cache(len(known))
    # No token sees the padding behind a row: generation overwrites it.
    mask = torch.arange(MAX_TOKENS) <= torch.arange(longest)[:, None]
    logits = policy(padded, torch.arange(longest).expand_as(padded), mask.expand(len(known), -1, -1), cache)
    cache.next = lengths - 1
    return cache, logits[torch.arange(len(known)), lengths - 1]
