"""What the model learns: prompts that are functions of their ids, and a checker that is all or nothing."""

import numpy as np

from demo.sorting_task import (
    ASK,
    END,
    LETTERS,
    LONGEST,
    SHORTEST,
    demonstrate,
    is_right,
    make_prompt,
    random_of,
    right_answer,
)


def tokens(text):
    return [3 + LETTERS.index(letter) for letter in text]


def test_the_answer_is_the_sorted_set():
    assert right_answer([*tokens("dbbca"), ASK]) == [*tokens("abcd"), END]


def test_the_checker_is_all_or_nothing():
    prompt = [*tokens("dbbca"), ASK]
    assert is_right(prompt, [*tokens("abcd"), END])
    for wrong in ("abc", "abcdd", "dcba", "abbcd", ""):
        assert not is_right(prompt, [*tokens(wrong), END])
    assert not is_right(prompt, tokens("abcd"))  # it never ended


def test_a_prompt_is_a_function_of_its_id():
    first, again = make_prompt(3, "7-1", 8), make_prompt(3, "7-1", 8)
    assert first.tokens == again.tokens
    assert np.array_equal(first.draws, again.draws)
    others = [make_prompt(3, "7-2", 8), make_prompt(4, "7-1", 8)]
    assert all(not np.array_equal(first.draws, other.draws) for other in others)
    lengths = {len(make_prompt(0, f"{number}", 1).tokens) - 1 for number in range(200)}
    assert lengths == set(range(SHORTEST, LONGEST + 1))


def test_the_teacher_is_right_about_half_of_the_time():
    random = random_of("teacher")
    shown = [demonstrate(random) for _ in range(1000)]
    right = sum(is_right(prompt, answer) for prompt, answer in shown)
    assert 350 < right < 550  # half, less those with a typo
