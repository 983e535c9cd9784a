"""The engine: generates responses with a cache, and can be stopped between any two tokens.

What it is given may have begun: a response that was aborted goes on from the tokens that it has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from reroll.demo.letters import END, MAX_RESPONSE, MAX_TOKENS
from reroll.demo.policy import Cache, Policy


@dataclass(slots=True)
class Response:
    """One response, as far as it has come."""

    prompt: Sequence[int]
    draws: np.ndarray
    """The random number that each token is drawn by."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def finish_reason(self) -> str:
        """`stop`, `length`, or `abort` for one that could go on."""
        if self.tokens and self.tokens[-1] == END:
            return "stop"
        return "length" if len(self.tokens) >= MAX_RESPONSE else "abort"


@torch.inference_mode()
def generate(
    policy: Policy, responses: Sequence[Response], *, should_stop: Callable[[], bool] = lambda: False
) -> int:
    """Continue responses, all at once, until they end or `should_stop` says so; return how many tokens were made."""
    running = [response for response in responses if response.finish_reason == "abort"]
    if not running:
        return 0
    lengths = torch.tensor([len(response.tokens) for response in running])
    draws = torch.from_numpy(np.stack([response.draws for response in running]))
    is_running = torch.ones(len(running), dtype=torch.bool)
    made: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    cache, logits = _read(policy, running)
    while True:
        tokens, logprobs = _draw(logits, draws.gather(1, lengths.clamp(max=MAX_RESPONSE - 1)[:, None]))
        made.append((is_running, tokens, logprobs))
        lengths = lengths + is_running
        is_running = is_running & (tokens != END) & (lengths < MAX_RESPONSE)
        if should_stop() or not is_running.any():
            return _write(running, made)
        logits = _read_one_more(policy, cache, tokens)


def _read(policy: Policy, running: Sequence[Response]) -> tuple[Cache, torch.Tensor]:
    """Read prompts and what responses have; return the cache and the logits after the last token of each."""
    known = [[*response.prompt, *response.tokens] for response in running]
    lengths = torch.tensor([len(tokens) for tokens in known])
    longest = int(lengths.max())
    padded = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in known])
    positions = torch.arange(longest).expand_as(padded)
    cache = Cache(len(known))
    # Nothing after the last token of a row is ever seen: it is written over when the row gets there.
    mask = torch.arange(MAX_TOKENS) <= torch.arange(longest)[:, None]
    logits = policy(padded, positions, mask.expand(len(known), -1, -1), cache)
    cache.next = lengths - 1
    return cache, logits[torch.arange(len(known)), lengths - 1]


def _read_one_more(policy: Policy, cache: Cache, tokens: torch.Tensor) -> torch.Tensor:
    # Rows that have ended are computed, and not looked at.
    cache.next = position = (cache.next + 1).clamp(max=MAX_TOKENS - 1)
    mask = torch.arange(MAX_TOKENS) <= position[:, None]
    return policy(tokens[:, None], position[:, None], mask[:, None], cache)[:, 0]


def _draw(logits: torch.Tensor, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the next token of each row by its own random number; return tokens and their log-probabilities."""
    logprobs = logits.log_softmax(-1)
    reached = logprobs.double().exp().cumsum(-1)
    tokens = (reached < draws).sum(-1).clamp(max=logits.shape[-1] - 1)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def _write(
    running: Sequence[Response], made: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
) -> int:
    """Give each response its new tokens; return how many there are."""
    is_new, tokens, logprobs = (torch.stack(column, 1).numpy() for column in zip(*made, strict=True))
    for row, response in enumerate(running):
        count = int(is_new[row].sum())  # a row runs until it ends, and never again
        response.tokens += tokens[row, :count].tolist()
        response.logprobs += logprobs[row, :count].tolist()
    return int(is_new.sum())
