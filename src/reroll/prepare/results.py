"""`GenerationResult`, the output of an engine for one prompt, and its conversion to a group of rollouts.

All data that later stages need is stored in the rollouts, so that it survives a buffer, a file or a network hop. The
prompt id becomes `group_id`, the place of a response becomes `rollout_id`, and `extra_fields` holds `index`,
`ground_truth`, `dataset`, `raw_query` and `reward_metrics` where the result has them, and the entries of `extra`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.rollout import Rollout, Status, VersionRuns, finish_error, read_score, status_from_finish_reason

PASSED_THROUGH = ("index", "ground_truth", "dataset", "raw_query")

OnFailed = Literal["group", "drop_member"]
"""Whether a failed member fails its group or is dropped; the same option as `on_failed` of a buffer."""


@dataclass(slots=True, kw_only=True)
class GenerationResult:
    """The responses of an engine to one prompt; each sequence field has one entry per response."""

    prompt_id: Any
    """Names this request; a later request for the same prompt needs another id (see `unique_prompt_ids`)."""
    index: int | None = None
    """Position of the prompt in its data set."""
    prompt_ids: npt.ArrayLike
    responses: Sequence[npt.ArrayLike | None]
    """Token ids; None is an empty response."""
    finish_reasons: Sequence[str | None]
    logprobs: Sequence[npt.ArrayLike | None] | None = None
    """Log-probabilities of the response tokens; NaN for a token without one."""
    masks: Sequence[npt.ArrayLike | None] | None = None
    """1 for response tokens to train on; without a mask, all tokens are."""
    rewards: Sequence[float | Mapping[str, Any] | None] | None = None
    model_step: int | None = None
    """Policy version that generated all tokens; `versions` gives it for each token."""
    versions: Sequence[npt.ArrayLike | VersionRuns | None] | None = None
    task: str | None = None
    """Task of the buffer; required if the preparer has several tasks."""
    group_uid: int | None = None
    """Uid of the checked-out group (aborted or expired) that this result continues."""
    ground_truth: Any = None
    dataset: Any = None
    raw_query: str | None = None
    reward_metrics: Mapping[str, Any] = field(default_factory=dict)
    """Numbers about this result, or sequences with one number per response; other values are passed through."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of `extra_fields`."""


def to_group(
    result: GenerationResult,
    *,
    eos_token_id: int | None = None,
    train_empty: bool = False,
    group_size: int | None = None,
    min_group_size: int | None = None,
    on_failed: OnFailed = "group",
) -> list[Rollout]:
    """Return the group of a result: one rollout per response, in order.

    Args:
        result: What an engine returned for one prompt.
        eos_token_id: An empty response with the finish reason "stop" gets this token; None: it stays empty.
        train_empty: Whether that token is trained on.
        group_size: Number of responses that a result must have; None: any number.
        min_group_size: With this, a result may have fewer than `group_size` responses, down to this number.
        on_failed: `"drop_member"` drops failed responses if at least `min_group_size` (1) others remain;
            otherwise, and with `"group"`, the group keeps all of them and counts as failed.

    Raises:
        InvalidArgument: The number of responses is wrong, a reward is not finite, or lengths disagree. The message
            names the prompt.

    """
    _check_lengths(result)
    _check_group_size(result, group_size, min_group_size)
    try:
        members = [
            _member(result, place, eos_token_id, train_empty) for place in range(len(result.responses))
        ]
    except InvalidArgument as error:
        raise InvalidArgument(f"prompt {result.prompt_id!r}: {error}") from error
    return members if on_failed == "group" else drop_failed(members, min_group_size)


def drop_failed(members: list[Rollout], min_group_size: int | None = None) -> list[Rollout]:
    """Return the members that did not fail; all members if fewer than `min_group_size` (1) would remain.

    Entries of dropped members leave `reward_metrics` that have one entry per response.
    """
    alive = [member for member in members if member.status != Status.FAILED]
    if len(alive) == len(members) or len(alive) < max(1, min_group_size or 1):
        return members
    places = [member.rollout_id for member in alive]
    for member in alive:
        metrics = member.extra_fields.get("reward_metrics", {})
        for name, value in metrics.items():
            if isinstance(value, (list, tuple, np.ndarray)) and len(value) == len(members):
                metrics[name] = [value[place] for place in places]
    return alive


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
            f"prompt {result.prompt_id!r} has {count} responses instead of {group_size or fewest}; set min_group_size to"
            " accept smaller groups"
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
    if (score := read_score(reward)) is not None and not isfinite(score):
        if status != Status.FAILED:
            raise InvalidArgument(
                f"its reward is {score}, and would spoil the whole batch; give a finite number, or None before it is known"
            )
        reward = None  # a failed member is not trained on
    if len(response) == 0 and str(reason).lower() == "stop" and eos_token_id is not None:
        response, mask = [eos_token_id], [int(train_empty)]
        # NaN is allowed only at tokens that are not trained on.
        logprobs = None if logprobs is None or train_empty else [np.nan]
        versions = None
    if versions is None and result.model_step is not None:
        versions = VersionRuns(((result.model_step, len(response)),))
    extra = {name: value for name in PASSED_THROUGH if (value := getattr(result, name)) is not None}
    if result.reward_metrics:
        extra["reward_metrics"] = dict(result.reward_metrics)
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
        extra_fields=extra | dict(result.extra),
    )
