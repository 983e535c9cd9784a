"""The policy: a transformer language model of two layers, about 100,000 parameters, with a key-value cache.

It is plain on purpose. Attention is told by a mask what may see what, so that the same code reads packed rows, where
sequences must not see each other, and single tokens with a cache.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from reroll.demo.letters import MAX_TOKENS, VOCABULARY

WIDTH, HEADS, LAYERS = 64, 4, 2


class Block(nn.Module):
    """Attention, then two linear layers; both are added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.attended = nn.Linear(WIDTH, WIDTH)
        self.thinking = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, mask: Tensor, cache: "Cache | None", layer: int) -> Tensor:
        rows, length, _ = x.shape
        heads = self.queries_keys_values(self.before_attention(x)).view(rows, length, 3 * HEADS, -1)
        queries, keys, values = heads.transpose(1, 2).chunk(3, dim=1)
        if cache is not None:
            keys, values = cache.remember(layer, keys, values)
        seen = functional.scaled_dot_product_attention(queries, keys, values, mask.unsqueeze(1))
        x = x + self.attended(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.thinking(x)


class Policy(nn.Module):
    """Tokens in, logits of the next token out."""

    def __init__(self) -> None:
        super().__init__()
        self.of_token = nn.Embedding(VOCABULARY, WIDTH)
        self.of_position = nn.Embedding(MAX_TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.end = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: "Cache | None" = None
    ) -> Tensor:
        """Return the logits after each token; `mask[row, i, j]` says whether token i sees token j."""
        x = self.of_token(tokens) + self.of_position(positions)
        for layer, block in enumerate(self.blocks):
            x = block(x, mask, cache, layer)
        return self.end(x)


class Cache:
    """Keys and values of what was read before, by position, for rows that may be of different lengths."""

    def __init__(self, rows: int) -> None:
        self._kept = torch.zeros(LAYERS, 2, rows, HEADS, MAX_TOKENS, WIDTH // HEADS)
        self._rows = torch.arange(rows)
        self.next: Any = None
        """The position of the token of each row that is read now; None: all positions from 0 on are."""

    def remember(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        for kept, new in zip(self._kept[layer], (keys, values), strict=True):
            if self.next is None:
                kept[:, :, : new.shape[2]] = new
            else:
                kept[self._rows, :, self.next] = new[:, :, 0]
        return self._kept[layer, 0], self._kept[layer, 1]


def new_policy(seed: int) -> Policy:
    """Return an untrained policy."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Policy()


def weights_of(policy: Policy) -> dict[str, Any]:
    """Return a copy of the weights, as arrays."""
    return {name: value.detach().clone().numpy() for name, value in policy.state_dict().items()}


def load_weights(policy: Policy, weights: dict[str, Any]) -> None:
    """Give a policy these weights."""
    policy.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
