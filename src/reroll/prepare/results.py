"""What an engine returns for one prompt, and the group of rollouts that becomes of it.

Everything that later steps need travels inside the rollouts, so that it passes through a buffer, a file or a wire.
Besides its own fields a rollout carries, in `extra_fields`, these keys (those that the result had):

    index            number of the prompt in its data set
    ground_truth     what the prompt's answer is checked against
    dataset          name of the data set
    raw_query        the prompt as text
    reward_metrics   numbers of the reward function about this result, the same for all members
    ...              all of `GenerationResult.extra`

`group_id` is the prompt's id, `rollout_id` the member's place in the result. Nothing here waits or filters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.rollout import Rollout, Status, VersionRuns, finish_error, read_score, status_from_finish_reason

PASSED_THROUGH = ("index", "ground_truth", "dataset", "raw_query")


@dataclass(slots=True, kw_only=True)
class GenerationResult:
    """What was generated for one prompt: one entry per response in each sequence."""

    prompt_id: Any
    index: int | None = None
    """Number of the prompt in its data set."""
    prompt_ids: npt.ArrayLike
    responses: Sequence[npt.ArrayLike | None]
    """Token ids; None is an empty response."""
    finish_reasons: Sequence[str | None]
    logprobs: Sequence[npt.ArrayLike | None] | None = None
    """Of the response tokens; NaN where a token has none."""
    masks: Sequence[npt.ArrayLike | None] | None = None
    """1 for response tokens to train on; all of them without a mask."""
    rewards: Sequence[float | Mapping[str, Any] | None] | None = None
    model_step: int | None = None
    """The version that generated all of it; `versions` says it token by token."""
    versions: Sequence[npt.ArrayLike | VersionRuns | None] | None = None
    task: str | None = None
    """Of the buffer, where a preparer has several."""
    group_uid: int | None = None
    """Of the group in the buffer, aborted or expired, that was taken out and is continued by this."""
    ground_truth: Any = None
    dataset: Any = None
    raw_query: str | None = None
    reward_metrics: Mapping[str, Any] = field(default_factory=dict)
    """Numbers about this result, or sequences with a number for each response; what is no number is only passed through."""
    extra: Mapping[str, Any] = field(default_factory=dict)


def to_group(
    result: GenerationResult,
    *,
    eos_token_id: int | None = None,
    train_empty: bool = False,
    group_size: int | None = None,
    min_group_size: int | None = None,
    salvage: bool = False,
) -> list[Rollout]:
    """Return the group of a result: one rollout per response, in order.

    A response without tokens that stopped gets the token `eos_token_id`, if there is one, which is trained on only with
    `train_empty`. With `salvage`, failed members are left out if at least `min_group_size` (1) others remain; if not,
    all stay, and the group counts as failed. Raises InvalidArgument, which names the prompt, if there are not
    `group_size` responses (with `min_group_size`: so few), if a reward is no finite number, or if lengths disagree.
    """
    _check_lengths(result)
    _check_group_size(result, group_size, min_group_size)
    try:
        members = [
            _member(result, place, eos_token_id, train_empty) for place in range(len(result.responses))
        ]
    except InvalidArgument as error:
        raise InvalidArgument(f"prompt {result.prompt_id!r}: {error}") from error
    if salvage:
        alive = [member for member in members if member.status != Status.FAILED]
        if len(alive) < len(members) and len(alive) >= max(1, min_group_size or 1):
            return _without_metrics_of_others(alive, len(members))
    return members


def check_reward(reward: Any) -> None:
    """Raise InvalidArgument unless a reward is None, or a finite number, or holds one as its `score`."""
    score = read_score(reward)
    if score is not None and not isfinite(score):
        raise InvalidArgument(
            f"its reward is {score}, and would spoil the whole batch; give a finite number, or None before it is known"
        )


def _check_lengths(result: GenerationResult) -> None:
    count = len(result.responses)
    for name in ("finish_reasons", "logprobs", "masks", "rewards", "versions"):
        given = getattr(result, name)
        if given is not None and len(given) != count:
            raise InvalidArgument(
                f"prompt {result.prompt_id!r}: {name} has {len(given)} entries for {count} responses; give one for each"
            )


def _check_group_size(result: GenerationResult, group_size: int | None, min_group_size: int | None) -> None:
    count = len(result.responses)
    fewest = group_size if min_group_size is None else min_group_size
    if fewest is not None and count < fewest:
        raise InvalidArgument(
            f"prompt {result.prompt_id!r} has {count} responses instead of {group_size or fewest};"
            f" min_group_size lets incomplete groups pass"
        )
    if group_size is not None and count > group_size:
        raise InvalidArgument(
            f"prompt {result.prompt_id!r} has {count} responses, more than the group size {group_size}"
        )
    if not count:
        raise InvalidArgument(f"prompt {result.prompt_id!r} has no responses; a group needs at least one")


def _member(result: GenerationResult, place: int, eos_token_id: int | None, train_empty: bool) -> Rollout:
    response: Any = () if result.responses[place] is None else result.responses[place]
    logprobs: Any = None if result.logprobs is None else result.logprobs[place]
    mask: Any = None if result.masks is None else result.masks[place]
    versions: Any = None if result.versions is None else result.versions[place]
    reason = result.finish_reasons[place]
    reward = None if result.rewards is None else result.rewards[place]
    status = status_from_finish_reason(reason)
    if status != Status.FAILED:
        check_reward(reward)
    elif (score := read_score(reward)) is not None and not isfinite(score):
        reward = None  # nobody trains on it
    if len(response) == 0 and str(reason).lower() == "stop" and eos_token_id is not None:
        response, mask = [eos_token_id], [int(train_empty)]
        # A token that is trained on and has no log-probability has none at all.
        logprobs = None if logprobs is None or train_empty else [np.nan]
        versions = None
    if versions is None and result.model_step is not None:
        versions = VersionRuns(((result.model_step, len(response)),))
    return Rollout(
        group_id=result.prompt_id,
        rollout_id=place,
        prompt_ids=result.prompt_ids,
        response_ids=response,
        logprobs=logprobs,
        response_mask=mask,
        response_model_steps=versions,
        reward=reward,
        finish_reason=reason,
        error_msg=finish_error(reason) if status is Status.FAILED else None,
        status=status,
        extra_fields=_extra_fields(result),
    )


def _extra_fields(result: GenerationResult) -> dict[str, Any]:
    fields = {name: value for name in PASSED_THROUGH if (value := getattr(result, name)) is not None}
    if result.reward_metrics:
        fields["reward_metrics"] = dict(result.reward_metrics)
    return fields | dict(result.extra)


def _without_metrics_of_others(alive: list[Rollout], count: int) -> list[Rollout]:
    """Let the entries of members that were left out leave the metrics that have one for each."""
    places = [member.rollout_id for member in alive]
    for member in alive:
        metrics = member.extra_fields.get("reward_metrics", {})
        for name, value in metrics.items():
            if isinstance(value, (list, tuple, np.ndarray)) and len(value) == count:
                metrics[name] = [value[place] for place in places]
    return alive
