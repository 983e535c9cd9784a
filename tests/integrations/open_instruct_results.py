"""Results as open-instruct has them: a class of its own, and what it was processed to."""

from dataclasses import dataclass, field
from typing import Any

from reroll import register
from reroll.integrations.open_instruct import ProcessedResult


@register(name="a generation result of theirs")
@dataclass
class TheirResult:
    responses: list[list[int]]
    finish_reasons: list[str]
    masks: list[list[int]]
    index: int | None
    prompt_id: str | None
    logprobs: list[list[float]] | None = None
    reward_scores: list[float] | None = None
    reward_metrics: dict[str, Any] | None = None
    request_info: dict[str, Any] = field(default_factory=dict)
    model_step: int | None = None
    model_steps: list[int] | None = None


@register(name="a group of theirs")
@dataclass
class TheirGroup:
    """As open-instruct's main branch has it: one prompt, and the rewards of its responses."""

    result: TheirResult
    query: list[int]
    ground_truth: list[int]
    dataset: str
    raw_query: str
    active_tools: list[str] | None
    index: int | None
    decoded_responses: list[str]
    reward_scores: list[float]
    reward_metrics: dict[str, Any]
    percent_solved: float
    sample_count: int


def their_result(number, rewards=(1.0, 0.0), *, reason="stop", model_step=None):
    """Return a result whose responses have 1, 2, ... tokens, all equal to its number."""
    responses = [[number] * (place + 1) for place in range(len(rewards))]
    return TheirResult(
        responses=responses,
        finish_reasons=[reason] * len(rewards),
        masks=[[1] * len(tokens) for tokens in responses],
        index=number,
        prompt_id=f"0_{number}",
        logprobs=[[-0.5] * len(tokens) for tokens in responses],
        reward_scores=list(rewards),
        model_step=model_step,
    )


def processed(number, rewards=(1.0, 0.0), **options):
    result = their_result(number, rewards, **options)
    many = len(rewards)
    return ProcessedResult(
        result=result,
        queries=[[7, 8]] * many,
        ground_truths=[[number]] * many,
        datasets=["gsm8k"] * many,
        raw_queries=["what?"] * many,
        active_tools=[None] * many,
        decoded_responses=["text"] * many,
        reward_scores=list(rewards),
        reward_metrics={"objective/reward": 0.5},
        percent_solved=sum(reward == 1.0 for reward in rewards) / many,
    )


def their_group(number, rewards=(1.0, 0.0), *, model_steps=None, **options):
    result = their_result(number, rewards, **options)
    result.model_steps = model_steps
    return TheirGroup(
        result=result,
        query=[7, 8],
        ground_truth=[number],
        dataset="gsm8k",
        raw_query="what?",
        active_tools=None,
        index=number,
        decoded_responses=["text"] * len(rewards),
        reward_scores=list(rewards),
        reward_metrics={"objective/reward": 0.5},
        percent_solved=0.5,
        sample_count=len(rewards),
    )
