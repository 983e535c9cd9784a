"""Verdicts on groups: which groups carry no training signal, and how often a prompt is solved. Pure functions."""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from math import isfinite
from typing import Any, NamedTuple

from reroll.errors import InvalidArgument
from reroll.group.group import RolloutGroup
from reroll.rollout import read_score
from reroll.rollout.summary import mean_and_std

Group = Sequence[Any]
Predicate = Callable[[Group], bool]
"""Returns whether a group may be trained on."""


class Verdict(StrEnum):
    """Why a group is kept or filtered."""

    KEPT = "kept"
    NONE_SOLVED = "none_solved"
    """All members have the same reward, and it is 0 or less."""
    ALL_SOLVED = "all_solved"
    """All members have the same reward, and it is the largest possible one."""
    SAME_SCORE = "same_score"
    """All members have the same reward, between 0 and the largest possible one."""
    CUSTOM = "custom"
    """A predicate returned False."""

    @property
    def is_zero_std(self) -> bool:
        """Whether all members have the same reward."""
        return self in (Verdict.NONE_SOLVED, Verdict.ALL_SOLVED, Verdict.SAME_SCORE)


class Screened(NamedTuple):
    """The result of `screen`."""

    verdicts: list[Verdict]
    """One for each group."""
    kept: list[Group]
    excluded: list[Any]
    """Ids of the prompts that are solved too often to be sampled again."""


def scores_of(group: Group) -> list[float | None]:
    """Return the reward of each member, None where it is not known yet.

    Raises InvalidArgument, which names the prompt, if a reward is not finite.
    """
    scores = [read_score(getattr(rollout, "reward", None)) for rollout in group]
    for place, score in enumerate(scores):
        if score is not None and not isfinite(score):
            raise InvalidArgument(
                f"prompt {prompt_id_of(group)!r}: the reward of rollout {place} is {score}; give finite rewards"
            )
    return scores


def prompt_id_of(group: Group) -> Any:
    """Return the `group_id` of the first member that has one."""
    if isinstance(group, RolloutGroup):
        return group.group_id
    return next(
        (found for rollout in group if (found := getattr(rollout, "group_id", None)) is not None), None
    )


def solve_rate(group: Group, max_possible_score: float = 1.0) -> float:
    """Return the share of members whose reward is at least `max_possible_score`; 0 for an empty group.

    Args:
        group: rollouts with rewards.
        max_possible_score: reward of a solved prompt.

    """
    scores = scores_of(group)
    return sum(score is not None and score >= max_possible_score for score in scores) / max(1, len(scores))


def judge(
    group: Group,
    *,
    eps: float = 1e-8,
    max_possible_score: float = 1.0,
    predicates: Iterable[Predicate] = (),
) -> Verdict:
    """Return the verdict on one group.

    Args:
        group: Rollouts of any class. With one member, or with unknown rewards, only the predicates decide.
        eps: Rewards whose standard deviation is at most this count as equal.
        max_possible_score: The reward of a response that solves its prompt.
        predicates: Called in turn if the rewards differ; the first that returns False filters the group.

    Raises:
        InvalidArgument: A reward is not finite; the message names the prompt.

    """
    scores = [score for score in scores_of(group) if score is not None]
    mean, std = mean_and_std(scores)
    if len(scores) == len(group) > 1 and mean is not None and std is not None and std <= eps:
        if mean >= max_possible_score - eps:
            return Verdict.ALL_SOLVED
        return Verdict.NONE_SOLVED if mean <= eps else Verdict.SAME_SCORE
    return Verdict.KEPT if all(predicate(group) for predicate in predicates) else Verdict.CUSTOM


def screen(
    groups: Iterable[Group],
    *,
    filter_zero_std: bool = True,
    eps: float = 1e-8,
    max_possible_score: float = 1.0,
    predicates: Iterable[Predicate] = (),
    no_resampling_pass_rate: float | None = None,
) -> Screened:
    """Return the verdicts of groups, the groups to keep, and the prompts that need no more samples.

    Args:
        groups: Each is judged as by `judge`, with `eps`, `max_possible_score` and `predicates`.
        filter_zero_std: False keeps groups with equal rewards if the predicates accept them; their verdict stays.
        eps: See `judge`.
        max_possible_score: See `judge`.
        predicates: See `judge`.
        no_resampling_pass_rate: Prompts with at least this `solve_rate` are in `excluded`; None: no prompt is.

    """
    predicates = tuple(predicates)
    verdicts: list[Verdict] = []
    kept: list[Group] = []
    excluded: list[Any] = []
    for group in groups:
        verdict = judge(group, eps=eps, max_possible_score=max_possible_score, predicates=predicates)
        is_kept = verdict == Verdict.KEPT
        if verdict.is_zero_std and not filter_zero_std:
            is_kept = all(predicate(group) for predicate in predicates)
            verdict = verdict if is_kept else Verdict.CUSTOM
        verdicts.append(verdict)
        if is_kept:
            kept.append(group)
        if (
            no_resampling_pass_rate is not None
            and solve_rate(group, max_possible_score) >= no_resampling_pass_rate
        ):
            excluded.append(prompt_id_of(group))
    return Screened(verdicts, kept, excluded)
