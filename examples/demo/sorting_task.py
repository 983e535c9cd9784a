"""The task: answer some letters with the sorted set of these letters. The answer to `dbbca>` is `abcd`.

A prompt is a function of the run's seed and its id, so a restarted producer asks the same prompts again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import numpy as np

PAD, END, ASK = 0, 1, 2
LETTERS: Final = "abcdefgh"
VOCABULARY: Final = 3 + len(LETTERS)
SHORTEST, LONGEST = 4, 8
"""Letters of a prompt."""
MAX_RESPONSE: Final = LONGEST + 1
MAX_TOKENS: Final = LONGEST + 1 + MAX_RESPONSE


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and the random numbers of its responses: the same weights always answer it alike."""

    prompt_id: str
    tokens: list[int]
    draws: np.ndarray
    """A number in [0, 1) for each token of each response."""


def random_of(*key: object) -> np.random.Generator:
    """Return the random generator of a key."""
    return np.random.default_rng(crc32(repr(key).encode()))


def make_prompt(seed: int, prompt_id: str, responses: int) -> Prompt:
    """Return the prompt of an id."""
    random = random_of(seed, prompt_id)
    return Prompt(prompt_id, [*_letters(random), ASK], random.random((responses, MAX_RESPONSE)))


def right_answer(prompt: Sequence[int]) -> list[int]:
    """Return the solution of a prompt: its letters, each once, in order, then the end token."""
    return [*sorted(set(prompt) - {ASK}), END]


def is_right(prompt: Sequence[int], response: Sequence[int]) -> bool:
    """Check a response; there is no partial credit."""
    return list(response) == right_answer(prompt)


def demonstrate(random: np.random.Generator) -> tuple[list[int], list[int]]:
    """Return a prompt and the answer of a careless teacher: right half of the time, with 3 % typos."""
    letters = _letters(random)
    answer = right_answer(letters)[:-1]
    if random.random() >= 0.5:
        answer = letters if random.random() < 0.5 else letters[::-1]
    typed = [int(random.integers(3, VOCABULARY)) if random.random() < 0.03 else letter for letter in answer]
    return [*letters, ASK], [*typed, END]


def _letters(random: np.random.Generator) -> list[int]:
    count = random.integers(SHORTEST, LONGEST + 1)
    return random.integers(3, VOCABULARY, count).tolist()  # type: ignore[no-any-return]
