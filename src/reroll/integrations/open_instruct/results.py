"""The results of open-instruct's engines, read as `reroll.prepare.GenerationResult`.

A result is any object with `responses` and `finish_reasons`. It may be wrapped with its prompt and rewards: in a
`ProcessedResult`, whose lists have an entry per response, or in a `Group` of open-instruct's main branch, which has one
`query`, `ground_truth`, `dataset` and `raw_query`.
"""

from dataclasses import dataclass
from typing import Any

import reroll.prepare.service  # noqa: F401  (registers what results are stored as)
from reroll.codec import register
from reroll.errors import InvalidArgument, shown
from reroll.prepare import GenerationResult
from reroll.rollout import VersionRuns


@register
@dataclass
class ProcessedResult:
    """A generation result with its rewards; every list has an entry per response."""

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
    """Return the generation result of an item: its `result`, or the item. Raises InvalidArgument for other objects."""
    result = getattr(item, "result", item)
    if not hasattr(result, "responses") or not hasattr(result, "finish_reasons"):
        raise InvalidArgument(f"a result needs responses and finish_reasons: {shown(item)}")
    return result


def rewards_of(item: Any) -> list[Any]:
    """Return the reward of each response, or None. Raises InvalidArgument if their number differs."""
    result = generated(item)
    found = (getattr(item, "reward_scores", None), getattr(result, "rewards", None))
    scores = next((scores for scores in found if scores is not None), [None] * len(result.responses))
    if len(scores) != len(result.responses):
        raise InvalidArgument(
            f"there are {len(scores)} rewards for {len(result.responses)} responses; give one for each"
        )
    return list(scores)


def versions_of(result: Any, model_step: int | None = None) -> list[VersionRuns]:
    """Return the versions of each response: `model_step`, else the result's `model_steps`, else its `model_step`."""
    steps = getattr(result, "model_steps", None) if model_step is None else None
    if steps is None:
        steps = [getattr(result, "model_step", None) if model_step is None else model_step] * len(
            result.responses
        )
    return [
        VersionRuns(() if step is None else ((step, len(tokens)),))
        for step, tokens in zip(steps, result.responses, strict=True)
    ]


def to_generation_result(item: Any) -> GenerationResult:
    """Return an item as `reroll.prepare` reads it. Raises InvalidArgument for a result without its prompt."""
    if isinstance(item, GenerationResult):
        return item
    if not hasattr(item, "query") and not hasattr(item, "queries"):
        raise InvalidArgument(
            f"{shown(item)} has no prompt; give a ProcessedResult or a Group of open-instruct, which have queries, or a "
            "reroll.prepare.GenerationResult"
        )
    result = generated(item)
    return GenerationResult(
        prompt_id=result.prompt_id,
        index=result.index,
        prompt_ids=_shared(item, "query", "queries"),
        responses=result.responses,
        finish_reasons=result.finish_reasons,
        logprobs=result.logprobs,
        masks=result.masks,
        rewards=rewards_of(item),
        versions=versions_of(result),
        ground_truth=_shared(item, "ground_truth", "ground_truths"),
        dataset=_shared(item, "dataset", "datasets"),
        raw_query=_shared(item, "raw_query", "raw_queries"),
        reward_metrics=item.reward_metrics or {},
    )


def _shared(item: Any, name: str, plural: str) -> Any:
    """Return the value that all responses share: of a Group, or the first of a ProcessedResult."""
    if hasattr(item, name):
        return getattr(item, name)
    values = getattr(item, plural, None)
    return values[0] if values else None
