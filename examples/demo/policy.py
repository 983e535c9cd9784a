"""The policy: a transformer of two layers and about 100,000 parameters, its warm-up, and its weight files.

A mask tells attention which token sees which. So the same code reads packed rows, where sequences must not see each
other, and single tokens with a key-value cache.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from demo.sorting_task import MAX_TOKENS, PAD, VOCABULARY, demonstrate, random_of

WIDTH, HEADS, LAYERS = 64, 4, 2
WARMUP_STEPS, WARMUP_BATCH, WARMUP_RATE = 100, 96, 4e-3
_KEPT_VERSIONS = 8


class Block(nn.Module):
    """One layer: attention and a feed-forward network, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, mask: Tensor, cache: "Cache | None", layer: int) -> Tensor:
        rows, length, _ = x.shape
        heads = self.queries_keys_values(self.norm(x)).view(rows, length, 3 * HEADS, -1)
        queries, keys, values = heads.transpose(1, 2).chunk(3, dim=1)
        if cache is not None:
            keys, values = cache.append(layer, keys, values)
        seen = functional.scaled_dot_product_attention(queries, keys, values, mask.unsqueeze(1))
        x = x + self.output(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.feed_forward(x)


class Policy(nn.Module):
    """Tokens in, logits of the next token out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(MAX_TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: "Cache | None" = None
    ) -> Tensor:
        """Return the logits after each token; `mask[row, i, j]` says whether token i sees token j."""
        x = self.tokens(tokens) + self.positions(positions)
        for layer, block in enumerate(self.blocks):
            x = block(x, mask, cache, layer)
        return self.head(x)


class Cache:
    """Keys and values of earlier tokens, by position, for rows of different lengths."""

    def __init__(self, rows: int) -> None:
        self._columns = torch.zeros(LAYERS, 2, rows, HEADS, MAX_TOKENS, WIDTH // HEADS)
        self._rows = torch.arange(rows)
        self.next: Any = None
        """The position of each row's next token; None: the call reads all positions from 0 on."""

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values; return all of the layer."""
        for column, new in zip(self._columns[layer], (keys, values), strict=True):
            if self.next is None:
                column[:, :, : new.shape[2]] = new
            else:
                column[self._rows, :, self.next] = new[:, :, 0]
        return self._columns[layer, 0], self._columns[layer, 1]


def new_policy(seed: int) -> Policy:
    """Return an untrained policy."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Policy()


@cache
def warmed_up(seed: int) -> Policy:
    """Return a policy that is right now and then, by supervised training; copy it before you train it."""
    policy, random = new_policy(seed), random_of(seed, "warm-up")
    optimizer = torch.optim.Adam(policy.parameters(), WARMUP_RATE)
    for _ in range(WARMUP_STEPS):
        shown = [demonstrate(random) for _ in range(WARMUP_BATCH)]
        longest = max(len(prompt) + len(answer) for prompt, answer in shown)
        tokens = torch.tensor([_padded(prompt + answer, longest) for prompt, answer in shown])
        wanted = torch.tensor([_padded([PAD] * len(prompt) + answer, longest) for prompt, answer in shown])
        causal = torch.ones(longest, longest, dtype=torch.bool).tril().expand(WARMUP_BATCH, -1, -1)
        logits = policy(tokens, torch.arange(longest).expand_as(tokens), causal)[:, :-1].flatten(0, 1)
        loss = functional.cross_entropy(logits, wanted[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


def _padded(tokens: list[int], length: int) -> list[int]:
    return tokens + [PAD] * (length - len(tokens))


def publish(folder: Path, version: int, policy: Policy) -> None:
    """Write the weights of a version, and delete those of an old one."""
    new = folder / f"{version}.new"
    torch.save(policy.state_dict(), new)
    new.replace(folder / f"{version}.pt")
    (folder / f"{version - _KEPT_VERSIONS}.pt").unlink(missing_ok=True)


def load(folder: Path, version: int, policy: Policy) -> None:
    """Load the weights of a version."""
    policy.load_state_dict(torch.load(folder / f"{version}.pt", weights_only=True))
