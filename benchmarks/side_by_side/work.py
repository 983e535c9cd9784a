"""The groups that every contender gets, as arrays: the same numbers in every interpreter, from one seed.

A group is packed: what its rollouts have is one array after another, which is the least that a peer can be given. The
contenders of reroll cut it into rollouts.
"""

import gc
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import numpy as np

VOCABULARY = 150_000
PART = 50
TOKEN_BYTES = 9
"""Of a response: 4 of the id, 4 of the log-prob, 1 of the mask."""


class Group(NamedTuple):
    """The rollouts of one prompt."""

    prompt_ids: np.ndarray
    lengths: np.ndarray
    """Of each response."""
    response_ids: np.ndarray
    logprobs: np.ndarray
    response_mask: np.ndarray
    rewards: np.ndarray

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self)

    @property
    def num_tokens(self) -> int:
        return len(self.lengths) * len(self.prompt_ids) + len(self.response_ids)


class Shape(NamedTuple):
    """How groups look."""

    members: int
    mean_tokens: int
    """Of a response."""
    prompt_tokens: int = 16
    sigma: float = 0.0
    """Of the log-normal lengths; 0: all have the mean."""
    max_tokens: int = 1 << 30


VARIED = Shape(8, 1000, 128, 1.0, 8192)
"""Eight responses around a thousand tokens, the longest eight times that."""
CHECKPOINTED = Shape(8, 868, 256)
"""64 KB a group."""


def shape_of_bytes(num_bytes: int) -> Shape:
    """Return the shape of groups of about so many bytes."""
    return Shape(8, max(1, round((num_bytes - 80) / (8 * TOKEN_BYTES))), 4)


def make_groups(shape: Shape, count: int, seed: int = 0) -> list[Group]:
    """Return so many groups that share nothing."""
    random = np.random.default_rng(seed)
    return [_group(random, shape) for _ in range(count)]


def _group(random: np.random.Generator, shape: Shape) -> Group:
    if shape.sigma:
        around = np.log(shape.mean_tokens) - shape.sigma**2 / 2
        drawn = random.lognormal(around, shape.sigma, shape.members)
        lengths = np.clip(drawn, 1, shape.max_tokens).astype(np.int32)
    else:
        lengths = np.full(shape.members, shape.mean_tokens, np.int32)
    tokens = int(lengths.sum())
    return Group(
        prompt_ids=random.integers(300, VOCABULARY, shape.prompt_tokens, dtype=np.int32),
        lengths=lengths,
        response_ids=random.integers(300, VOCABULARY, tokens, dtype=np.int32),
        logprobs=-random.random(tokens, dtype=np.float32),
        response_mask=np.ones(tokens, np.uint8),
        rewards=(np.arange(shape.members) % 2).astype(np.float32),
    )


def pack(groups: Sequence[Group]) -> dict[str, Any]:
    """Return a packed batch of sampled groups, as one writes it with numpy: prompts and responses in turn.

    The arrays are those of `reroll.prepare`, which besides sorts the sequences into rows of at most so many tokens.
    """
    prompts = np.repeat([len(group.prompt_ids) for group in groups], [len(group.lengths) for group in groups])
    responses = np.concatenate([group.lengths for group in groups])
    halves = np.stack((prompts, responses), 1).ravel()
    lengths = prompts + responses
    bounds = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    nothing = np.zeros(prompts.max(), np.float32)
    is_response = np.repeat(np.tile([False, True], len(lengths)), halves)
    tokens, logprobs, masks = [], [], []
    for group in groups:
        empty, unmasked = nothing[: len(group.prompt_ids)], nothing[: len(group.prompt_ids)].astype(np.uint8)
        start = 0
        for length in group.lengths.tolist():
            part = slice(start, start + length)
            tokens += (group.prompt_ids, group.response_ids[part])
            logprobs += (empty, group.logprobs[part])
            masks += (unmasked, group.response_mask[part])
            start += length
    return {
        "input_ids": np.concatenate(tokens),
        "logprobs": np.concatenate(logprobs),
        "response_mask": np.concatenate(masks).view(bool),
        "cu_seqlens": bounds,
        "group": np.repeat(np.arange(len(groups)), [len(group.lengths) for group in groups]),
        "position_ids": np.arange(bounds[-1], dtype=np.int32) - np.repeat(bounds[:-1], lengths),
        "document_ids": np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        "advantages": np.repeat(np.concatenate([_advantages(group) for group in groups]), lengths),
        "weights": np.ones(bounds[-1], np.float32),
        "versions": np.where(is_response, np.int32(1), np.int32(-1)),
        "logprob_mask": is_response,
    }


def _advantages(group: Group) -> np.ndarray:
    centered = group.rewards - group.rewards.mean()
    return centered / (centered.std() + 1e-8)


def priorities(count: int) -> np.ndarray:
    """Return the priorities of so many rows; none is zero."""
    return np.random.default_rng(count).random(count) + 0.01


def resident_bytes(pid: int | str = "self") -> int:
    """Return the resident memory of a process, as Linux tells it."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rate(act: Callable[[], object], count: int) -> float:
    """Return how many of so many things are done in a second by an act, by the wall."""
    start = perf_counter()
    act()
    return count / (perf_counter() - start)


def repeated(act: Callable[[], object], times: int = 16) -> float:
    """Return how often an act of about a millisecond is done in a second, one after another; the first does not count."""
    act()
    return rate(lambda: [act() for _ in range(times)], times)


Keep = Callable[[Sequence[Group]], object]


def memory_of(
    start: Callable[[int], Keep], groups: int, pids: Sequence[int | str] = ("self",)
) -> dict[str, float]:
    """Let a contender keep groups of varied length, and return what they take in its processes.

    `start` makes room for so many groups, and returns what keeps some. They are made and handed over in small parts, so
    that little is left of what was made for it.
    """
    start(1)(make_groups(VARIED, 1, seed=10**6))  # loads what is loaded on first use
    gc.collect()
    before, tokens = sum(map(resident_bytes, pids)), 0
    keep = start(groups)
    for seed in range(0, groups, PART):
        part = make_groups(VARIED, PART, seed)
        tokens += sum(group.num_tokens for group in part)
        keep(part)
        del part
    gc.collect()
    taken = sum(map(resident_bytes, pids)) - before
    return {"group": taken / groups, "token": taken / tokens}


def cycle_us(once: Callable[[], object], times: int = 5) -> float:
    """Return the microseconds of a call, as the processor time of this thread: nothing in it waits."""
    start = thread_time()
    for _ in range(times):
        once()
    return 1e6 * (thread_time() - start) / times
