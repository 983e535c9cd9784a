"""A group of `Rollout`s, looked at all at once: field by field instead of member by member.

Puts spend most of their time with looks. What is here says what the general look says, of groups as nearly all are, and
nothing of any other.
"""

from collections.abc import Sequence
from itertools import chain
from operator import add, attrgetter
from typing import Any, NamedTuple

from reroll.errors import InvalidArgument
from reroll.rollout.measure import measure
from reroll.rollout.model import BESIDE_TOKENS, Rollout
from reroll.rollout.reward import mean_and_std, read_score
from reroll.rollout.size import count_value
from reroll.rollout.status import combine_statuses
from reroll.rollout.summary import GroupSummary
from reroll.rollout.tally import tally_versions

# All at once and past the properties.
_USUAL = (
    *("_response_ids", "_prompt_ids", "_response_mask", "_logprobs"),
    *("_response_model_steps._values", "_response_model_steps._ends"),
    *("_status", "_seq_staleness", "reward", "group_id"),
)
_UNUSUAL = ("_num_tokens", "_input_ids", "_labels", "_columns")
_read = attrgetter(*_USUAL, *_UNUSUAL, *BESIDE_TOKENS)
_BESIDE_AT = len(_USUAL) + len(_UNUSUAL)


class _Versions(NamedTuple):
    tokens: dict[int, int]
    """How many each version made."""
    oldest: tuple[int | None, ...]
    trainable: tuple[int | None, ...]


def summarize_at_once(rollouts: Sequence[Any], model_step: int | None) -> GroupSummary | None:
    """Return what `summarize` returns; None for a group that is to be looked at member by member."""
    count = len(rollouts)
    if not count or list(map(type, rollouts)).count(Rollout) != count:
        return None
    try:
        columns = list(zip(*map(_read, rollouts), strict=True))
        responses, prompts, masks, logprobs, runs, ends, statuses, staleness, rewards, ids = columns[
            : len(_USUAL)
        ]
        lengths, prompt_lengths = tuple(map(len, responses)), tuple(map(len, prompts))
        scores = [reward if type(reward) is float else read_score(reward) for reward in rewards]
    except (AttributeError, TypeError, InvalidArgument):  # a field is missing, or is wrong
        return None
    if [value for value in chain.from_iterable(columns[len(_USUAL) : _BESIDE_AT]) if value is not None]:
        return None
    num_tokens, prompt_tokens = sum(lengths), sum(prompt_lengths)
    num_bytes = 4 * (num_tokens + prompt_tokens) + 16 * sum(map(len, runs))
    for mask, probabilities, length in zip(masks, logprobs, lengths, strict=True):
        if mask is not None:
            if len(mask) != length:
                return None
            num_bytes += length
        if probabilities is not None:
            if len(probabilities) != length:
                return None
            num_bytes += 4 * length
    for value in chain.from_iterable(columns[_BESIDE_AT:]):
        if value is not None and value is not True:  # True: derived
            num_bytes += count_value(value)
    versions = _versions(rollouts, model_step, lengths=lengths, masks=masks, runs=runs, ends=ends)
    if versions is None:
        return None
    reward_mean, reward_std = mean_and_std([score for score in scores if score is not None])
    return GroupSummary(
        status=combine_statuses(statuses),
        group_id=next((known for known in ids if known is not None), None),
        version=min(versions.tokens, default=None),
        newest_version=max(versions.tokens, default=None),
        staleness=max(staleness),
        num_rollouts=count,
        num_tokens=num_tokens + prompt_tokens,
        num_bytes=num_bytes,
        reward_mean=reward_mean,
        reward_std=reward_std,
        version_tokens=versions.tokens,
        member_versions=versions.oldest,
        member_newest_trainable=versions.trainable,
        member_tokens=tuple(map(add, prompt_lengths, lengths)),
        member_staleness=staleness,
        measure=measure(lengths, scores),
        prompt_tokens=prompt_tokens,
    )


def _versions(
    rollouts: Sequence[Rollout],
    model_step: int | None,
    *,
    lengths: Sequence[int],
    masks: Sequence[Any],
    runs: Sequence[tuple[int, ...]],
    ends: Sequence[tuple[int, ...]],
) -> _Versions | None:
    """Return what the versions say; None for members that have too many or too few."""
    count = len(rollouts)
    if not any(ends) and (model_step is None or all(lengths)):  # fresh from one engine
        oldest = (model_step,) * count
        if model_step is None:
            return _Versions({}, oldest, oldest)
        is_trained = [mask is None or bool(mask[-1]) or bool(mask.any()) for mask in masks]
        trainable = (
            oldest if all(is_trained) else tuple([model_step if is_one else None for is_one in is_trained])
        )
        return _Versions({model_step: sum(lengths)}, oldest, trainable)
    tokens: dict[int, int] = {}
    firsts: list[int | None] = []
    lasts: list[int | None] = []
    for rollout, length, mask, values, stamped in zip(rollouts, lengths, masks, runs, ends, strict=True):
        missing = length - stamped[-1] if stamped else length
        if len(values) == 1 and not missing and (mask is None or mask[-1]):
            tokens[values[0]] = tokens.get(values[0], 0) + length
            firsts.append(values[0])
            lasts.append(values[0])
            continue
        if missing < 0 or (missing and stamped and model_step is None):
            return None
        tally = tally_versions(rollout, model_step)
        for version, number in tally.counts.items():
            tokens[version] = tokens.get(version, 0) + number
        firsts.append(tally.oldest)
        lasts.append(tally.newest_trainable)
    oldest = tuple(firsts)
    return _Versions(tokens, oldest, oldest if lasts == firsts else tuple(lasts))
