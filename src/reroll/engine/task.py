"""What belongs to all pools of one task: settings, limiter, counters, ledger, training step."""

import math
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from reroll.engine.ages import Ages
from reroll.engine.columns import LEASED, NO_VERSION, RESIDENT, UNCOMMITTED, Columns
from reroll.engine.ledger import Ledger
from reroll.engine.limiters import Counters, Limiter, Unlimited, known_options, limiter_of
from reroll.engine.pool import Pool
from reroll.engine.proceeds import check_proceeds
from reroll.engine.selectors.ordered import Ordered
from reroll.engine.selectors.selector import SelectorSpec
from reroll.engine.selectors.specs import Fifo, Stalest, Uniform, known_spec_options, selector_spec
from reroll.engine.uses import Used, UseLog
from reroll.engine.window import StalenessWindow
from reroll.errors import InvalidConfig
from reroll.rollout.status import Status

STATUSES: Final = tuple(Status)
"""Column `status` holds indices into this."""
STATUS_CODE: Final = {status: code for code, status in enumerate(STATUSES)}
COMPLETED: Final = STATUS_CODE[Status.COMPLETED]
EXPIRED: Final = STATUS_CODE[Status.EXPIRED]
EXPIRABLE: Final = tuple(STATUS_CODE[s] for s in (Status.COMPLETED, Status.ABORTED, Status.EXPIRED))
"""Groups of these may expire; EXPIRED ones again where single members do."""
RETURNING: Final = tuple(STATUS_CODE[s] for s in (Status.INIT, Status.ABORTED, Status.EXPIRED))
"""Groups of these are taken by producers, which put them again."""
REJECTED: Final = tuple(STATUS_CODE[s] for s in (Status.FAILED, Status.FILTERED))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """How one task keeps its groups. Raises InvalidConfig for what can never proceed."""

    capacity: int | None = None
    sampler: SelectorSpec = field(default_factory=Uniform)
    remover: SelectorSpec | None = None
    max_times_sampled: int | None = 1
    limiter: Limiter = field(default_factory=Unlimited)
    window: StalenessWindow | None = None
    max_uncommitted_steps: int = 0
    """For how many training steps groups that they consumed are kept, until the trainer commits; 0: not at all."""
    is_durable: bool = False
    """Whether rows are written down: then consumed ones are kept until that is done."""
    rejected_capacity: int = 1024
    """How many FAILED and FILTERED groups are kept to be looked at."""
    expires: bool = False
    """Whether groups have versions and may expire; a table's items do not."""
    initial_priority: float | Literal["max"] = 1.0
    """The priority of a group that is put without one; "max": the largest of the task's COMPLETED groups."""

    def __post_init__(self) -> None:
        for name in ("capacity", "max_times_sampled"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidConfig(f"{name} must be a whole number of at least 1, or None, not {value!r}")
        check_proceeds(
            capacity=self.capacity,
            sampler=self.sampler,
            remover=self.remover,
            max_times_sampled=self.max_times_sampled,
            limiter=self.limiter,
        )
        if self.window is not None and self.limiter.window.min_size > self.window.least_left:
            raise InvalidConfig(
                f"this dead-locks when a trainer has taken a part of its batch: {self.window} may leave only "
                f"{self.window.least_left} groups there, and {self.limiter} lets nobody take fewer than "
                f"{self.limiter.window.min_size}; set min_size to 1, a batch is waited for as a whole anyway"
            )
        if self.window is not None and self.remover is None:
            check_proceeds(  # no more than the window lets be under way can ever be there
                capacity=self.window.largest,
                sampler=self.sampler,
                remover=None,
                max_times_sampled=self.max_times_sampled,
                limiter=self.limiter,
            )
        if self.window is not None and not isinstance(self.sampler, Fifo | Stalest):
            warnings.warn(
                f"with a {self.sampler.type} sampler a group may wait longer than the staleness window allows, and "
                "expire; Fifo() and Stalest() train in order",
                UserWarning,
                stacklevel=2,
            )

    @property
    def largest_sample(self) -> float:
        """No call can ever sample more than this at once, as far as the limiter goes."""
        if self.max_times_sampled is not None and self.max_times_sampled < self.limiter.window.spi:
            return math.inf  # the ratio is never reached, so what may be sampled piles up
        return self.limiter.window.largest_sample

    @property
    def largest(self) -> float:
        """No more than this can ever be handed out at once, as far as the limiter goes."""
        return min(self.largest_sample, self.largest_batch)

    @property
    def due_samples(self) -> float:
        """How often a group is sampled before it has given what the limiter expects of it, or what it may give."""
        uses = math.inf if self.max_times_sampled is None else self.max_times_sampled
        return min(self.limiter.window.spi, uses)

    @property
    def largest_batch(self) -> float:
        """No more than this is sure to be there at once, as far as the limiter goes."""
        spi, min_size, _, max_diff = self.limiter.window
        if max_diff == math.inf:
            return math.inf
        if spi > 1 and (self.remover is not None or self.due_samples < spi):
            return min_size  # samples that evicted or used-up groups owe never come, so the ratio is never reached
        return max(min_size, max_diff // spi)


class Task:
    """One task: a pool per status, and the books over all of them."""

    def __init__(self, name: str, code: int, settings: TaskSettings, columns: Columns) -> None:
        self.name = name
        self.code = code
        self.settings = settings
        self._configured = settings
        self.counters = Counters()
        self.ledger = Ledger()
        self.step: int | None = None
        self.num_bytes = 0
        self.unsettled = (
            0  # COMPLETED groups that were consumed, and come back if that cannot be written down
        )
        self.leased = 0  # COMPLETED groups that are out of their pool with a lease
        self.rolling = 0  # groups that producers took, or hold under a lease, to roll them again
        self.reserved = 0  # groups that producers started under a reservation
        self.advanced = 0  # the last training step that was done
        self.serving = 0  # the version of the weights that generate now
        self.consumed = 0  # COMPLETED groups that left by use since then
        self.log = UseLog()
        self.rewound = 0  # when, by the engine's ticks, the task was rewound last
        remover = settings.remover
        # Only COMPLETED groups are sampled and evicted; all others are handed out in order of arrival.
        self.pools = [
            Pool(
                columns,
                (settings.sampler if status == COMPLETED else Fifo()).build(columns, "sampler"),
                remover.build(columns, "remover") if status == COMPLETED and remover is not None else None,
                Ages(columns) if settings.expires and status in EXPIRABLE else None,
                _by_priority(columns) if settings.initial_priority == "max" and status == COMPLETED else None,
            )
            for status in range(len(STATUSES))
        ]
        self.completed = self.pools[COMPLETED]

    def initial_priority(self) -> float:
        """Return the priority of a group that is put now without one."""
        initial = self.settings.initial_priority
        if initial != "max":
            return initial
        return self.completed.largest_priority() or 1.0  # a group that enters at 0 would never be drawn

    def set_limiter(self, limiter: Limiter) -> None:
        """Have another limiter than configured. Raises InvalidConfig for what can never proceed."""
        self.settings = replace(self.settings, limiter=limiter)

    def set_sampler(self, sampler: SelectorSpec) -> None:
        """Give the sampler other parameters. O(1) for `beta`, O(COMPLETED groups) for others.

        Raises InvalidConfig, and changes nothing, for a sampler of another kind.
        """
        kind, known = _kind(sampler), _kind(self.settings.sampler)
        if kind != known:
            raise InvalidConfig(
                f"task {self.name!r} has a sampler of kind {known}, not {kind}: set_sampler changes parameters only; "
                "configure another kind when the buffer is built"
            )
        self.settings = replace(self.settings, sampler=sampler)
        self.completed.set_sampler(sampler)

    def learn_step(self, step: int | None) -> None:
        """Remember the largest training step that was told."""
        if step is not None and (self.step is None or step > self.step):
            self.step = step

    def can_insert(self, k: int = 1) -> bool:
        """Return whether k COMPLETED groups may be inserted now: the limiter allows it, and there is room."""
        return self.settings.limiter.can_insert(self.counters, k + self.unsettled) and self.has_room(k)

    def has_room(self, k: int) -> bool:
        """Return whether k more fit; where a remover makes room, always."""
        capacity = self.settings.capacity
        if capacity is None or self.settings.remover is not None:
            return True
        return len(self.completed) + self.leased + self.unsettled + k <= capacity

    def may_start(self) -> int:
        """Return how many groups producers may start now, so that all can be trained in time."""
        window = self.settings.window
        if window is None:
            return sys.maxsize
        running = self.reserved + self.rolling + len(self.pools[STATUS_CODE[Status.ABORTED]])
        busy = running + len(self.completed) + self.leased + self.consumed
        return window.may_start(self.advanced, self.serving, busy)

    def explain_start(self) -> str:
        """Return in words what `may_start` comes from."""
        aborted = len(self.pools[STATUS_CODE[Status.ABORTED]])
        return (
            f"{self.may_start()} may start (step {self.advanced} done, version {self.serving} serves; {self.reserved} "
            f"reserved, {self.rolling} rolling, {aborted} aborted, {len(self.completed)} ready, {self.leased} leased, "
            f"{self.consumed} consumed since the last advance())"
        )

    def advance(self, step: int, version: int | None) -> None:
        """Learn that a training step is done, and which weights generate from now on."""
        if step > self.advanced:
            self.advanced, self.consumed = step, 0
            self.learn_step(step)
        interval = 1 if self.settings.window is None else self.settings.window.sync_interval
        self.serving = max(self.serving, step - step % interval if version is None else version)

    def rewind(self, step: int, tick: int) -> None:
        """Learn that training goes on after an earlier step."""
        self.step = None if self.step is None else min(self.step, step + 1)
        version = max(step, 0)
        self.advanced, self.serving = min(self.advanced, version), min(self.serving, version)
        self.consumed = 0
        self.rewound = tick

    def can_sample(self, k: int) -> bool:
        """Return whether the limiter allows k samples now."""
        return self.settings.limiter.can_sample(self.counters, k)

    def state(self) -> dict[str, Any]:
        return {
            "sampler": _kind(self.settings.sampler),
            "remover": None if self.settings.remover is None else _kind(self.settings.remover),
            "limiter": self._limiter_state(),
            "sampler_set": self._sampler_state(),
            "counters": self.counters.state(),
            "ledger": self.ledger.state(),
            "step": self.step,
            "num_bytes": self.num_bytes,
            "final": self.log.final,
            "rewound": self.rewound,
            "admission": [self.advanced, self.serving, self.consumed],
            "pools": [pool.state() for pool in self.pools],
        }

    def restore(self, state: Mapping[str, Any], columns: Columns, uses: Mapping[int, Used]) -> None:
        """Become what `state` told; the rows are back in the columns. Raises InvalidConfig for other selectors."""
        self._check_selectors(state)
        self._restore_limiter(state["limiter"])
        self._restore_sampler(state["sampler_set"])
        self.counters.restore(state["counters"])
        self.ledger.restore(state["ledger"])
        self.step = state["step"]
        self.num_bytes = state["num_bytes"]
        self.log.final, self.rewound = state["final"], state["rewound"]
        self.advanced, self.serving, self.consumed = state["admission"]
        mine = columns.alive()
        mine = mine[columns.task[mine] == self.code]
        away = mine[columns.place[mine] != RESIDENT]
        self.rolling = int(np.isin(columns.status[away], RETURNING).sum())
        kept = mine[(columns.place[mine] == UNCOMMITTED) & (columns.used_at[mine] != NO_VERSION)]
        self.log.restore(uses, kept, columns.used_at[kept])
        self.leased = int(((columns.place[mine] == LEASED) & (columns.status[mine] == COMPLETED)).sum())
        mine = mine[columns.place[mine] == RESIDENT]
        for status, (pool, saved) in enumerate(zip(self.pools, state["pools"], strict=True)):
            pool.restore(saved, mine[columns.status[mine] == status])

    def _limiter_state(self) -> dict[str, Any] | None:
        """Return the limiter that was set at run time, and the one that was configured; None if it is that."""
        mine = known_options(self.settings.limiter)
        if mine is None or self.settings.limiter == self._configured.limiter:
            return None
        return {"set": mine, "instead_of": known_options(self._configured.limiter)}

    def _restore_limiter(self, state: Mapping[str, Any] | None) -> None:
        """Have the limiter again that was set at run time, unless another one was configured since: that is newer."""
        if state is None:
            return
        configured = self._configured.limiter
        before, now = state["instead_of"], known_options(configured)
        try:
            if (before is None and now is None) or (before and limiter_of(before) == configured):
                self.set_limiter(limiter_of(state["set"]))
        except InvalidConfig as error:
            warnings.warn(
                f"task {self.name!r} goes on with {configured}, as configured: {state['set']}, which was set at "
                f"run time, does not fit the configuration any more ({error})",
                UserWarning,
                stacklevel=2,
            )

    def _sampler_state(self) -> dict[str, Any] | None:
        """Return the parameters that were set at run time, and those configured; None if none were set."""
        mine, configured = self.settings.sampler, self._configured.sampler
        if mine == configured or known_spec_options(mine) is None:
            return None
        return {"set": known_spec_options(mine), "instead_of": known_spec_options(configured)}

    def _restore_sampler(self, state: Mapping[str, Any] | None) -> None:
        """Restore the parameters that were set at run time, unless the configuration was changed since: that is newer."""
        if state is not None and state["instead_of"] == known_spec_options(self._configured.sampler):
            self.set_sampler(selector_spec(state["set"]))

    def _check_selectors(self, state: Mapping[str, Any]) -> None:
        for role in ("sampler", "remover"):
            spec = getattr(self.settings, role)
            mine = None if spec is None else _kind(spec)
            if state[role] != mine:
                raise InvalidConfig(
                    f"task {self.name!r} was saved with {role} {state[role]}, but is configured with {mine}; "
                    f"configure the same {role}"
                )


def _by_priority(columns: Columns) -> Ordered:
    return Ordered(
        columns, "peak", lambda c, s: zip((-c.priority[s]).tolist(), c.timestamp[s].tolist(), strict=True)
    )


def _kind(spec: SelectorSpec) -> str:
    """Return the type of a selector, with those of the selectors that it is made of: states of other kinds do not fit."""
    names: list[str] = [one.name for one in fields(spec)] if is_dataclass(spec) else []
    parts = [f"{name}={_kind(part)}" for name in names if hasattr(part := getattr(spec, name), "build")]
    return f"{spec.type}({', '.join(parts)})" if parts else spec.type
