"""What was generated for each step, as numbers without tokens: the source of the `gen/*` metrics.

`GenerationLog` holds results in the order of their arrival. When a step is leased, the results up to a cut leave the log and
become the `Generated` of that step.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from reroll.prepare.filters import Group, Verdict, prompt_id_of, scores_of
from reroll.prepare.sequences import read_members


class Response(NamedTuple):
    """The numbers of one member of a group."""

    prompt_length: int
    length: int
    score: float | None
    finish_reason: str | None


class Outcome(NamedTuple):
    """The numbers of one generated group."""

    verdict: Verdict
    responses: list[Response]
    reward_metrics: dict[str, float | list[float]]
    """Metrics of the reward function: one number for the group, or several."""

    @classmethod
    def of(cls, group: Group, verdict: Verdict) -> Self:
        """Return the numbers of a group. Raises InvalidArgument, which names the prompt."""
        tokens = read_members([group], [prompt_id_of(group)] * len(group)).tokens
        lengths = [[len(ids) for ids in column] for column in (tokens.prompts, tokens.responses)]
        responses = map(Response, *lengths, scores_of(group), tokens.finish_reasons)
        extra = getattr(group[0], "extra_fields", None) if len(group) else None
        given = extra.get("reward_metrics") if isinstance(extra, dict) else None
        return cls(verdict, list(responses), dict(_numbers(given or {})))

    def state(self) -> list[Any]:
        """Return plain values for `restored`."""
        return [self.verdict.value, [list(response) for response in self.responses], self.reward_metrics]

    @classmethod
    def restored(cls, state: Sequence[Any]) -> Self:
        """Return the outcome that `state` described."""
        verdict, responses, reward_metrics = state
        return cls(Verdict(verdict), [Response(*response) for response in responses], reward_metrics)


def _numbers(metrics: Mapping[str, Any]) -> Iterable[tuple[str, float | list[float]]]:
    """Yield the metrics that are numbers or lists of numbers; other values have no mean."""
    for name, value in metrics.items():
        try:
            numbers = np.asarray(value, np.float64)
        except (TypeError, ValueError):
            continue
        if value is not None:  # numpy reads None as NaN
            yield name, numbers.tolist()


class LoggedGroup(NamedTuple):
    """One generated group."""

    uid: int | None
    """Uid in the buffer; None if the group is not there to be trained."""
    outcome: Outcome


@dataclass(slots=True)
class Generated:
    """The results that are counted for one step."""

    groups: Mapping[str, Collection[LoggedGroup]] = field(default_factory=dict)
    """By task."""
    others: Counter[str] = field(default_factory=Counter)
    """Results that became no group to train on, by the reason."""

    def outcomes(self, task: str | None = None) -> list[Outcome]:
        """Return the outcomes of one task, or of all."""
        chosen = self.groups.values() if task is None else [self.groups.get(task, ())]
        return [logged.outcome for groups in chosen for logged in groups]


class GenerationLog:
    """The results that are not counted for a step yet, by task, in the order of their arrival."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, deque[LoggedGroup]] = defaultdict(deque)
        self._others: Counter[str] = Counter()
        self._carried: Counter[str] = Counter()  # groups that were in the buffer before, by task
        self.results = 0
        """Number of results since the start."""

    def carry(self, resident: Mapping[str, int]) -> None:
        """Count groups that are in the buffer, but not in the log, as the first results that passed."""
        for task, count in resident.items():
            known = sum(logged.uid is not None for logged in self._waiting[task])
            self._carried[task] = max(0, count - known)

    def add(self, task: str, uid: int | None, outcome: Outcome) -> None:
        """Append a group; `uid` is None if it is not there to be trained."""
        self._waiting[task].append(LoggedGroup(uid, outcome))

    def count(self, reason: str, number: int = 1) -> None:
        """Count results that became no group to train on."""
        self._others[reason] += number

    def num_results(self, task: str) -> int:
        """Return how many results of a task are not counted for a step yet."""
        return self._carried[task] + len(self._waiting[task])

    def num_passed(self, task: str, count: int) -> int:
        """Return how many of the first `count` results of a task passed the filters."""
        carried, waiting = min(count, self._carried[task]), self._waiting[task]
        first = (waiting[place] for place in range(min(count - carried, len(waiting))))
        return carried + sum(logged.uid is not None for logged in first)

    def take(self, counts: Mapping[str, int]) -> Generated:
        """Remove and return the first results of each task, up to these numbers."""
        taken = {}
        for task, count in counts.items():
            carried = min(count, self._carried[task])
            self._carried[task] -= carried
            taken[task] = min(count - carried, len(self._waiting[task]))
        return self._pop(taken)

    def take_up_to(self, newest: Mapping[str, int]) -> Generated:
        """Remove and return the results that arrived up to the group with the given uid, by task."""
        return self._pop(
            {
                task: max(
                    (
                        place + 1
                        for place, logged in enumerate(self._waiting[task])
                        if logged.uid is not None and logged.uid <= uid
                    ),
                    default=0,
                )
                for task, uid in newest.items()
            }
        )

    def take_all(self) -> Generated:
        """Remove and return all results."""
        return self._pop({task: len(waiting) for task, waiting in self._waiting.items()})

    def _pop(self, counts: Mapping[str, int]) -> Generated:
        groups = {
            task: [self._waiting[task].popleft() for _ in range(count)] for task, count in counts.items()
        }
        generated, self._others = Generated(groups, self._others), Counter()
        return generated

    def state(self, untrained: Iterable[Generated]) -> dict[str, Any]:
        """Return the results of untrained steps and of the log as plain values, for `restore`."""
        others, groups = Counter[str](), defaultdict[str, list[Any]](list)
        for generated in (*untrained, Generated(self._waiting, self._others)):
            others.update(generated.others)
            for task, logged in generated.groups.items():
                groups[task] += [[one.uid, one.outcome.state()] for one in logged]
        return {"groups": dict(groups), "others": dict(others), "results": self.results}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        for task, found in state["groups"].items():
            self._waiting[task] = deque(LoggedGroup(uid, Outcome.restored(outcome)) for uid, outcome in found)
        self._others = Counter(state["others"])
        self.results = state["results"]
