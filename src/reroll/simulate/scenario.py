"""What is simulated: the user's own buffer configuration, and models of engines, lengths, delays, failures and trainer."""

import math
import random
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from reroll.config import ReplayBufferConfig, read_options
from reroll.engine.limits import StalenessWindow
from reroll.errors import InvalidConfig
from reroll.simulate.calibration import calibrate
from reroll.simulate.trace import read_trace

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_MOST_LENGTHS: Final = 10_000


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Delay(_Model):
    """A log-normal time: tools, judges."""

    median_s: Positive
    sigma: Annotated[float, Field(ge=0)] = 0.5

    def draw(self, rng: random.Random) -> float:
        """Return one delay, in seconds."""
        return self.median_s * math.exp(rng.gauss(0.0, self.sigma))


class Lengths(_Model):
    """Tokens of a response: log-normal with a cap, or drawn from measured lengths."""

    median: Positive = 1500.0
    sigma: Annotated[float, Field(ge=0)] = 1.0
    cap: Annotated[int, Field(ge=1)] = 32_768
    measured: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    """Lengths of real responses, drawn from with replacement; `median` and `sigma` are not used then."""

    def draw(self, rng: random.Random) -> int:
        """Return one length, at least 1."""
        if self.measured is not None:
            return min(self.cap, rng.choice(self.measured))
        return max(1, min(self.cap, round(self.median * math.exp(rng.gauss(0.0, self.sigma)))))


class EngineModel(_Model):
    """Engines that share their speed between sequences; see `reroll.simulate.engines.Engine`."""

    count: Annotated[int, Field(ge=1)] = 8
    tokens_per_s: Positive = 190.0
    """Of a sequence that runs alone."""
    half_speed_at: Positive = 32.0
    """With this many running sequences each runs at half the speed."""
    max_running: Annotated[int, Field(ge=1)] = 256
    """Further sequences of an engine wait."""
    prefill_tokens_per_s: Positive | None = None
    """None: prefill costs nothing."""
    recompute: bool = True
    """A continued response reads its context again; False: the engine still has it in its cache."""
    failure_interval_s: Positive | None = None
    """Mean time between crashes of an engine; its sequences lose their tokens."""
    restart_s: Seconds = 120.0


class GroupModel(_Model):
    """One prompt and its responses."""

    members: Annotated[int, Field(ge=1)] = 8
    started: Annotated[int, Field(ge=1)] | None = None
    """Responses that are started; the first `members` that end are kept, and the others are aborted. None: `members`."""
    prompt_tokens: Annotated[int, Field(ge=0)] = 512
    turns: Annotated[int, Field(ge=1)] = 1
    """A response pauses for `tool` after each turn but the last."""
    tool: Delay | None = None
    judge: Delay | None = None
    """The delay between the last token and the reward."""
    failed_share: Share = 0.0
    """Members that end FAILED."""
    solve_rate: tuple[Positive, Positive] | None = None
    """Parameters of a beta distribution of prompts; groups whose members have all the same reward are FILTERED."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.started is not None and self.started < self.members:
            raise ValueError(f"started must be at least members ({self.members}), not {self.started}")
        if (self.tool is None) != (self.turns == 1):
            raise ValueError("turns above 1 and tool must be given together")
        return self


class TrainerModel(_Model):
    """A trainer that leases a batch, trains on it, and renews the weights of the engines."""

    batch: Annotated[int, Field(ge=1)] = 32
    """Groups of one training step."""
    seconds_per_step: Seconds = 30.0
    seconds_per_token: Seconds = 0.0
    updates: Annotated[int, Field(ge=1)] = 1
    """Passes over the same batch; each takes the time above."""
    sync_interval: Annotated[int, Field(ge=1)] = 1
    """Training steps between two weight syncs."""
    sync_s: Seconds = 1.0
    """Engines and trainer stand still while weights are copied."""
    on_sync: Literal["continue", "abort"] = "continue"
    """Running sequences go on under the new weights, or are put ABORTED and continued by the next producer."""
    colocated: bool = False
    """Engines stand still while the trainer trains: they have the same GPUs."""
    commit_interval: Annotated[int, Field(ge=1)] = 1
    """Training steps between two checkpoints of the trainer."""
    failure_interval_s: Positive | None = None
    """Mean time between crashes of the trainer; it goes on from its last checkpoint."""
    restart_s: Seconds = 300.0


class Scenario(_Model):
    """A run to simulate. `buffer` is what `ReplayBufferConfig` takes, or the path of such a file."""

    buffer: Mapping[str, Any] | str = Field(default_factory=dict)
    task: str = "default"
    engines: EngineModel = EngineModel()
    lengths: Lengths = Lengths()
    group: GroupModel = GroupModel()
    trainer: TrainerModel = TrainerModel()
    concurrency: Annotated[int, Field(ge=1)] | None = None
    """Groups that are generated at once, at most. None: as many as fill the places of the engines."""
    steps: Annotated[int, Field(ge=1)] = 60
    warm_up: Annotated[int, Field(ge=0)] = 10
    """Steps at the beginning that means leave out."""
    seed: int = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.warm_up >= self.steps:
            raise ValueError(f"warm_up must be below steps ({self.steps}), not {self.warm_up}")
        return self

    @classmethod
    def load(cls, path: str | PathLike[str], changes: Mapping[str, Any] | None = None) -> "Scenario":
        """Read a scenario from YAML or JSON, with some values changed.

        Args:
            path: the file; relative paths of `buffer` and `trace` in it are relative to its directory. What `trace` tells
                of lengths, engines and trainer holds where the file says nothing.
            changes: values by dotted path, as `{"engines.count": 16}`.

        Raises:
            InvalidConfig: it cannot be read, or a value is wrong; names the path.

        """
        path = Path(path)
        data = _read(path)
        if isinstance(data.get("buffer"), str):
            data["buffer"] = _read(path.parent / data["buffer"])
        if (trace := data.pop("trace", None)) is not None:
            _learn(data, path.parent / str(trace))
        for name, value in (changes or {}).items():
            _assign(data, name, value)
        options, window = _limited(data)
        if "stragglers" in (changes or {}) and window is not None:
            options.pop("max_staleness", None)
            if window["stragglers"] == "expire":  # without it late groups would be trained late
                options["max_staleness"] = math.ceil(window["max_staleness"])
        return cls.of(data)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Scenario":
        """Return the scenario of a mapping. Raises InvalidConfig, naming each wrong value."""
        try:
            scenario = cls.model_validate(data)
        except ValidationError as error:
            raise _invalid(error) from None
        scenario.buffer_config()
        return scenario

    def buffer_config(self) -> ReplayBufferConfig:
        """Return the configuration of the buffer, in memory whatever it says. Raises InvalidConfig."""
        options = dict(_read(Path(self.buffer)) if isinstance(self.buffer, str) else self.buffer)
        for name in ("store", "sync", "max_resident_bytes", "on_corrupt"):
            options.pop(name, None)
        if self.trainer.failure_interval_s is not None:
            options.setdefault("max_uncommitted_steps", 2 * self.trainer.commit_interval + 1)
        try:
            config = ReplayBufferConfig.model_validate({"seed": self.seed, **options})
        except ValidationError as error:
            raise _invalid(error, "buffer") from None
        if config.tasks and self.task not in config.tasks:
            raise InvalidConfig(
                f"task {self.task!r} is not configured in the buffer; set task to one of: {', '.join(config.tasks)}"
            )
        task = config.for_task(self.task)
        if task.capacity is not None and task.capacity < self.trainer.batch:
            raise InvalidConfig(
                f"trainer.batch is {self.trainer.batch}, and the capacity of the buffer is {task.capacity}; "
                "lower the batch or raise capacity"
            )
        window = task.window()
        for name in ("batch", "sync_interval"):
            ours, theirs = getattr(self.trainer, name), getattr(window, name, None)
            if theirs is not None and ours != theirs:
                raise InvalidConfig(
                    f"trainer.{name} is {ours}, and the StalenessWindow of the buffer has {name} {theirs}; make them equal"
                )
        return config

    def places(self) -> int:
        """Return the groups that are generated at once, at most."""
        if self.concurrency is not None:
            return self.concurrency
        started = self.group.started or self.group.members
        return max(1, self.engines.count * self.engines.max_running // started)


def _invalid(error: ValidationError, *where: str) -> InvalidConfig:
    lines = (
        f"{'.'.join(map(str, (*where, *part['loc']))) or 'scenario'}: {part['msg']}"
        for part in error.errors()
    )
    return InvalidConfig("; ".join(lines))


_SHORT: Mapping[str, str] = {
    "engines": "engines.count",
    "members": "group.members",
    "batch": "trainer.batch",
    "sync_interval": "trainer.sync_interval",
    "on_sync": "trainer.on_sync",
}


def _assign(data: dict[str, Any], name: str, value: Any) -> None:
    """Set a value by its dotted path or short name; a window in the buffer follows the trainer's numbers."""
    _, window = _limited(data)
    if name in ("max_staleness", "stragglers") and window is not None:
        window[name] = value
        return
    if name == "stragglers":
        raise InvalidConfig("stragglers cannot be set: the buffer has no StalenessWindow; give it one")
    name = "buffer.max_staleness" if name == "max_staleness" else _SHORT.get(name, name)
    *parents, last = name.split(".")
    place = data
    for parent in parents:
        inner = place.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise InvalidConfig(f"{name} cannot be set: {parent} is {inner!r}, and not a mapping")
        place = inner
    place[last] = value
    if window is not None and name in ("trainer.batch", "trainer.sync_interval"):
        window[last] = value


def _learn(data: dict[str, Any], path: Path) -> None:
    """Take from a trace what the data do not say."""
    trace = read_trace(path)
    fitted = calibrate(trace).parameters
    if (lengths := trace.lengths(_MOST_LENGTHS)) and not data.get("lengths"):
        fitted["lengths"] = {"measured": lengths, "cap": max(lengths)}
    for part, values in fitted.items():
        data[part] = {**values, **(data.get(part) or {})}


def _limited(data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the options of the simulated task, or of all tasks, that have a rate limiter, and the window in it."""
    buffer = data.get("buffer")
    options = buffer if isinstance(buffer, dict) else {}
    own = (options.get("tasks") or {}).get(data.get("task"))
    if isinstance(own, dict) and "rate_limiter" in own:
        options = own
    limiters = options.get("rate_limiter")
    for one in limiters if isinstance(limiters, list) else [limiters]:
        if isinstance(one, dict) and one.get("type") == StalenessWindow.type:
            return options, one
    return options, None


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_options(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} cannot be read: {error}") from None
