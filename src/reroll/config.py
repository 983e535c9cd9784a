"""ReplayBufferConfig: what a buffer or a table is made from; from code, a dict, YAML, TOML or JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)

from reroll.buffer.arguments import unknown_task
from reroll.buffer.blocking import BlockingReplayBuffer
from reroll.buffer.buffer import ReplayBuffer
from reroll.buffer.groups import Groups
from reroll.buffer.put import GroupRules
from reroll.buffer.signals import SignalName
from reroll.engine.engine import Engine
from reroll.engine.ledger import Dropped
from reroll.engine.limits import LIMITERS, Limiter, MinSize, StalenessWindow, limiter_of
from reroll.engine.options import options_of
from reroll.engine.selectors.specs import SELECTORS, Fifo, Stalest, Uniform, selector_spec
from reroll.engine.task import TaskSettings
from reroll.errors import InvalidArgument, InvalidConfig, missing_extra
from reroll.store import open_store
from reroll.table import Table
from reroll.waiting import LoopWaits


def _limiter_or_window(value: object) -> Limiter | StalenessWindow:
    if isinstance(value, StalenessWindow):
        return value
    if isinstance(value, Mapping) and value.get("type") == StalenessWindow.type:
        try:
            return StalenessWindow(**{name: option for name, option in value.items() if name != "type"})
        except TypeError as error:
            raise InvalidConfig(f"{StalenessWindow.type}: {error}") from None
    return limiter_of(value)


def _limiters(value: object) -> Any:
    """Return what `rate_limiter` says: a limiter, a window, or a list of both."""
    if not isinstance(value, list | tuple):
        return _limiter_or_window(value)
    found = [_limiter_or_window(part) for part in value]
    windows = [part for part in found if isinstance(part, StalenessWindow)]
    if len(windows) > 1 or len(found) - len(windows) > 1:
        raise InvalidConfig("rate_limiter takes one limiter and one StalenessWindow at most")
    return found


def _limiters_options(value: Any) -> Any:
    return [options_of(part) for part in value] if isinstance(value, list) else options_of(value)


def _named(names: list[str]) -> WithJsonSchema:
    options = {"type": "object", "properties": {"type": {"enum": names}}, "required": ["type"]}
    return WithJsonSchema({"anyOf": [{"enum": names}, options]})


# In files a selector or limiter is its name, or a mapping of `type` and options.
_Selector = Annotated[
    Any, BeforeValidator(selector_spec), PlainSerializer(options_of), _named(list(SELECTORS))
]
_Limiters = Annotated[
    Any,
    BeforeValidator(_limiters),
    PlainSerializer(_limiters_options),
    _named([*LIMITERS, StalenessWindow.type]),
]
_Count = Annotated[int, Field(ge=1)]
B = TypeVar("B")
M = TypeVar("M", bound=BaseModel)
_KEPT_STEPS = 64
"""For how many training steps a durable buffer keeps what they consumed, unless configured."""
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def read_config(kind: type[M], path: str | PathLike[str], options: Mapping[str, Any] | None = None) -> M:
    """Return the configuration in a .yaml, .yml, .toml or .json file; `options` replace those of the file.

    The whole is validated once, after the options of the file and of the caller are merged. Raises InvalidConfig for another
    ending, pydantic.ValidationError (a ValueError) for wrong contents.
    """
    return kind.model_validate(_merged(read_options(path), options or {}))


def read_options(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the options in a .yaml, .yml, .toml or .json file. Raises InvalidConfig, OSError."""
    path = Path(path)
    match path.suffix:
        case ".toml":
            import tomllib  # noqa: PLC0415  (only where TOML is read)

            parse: Callable[[str], Any] = tomllib.loads
            wrong: type[Exception] = tomllib.TOMLDecodeError
        case ".json":
            parse, wrong = json.loads, json.JSONDecodeError
        case ".yaml" | ".yml":
            try:
                import yaml  # noqa: PLC0415  (optional)
            except ImportError as error:
                raise missing_extra("reading YAML", "PyYAML", "cli") from error
            parse, wrong = yaml.safe_load, yaml.YAMLError
        case _:
            raise InvalidConfig(f"{path.name}: the ending must be .yaml, .yml, .toml or .json")
    try:
        found = parse(path.read_text())
    except wrong as error:
        raise InvalidConfig(f"{path.name} is not valid {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(found or {}, dict):
        raise InvalidConfig(f"{path.name} must hold options and values, not {found!r}")
    return found or {}


def _merged(found: Any, options: Mapping[str, Any]) -> Any:
    """Return the options of a file with those of the caller over them, part by part."""
    if not isinstance(found, dict):
        return found  # validation names the problem
    parts = {
        name: _merged(found.get(name) or {}, value) if isinstance(value, Mapping) else value
        for name, value in options.items()
    }
    return {**found, **parts}


class TaskConfig(BaseModel):
    """What may differ from task to task.

    Attributes:
        capacity: how many COMPLETED groups fit; None: unlimited in a buffer, one global batch in a table.
        sampler: who is handed out next: a selector, or its name.
        remover: which group is evicted when it is full; None: none, a put waits for room, so that nothing untrained is
            dropped.
        max_times_sampled: a group leaves after this number of samples; None: never.
        min_size: sampling waits for this number of groups; None: 1 in a buffer, one global batch in a table.
        rate_limiter: when puts and samples have to wait: a limiter, which takes the place of `min_size`; a
            StalenessWindow, which holds producers back before they start; or a list of both.
        expire: whether one stale rollout expires its whole group, or only itself.
        on_failed: whether a failed rollout fails its group, or is dropped at put.
        on_invalid: whether a put of a rollout with a reward that is NaN or infinite, a NaN log-probability where the mask is
            1, or token fields of different lengths raises InvalidArgument, or the rollout counts as FAILED and says why in
            `error_msg`.
        min_group_size: a group is not made smaller than this by dropping failed rollouts; it fails.
        max_attempts: a group that is put more often than this, and still not COMPLETED, is FAILED; None: no limit.
        max_staleness: no COMPLETED group is handed out whose staleness is above this; None: no bound.
        on_stale: whether a COMPLETED group that passes `max_staleness` is emptied and waits in EXPIRED to be rolled again
            ("reroll"), or is dropped ("drop"). A group that was trained before is dropped in both cases.
        priority_signal: what a group is worth if its put names no priority: "reward_std", "solve_rate" (p(1-p)),
            "mean_abs_advantage", or a function of its rollouts; None: `initial_priority`.
        initial_priority: the priority of a group that is put without one, and without a signal: a number, or "max", the
            largest priority of the task's COMPLETED groups at that moment (1 if there are none).
        rejected_capacity: how many FAILED and FILTERED groups are kept to be looked at.

    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    capacity: _Count | None = None
    sampler: _Selector = Uniform()
    remover: _Selector | None = None
    max_times_sampled: _Count | None = 1
    min_size: _Count | None = None
    rate_limiter: _Limiters | None = None
    expire: Literal["group", "member"] = "group"
    on_failed: Literal["group", "drop_member"] = "group"
    on_invalid: Literal["error", "fail_member"] = "error"
    min_group_size: _Count = 1
    max_attempts: _Count | None = None
    max_staleness: Annotated[int, Field(ge=0)] | None = None
    on_stale: Literal["reroll", "drop"] = "reroll"
    priority_signal: SignalName | Callable[[Sequence[Any]], float] | None = None
    initial_priority: Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["max"] = 1.0
    rejected_capacity: Annotated[int, Field(ge=0)] = 1024

    @model_validator(mode="after")
    def _one_limiter(self) -> Self:
        if self.min_size is not None and self._limiter() is not None:
            raise InvalidConfig(
                "give min_size or rate_limiter, not both: every rate limiter has a min_size of its own"
            )
        return self

    def limiter(self, min_size: int) -> Limiter:
        """Return the configured limiter, or `MinSize`.

        Args:
            min_size: of the limiter if none is configured.

        """
        return self._limiter() or MinSize(self.min_size or min_size)

    @property
    def has_window(self) -> bool:
        """Whether a StalenessWindow is configured."""
        return any(isinstance(part, StalenessWindow) for part in self._rate_limiters())

    def window(self) -> StalenessWindow | None:
        """Return the staleness window, None if none is configured; its `max_staleness` defaults to that of the task.

        Raises:
            InvalidConfig: neither the window nor the task has a `max_staleness`.

        """
        found = next((part for part in self._rate_limiters() if isinstance(part, StalenessWindow)), None)
        if found is None:
            return None
        if found.max_staleness is None:
            if self.max_staleness is None:
                raise InvalidConfig(
                    "StalenessWindow has no max_staleness, and neither has its task; give one of them"
                )
            found = replace(found, max_staleness=self.max_staleness)
        if (
            found.stragglers == "resume"
            and self.max_staleness is not None
            and self.max_staleness <= found.bound
        ):
            raise InvalidConfig(
                f"StalenessWindow: stragglers='resume' keeps the tokens of groups above staleness {found.bound}, and "
                f"max_staleness={self.max_staleness} of the task expires them; leave max_staleness of the task out, or raise it"
            )
        return found

    def _limiter(self) -> Limiter | None:
        return next((part for part in self._rate_limiters() if not isinstance(part, StalenessWindow)), None)

    def _rate_limiters(self) -> list[Any]:
        if isinstance(self.rate_limiter, list):
            return self.rate_limiter
        return [] if self.rate_limiter is None else [self.rate_limiter]


class ReplayBufferConfig(TaskConfig):
    """How a buffer keeps, hands out and evicts groups. Unknown keys are refused.

    Attributes, besides those of TaskConfig, which hold for every task:
        tasks: what differs, by task name.
        declared_tasks_only: whether a call that names a task outside of `tasks` raises InvalidArgument.
        max_bytes: how many bytes of rollouts fit, over all tasks; None: unlimited.
        out_ttl_s: a group that was taken to be rolled again is dropped after this number of seconds; None: never.
        seed: the same seed and the same calls give the same samples; None: random.
        store: a directory that keeps every group and every change, so that a crash loses none; None: memory only.
        sync: a put is acknowledged when it survives the end of the process ("os") or of the machine ("disk").
        max_resident_bytes: with a store, how many bytes of rollouts stay in memory as well; those that do not fit are
            read when they are handed out. None: all stay.
        on_corrupt: with a store, whether a group whose data were altered on disk raises CorruptData when it is handed
            out, or is passed over and counted as lost; also whether acknowledged commits that are missing raise CorruptData
            when the buffer is built, or are a warning.
        max_uncommitted_steps: for how many training steps what they consumed is kept, until `commit`, so that `rewind`
            can undo it; 0: not at all; None: 64 with a store, else 0.
        put_id_history: how many put ids are remembered.
        on_drop: a function that is called with a list of `Dropped(uid, task_name, group_id, reason)` for groups that left
            the buffer without having been trained; `reason` is their bucket in the ledger. It runs in the process that holds
            the buffer, after the change and outside of any lock; its exceptions are logged. Files and `model_dump` leave
            it out.
        allow_pickle: whether objects of unregistered types are pickled when they are stored, and unpickled when they are
            read. Unpickling runs code: only for files that you alone can write.

    """

    tasks: dict[str, TaskConfig] = Field(default_factory=dict)
    declared_tasks_only: bool = False
    max_bytes: _Count | None = None
    out_ttl_s: _Seconds | None = None
    seed: int | None = None
    store: Annotated[Path, Field(strict=False)] | None = None
    sync: Literal["os", "disk"] = "os"
    max_resident_bytes: Annotated[int, Field(ge=0)] | None = None
    on_corrupt: Literal["raise", "skip"] = "raise"
    max_uncommitted_steps: Annotated[int, Field(ge=0)] | None = None
    put_id_history: _Count = 65_536
    on_drop: Callable[[list[Dropped]], object] | None = Field(default=None, exclude=True)
    allow_pickle: bool = False

    @field_validator("store", mode="before")
    @classmethod
    def _is_named(cls, store: object) -> object:
        if store == "":
            raise InvalidConfig(
                'store must name a directory, not ""; "." is this one, and None keeps all in memory'
            )
        return store

    @model_validator(mode="after")
    def _only_with_a_store(self) -> Self:
        if self.store is None and (self.max_resident_bytes is not None or self.sync != "os"):
            raise InvalidConfig(
                "sync and max_resident_bytes are for a buffer with a store; name its directory"
            )
        return self

    @model_validator(mode="after")
    def _declares_a_task(self) -> Self:
        if self.declared_tasks_only and not self.tasks:
            raise InvalidConfig(
                "declared_tasks_only without tasks refuses every put; name the tasks in `tasks`"
            )
        return self

    @field_serializer("tasks")
    def _only_what_differs(self, tasks: dict[str, TaskConfig]) -> dict[str, Any]:
        return {name: task.model_dump(exclude_unset=True) for name, task in tasks.items()}

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Self:
        """Return the configuration in a file.

        Args:
            path: a .yaml, .yml, .toml or .json file.

        Raises:
            InvalidConfig: the file has another suffix.
            pydantic.ValidationError: the contents are invalid; a ValueError.

        """
        return read_config(cls, path)

    def for_task(self, name: str) -> TaskConfig:
        """Return the settings of a task: those configured for it, else those of all tasks.

        Args:
            name: of the task.

        """
        override = self.tasks.get(name)
        if override is None:
            return self
        own = {field: getattr(override, field) for field in override.model_fields_set}
        if own.keys() & {"min_size", "rate_limiter"}:  # they take each other's place
            own = {"min_size": None, "rate_limiter": None, **own}
        return self.model_copy(update=own)

    def build(self) -> ReplayBuffer:
        """Return an asyncio buffer. Raises InvalidConfig for what can never proceed."""
        return self.build_with(lambda groups, options: ReplayBuffer(groups, LoopWaits(), **options))

    def build_blocking(self) -> BlockingReplayBuffer:
        """Return a thread-safe buffer with the same verbs, without `await`."""
        return self.build_with(lambda groups, options: BlockingReplayBuffer(groups, **options))

    def build_table(self, global_batch_size: int) -> Table:
        """Return a table whose capacity and min_size are one global batch, unless configured.

        The default is a plain batch queue: a batch is sampled when it is complete, each item once, and inserts wait
        for room.

        Args:
            global_batch_size: items of one batch.

        Raises:
            InvalidArgument: the batch size is below 1.
            InvalidConfig: the configuration can never proceed.

        """
        if (
            not isinstance(global_batch_size, int)
            or isinstance(global_batch_size, bool)
            or global_batch_size < 1
        ):
            raise InvalidArgument(
                f"global_batch_size must be an integer of at least 1, not {global_batch_size!r}"
            )
        return Table(
            self.capacity or global_batch_size,
            self.sampler,
            self.remover,
            self.max_times_sampled,
            self.limiter(global_batch_size),
            seed=self.seed,
        )

    def build_with(self, make: Callable[[Groups, dict[str, Any]], B]) -> B:
        """Return what `make` builds from the configured groups and options; a configured store is open.

        Args:
            make: builds a buffer; `build` and `build_blocking` call it with their class.

        Raises:
            InvalidConfig: the configuration can never proceed.

        """
        options = {
            "put_id_history": self.put_id_history,
            "allow_pickle": self.allow_pickle,
            "on_drop": self.on_drop,
        }
        if self.store is None:
            return make(self.groups(), options)
        kept = {"max_resident_bytes": self.max_resident_bytes, "on_corrupt": self.on_corrupt}
        store = open_store(self.store, sync=self.sync, on_corrupt=self.on_corrupt)
        try:
            return make(self.groups(), {**options, **kept, "store": store})
        except BaseException:
            store.close()
            raise

    def groups(self) -> Groups:
        """Return an empty engine with its groups, as configured.

        Raises:
            InvalidConfig: the configuration can never proceed.

        """
        # Made here, so that what cannot proceed is refused now, and not when a task is first used.
        settings = {name: self._settings(self.for_task(name)) for name in self.tasks}
        rules = {name: _rules(self.for_task(name)) for name in self.tasks}
        common_settings, common_rules = self._settings(self), _rules(self)

        def settings_of(name: str) -> TaskSettings:
            if self.declared_tasks_only and name not in settings:
                raise InvalidArgument(
                    f"task {name!r} is not declared, and declared_tasks_only is set; {unknown_task(name, sorted(settings))}"
                )
            return settings.get(name, common_settings)

        engine = Engine(settings_of, seed=self.seed, max_bytes=self.max_bytes, declared=settings)
        windows = [each.window for each in (common_settings, *settings.values()) if each.window is not None]
        engine.sync_interval = max((window.sync_interval for window in windows), default=1)
        return Groups(engine, lambda name: rules.get(name, common_rules), self.out_ttl_s)

    def _settings(self, config: TaskConfig) -> TaskSettings:
        kept = self.max_uncommitted_steps
        return TaskSettings(
            capacity=config.capacity,
            sampler=config.sampler,
            remover=config.remover,
            max_times_sampled=config.max_times_sampled,
            limiter=config.limiter(1),
            window=config.window(),
            max_uncommitted_steps=kept if kept is not None else 0 if self.store is None else _KEPT_STEPS,
            is_durable=self.store is not None,
            rejected_capacity=config.rejected_capacity,
            initial_priority=config.initial_priority,
            expires=True,
        )


class SyncReplayBufferConfig(ReplayBufferConfig):
    """A buffer for synchronous training: the oldest group first."""

    sampler: _Selector = Fifo()


class AsyncReplayBufferConfig(ReplayBufferConfig):
    """A buffer for asynchronous training: the stalest group first, then the oldest."""

    sampler: _Selector = Stalest()


def _rules(config: TaskConfig) -> GroupRules:
    return GroupRules(
        expire=config.expire,
        on_failed=config.on_failed,
        on_invalid=config.on_invalid,
        min_group_size=config.min_group_size,
        max_attempts=config.max_attempts,
        max_staleness=config.max_staleness,
        on_stale=config.on_stale,
        signal=config.priority_signal,
    )
