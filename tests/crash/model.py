"""What a durable buffer should be after each operation: plain records, one operation after another.

Operations change a buffer in the order in which they were begun, and each is written after all before it. So what a kill
leaves behind is what some number of them made, at least all that were acknowledged; `Worlds` keeps every such number that
agrees with what was seen since.
"""

import json
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from crash.numbered import LIMITS, RETRYABLE, is_aborted, priority_of, put_id_of, task_of, tokens_of

Op = dict[str, Any]
GONE = ("consumed", "deleted", "expired")
"""How groups left; the other places are those of rows."""


@dataclass
class Known:
    """One group."""

    uid: int
    task: str
    number: int
    status: str
    timestamp: int
    priority: float
    version: int
    place: str = "resident"
    attempts: int = 1
    uses: int = 0
    deliveries: int = 0
    pending: int = 0
    used_at: int | None = None
    was_out: bool = False
    """Its holder is dead, but what it made may still come."""

    def row(self) -> list[Any]:
        version = None if self.status == "expired" else self.version
        tokens = tokens_of(self.number, self.attempts, self.status)
        told = [self.timestamp, self.task, self.status, self.priority, version]
        return [*told, self.uses, self.attempts, self.deliveries, tokens]


@dataclass
class Model:
    """A whole buffer."""

    groups: dict[int, Known] = field(default_factory=dict)
    put_ids: dict[str, int] = field(default_factory=dict)
    tick: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    thresholds: dict[str, int] = field(default_factory=dict)
    log: list[tuple[int, int, int]] = field(default_factory=list)
    """Uses that may be undone: step, uid, attempt."""
    leases: dict[int, tuple[dict[str, int], list[tuple[int, int]]]] = field(default_factory=dict)
    """By id: steps by task, and uid and attempt of each group."""
    last_lease: int = 0

    def copy(self) -> "Model":
        return replace(
            self,
            groups={uid: copy(known) for uid, known in self.groups.items()},
            put_ids=dict(self.put_ids),
            steps=dict(self.steps),
            thresholds=dict(self.thresholds),
            log=list(self.log),
            leases=dict(self.leases),
        )

    def apply(self, op: Op) -> Any:
        """Carry out an operation, and return what it should return."""
        return getattr(self, f"_{op['op']}")(op)

    def learn(self, op: Op) -> None:
        """Learn the training step of an operation that delivers groups, and nothing else of it."""
        if op["op"] in ("take", "sample", "lease"):
            for task in op.get("sizes", [op.get("task")]):
                self._learn(task, op["step"])

    def crash(self) -> None:
        """Lose the process: whoever had groups is no more."""
        self.leases.clear()
        for known in self.groups.values():
            if known.place not in GONE and known.status == "completed":
                known.uses -= known.pending
            known.was_out = known.place == "out" or (known.was_out and known.place == "resident")
            known.pending = 0
            if known.place == "out":
                known.place = "resident"
            elif known.place == "leased":
                self._come_back(known)

    def picture(self) -> dict[str, Any]:
        """Return what can be seen from outside."""
        rows = {str(g.uid): g.row() for g in self.groups.values() if g.place == "resident"}
        return {"rows": rows, "books": self._books()}

    def _books(self) -> dict[str, dict[str, int]]:
        books: dict[str, dict[str, int]] = {}
        for known in self.groups.values():
            book = books.setdefault(known.task, {"put": 0})
            book["put"] += 1
            book[known.place] = book.get(known.place, 0) + 1
        return books

    # --- operations

    def _put(self, op: Op) -> int:
        number, uid = op["number"], op.get("uid")
        put_id = None if uid is not None else put_id_of(number)
        if put_id in self.put_ids:
            return self.put_ids[put_id]
        self.tick += 1
        status = op["status"] if uid is not None else "aborted" if is_aborted(number) else "completed"
        if uid is None:
            uid = len(self.groups) + 1
            self.groups[uid] = Known(
                uid, task_of(number), number, status, self.tick, priority_of(number), op["version"]
            )
        else:
            known = self.groups[uid]
            assert known.place == "out" or known.was_out, "the worker continues only what is out"
            known.place, known.was_out, known.status, known.timestamp = "resident", False, status, self.tick
            known.priority, known.version = priority_of(number), op["version"]
            known.attempts, known.uses = known.attempts + 1, 0
        if put_id is not None:
            self.put_ids[put_id] = uid
        return uid

    def _take(self, op: Op) -> list[list[Any]]:
        taken = []
        for task, n in op["sizes"].items():
            self._learn(task, op["step"])
            for known in self._next(task, op["status"], n):
                taken.append([known.uid, known.number, known.attempts])
                known.was_out = False
                if op["status"] == "completed":
                    known.uses += 1
                    self._use(known, self.steps.get(task))
                    self._consume(known, self.steps.get(task))
                else:
                    known.place = "out"
        return taken

    def _sample(self, op: Op) -> list[list[Any]]:
        task, drawn = op["task"], []
        self._learn(task, op["step"])
        for known in self._next(task, "completed", op["n"]):
            known.uses += 1
            self._use(known, self.steps.get(task))
            drawn.append([known.uid, known.number, known.attempts, known.uses])
            self._leave_if_used_up(known)
        return drawn

    def _lease(self, op: Op) -> list[Any]:
        lent = []
        for task, n in op["sizes"].items():
            self._learn(task, op["step"])
            for known in self._next(task, "completed", n):
                known.uses += 1
                known.pending += 1
                known.deliveries += 1
                if known.uses >= LIMITS[task]:
                    known.place = "leased"
                lent.append(known)
        self.last_lease += 1
        editions = [(known.uid, known.attempts) for known in lent]
        self.leases[self.last_lease] = ({t: self.steps[t] for t in op["sizes"]}, editions)
        return [self.last_lease, [[known.uid, known.number, known.attempts] for known in lent]]

    def _ack(self, op: Op) -> None:
        steps, held = self._held(op["lease"])
        for known in held:
            known.pending -= 1
            self._use(known, min(steps[known.task], self.steps[known.task]))  # its step may have been rewound
            if known.place == "leased" and not known.pending:
                self._consume(known, self._newest_use(known))

    def _nack(self, op: Op) -> None:
        _, held = self._held(op["lease"])
        for known in held:
            known.pending -= 1
            known.uses -= 1
            if known.place == "leased":
                self._come_back(known)

    def _priorities(self, op: Op) -> list[int]:
        unknown = []
        for uid, priority in op["priorities"]:
            known = self.groups.get(uid)
            if known is None or known.place != "resident":
                unknown.append(uid)
            else:
                known.priority = priority
                self.tick += 1
        return unknown

    def _refresh(self, op: Op) -> dict[str, int]:
        counts = {}
        for task, threshold in op["thresholds"].items():
            self._learn(task, op["step"])
            self.thresholds[task] = threshold
            stale = [
                known
                for known in self.groups.values()
                if known.place == "resident" and known.task == task and self._is_stale(known, threshold)
            ]
            for known in stale:
                self._expire(known)
            counts[task] = len(stale)
        return counts

    def _commit(self, op: Op) -> int:
        done = [
            known
            for known in self.groups.values()
            if known.place == "uncommitted" and (known.used_at or 0) <= op["step"]
        ]
        for known in done:
            known.place = "consumed"
        self.log = [used for used in self.log if used[0] > op["step"]]
        return len(done)

    def _rewind(self, op: Op) -> int:
        undone = [used for used in self.log if used[0] > op["step"]]
        self.log = [used for used in self.log if used[0] <= op["step"]]
        for _, uid, attempt in undone:
            known = self.groups[uid]
            if known.place not in GONE and known.status == "completed" and known.attempts == attempt:
                known.uses -= 1
                if known.place == "leased" and known.uses < LIMITS[known.task]:
                    known.place = "resident"
        back = [
            known
            for known in self.groups.values()
            if known.place == "uncommitted" and (known.used_at or 0) > op["step"]
        ]
        for known in back:
            known.place, known.used_at = "resident", None
        self.steps = {task: min(step, op["step"] + 1) for task, step in self.steps.items()}
        return len(back)

    def _delete(self, op: Op) -> int:
        here = [self.groups[uid] for uid in op["uids"] if uid in self.groups]
        here = [known for known in here if known.place == "resident"]
        for known in here:
            known.place = "deleted"
        return len(here)

    def _forget(self, op: Op) -> int:
        out = [known for uid in op["uids"] if (known := self.groups[uid]).place == "out"]
        for known in out:
            known.place = "deleted"
        return len(out)

    # --- what they have in common

    def _learn(self, task: str, step: int | None) -> None:
        if step is not None:
            self.steps[task] = max(step, self.steps.get(task, 0))

    def _next(self, task: str, status: str, n: int) -> list[Known]:
        order = lambda known: known.timestamp  # noqa: E731
        if status == "completed":
            order = {
                "code": lambda known: -known.priority,
                "replay": lambda known: (known.uses, known.timestamp),
            }.get(task, order)
        pool = [
            known
            for known in self.groups.values()
            if known.place == "resident" and known.task == task and known.status == status
        ]
        return sorted(pool, key=order)[:n]

    def _use(self, known: Known, step: int | None) -> None:
        if step is not None:
            self.log.append((step, known.uid, known.attempts))

    def _consume(self, known: Known, step: int | None) -> None:
        known.place = "consumed" if step is None else "uncommitted"
        known.used_at = step

    def _leave_if_used_up(self, known: Known) -> None:
        if known.uses >= LIMITS[known.task]:
            if known.pending:
                known.place = "leased"
            else:
                self._consume(known, self._newest_use(known))

    def _newest_use(self, known: Known) -> int | None:
        """Return the step that has used a group up: leases may be acknowledged in any order."""
        steps = [step for step, *edition in self.log if edition == [known.uid, known.attempts]]
        return max(steps, default=None)

    def _held(self, lease: int) -> tuple[dict[str, int], list[Known]]:
        steps, editions = self.leases.pop(lease)
        held = [self.groups[uid] for uid, attempt in editions if self.groups[uid].attempts == attempt]
        return steps, [known for known in held if known.place not in GONE and known.pending]

    def _come_back(self, known: Known) -> None:
        """Let a group that was lent be in its pool again; a refresh may have passed it by."""
        known.place = "resident"
        threshold = self.thresholds.get(known.task)
        if threshold is not None and self._is_stale(known, threshold):
            self._expire(known)

    def _is_stale(self, known: Known, threshold: int) -> bool:
        is_old = self.steps[known.task] - known.version - 1 >= threshold
        return is_old and known.status in ("completed", "aborted")

    def _expire(self, known: Known) -> None:
        known.pending = 0
        if RETRYABLE[known.task]:
            known.status = "expired"
        else:
            known.place = "expired"


class Worlds:
    """Every model that agrees with what was seen."""

    def __init__(self) -> None:
        self._possible = [Model()]
        self._begun: list[Op] = []
        self._results: dict[int, Any] = {}
        self.mismatch: tuple[Op, Any, Any] | None = None
        self._history: list[tuple[Op, Any]] = []

    def begin(self, op: Op) -> None:
        """Learn that an operation was begun."""
        self._begun.append(op)

    def end(self, number: int, result: Any) -> None:
        """Learn what an operation returned: it will never be undone by a kill."""
        self._results[number] = result

    def crash(self, *, is_interrupted: bool = False) -> None:
        """Learn that the process was killed: what was not acknowledged may or may not have been written.

        An operation that was interrupted is undone; the training step that it named stays known.
        """
        acknowledged = [place for place, op in enumerate(self._begun) if op["begin"] in self._results]
        first = acknowledged[-1] + 1 if acknowledged else 0
        after: list[Model] = []
        for model in self._possible:
            if self._carry_out(model, self._begun[:first]):
                after.append(model.copy())
                for op in self._begun[first:]:
                    if is_interrupted:
                        after.append(model.copy())
                        after[-1].learn(op)
                    model.apply(op)
                    after.append(model.copy())
        assert after, "{} returned {}, not {}".format(*self.mismatch or ())
        for model in after:
            model.crash()
        self._possible = _distinct(after)
        self._remember("killed")

    def see(self, picture: dict[str, Any]) -> None:
        """Learn what the buffer holds, at a moment when nothing else is going on."""
        agreeing = []
        for model in self._possible:
            now = model.copy()
            if self._carry_out(now, self._begun) and now.picture() == picture:
                agreeing.append(now)
        assert agreeing, self._explain(picture)
        self._possible = agreeing
        self._remember("seen")

    def _remember(self, event: str) -> None:
        """Keep the operations so far for the message of a failure."""
        self._history += [(op, self._results.get(op["begin"], "no end")) for op in self._begun]
        self._history.append(({"op": event}, None))
        self._begun, self._results = [], {}

    def could_be(self, picture: dict[str, Any]) -> bool:
        """Return whether a buffer that was opened after the last kill may hold this."""
        return any(json.loads(json.dumps(model.picture())) == picture for model in self._possible)

    def about(self, uids: set[int]) -> list[Known]:
        """Return what the models know of groups."""
        return [model.groups[uid] for model in self._possible for uid in sorted(uids)]

    def _carry_out(self, model: Model, ops: list[Op]) -> bool:
        """Apply operations; return whether each gave what the buffer gave."""
        self.mismatch = None
        for op in ops:
            meant = model.apply(op)
            if op["begin"] in self._results and self._results[op["begin"]] != meant:
                self.mismatch = (op, self._results[op["begin"]], meant)
                return False
        return True

    def _explain(self, picture: dict[str, Any]) -> str:
        """Return how each possible model differs."""
        found = [self._difference(model.copy(), picture) for model in self._possible]
        self._remember("looked")
        last = [f"{op} gave {result}" for op, result in self._history if op["op"] != "put"][-400:]
        return "\n".join([*found, "after, without puts:", *last])

    def _difference(self, model: Model, picture: dict[str, Any]) -> str:
        if not self._carry_out(model, self._begun):
            return "{} returned {}, not {}".format(*self.mismatch)
        meant = model.picture()
        found = []
        for kind, known in meant.items():
            keys = sorted({*known, *picture[kind]}, key=str)
            wrong = {key: (picture[kind].get(key), known.get(key)) for key in keys}
            found.append(f"{kind}: " + str({key: pair for key, pair in wrong.items() if pair[0] != pair[1]}))
        return f"found, and meant: {', '.join(found)}"


def _distinct(models: list[Model]) -> list[Model]:
    found: list[Model] = []
    for model in models:
        if model not in found:
            found.append(model)
    return found
