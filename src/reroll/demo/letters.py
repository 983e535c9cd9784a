"""What the demo's model learns: letters in, the sorted set of these letters out. `dbbca>` is answered by `abcd`.

A prompt is a function of the run's seed and its id: whoever starts again asks for the same prompts.
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

_TYPO_RATE: Final = 0.03
_RIGHT_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question, with what its responses are drawn by."""

    prompt_id: str
    tokens: list[int]
    """Letters and the sign that asks."""
    draws: np.ndarray
    """A number from 0 to 1 for each token of each response: the same prompt is answered alike by the same weights."""


def random_of(*key: object) -> np.random.Generator:
    """Return the generator of random numbers that belongs to a key."""
    return np.random.default_rng(crc32(repr(key).encode()))


def make_prompt(seed: int, prompt_id: str, responses: int) -> Prompt:
    """Return the prompt of this id."""
    random = random_of(seed, prompt_id)
    letters = _random_letters(random)
    return Prompt(prompt_id, [*letters, ASK], random.random((responses, MAX_RESPONSE)))


def right_answer(prompt: Sequence[int]) -> list[int]:
    """Return what solves a prompt: its letters, each once, in order, and the end."""
    return [*sorted(set(prompt) - {ASK}), END]


def is_right(prompt: Sequence[int], response: Sequence[int]) -> bool:
    """Check a response; all or nothing."""
    return list(response) == right_answer(prompt)


def demonstrate(random: np.random.Generator) -> tuple[list[int], list[int]]:
    """Return a prompt and what a careless teacher answers: the right rule half of the time, and typos."""
    letters = _random_letters(random)
    answer = right_answer(letters)[:-1]
    if random.random() >= _RIGHT_SHARE:
        answer = letters if random.random() < 0.5 else letters[::-1]
    typed = [_random_letter(random) if random.random() < _TYPO_RATE else letter for letter in answer]
    return [*letters, ASK], [*typed, END]


def text_of(tokens: Sequence[int]) -> str:
    """Return tokens as a reader wants to see them."""
    return "".join({PAD: "_", END: ".", ASK: ">"}.get(token) or LETTERS[token - 3] for token in tokens)


def _random_letters(random: np.random.Generator) -> list[int]:
    count = random.integers(SHORTEST, LONGEST + 1)
    return random.integers(3, VOCABULARY, count).tolist()  # type: ignore[no-any-return]


def _random_letter(random: np.random.Generator) -> int:
    return int(random.integers(3, VOCABULARY))
