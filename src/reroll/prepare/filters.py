"""Which groups teach nothing, and how often a prompt is solved. Nothing is removed here: verdicts are values."""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from math import isfinite
from typing import Any, NamedTuple

from reroll.errors import InvalidArgument
from reroll.rollout import read_score
from reroll.rollout.summary import mean_and_std

Group = Sequence[Any]
Predicate = Callable[[Group], bool]
"""Whether a group may be trained on."""


class Verdict(StrEnum):
    """What became of a group."""

    KEPT = "kept"
    NONE_SOLVED = "none_solved"
    """All members have the same reward, which is 0 or less."""
    ALL_SOLVED = "all_solved"
    """All members have the same reward, the largest possible."""
    SAME_SCORE = "same_score"
    """All members have the same reward, in between."""
    CUSTOM = "custom"
    """A predicate said no."""

    @property
    def is_zero_std(self) -> bool:
        """Whether the rewards did not differ."""
        return self in (Verdict.NONE_SOLVED, Verdict.ALL_SOLVED, Verdict.SAME_SCORE)


class Screened(NamedTuple):
    """Groups and what became of each."""

    verdicts: list[Verdict]
    kept: list[Group]
    excluded: list[Any]
    """Ids of the prompts that are solved too often to be sampled again."""


def scores_of(group: Group) -> list[float | None]:
    """Return the reward of each member, None where there is none yet.

    Raises InvalidArgument, which names the prompt, for one that is not finite.
    """
    scores = [read_score(getattr(rollout, "reward", None)) for rollout in group]
    for place, score in enumerate(scores):
        if score is not None and not isfinite(score):
            raise InvalidArgument(
                f"prompt {prompt_id_of(group)!r}: the reward of rollout {place} is {score}; give finite rewards"
            )
    return scores


def prompt_id_of(group: Group) -> Any:
    """Return the first `group_id` that a member states."""
    return next(
        (found for rollout in group if (found := getattr(rollout, "group_id", None)) is not None), None
    )


def solve_rate(group: Group, max_possible_score: float = 1.0) -> float:
    """Return the share of members whose reward reaches the largest possible; 0 for no members."""
    scores = scores_of(group)
    return sum(score is not None and score >= max_possible_score for score in scores) / max(1, len(scores))


def judge(
    group: Group,
    *,
    eps: float = 1e-8,
    max_possible_score: float = 1.0,
    predicates: Iterable[Predicate] = (),
) -> Verdict:
    """Return the verdict of a group: first whether its rewards differ by more than `eps`, then the predicates.

    Rewards of a single member, or rewards that are not all known, tell nothing. Raises InvalidArgument as `scores_of`.
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
    """Judge groups, and say which are kept and which prompts need not be sampled again.

    Without `filter_zero_std`, groups whose rewards do not differ are kept, and still have their verdict; the predicates
    are asked about them as about any other.
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
