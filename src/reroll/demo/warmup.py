"""Warm-up: a little supervised training on a careless teacher, so that there is something to reinforce."""

from functools import cache

import torch
from torch.nn import functional

from reroll.demo.letters import PAD, demonstrate, random_of
from reroll.demo.policy import Policy, new_policy

STEPS, BATCH, LEARNING_RATE = 100, 96, 4e-3


@cache
def warmed_up(seed: int) -> Policy:
    """Return a policy that answers right now and then; the same object each time, to be copied and not trained."""
    policy, random = new_policy(seed), random_of(seed, "warm-up")
    optimizer = torch.optim.Adam(policy.parameters(), LEARNING_RATE)
    for _ in range(STEPS):
        shown = [demonstrate(random) for _ in range(BATCH)]
        longest = max(len(prompt) + len(answer) for prompt, answer in shown)
        padded = [prompt + answer + [PAD] * (longest - len(prompt) - len(answer)) for prompt, answer in shown]
        asked = [[PAD] * len(prompt) + answer for prompt, answer in shown]
        wanted = torch.tensor([answer + [PAD] * (longest - len(answer)) for answer in asked])
        tokens, causal = torch.tensor(padded), torch.ones(longest, longest, dtype=torch.bool).tril()
        logits = policy(tokens, torch.arange(longest).expand_as(tokens), causal.expand(BATCH, -1, -1))
        loss = functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), wanted[:, 1:].flatten(), ignore_index=PAD
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy
