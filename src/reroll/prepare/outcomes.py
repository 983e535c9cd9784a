"""What was generated for a prompt, as the numbers that are told of it: lengths, scores and verdict, without the tokens."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from reroll.prepare.filters import Group, Verdict, prompt_id_of, scores_of
from reroll.prepare.members import read_members


class Response(NamedTuple):
    """One member of a group."""

    prompt_length: int
    length: int
    score: float | None
    finish_reason: str | None


class Outcome(NamedTuple):
    """One group that was generated."""

    verdict: Verdict
    responses: list[Response]
    reward_metrics: dict[str, float | list[float]]
    """Numbers of the reward function: one for the group, or several."""

    @classmethod
    def of(cls, group: Group, verdict: Verdict) -> Self:
        """Return the numbers of a group. Raises InvalidArgument, which names the prompt, for what cannot be used."""
        members = read_members(group, [prompt_id_of(group)] * len(group))
        lengths = [[len(ids) for ids in column] for column in (members.prompts, members.responses)]
        responses = map(Response, *lengths, scores_of(group), members.finish_reasons)
        fields = getattr(group[0], "extra_fields", None) if len(group) else None
        given = fields.get("reward_metrics") if isinstance(fields, dict) else None
        return cls(verdict, list(responses), dict(_numbers(given or {})))

    def state(self) -> list[Any]:
        """Return plain values, which `restored` takes."""
        return [self.verdict.value, [list(response) for response in self.responses], self.reward_metrics]

    @classmethod
    def restored(cls, state: Sequence[Any]) -> Self:
        """Return what `state` was taken of."""
        verdict, responses, reward_metrics = state
        return cls(Verdict(verdict), [Response(*response) for response in responses], reward_metrics)


def _numbers(metrics: Mapping[str, Any]) -> Iterable[tuple[str, float | list[float]]]:
    """Yield what is a number, or several; the rest is passed through with the group, but no mean can be told of it."""
    for name, value in metrics.items():
        try:
            numbers = np.asarray(value, np.float64)
        except (TypeError, ValueError):
            continue
        if value is not None:  # which numpy makes a NaN of
            yield name, numbers.tolist()
