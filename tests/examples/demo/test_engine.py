"""Generation with a cache: it says of its tokens what the trainer says, and goes on where it was stopped."""

import copy

import numpy as np
import pytest
import torch

from demo.engine import Response, generate
from demo.grpo import grpo_loss, token_logprobs
from demo.policy import load, new_policy, publish
from demo.sorting_task import END, MAX_RESPONSE, make_prompt
from reroll.prepare import GenerationResult, sequences_of, split, to_group

COUNT = 12


@pytest.fixture(scope="module")
def policy():
    return new_policy(0)


def responses(count=COUNT):
    prompts = [make_prompt(0, f"{number}", 1) for number in range(count)]
    return [Response(prompt.tokens, prompt.draws[0]) for prompt in prompts]


def packed(made, rewards):
    """Return one micro-batch that has these responses, all of one group."""
    result = GenerationResult(
        prompt_id="one",
        prompt_ids=made[0].prompt,
        responses=[response.tokens for response in made],
        logprobs=[response.logprobs for response in made],
        finish_reasons=[response.finish_reason for response in made],
        rewards=rewards,
        model_step=0,
    )
    (part,) = split(sequences_of([to_group(result)]), 1, pack_length=64, rows_per_micro_batch=64)
    (micro_batch,) = part
    return micro_batch


def same_prompt(count=COUNT):
    prompt = make_prompt(0, "same", count)
    return [Response(prompt.tokens, draws) for draws in prompt.draws]


def test_responses_end_or_are_cut(policy):
    made = responses()
    assert generate(policy, made) == sum(len(response.tokens) for response in made)
    assert {response.finish_reason for response in made} <= {"stop", "length"}
    for response in made:
        assert len(response.tokens) == len(response.logprobs) <= MAX_RESPONSE
        assert END not in response.tokens[:-1]
    assert generate(policy, made) == 0  # nothing is left to do


def test_the_trainer_computes_the_log_probabilities_of_the_engine(policy):
    made = same_prompt()
    generate(policy, made)
    micro_batch = packed(made, [0.0, 1.0] * (COUNT // 2))
    assert micro_batch.num_rows > 1
    with torch.no_grad():
        found = token_logprobs(policy, micro_batch).numpy()
    mask = micro_batch.response_mask
    assert mask.sum() == sum(len(response.tokens) for response in made)
    np.testing.assert_allclose(found[mask], micro_batch.logprobs[mask], atol=1e-5)


def test_sequences_of_a_packed_row_do_not_see_each_other(policy):
    made = same_prompt(4)
    generate(policy, made)
    together = packed(made, [0.0, 1.0, 0.0, 1.0])
    with torch.no_grad():
        found = token_logprobs(policy, together).numpy()
        for place, start in enumerate(together.cu_seqlens[:-1]):
            alone = packed([made[together.sequence[place]]], [1.0])
            expected = token_logprobs(policy, alone).numpy()[1:]
            np.testing.assert_allclose(found[start + 1 : start + 1 + len(expected)], expected, atol=1e-5)


def test_the_loss_raises_what_is_better_than_the_others(policy):
    learner = copy.deepcopy(policy)
    made = same_prompt()
    generate(learner, made)
    rewards = [1.0] + [0.0] * (COUNT - 1)
    micro_batch = packed(made, rewards)
    optimizer = torch.optim.SGD(learner.parameters(), 1e-2)
    grpo_loss(learner, micro_batch).backward()
    optimizer.step()
    with torch.no_grad():
        gain = token_logprobs(learner, micro_batch).numpy() - micro_batch.logprobs
    best = micro_batch.document_ids == int(np.flatnonzero(micro_batch.sequence_advantages > 0)[0])
    assert gain[best & micro_batch.response_mask].sum() > 0


def test_the_ratio_is_clipped(policy):
    made = same_prompt()
    generate(policy, made)
    for response in made:
        response.logprobs = [logprob - 1 for logprob in response.logprobs]  # ratio e, above 1.28
    micro_batch = packed(made, [1.0] + [0.0] * (COUNT - 1))
    loss = grpo_loss(policy, micro_batch).item()
    advantages, mask = micro_batch.advantages, micro_batch.response_mask
    up = 1.28 * advantages[mask & (advantages > 0)].sum()
    down = np.e * advantages[mask & (advantages < 0)].sum()
    assert loss == pytest.approx(-(up + down), rel=1e-4)


@pytest.mark.parametrize("after", [1, 3])
def test_a_response_that_was_stopped_goes_on_as_if_it_had_not_been(policy, after):
    whole, stopped = responses(), responses()
    generate(policy, whole)
    for _ in range(MAX_RESPONSE):
        left = iter(range(after - 1))
        generate(policy, stopped, should_stop=lambda left=left: next(left, None) is None)
    assert [response.tokens for response in stopped] == [response.tokens for response in whole]
    for one, other in zip(stopped, whole, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def test_stopping_leaves_responses_that_can_go_on(policy):
    made = responses()
    assert generate(policy, made, should_stop=lambda: True) == COUNT
    assert "abort" in {response.finish_reason for response in made}


def test_weights_travel_as_files(policy, tmp_path):
    other = new_policy(1)
    publish(tmp_path, 3, policy)
    load(tmp_path, 3, other)
    mine, theirs = responses(), responses()
    generate(policy, mine)
    generate(other, theirs)
    assert [response.tokens for response in mine] == [response.tokens for response in theirs]


def test_old_weights_are_deleted(policy, tmp_path):
    for version in range(20):
        publish(tmp_path, version, policy)
    assert len(list(tmp_path.iterdir())) == 8
    assert (tmp_path / "19.pt").exists()
