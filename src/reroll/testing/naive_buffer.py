"""A ReplayBuffer in lists and loops: slow, obvious, written from the definitions, the oracle of the real one.

It holds copies and never touches a caller's rollouts. It knows the samplers and removers that leave nothing to chance.
Where the real buffer would wait, it raises WouldBlock.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reroll.config import ReplayBufferConfig, TaskConfig
from reroll.engine.ledger import BUCKETS, Amount
from reroll.engine.selectors.specs import Fifo, Freshest, LeastUsed, Lifo, MaxHeap, MinHeap, Stalest
from reroll.errors import InvalidArgument, UnknownUid, WouldBlock
from reroll.rollout import Status, read_score
from reroll.testing.naive_table import bounds

COMPLETED, ABORTED, EXPIRED = Status.COMPLETED, Status.ABORTED, Status.EXPIRED
REJECTED = (Status.FAILED, Status.FILTERED)
RETURNING = (Status.INIT, ABORTED, EXPIRED)


@dataclass
class NaiveMember:
    """What the buffer has to know of one rollout."""

    status: Status
    prompt: int
    tokens: int
    versions: list[int | None]  # one for each response token
    mask: list[bool]
    is_exempt: bool
    seq_staleness: int
    reward: float | None
    group_id: Any
    group_uid: int | None

    @classmethod
    def read(cls, item: Any) -> "NaiveMember":
        """Return a copy of what a rollout says."""
        prompt = _length(item, "prompt_ids")
        response = _length(item, "response_ids")
        steps = item.response_model_steps
        versions: list[int | None] = [] if steps is None else [int(step) for step in steps]
        mask = getattr(item, "response_mask", None)
        tokens = getattr(item, "num_tokens", None)
        return cls(
            status=Status(item.status),
            prompt=prompt,
            tokens=prompt + response if tokens is None else tokens,
            versions=versions + [None] * (response - len(versions)),
            mask=[True] * response if mask is None else [bool(keep) for keep in mask],
            is_exempt=any(getattr(item, name, None) is not None for name in ("input_ids", "labels")),
            seq_staleness=item.seq_staleness or 0,
            reward=read_score(getattr(item, "reward", None)),
            group_id=getattr(item, "group_id", None),
            group_uid=getattr(item, "group_uid", None),
        )

    def known_versions(self) -> list[int]:
        return [version for version in self.versions if version is not None]

    def staleness(self, step: int | None) -> int:
        """Return the staleness as of a step; without a step, what the rollout itself says."""
        if step is None:
            return self.seq_staleness
        return max((step - version - 1 for version in self.known_versions()), default=0)

    def is_stale(self, step: int | None, threshold: int | None, token_threshold: int | None) -> bool:
        """Return whether it is too stale, as a whole or since no trainable token is fresh."""
        if threshold is not None and self.staleness(step) >= threshold:
            return True
        trainable = [version for version, keep in zip(self.versions, self.mask, strict=True) if keep]
        if token_threshold is None or step is None or self.is_exempt or not trainable:
            return False
        return all(version is not None and step - version - 1 >= token_threshold for version in trainable)

    def expire(self, staleness: int) -> None:
        """Empty it."""
        self.status, self.seq_staleness = EXPIRED, staleness
        self.tokens, self.versions, self.mask = self.prompt, [], []
        self.reward, self.is_exempt = None, False


@dataclass(eq=False)
class NaiveGroup:
    """One group, resident or out."""

    uid: int
    task: str
    status: Status
    members: list[NaiveMember]
    told: int  # its staleness at put, as long as no step says otherwise
    priority: float
    timestamp: int  # orders arrivals
    touched: int  # orders arrivals and priority updates
    attempts: int = 1
    group_id: Any = None
    tags: dict[str, Any] = field(default_factory=dict)
    is_out: bool = False

    @property
    def tokens(self) -> int:
        return sum(member.tokens for member in self.members)

    @property
    def version(self) -> int | None:
        return min((v for member in self.members for v in member.known_versions()), default=None)


@dataclass(frozen=True, kw_only=True)
class NaivePut:
    """What one put asks for."""

    items: Sequence[Any]
    task: str
    model_step: int | None = None
    current_train_step: int | None = None
    stale_threshold: int | None = None
    token_stale_threshold: int | None = None
    expired_groups_retryable: bool = True
    priority: float | None = None
    tags: Mapping[str, Any] | None = None
    uid: int | None = None


@dataclass
class _Decision:
    """What a put comes to."""

    status: Status
    members: list[NaiveMember]
    staleness: list[int]
    expired: list[NaiveMember]
    dropped: bool
    continues: NaiveGroup | None
    attempts: int


class NaiveBuffer:
    """All that a ReplayBuffer does, but for waiting."""

    def __init__(self, config: ReplayBufferConfig) -> None:
        self.config = config
        self.groups: list[NaiveGroup] = []
        self.steps: dict[str, int] = {}
        self.last_uid = self.ticks = 0
        self.counters: dict[str, dict[str, int]] = {}
        self.books: list[
            tuple[str, str, Amount]
        ] = []  # (task, bucket, amount) of all that was put, or that left

    # --- asking

    def pool(self, task: str, status: Status) -> list[NaiveGroup]:
        """Return the resident groups of one task and status, the oldest first."""
        found = [g for g in self.groups if not g.is_out and (g.task, g.status) == (task, status)]
        return sorted(found, key=lambda group: group.timestamp)

    def find(self, uid: int, *, is_out: bool = False) -> NaiveGroup | None:
        """Return the group of this uid that is resident, or out."""
        return next((g for g in self.groups if g.uid == uid and g.is_out == is_out), None)

    def staleness(self, group: NaiveGroup) -> int:
        """Return the staleness as of the task's step."""
        step = self.steps.get(group.task)
        return group.told if step is None or group.version is None else step - group.version - 1

    def row(self, group: NaiveGroup) -> dict[str, Any]:
        """Return what a query shows, but for bytes; the timestamp only orders."""
        rewards = [member.reward for member in group.members if member.reward is not None]
        mean = math.fsum(rewards) / len(rewards) if rewards else None
        spread = (
            None if mean is None else math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards))
        )
        return {
            "uid": group.uid,
            "task_name": group.task,
            "status": group.status,
            "staleness": self.staleness(group),
            "version": group.version,
            "priority": group.priority,
            "times_sampled": 0,
            "attempts": group.attempts,
            "deliveries": 0,
            "num_rollouts": len(group.members),
            "num_tokens": group.tokens,
            "reward_mean": mean,
            "reward_std": spread,
            "group_id": group.group_id,
            "tags": group.tags,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all resident groups by uid."""
        return [self.row(g) for g in sorted(self.groups, key=lambda g: g.uid) if not g.is_out]

    def arrivals(self) -> list[int]:
        """Return the uids of all resident groups, the oldest first."""
        return [g.uid for g in sorted(self.groups, key=lambda g: g.timestamp) if not g.is_out]

    def ledger(self) -> dict[str, dict[str, Amount]]:
        """Return the books of every task that ever had a group."""
        books = {task: dict.fromkeys(("put", *BUCKETS), Amount()) for task, _, _ in self.books}
        places = [(g.task, "out" if g.is_out else "resident", Amount(1, g.tokens)) for g in self.groups]
        for task, bucket, amount in self.books + places:
            books[task][bucket] = books[task][bucket].plus(amount)
        return books

    def available(self, task: str, status: Status, n: int) -> int:
        """Return how many of n groups can be handed out now."""
        count = max(0, min(n, len(self.pool(task, status))))
        while status is COMPLETED and count and not self._can_sample(task, count):
            count -= 1
        return count

    def is_ready(self, sizes: Mapping[str, int], status: Status = COMPLETED) -> bool:
        """Return whether all of this can be handed out now."""
        return all(self.available(task, status, n) >= n for task, n in sizes.items())

    def can_put(self, put: NaivePut) -> bool:
        """Return whether a put need not wait."""
        return self._decide(put).status is not COMPLETED or self._can_insert(put.task)

    # --- changing

    def put(self, put: NaivePut) -> int | None:
        """Put a group and return its uid, None if it was dropped."""
        if not self.can_put(put):
            raise WouldBlock("no room, or the limiter forbids it")
        decision = self._decide(put)
        self._learn(put.task, put.current_train_step)
        group = self._enter(put, decision)
        if decision.dropped:
            self._leave(group, "expired")
        elif decision.expired:
            self._expire(
                group,
                decision.expired,
                {id(m): s for m, s in zip(group.members, decision.staleness, strict=True)},
            )
        self._settle(put.task, group.status)
        return group.uid if group in self.groups else None

    def take(
        self,
        sizes: Mapping[str, int],
        status: Status = COMPLETED,
        *,
        train_step: int | None = None,
        wait: bool = False,
    ) -> dict[str, list[NaiveGroup]]:
        """Hand groups out, by task and in order; they show what a caller gets to see."""
        if wait and not self.is_ready(sizes, status):
            raise WouldBlock("not all of it is there")
        handed = {}
        for task, n in sizes.items():
            self._learn(task, train_step)
            order = self._order(self.config.for_task(task).sampler if status is COMPLETED else Fifo())
            chosen = sorted(self.pool(task, status), key=order)[: self.available(task, status, n)]
            for group in chosen:
                if status in RETURNING:
                    group.is_out = True
                elif status is COMPLETED:
                    self._count(task, samples=1, deletes=1)
                    self._leave(group, "consumed", trained=True)
                else:
                    self._leave(group, status.value)
            handed[task] = chosen
        return handed

    def refresh(
        self,
        thresholds: Mapping[str, int],
        step: int,
        *,
        statuses: Iterable[Status] | None = None,
        token_thresholds: Mapping[str, int] | None = None,
        retryable: Mapping[str, bool] | None = None,
    ) -> dict[str, int]:
        """Expire what is too stale, and return how many groups of each task newly did."""
        by_token = token_thresholds or {}
        expired = {}
        for task in dict.fromkeys((*thresholds, *by_token)):
            is_retryable = (retryable or {}).get(task, True)
            expired[task] = self._learn(task, step, is_retryable=is_retryable)
            by_member = self.config.for_task(task).expire == "member"
            chosen = [COMPLETED, ABORTED, EXPIRED] if statuses is None else list(statuses)
            looked_at = [g for s in chosen if s is not EXPIRED or by_member for g in self.pool(task, s)]
            for group in looked_at:
                if group.version is None and group.status is not EXPIRED:
                    group.told = 0  # it was trusted until this refresh
                now = self.steps[task]
                stale = [
                    m for m in group.members if m.is_stale(now, thresholds.get(task), by_token.get(task))
                ]
                if not stale:
                    continue
                expired[task] += group.status is not EXPIRED
                if group.status is COMPLETED:
                    self._count(task, inserts=-1)
                if not is_retryable:
                    self._leave(group, "expired")
                else:
                    everyone = {id(m): m.staleness(now) for m in group.members}
                    self._expire(group, stale if by_member else group.members, everyone)
            if EXPIRED in chosen and not (retryable or {}).get(task, True):
                for group in self.pool(task, EXPIRED):
                    self._leave(group, "expired")
        return expired

    def delete(self, uids: Iterable[int]) -> int:
        """Delete resident groups and return how many there were."""
        found = [group for group in map(self.find, dict.fromkeys(uids)) if group is not None]
        for group in found:
            if group.status is COMPLETED:
                self._count(group.task, inserts=-1)
            self._leave(group, "deleted")
        return len(found)

    def forget(self, uids: Iterable[int]) -> int:
        """Give up groups that are out and return how many there were."""
        found = [g for uid in dict.fromkeys(uids) if (g := self.find(uid, is_out=True)) is not None]
        for group in found:
            self._leave(group, "deleted")
        return len(found)

    def update_priorities(self, priorities: Mapping[int, float]) -> list[int]:
        """Set priorities in the order given and return the uids that are not resident."""
        unknown = []
        for uid, priority in priorities.items():
            group = self.find(uid)
            if group is None:
                unknown.append(uid)
            else:
                group.priority, group.touched = priority, self._tick()
        return unknown

    def patch(
        self, uid: int, *, rewards: Sequence[float] | None = None, tags: Mapping[str, Any] | None = None
    ) -> None:
        """Set late rewards and tags."""
        group = self.find(uid)
        if group is None:
            raise UnknownUid(f"no group has uid {uid}")
        for member, reward in zip(group.members, rewards or [], strict=rewards is not None):
            member.reward = reward
        group.tags.update(tags or {})

    # --- inside

    def _tick(self) -> int:
        self.ticks += 1
        return self.ticks

    def _learn(self, task: str, step: int | None, *, is_retryable: bool = True) -> int:
        """Raise the task's step, and return how many groups passed `max_staleness` by it."""
        if step is not None:
            self.steps[task] = max(step, self.steps.get(task, 0))
        rules, now = self.config.for_task(task), self.steps.get(task)
        bound = rules.max_staleness
        if bound is None:
            return 0
        beyond = [group for group in self.pool(task, COMPLETED) if self.staleness(group) > bound]
        for group in beyond:
            self._count(task, inserts=-1)
            if rules.on_stale == "drop" or not is_retryable:
                self._leave(group, "expired")
            else:
                everyone = {id(m): m.staleness(now) for m in group.members}
                stale = [m for m in group.members if everyone[id(m)] > bound]
                self._expire(group, stale if rules.expire == "member" else group.members, everyone)
        return len(beyond)

    def _count(self, task: str, **changes: int) -> None:
        counters = self.counters.setdefault(task, {"inserts": 0, "samples": 0, "deletes": 0})
        for name, change in changes.items():
            counters[name] += change

    def _can_insert(self, task: str) -> bool:
        settings = self.config.for_task(task)
        is_full = settings.capacity is not None and len(self.pool(task, COMPLETED)) >= settings.capacity
        self._count(task)
        counters = self.counters[task]
        spi, min_size, _, max_diff = bounds(settings.limiter(1))
        size = counters["inserts"] - counters["deletes"]
        allowed = size + 1 <= min_size or (counters["inserts"] + 1) * spi - counters["samples"] <= max_diff
        return allowed and (settings.remover is not None or not is_full)

    def _can_sample(self, task: str, k: int) -> bool:
        self._count(task)
        counters = self.counters[task]
        spi, min_size, min_diff, _ = bounds(self.config.for_task(task).limiter(1))
        size = counters["inserts"] - counters["deletes"]
        return size >= min_size and counters["inserts"] * spi - counters["samples"] - k >= min_diff

    def _decide(self, put: NaivePut) -> _Decision:
        rules = self.config.for_task(put.task)
        members = [NaiveMember.read(item) for item in put.items]
        continues = self._continued(put, members)
        members = _without_failed(members, rules)
        if put.model_step is not None:
            for member in members:
                member.versions = [put.model_step if v is None else v for v in member.versions]
        step, known = put.current_train_step, self.steps.get(put.task)
        if step is not None:
            step = step if known is None else max(step, known)
        elif any(member.known_versions() for member in members):
            step = known
        staleness = [member.staleness(step) for member in members]
        if step is not None:
            members = [replace(m, seq_staleness=s) for m, s in zip(members, staleness, strict=True)]
        status = status_of([member.status for member in members])
        expired: list[NaiveMember] = []
        if status in (COMPLETED, ABORTED) or (status is EXPIRED and rules.expire == "member"):
            expired = [m for m in members if m.is_stale(step, put.stale_threshold, put.token_stale_threshold)]
            if expired and rules.expire == "group":
                expired = members
        is_terminal = bool(expired) or status is EXPIRED
        dropped, bound = is_terminal and not put.expired_groups_retryable, rules.max_staleness
        if bound is not None and status is COMPLETED and max(staleness) > bound:
            beyond = [m for m, s in zip(members, staleness, strict=True) if s > bound or m in expired]
            expired = beyond if rules.expire == "member" else members
            dropped |= rules.on_stale == "drop" or not put.expired_groups_retryable
        if expired:
            status = EXPIRED
        attempts = 1 if continues is None else continues.attempts + 1
        if rules.max_attempts is not None and attempts > rules.max_attempts and status in (ABORTED, EXPIRED):
            status, expired, dropped = Status.FAILED, [], False
            for member in members:
                member.status = COMPLETED if member.status is COMPLETED else Status.FAILED
        return _Decision(status, members, staleness, expired, dropped, continues, attempts)

    def _continued(self, put: NaivePut, members: list[NaiveMember]) -> NaiveGroup | None:
        carried = [put.uid] if put.uid is not None else [member.group_uid for member in members]
        found = {uid for uid in carried if uid is not None and self.find(uid, is_out=True)}
        if len(found) > 1 or (put.uid is not None and not found):
            raise InvalidArgument(f"{carried} are not one group that is out")
        return self.find(found.pop(), is_out=True) if found else None

    def _enter(self, put: NaivePut, decision: _Decision) -> NaiveGroup:
        tokens = sum(member.tokens for member in decision.members)
        old = decision.continues
        if old is None:
            self.last_uid += 1
            self._book(put.task, "put", Amount(1, tokens))
        elif tokens >= old.tokens:
            self._book(put.task, "put", Amount(0, tokens - old.tokens))
        else:
            self._book(put.task, "deleted", Amount(0, old.tokens - tokens))
        tick = self._tick()
        stated = [member.group_id for member in decision.members if member.group_id is not None]
        group = NaiveGroup(
            uid=self.last_uid if old is None else old.uid,
            task=put.task,
            status=decision.status,
            members=decision.members,
            told=max(decision.staleness),
            priority=1.0 if put.priority is None else put.priority,
            timestamp=tick,
            touched=tick,
            attempts=decision.attempts,
            group_id=stated[0] if stated else old.group_id if old else None,
            tags=dict(put.tags) if put.tags is not None else dict(old.tags) if old else {},
        )
        for member in group.members:
            member.group_uid = group.uid
        self.groups = [g for g in self.groups if g is not old] + [group]
        if group.status is COMPLETED:
            self._count(put.task, inserts=1)
        return group

    def _settle(self, task: str, status: Status) -> None:
        """Evict what exceeds the limits."""
        settings = self.config.for_task(task)
        if status is COMPLETED and settings.capacity is not None and settings.remover is not None:
            residents = sorted(self.pool(task, COMPLETED), key=self._order(settings.remover))
            for group in residents[: max(0, len(residents) - settings.capacity)]:
                self._count(task, deletes=1)
                self._leave(group, "evicted")
        rejected = [g for s in REJECTED for g in self.pool(task, s)]
        rejected.sort(key=lambda group: group.timestamp)
        for group in rejected[: max(0, len(rejected) - settings.rejected_capacity)]:
            self._leave(group, group.status.value)

    def _expire(self, group: NaiveGroup, members: list[NaiveMember], staleness: Mapping[int, int]) -> None:
        before = group.tokens
        group.told = max(staleness.values())
        for member in members:
            member.expire(staleness[id(member)])
        group.status = EXPIRED
        self._book(group.task, "expired", Amount(0, before - group.tokens))

    def _leave(self, group: NaiveGroup, bucket: str, *, trained: bool = False) -> None:
        self.groups.remove(group)
        used = (1, group.tokens) if trained else (0, 0)
        self._book(group.task, bucket, Amount(1, group.tokens, *used))
        if trained:
            self._book(group.task, "put", Amount(0, 0, *used))

    def _book(self, task: str, bucket: str, amount: Amount) -> None:
        self.books.append((task, bucket, amount))

    def _order(self, selector: Any) -> Any:
        def key(group: NaiveGroup) -> tuple[float, ...]:
            match selector:
                case Fifo() | LeastUsed():  # no group was used: a used group leaves
                    return (group.timestamp,)
                case Lifo():
                    return (-group.timestamp,)
                case Stalest():
                    return (-self.staleness(group), group.timestamp)
                case Freshest():
                    return (self.staleness(group), group.timestamp)
                case MinHeap():
                    return (group.priority, group.touched)
                case MaxHeap():
                    return (-group.priority, group.touched)
            raise AssertionError(f"{selector} leaves the choice to chance")

        return key


def status_of(statuses: Sequence[Status]) -> Status:
    """Return the status of a group whose members have these."""
    if all(status is COMPLETED for status in statuses):
        return COMPLETED
    for status in (Status.FAILED, ABORTED, EXPIRED, Status.FILTERED):
        if status in statuses:
            return status
    return Status.INIT


def _without_failed(members: list[NaiveMember], rules: TaskConfig) -> list[NaiveMember]:
    rest = [member for member in members if member.status is not Status.FAILED]
    enough = len(rest) >= max(1, rules.min_group_size)
    return rest if rules.on_failed == "drop_member" and enough else members


def _length(item: Any, name: str) -> int:
    value = getattr(item, name, None)
    return 0 if value is None else len(value)
