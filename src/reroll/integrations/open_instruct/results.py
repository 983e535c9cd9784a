"""What an engine returned for a prompt, as open-instruct has it, and as `reroll.prepare` does."""

from dataclasses import dataclass
from typing import Any

import reroll.prepare.service  # noqa: F401  (results are stored)
from reroll.codec import register
from reroll.errors import InvalidArgument
from reroll.prepare import GenerationResult


@register
@dataclass
class ProcessedResult:
    """A generation result with its rewards; every list has an entry for each response."""

    result: Any
    queries: list[list[int]]
    ground_truths: list[Any]
    datasets: list[str]
    raw_queries: list[str]
    active_tools: list[list[str] | None]
    decoded_responses: list[str]
    reward_scores: list[float]
    reward_metrics: dict[str, Any]
    percent_solved: float


def generated(item: Any) -> Any:
    """Return the generation result in an item: the item itself, or what it was processed from.

    Raises InvalidArgument for what is none.
    """
    result = item.result if isinstance(item, ProcessedResult) else item
    if not hasattr(result, "responses") or not hasattr(result, "finish_reasons"):
        raise InvalidArgument(f"a result has responses and finish_reasons; {item!r} has not")
    return result


def rewards_of(item: Any) -> list[Any]:
    """Return the reward of each response, None where there is none. Raises InvalidArgument if their number is wrong."""
    result = generated(item)
    scores = getattr(item, "reward_scores", None)
    if scores is None:
        scores = getattr(result, "rewards", None)
    if scores is None:
        return [None] * len(result.responses)
    if len(scores) != len(result.responses):
        raise InvalidArgument(
            f"there are {len(scores)} rewards for {len(result.responses)} responses; give one for each"
        )
    return list(scores)


def to_generation_result(item: Any) -> GenerationResult:
    """Return an item as `reroll.prepare` takes it: a ProcessedResult, or what is one already.

    Raises InvalidArgument for a result without its prompt.
    """
    if isinstance(item, GenerationResult):
        return item
    if not isinstance(item, ProcessedResult):
        raise InvalidArgument(
            f"{item!r} has no prompt; give a ProcessedResult, whose queries are the prompts, or a reroll.prepare.GenerationResult"
        )
    result = generated(item)
    return GenerationResult(
        prompt_id=result.prompt_id,
        index=result.index,
        prompt_ids=_first(item.queries),
        responses=result.responses,
        finish_reasons=result.finish_reasons,
        logprobs=result.logprobs,
        masks=result.masks,
        rewards=rewards_of(item),
        model_step=getattr(result, "model_step", None),
        ground_truth=_first(item.ground_truths),
        dataset=_first(item.datasets),
        raw_query=_first(item.raw_queries),
        reward_metrics=item.reward_metrics,
    )


def _first(of_each: list[Any]) -> Any:
    """Return what all responses share: that of the first."""
    return of_each[0] if of_each else None
