"""What `stats()` returns: plain values, per task and over all of them."""

from dataclasses import dataclass, field

from reroll.buffer.flow import Histogram, Wait
from reroll.engine.ledger import Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How often each value occurred."""

    count: int = 0
    total: float = 0
    histogram: Histogram = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """The exact mean, None of nothing."""
        return share(self.total, self.count)

    @property
    def max(self) -> int | None:
        """The largest key of the histogram, None of nothing."""
        return max(self.histogram, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths(Distribution):
    """How often lengths occurred, by powers of two: key 4 of the histogram counts 4 to 7; keys 0 and 1 just those."""

    @property
    def p50(self) -> float | None:
        """The median, estimated inside its power of two; None of nothing."""
        return self._quantile(0.5)

    @property
    def p90(self) -> float | None:
        """The length that nine of ten do not exceed, estimated like the median."""
        return self._quantile(0.9)

    def _quantile(self, share: float) -> float | None:
        rank = share * self.count
        for length, count in sorted(self.histogram.items()):
            if rank <= count:
                return length + rank / count * max(length - 1, 0)
            rank -= count
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Magnitudes(Distribution):
    """How often numbers occurred, by powers of two: key -1 of the histogram counts 0.5 to below 1; what is 0 is in no key."""

    zeros: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Calls that wait at this moment."""

    count: int = 0
    longest_s: float = 0.0
    busy_s: float = 0.0
    """Seconds, since the buffer was made or resumed, in which at least one waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far a task is from making somebody wait."""

    limiter: str
    capacity: int | None
    """COMPLETED groups that fit; None: any number."""
    occupied: int
    """COMPLETED groups that are here or leased."""
    inserts: int
    samples: int
    """As the limiter counts them."""
    inserts_left: int | None
    """COMPLETED groups that may be put before a put has to wait; None: a million or more."""
    samples_left: int
    """COMPLETED groups that may be handed out now; fewer than are here where the limiter holds them back."""
    starts_left: int | None
    """Groups that producers may start under the staleness window; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLease:
    """Groups that a trainer or producer holds, and has not acknowledged."""

    id: int
    tasks: list[str]
    groups: int
    held_s: float
    ends_in_s: float | None
    """None: it lasts until its holder is done or gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """What a store takes on disk."""

    file_bytes: int
    log_bytes: int
    commits: int
    """Since the store was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStats:
    """Responses that passed since the start."""

    groups: int
    rollouts: int
    lengths: Lengths
    """Response tokens of each rollout."""
    reward_mean: float | None
    solved_share: float | None
    """Of the rollouts with a reward: those with one above 0."""
    zero_variance_share: float | None
    """Of the groups with at least two rewards: those in which all are the same."""
    groups_per_s: float | None
    """On average since the buffer was made or resumed."""
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStats:
    """One task, or all of them together."""

    step: int | None
    """The training step, the largest that was told."""
    statuses: dict[str, int]
    """Resident groups."""
    out: int
    leased: int
    num_tokens: int
    """Resident, prompts included."""
    num_bytes: int
    """Of resident groups but FAILED and FILTERED ones."""
    staleness: Distribution
    """Resident COMPLETED groups, by the staleness of their oldest token."""
    age: Distribution
    """The same by age in versions: the staleness of their newest token. Groups without versions have none."""
    uses: Distribution
    """The same by how often they were sampled."""
    lengths: Lengths
    """The same by tokens a rollout: the mean of each group, prompts included."""
    priorities: Magnitudes
    """The same by priority."""
    put: Amount
    """As in the ledger: a group that comes back counts once, and adds the tokens that are new."""
    puts: dict[str, int]
    """Puts by the status that each came to; a group that comes back counts again."""
    superseded: int
    """Puts that were refused, because another producer had put the group."""
    stale: int
    """COMPLETED groups that passed `max_staleness`, at put or later: emptied to be rolled again, or dropped."""
    retaken: int
    """EXPIRED groups that producers took, to roll them again."""
    produced: ResponseStats
    """Puts of finished groups: COMPLETED or FILTERED, also when they expired on arrival."""
    trained: ResponseStats
    """What was handed to a trainer; each use counts."""
    trained_staleness: dict[str, Distribution]
    """`oldest` and `newest`: groups by the staleness of that token; `tokens`: tokens by their own."""
    trained_uses: Distribution
    """Which use of its group each was, from 1."""
    lost_tokens: dict[str, int]
    """Tokens that left and were never trained, by reason."""
    waits: dict[str, Wait]
    """By verb; a call that waited for several tasks counts for each."""
    waiting: dict[str, Waiting]
    """By verb, those that wait now."""
    limits: Limits

    @property
    def num_groups(self) -> int:
        """Resident groups of any status."""
        return sum(self.statuses.values())

    @property
    def num_puts(self) -> int:
        """All puts."""
        return sum(self.puts.values())

    @property
    def lost_share(self) -> float | None:
        """Lost tokens of all that were put, None before the first."""
        return share(sum(self.lost_tokens.values()), self.put.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsWarning:
    """Something that looks wrong; `str()` is the whole line."""

    kind: str
    """A name of `reroll.buffer.watching.RULES`."""
    task: str
    found: str
    """What looks wrong."""
    change: str
    """What to change."""

    def __str__(self) -> str:
        return f"task {self.task!r}: {self.found}; {self.change}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a buffer tells about itself."""

    tasks: dict[str, TaskStats]
    total: TaskStats
    """All tasks together."""
    num_bytes: int
    out: int
    """Groups that producers took to roll them again."""
    leases: int
    """Leases that are open."""
    open_leases: list[OpenLease]
    """The oldest of them."""
    reservations: int
    """Reservations that have groups left."""
    max_bytes: int | None
    """How many bytes of rollouts fit; None: any number."""
    memory_bytes: int
    """Bytes of rollouts that are in memory; a store may hold the rest on disk only."""
    disk: DiskUse | None
    """None: nothing is kept on disk."""
    uptime_s: float | None
    """Since the buffer was made or resumed; None: it is a file."""
    warnings: list[StatsWarning]
    """What looks wrong, and what to change."""


def share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
