"""A task: its settings, one pool per status, limiter counters, ledger and training step."""

import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any, Final, Literal, TypeVar

from reroll.engine.ledger import Ledger, Spot
from reroll.engine.limits import (
    LIMITERS,
    Counters,
    Limiter,
    StalenessWindow,
    Unlimited,
    check_for_deadlock,
    limiter_of,
)
from reroll.engine.options import known_options
from reroll.engine.pool import Pool, VersionIndex
from reroll.engine.rows import LEASED, NO_VERSION, OUT, PLACES, RESIDENT, UNCOMMITTED, Columns, IntArray
from reroll.engine.selectors.ordered import Ordered, by_columns
from reroll.engine.selectors.selector import SelectorSpec
from reroll.engine.selectors.specs import SELECTORS, Fifo, Stalest, Uniform, selector_spec
from reroll.engine.uses import Use, UseLog
from reroll.errors import InvalidConfig, InvalidPriority, shown
from reroll.rollout.adapters import read_number
from reroll.rollout.status import Status

T = TypeVar("T")

STATUSES: Final = tuple(Status)
"""Column `status` holds indices into this."""
STATUS_CODE: Final = {status: code for code, status in enumerate(STATUSES)}
COMPLETED: Final = STATUS_CODE[Status.COMPLETED]
EXPIRED: Final = STATUS_CODE[Status.EXPIRED]
EXPIRABLE: Final = tuple(STATUS_CODE[s] for s in (Status.COMPLETED, Status.ABORTED, Status.EXPIRED))
"""Statuses whose groups may expire; EXPIRED groups again if single members expire."""
RETURNING: Final = tuple(STATUS_CODE[s] for s in (Status.INIT, Status.ABORTED, Status.EXPIRED))
"""Statuses whose groups producers check out and put again."""
RUNNING: Final = (
    Spot(STATUS_CODE[Status.ABORTED], RESIDENT),
    *(Spot(status, place) for status in RETURNING for place in (OUT, LEASED)),
)
"""Where groups are that producers generate, or are to continue."""
REJECTED: Final = tuple(STATUS_CODE[s] for s in (Status.FAILED, Status.FILTERED))
_COUNTED: Final = tuple(code for code in range(len(STATUSES)) if code not in REJECTED)
"""Statuses whose bytes count against `max_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """The settings of one task. Raises InvalidConfig if producers or trainers would wait forever."""

    capacity: int | None = None
    sampler: SelectorSpec = field(default_factory=Uniform)
    remover: SelectorSpec | None = None
    max_times_sampled: int | None = 1
    limiter: Limiter = field(default_factory=Unlimited)
    window: StalenessWindow | None = None
    max_uncommitted_steps: int = 0
    """Training steps whose consumed groups are kept until the trainer commits; 0: none."""
    is_durable: bool = False
    """Whether rows are stored; then consumed rows are kept until the store has written it."""
    rejected_capacity: int = 1024
    """The number of FAILED and FILTERED groups that are kept."""
    expires: bool = False
    """Whether groups have versions and may expire; the items of a table do not."""
    initial_priority: float | Literal["max"] = 1.0
    """The priority of a group that is put without one; "max": the largest of the task's COMPLETED groups."""

    def __post_init__(self) -> None:
        for name in ("capacity", "max_times_sampled"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidConfig(f"{name} must be an integer of at least 1, or None, not {value!r}")
        check = partial(
            check_for_deadlock,
            sampler=self.sampler,
            max_times_sampled=self.max_times_sampled,
            limiter=self.limiter,
        )
        check(capacity=self.capacity, remover=self.remover)
        if self.window is None:
            return
        if self.limiter.window.min_size > self.window.least_left:
            raise InvalidConfig(
                f"deadlock: when a trainer has taken a part of its batch, {self.window} may leave only "
                f"{self.window.least_left} groups, but {self.limiter} allows no sample below "
                f"{self.limiter.window.min_size} groups; set min_size to 1, since a batch is delivered as a whole"
            )
        if self.window.stragglers == "wait" and not (
            isinstance(self.sampler, Stalest) and self.max_times_sampled == 1
        ):
            raise InvalidConfig(
                f"StalenessWindow: stragglers='wait' needs the sampler stalest and max_times_sampled=1, not "
                f"{self.sampler.type} and {self.max_times_sampled}: else a group that the trainer waited for may not be in "
                "its batch; use AsyncReplayBufferConfig"
            )
        if self.remover is None:
            check(capacity=self.window.largest, remover=None)  # the window admits no more groups than this
        if not isinstance(self.sampler, Fifo | Stalest):
            warnings.warn(
                f"with a {self.sampler.type} sampler a group may wait longer than the staleness window allows, and "
                "expire; Fifo() and Stalest() train in order",
                UserWarning,
                stacklevel=2,
            )

    @property
    def largest_sample(self) -> float:
        """The most samples that the limiter can ever allow in one call."""
        if self.max_times_sampled is not None and self.max_times_sampled < self.limiter.window.spi:
            return math.inf  # the ratio is never reached, so the allowed samples accumulate
        return self.limiter.window.largest_sample

    @property
    def largest(self) -> float:
        """The most groups that the limiter can ever allow in one delivery."""
        return min(self.largest_sample, self.largest_batch)

    @property
    def due_samples(self) -> float:
        """The number of samples that the limiter expects of a group, or that the group may give."""
        uses = math.inf if self.max_times_sampled is None else self.max_times_sampled
        return min(self.limiter.window.spi, uses)

    @property
    def largest_batch(self) -> float:
        """The most groups that are certain to be available together, as far as the limiter goes."""
        spi, min_size, _, max_diff = self.limiter.window
        if max_diff == math.inf:
            return math.inf
        if spi > 1 and (self.remover is not None or self.due_samples < spi):
            return min_size  # evicted or used-up groups never give all samples, so the ratio is never reached
        return max(min_size, max_diff // spi)


class Task:
    """One task. `moves` changes its pools, ledger and counters together."""

    def __init__(self, name: str, code: int, settings: TaskSettings, columns: Columns) -> None:
        self.name = name
        self.code = code
        self.settings = settings
        self._configured = settings
        self.columns = columns
        self.counters = Counters()
        self.ledger = Ledger()
        self.log = UseLog()
        self.step: int | None = None
        self.reserved = 0  # groups that producers started under a reservation
        self.running: Counter[int] = Counter()
        """Running groups that a trainer may have to wait for, by the version that they started with."""
        self.awaits_stragglers = settings.window is not None and settings.window.stragglers == "wait"
        self.done_step = 0  # the last training step that is done
        self.serving_version = 0  # the version of the weights that generate now
        self.consumed = 0  # COMPLETED groups that were consumed since `done_step`
        self.rewound = 0  # tick of the last rewind
        self._held_groups = 0  # consumed groups whose room is kept until their delivery is stored
        self._held_bytes = 0
        remover = settings.remover
        # Only COMPLETED groups are sampled and evicted; others are delivered in order of arrival.
        self.pools = [
            Pool(
                columns,
                (settings.sampler if status == COMPLETED else Fifo()).build(columns, "sampler"),
                remover.build(columns, "remover") if status == COMPLETED and remover is not None else None,
                VersionIndex(columns) if settings.expires and status in EXPIRABLE else None,
                Ordered(columns, "peak", by_columns("-priority", "timestamp"))
                if settings.initial_priority == "max" and status == COMPLETED
                else None,
            )
            for status in range(len(STATUSES))
        ]
        self.completed = self.pools[COMPLETED]

    @property
    def leased(self) -> int:
        """COMPLETED groups that a lease has taken out of their pool."""
        return self.ledger.groups(COMPLETED, LEASED)

    @property
    def checked_out(self) -> int:
        """Groups that producers have checked out, or lease, to roll them again."""
        return sum(
            self.ledger.groups(status, LEASED) + self.ledger.groups(status, OUT) for status in RETURNING
        )

    @property
    def num_bytes(self) -> int:
        """Bytes that count against `max_bytes`: of resident groups, and of groups that return without an eviction."""
        places = (RESIDENT, LEASED) if self.settings.remover is None else (RESIDENT,)
        rows = sum(self.ledger.num_bytes(status, place) for place in places for status in _COUNTED)
        return rows + self._held_bytes

    def hold_room(self, consumed: IntArray) -> int:
        """Keep the room of consumed groups, which return if their delivery fails, until `free_room`; return its bytes."""
        num_bytes = 0
        if self.settings.remover is None:  # a remover evicts other groups for those that return
            num_bytes = self.columns.measure(consumed).num_bytes
        self._held_groups += len(consumed)
        self._held_bytes += num_bytes
        return num_bytes

    def free_room(self, groups: int, num_bytes: int) -> None:
        """Free room that `hold_room` kept."""
        self._held_groups -= groups
        self._held_bytes -= num_bytes

    def initial_priority(self, entering: float = 0.0) -> float:
        """Return the priority of a group that is put now without one; `entering` is the largest of groups that enter before it."""
        initial = self.settings.initial_priority
        if initial != "max":
            return initial
        largest = self.completed.largest_priority() or 0.0
        return max(largest, entering) or 1.0  # a group that enters at 0 would never be drawn

    def set_limiter(self, limiter: Limiter) -> None:
        """Replace the limiter. Raises InvalidConfig if producers or trainers would wait forever."""
        self.settings = replace(self.settings, limiter=limiter)

    def set_sampler(self, sampler: SelectorSpec) -> None:
        """Change the parameters of the sampler. O(1) for `beta`, O(COMPLETED groups) for others.

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
        """Raise the training step to `step` if it is larger."""
        if step is not None and (self.step is None or step > self.step):
            self.step = step

    def can_insert(self, k: int = 1) -> bool:
        """Return whether the limiter and the capacity allow k more COMPLETED groups now."""
        return self.settings.limiter.can_insert(self.counters, k + self._held_groups) and self.has_room(k)

    def has_room(self, k: int) -> bool:
        """Return whether k more COMPLETED groups fit; always, if a remover makes room."""
        capacity = self.settings.capacity
        if capacity is None or self.settings.remover is not None:
            return True
        return len(self.completed) + self.leased + self._held_groups + k <= capacity

    def can_sample(self, k: int) -> bool:
        """Return whether k groups may be trained now: by the limiter, and by running groups that trainers wait for."""
        if self.running and k > self.places_left():
            return False
        return self.settings.limiter.can_sample(self.counters, k)

    @property
    def next_step(self) -> int:
        """The training step that is prepared next."""
        return max(self.done_step + 1, self.step or 0)

    def places_left(self) -> float:
        """Return how many groups may be trained in the next step, so that every running group can be trained in time.

        A group of version v must be trained by step v + 1 + bound. For each such step, the groups that must be trained by
        then have to fit into the batches until then. O(versions that run).
        """
        window = self.settings.window
        if window is None or not self.running:
            return math.inf
        places, groups = math.inf, 0
        for version in sorted(self.running):
            steps = version + 2 + window.bound - self.next_step
            if steps > 0:  # else it is overdue
                groups += self.running[version]
                places = min(places, steps * window.batch - groups)
        return places - self.consumed - self.leased

    def overdue_step(self, version: int) -> float:
        """Return the next step at which a group that starts with `version` has passed the bound of the window."""
        window = self.settings.window
        return math.inf if window is None else version + 2 + window.bound

    def count_running(self, versions: Iterable[int], groups: int) -> None:
        """Count groups as running, or with a negative number as not running any more, if trainers wait for stragglers."""
        if self.awaits_stragglers:
            for version in versions:
                self.running[version] += groups
                if not self.running[version]:
                    del self.running[version]

    def may_start(self) -> int:
        """Return how many groups producers may start now, so that all can be trained in time."""
        window = self.settings.window
        if window is None:
            return sys.maxsize
        running = self.reserved + self.checked_out + len(self.pools[STATUS_CODE[Status.ABORTED]])
        busy = running + len(self.completed) + self.leased + self.consumed
        return window.may_start(self.done_step, self.serving_version, busy)

    def explain_start(self) -> str:
        """Return a sentence that explains `may_start`."""
        aborted = len(self.pools[STATUS_CODE[Status.ABORTED]])
        return (
            f"{self.may_start()} may start (step {self.done_step} done, version {self.serving_version} serves; "
            f"{self.reserved} reserved, {self.checked_out} checked out, {aborted} aborted, {len(self.completed)} ready, "
            f"{self.leased} leased, {self.consumed} consumed since the last advance())"
        )

    def advance(self, step: int, version: int | None) -> None:
        """Set the last training step that is done, and the version of the weights that generate from now on."""
        if step > self.done_step:
            self.done_step, self.consumed = step, 0
            self.learn_step(step)
        interval = 1 if self.settings.window is None else self.settings.window.sync_interval
        self.serving_version = max(
            self.serving_version, step - step % interval if version is None else version
        )

    def rewind(self, step: int, tick: int) -> None:
        """Continue training after an earlier step."""
        self.step = None if self.step is None else min(self.step, step + 1)
        version = max(step, 0)
        self.done_step = min(self.done_step, version)
        self.serving_version = min(self.serving_version, version)
        self.consumed = 0
        self.rewound = tick

    def state(self) -> dict[str, Any]:
        return {
            "sampler": _kind(self.settings.sampler),
            "remover": None if self.settings.remover is None else _kind(self.settings.remover),
            "limiter": _override(self.settings.limiter, self._configured.limiter),
            "sampler_set": _override(self.settings.sampler, self._configured.sampler),
            "counters": self.counters.state(),
            "ledger": self.ledger.state(),
            "step": self.step,
            "final": self.log.final,
            "rewound": self.rewound,
            "admission": [self.done_step, self.serving_version, self.consumed],
            "pools": [pool.state() for pool in self.pools],
        }

    def restore(self, state: Mapping[str, Any], uses: Mapping[int, Use]) -> None:
        """Restore a new task from `state`, after the columns. Raises InvalidConfig for other selectors."""
        self._check_selectors(state)
        configured = self._configured
        self._restore_setting(state["limiter"], configured.limiter, limiter_of, self.set_limiter)
        self._restore_setting(state["sampler_set"], configured.sampler, selector_spec, self.set_sampler)
        self.counters.restore(state["counters"])
        self.ledger.restore(state["ledger"])
        self.step = state["step"]
        self.log.final, self.rewound = state["final"], state["rewound"]
        self.done_step, self.serving_version, self.consumed = state["admission"]
        columns = self.columns
        mine = columns.alive()
        mine = mine[columns.task[mine] == self.code]
        spots = {
            Spot(status, place): mine[(columns.status[mine] == status) & (columns.place[mine] == place)]
            for place in range(len(PLACES))
            for status in range(len(STATUSES))
        }
        self.ledger.recount({spot: columns.measure(rows) for spot, rows in spots.items()})
        for spot in RUNNING:
            self.count_running(columns.version[spots[spot]].tolist(), 1)
        kept = mine[(columns.place[mine] == UNCOMMITTED) & (columns.used_at[mine] != NO_VERSION)]
        self.log.restore(uses, kept, columns.used_at[kept])
        for status, (pool, pool_state) in enumerate(zip(self.pools, state["pools"], strict=True)):
            pool.restore(pool_state, spots[Spot(status, RESIDENT)])

    def _restore_setting(
        self, saved: Any, configured: T, read: Callable[[object], T], use: Callable[[T], None]
    ) -> None:
        """Restore a setting that was changed at run time, unless the configuration, which is newer, has changed."""
        if saved is None:
            return
        before = saved["instead_of"]
        try:
            if _known(configured) is None if before is None else read(before) == configured:
                use(read(saved["set"]))
        except InvalidConfig as error:
            warnings.warn(
                f"task {self.name!r} continues with {configured}, as configured: {saved['set']}, which was set at run "
                f"time, does not fit the configuration any more ({error})",
                UserWarning,
                stacklevel=2,
            )

    def _check_selectors(self, state: Mapping[str, Any]) -> None:
        for role, spec in (("sampler", self.settings.sampler), ("remover", self.settings.remover)):
            mine = None if spec is None else _kind(spec)
            if state[role] != mine:
                raise InvalidConfig(
                    f"task {self.name!r} was saved with {role} {state[role]}, but is configured with {mine}; "
                    f"configure the same {role}"
                )


def checked_priority(value: object, subject: str = "priority") -> float:
    """Return the value as a float. Raises InvalidPriority unless it is a finite number of at least 0."""
    if type(value) is float and 0 <= value < math.inf:
        return value
    priority = read_number(value)
    if priority is None:
        raise InvalidPriority(f"{subject} must be one number, not {shown(value)}")
    if not 0 <= priority < math.inf:
        raise InvalidPriority(f"{subject} must be finite and at least 0, not {priority}")
    return priority


def _override(current: object, configured: object) -> dict[str, Any] | None:
    """Return the options that were set at run time, with the configured ones; None if none were set."""
    options = None if current == configured else _known(current)
    return None if options is None else {"set": options, "instead_of": _known(configured)}


def _known(setting: object) -> dict[str, Any] | None:
    return known_options(setting, SELECTORS if hasattr(setting, "build") else LIMITERS)


def _kind(spec: SelectorSpec) -> str:
    """Return the type of a selector, with the types of its parts: a saved state fits only the same kind."""
    names: list[str] = [one.name for one in fields(spec)] if is_dataclass(spec) else []
    parts = [f"{name}={_kind(part)}" for name in names if hasattr(part := getattr(spec, name), "build")]
    return f"{spec.type}({', '.join(parts)})" if parts else spec.type
