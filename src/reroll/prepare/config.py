"""PrepareConfig: how results become the batches of each rank; from code, a dict, YAML, TOML, JSON or arguments."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from reroll.buffer.replay_buffer import ReplayBuffer
from reroll.config import ReplayBufferConfig, SyncReplayBufferConfig, TaskConfig, read_config
from reroll.engine.selectors.specs import Fifo
from reroll.errors import InvalidConfig
from reroll.prepare.advantages import METHODS

_Count = Annotated[int, Field(ge=1)]
_Staleness = Annotated[int, Field(ge=0)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]
_Number = Annotated[float, Field(allow_inf_nan=False, strict=False)]


def _buffer(value: object) -> object:
    # What a mapping leaves out is plain batch-by-batch training here, which takes groups in order.
    return SyncReplayBufferConfig.model_validate(value) if isinstance(value, Mapping) else value


class PrepareConfig(BaseModel):
    """How results become groups, groups steps, and steps the batches of each rank. Unknown keys are refused.

    By default every group is trained exactly once, in the order of arrival, and none is filtered.

    Attributes:
        global_batch_size: groups of a training step, over all ranks.
        pack_length: tokens of a row at most.
        num_ranks: data-parallel ranks of the trainer.
        task: the task of the buffer that groups are put to and taken from, if it is one.
        task_batch_sizes: groups of a step by task, if there are several; together `global_batch_size`. They are taken at
            once, or not at all. A result then names its task.
        first_step: number of the first training step.

        group_size: responses of a result; others are refused. None: any number.
        min_group_size: with this, results with fewer than `group_size` responses pass.
        salvage: whether failed responses are left out and the others kept as a group.
        eos_token_id: what an empty response that stopped gets as its only token; None: it stays empty.
        train_empty: whether that token is trained on.
        on_invalid: whether a result that cannot be used (a reward of NaN) ends the loops, or is counted and left out.
        unique_prompt_ids: whether a `prompt_id` names one request, so that a result which comes twice (a restart
            generates it again) is stored once. False: the same id may come in every epoch.

        filter_zero_std: whether groups whose rewards do not differ are left out.
        zero_std_eps: rewards whose standard deviation is at most this do not differ.
        max_possible_score: the reward of a response that solves its prompt.
        predicates: functions of a group; one that returns False has it left out.
        keep_filtered: whether groups that are left out are kept in the buffer, to be looked at.
        when_filtered: "wait": a step waits until so many groups passed as it has. "yield": it has what passed of so many
            results, which may be nothing.
        no_resampling_pass_rate: prompts solved at least this often are reported, to be asked for no more.

        advantage: "standard", "centered", "leave_one_out", or a function from rewards to advantages. None: 0 for all, and
            no rewards are needed. Otherwise a result without them cannot be used (see `on_invalid`).
        late_rewards: whether rewards may come later: `buffer.patch` gives them before the step of their group is prepared
            (with `async_steps=0`: before it is asked for), which fails otherwise.
        priorities_from_advantages: whether the priority of a group in the buffer is its mean absolute advantage; False:
            as its `priority_signal` says.
        mask_truncated: whether responses that were cut for their length are not trained on.
        importance_weights: whether the sampler's weights count in the loss.
        overlong: what becomes of a sequence that is longer than a row: its result cannot be used ("error", see
            `on_invalid`), or it is cut or dropped when it is packed.
        rows_per_micro_batch: rows that a rank computes at once.
        pad_token_id: the token of rows that there is nothing for; it is not trained on.

        async_steps: how many steps are prepared ahead of the one that the trainer asked for last; 0: none.
        allow_short: whether a step may have fewer groups when there are no more: the source has ended.
        short_after_s: with `allow_short`: also if a step that a rank waits for is not full after so many seconds.
        max_staleness: groups staler than this, as of the step that is prepared, are not trained; None: all are. A mapping
            gives it by task.
        retry_expired: whether those stay in the buffer, to be rolled again, or go.

        replay_buffer: the buffer in between. Its `capacity`, if it has none and each group is used once, is what lets
            `async_steps` go on and holds the source back otherwise: groups of a step x (async_steps + 2).

    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    global_batch_size: _Count
    pack_length: _Count
    num_ranks: _Count = 1
    task: Annotated[str, Field(min_length=1)] = "train"
    task_batch_sizes: dict[Annotated[str, Field(min_length=1)], _Count] | None = None
    first_step: Annotated[int, Field(ge=0)] = 1

    group_size: _Count | None = None
    min_group_size: _Count | None = None
    salvage: bool = False
    eos_token_id: int | None = None
    train_empty: bool = False
    on_invalid: Literal["raise", "drop"] = "raise"
    unique_prompt_ids: bool = True

    filter_zero_std: bool = False
    zero_std_eps: Annotated[_Number, Field(ge=0)] = 1e-8
    max_possible_score: _Number = 1.0
    predicates: Annotated[tuple[Callable[[Sequence[Any]], bool], ...], Field(strict=False)] = ()
    keep_filtered: bool = False
    when_filtered: Literal["wait", "yield"] = "wait"
    no_resampling_pass_rate: Annotated[_Number, Field(gt=0, le=1)] | None = None

    advantage: str | Callable[[Any], Any] | None = "standard"
    late_rewards: bool = False
    priorities_from_advantages: bool = False
    mask_truncated: bool = False
    importance_weights: bool = False
    overlong: Literal["error", "truncate", "drop"] = "error"
    rows_per_micro_batch: _Count = 1
    pad_token_id: int = 0

    async_steps: Annotated[int, Field(ge=0)] = 1
    allow_short: bool = False
    short_after_s: _Seconds | None = None
    max_staleness: _Staleness | dict[str, _Staleness] | None = None
    retry_expired: bool = False

    replay_buffer: Annotated[ReplayBufferConfig, BeforeValidator(_buffer)] = Field(
        default_factory=SyncReplayBufferConfig
    )

    @model_validator(mode="after")
    def _can_proceed(self) -> Self:
        if isinstance(self.advantage, str) and self.advantage not in METHODS:
            raise InvalidConfig(
                f"advantage {self.advantage!r} is unknown; use a function or one of: {', '.join(METHODS)}"
            )
        if self.priorities_from_advantages and self.advantage is None:
            raise InvalidConfig("priorities_from_advantages needs advantages; name one")
        if self.short_after_s is not None and not self.allow_short:
            raise InvalidConfig("short_after_s makes steps short, which allow_short=False forbids; set both")
        if sum(self.sizes.values()) != self.global_batch_size:
            raise InvalidConfig(
                f"task_batch_sizes={self.task_batch_sizes} are {sum(self.sizes.values())} groups of a step, not "
                f"global_batch_size={self.global_batch_size}"
            )
        for task, size in self.sizes.items():
            capacity = self.replay_buffer.for_task(task).capacity
            if capacity is not None and capacity < size:
                raise InvalidConfig(
                    f"replay_buffer.capacity={capacity} is less than the {size} groups of task {task!r} in a step, so "
                    "that no step would ever be full"
                )
        if isinstance(self.max_staleness, dict) and (
            unknown := self.max_staleness.keys() - self.sizes.keys()
        ):
            raise InvalidConfig(f"max_staleness names {sorted(unknown)}, which are no tasks here")
        return self

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Self:
        """Return the configuration in a .yaml, .yml, .toml or .json file.

        Raises InvalidConfig for another ending, pydantic.ValidationError (a ValueError) for wrong contents.
        """
        return read_config(cls, path)

    @classmethod
    def from_args(cls, args: Iterable[str], *, file: str | PathLike[str] | None = None) -> Self:
        """Return the configuration of arguments such as `replay_buffer.capacity=50`, over that of a file.

        Values are JSON, or else strings. Raises InvalidConfig, pydantic.ValidationError.
        """
        options: dict[str, Any] = {} if file is None else cls.from_file(file).model_dump(exclude_unset=True)
        for arg in args:
            path, is_given, value = arg.removeprefix("--").partition("=")
            if not is_given:
                raise InvalidConfig(f"{arg!r} sets nothing; write name=value, or part.name=value")
            *parts, name = path.split(".")
            place = options
            for part in parts:
                place = place.setdefault(part, {})
                if not isinstance(place, dict):
                    raise InvalidConfig(f"{arg!r}: {part} has no parts")
            place[name] = _value(value)
        return cls.model_validate(options)

    @property
    def sizes(self) -> dict[str, int]:
        """The groups of a step, by task."""
        return {self.task: self.global_batch_size} if self.task_batch_sizes is None else self.task_batch_sizes

    @property
    def is_in_order(self) -> bool:
        """Whether groups are trained once, in the order of their arrival."""
        tasks = [self.replay_buffer.for_task(task) for task in self.sizes]
        return all(isinstance(task.sampler, Fifo) and task.max_times_sampled == 1 for task in tasks)

    def staleness_limit(self, task: str) -> int | None:
        """Return how stale a group of a task may be, here and in the buffer; None for no limit."""
        limits = [self._own_limit(task), self.replay_buffer.for_task(task).max_staleness]
        return min((limit for limit in limits if limit is not None), default=None)

    def _own_limit(self, task: str) -> int | None:
        limit = self.max_staleness
        return limit.get(task) if isinstance(limit, dict) else limit

    def build_buffer(self) -> ReplayBuffer:
        """Return the buffer that a preparer has of its own. Raises InvalidConfig for what can never proceed."""
        return self.buffer_config().build()

    def buffer_config(self) -> ReplayBufferConfig:
        """Return the configuration of that buffer: a queue holds what can be used soon, unless configured."""
        tasks = dict(self.replay_buffer.tasks)
        for name, size in self.sizes.items():
            task = self.replay_buffer.for_task(name)
            is_queue = task.max_times_sampled == 1 and task.remover is None and not task.has_window
            more: dict[str, Any] = {}
            if is_queue and task.capacity is None:
                more["capacity"] = size * (self.async_steps + 2)
            if self._own_limit(name) is not None:
                more["max_staleness"] = self.staleness_limit(name)
                more["on_stale"] = "reroll" if self.retry_expired else "drop"
            if more:
                own = tasks.get(name, TaskConfig())
                # Its fields, not a copy of the object, so that these count as set.
                fields = {field: getattr(own, field) for field in own.model_fields_set}
                tasks[name] = type(own)(**{**fields, **more})
        return self.replay_buffer.model_copy(update={"tasks": tasks})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
