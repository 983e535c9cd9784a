"""What was generated for a step: results as they came, until the step that they are counted for is trained."""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from reroll.prepare.outcomes import Outcome


class Arrival(NamedTuple):
    """One group that was generated, and what became of it."""

    uid: int | None
    """In the buffer; None if it was left out."""
    outcome: Outcome


@dataclass(slots=True)
class Generated:
    """What is counted for one step."""

    arrivals: Mapping[str, Collection[Arrival]]
    """By task."""
    others: Counter[str]
    """Results that became no group to train on, by what happened to them."""

    def outcomes(self, task: str | None = None) -> list[Outcome]:
        """Return what was generated, for one task or for all."""
        chosen = self.arrivals.values() if task is None else [self.arrivals.get(task, ())]
        return [arrival.outcome for arrivals in chosen for arrival in arrivals]


class Arrivals:
    """Groups of each task in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, deque[Arrival]] = defaultdict(deque)
        self._others: Counter[str] = Counter()
        self._taken: dict[int, Generated] = {}  # for steps that are not trained yet
        self._carried: Counter[str] = Counter()
        self.results = 0
        """How many results came in all."""

    def carry(self, resident: Mapping[str, int]) -> None:
        """Learn how many groups were in the buffer before: those not known count as the first that came and passed."""
        for task, count in resident.items():
            known = sum(arrival.uid is not None for arrival in self._waiting[task])
            self._carried[task] = max(0, count - known)

    def add(self, task: str, uid: int | None, outcome: Outcome) -> None:
        """Note a group."""
        self._waiting[task].append(Arrival(uid, outcome))

    def count(self, what: str, number: int = 1) -> None:
        """Note that something happened to results."""
        self._others[what] += number

    def counted(self, task: str) -> int:
        """Return how many results wait to be counted for a step."""
        return self._carried[task] + len(self._waiting[task])

    def passed_of(self, task: str, count: int) -> int:
        """Return how many of the first so many results passed."""
        carried, waiting = min(count, self._carried[task]), self._waiting[task]
        first = (waiting[place] for place in range(min(count - carried, len(waiting))))
        return carried + sum(arrival.uid is not None for arrival in first)

    def take(self, step: int, sizes: Mapping[str, int]) -> Generated:
        """Return the first so many results of each task, for a step."""
        counts = {}
        for task, size in sizes.items():
            carried = min(size, self._carried[task])
            self._carried[task] -= carried
            counts[task] = min(size - carried, len(self._waiting[task]))
        return self._take(step, counts)

    def take_up_to(self, step: int, newest: Mapping[str, int]) -> Generated:
        """Return what came up to the groups with these uids, for a step; nothing of a task whose group came before."""
        return self._take(step, {task: self._place_after(task, uid) for task, uid in newest.items()})

    def take_all(self, step: int) -> Generated:
        """Return what came until now, for a step."""
        return self._take(step, {task: len(waiting) for task, waiting in self._waiting.items()})

    def trained(self, step: int) -> None:
        """Forget what was counted for this step and all before it."""
        for old in [old for old in self._taken if old <= step]:
            del self._taken[old]

    def state(self) -> dict[str, Any]:
        """Return, as plain values, what is to be counted again or for the first time after a restart."""
        others, tasks = Counter[str](), defaultdict[str, list[Any]](list)
        for generated in (*self._taken.values(), Generated(self._waiting, self._others)):
            others.update(generated.others)
            for task, arrivals in generated.arrivals.items():
                tasks[task] += [[arrival.uid, arrival.outcome.state()] for arrival in arrivals]
        return {"groups": dict(tasks), "others": dict(others), "results": self.results}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        for task, found in state["groups"].items():
            self._waiting[task] = deque(Arrival(uid, Outcome.restored(outcome)) for uid, outcome in found)
        self._others = Counter(state["others"])
        self.results = state["results"]

    def _place_after(self, task: str, uid: int) -> int:
        places: Iterable[int] = (
            place + 1
            for place, arrival in enumerate(self._waiting[task])
            if arrival.uid is not None and arrival.uid <= uid
        )
        return max(places, default=0)

    def _take(self, step: int, counts: Mapping[str, int]) -> Generated:
        arrivals = {
            task: [self._waiting[task].popleft() for _ in range(count)] for task, count in counts.items()
        }
        generated, self._others = Generated(arrivals, self._others), Counter()
        self._taken[step] = generated
        return generated
