"""`PrepareConfig`: the configuration of a preparer, from code, a dict, YAML, TOML, JSON or arguments."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from reroll.buffer.buffer import ReplayBuffer
from reroll.config import ReplayBufferConfig, SyncReplayBufferConfig, TaskConfig, read_config
from reroll.engine.selectors.specs import Fifo
from reroll.errors import InvalidConfig
from reroll.prepare.advantages import METHODS
from reroll.prepare.results import OnFailed

_Count = Annotated[int, Field(ge=1)]
_Staleness = Annotated[int, Field(ge=0)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]
_Number = Annotated[float, Field(allow_inf_nan=False, strict=False)]


def _buffer(value: object) -> object:
    # The defaults of a mapping are those of plain batch-by-batch training, which takes groups in order.
    return SyncReplayBufferConfig.model_validate(value) if isinstance(value, Mapping) else value


class PrepareConfig(BaseModel):
    """How results become groups, groups steps, and steps the batches of each rank. Unknown keys are refused.

    By default every group is trained exactly once, in the order of arrival, and none is filtered.

    Attributes:
        global_batch_size: Groups of a training step, over all ranks.
        pack_length: Largest number of tokens in a packed row.
        num_ranks: Data-parallel ranks of the trainer.
        task: Task of the buffer that groups are put into and leased from, if there is one task.
        task_batch_sizes: Groups of a step by task, if there are several; their sum is `global_batch_size`. A step leases the
            groups of all tasks at once. Every result then names its task.
        first_step: Number of the first training step.

        group_size: Responses that a result must have; None: any number.
        min_group_size: With this, a result may have fewer than `group_size` responses, down to this number.
        on_failed: `"group"`: a failed response fails its group. `"drop_member"`: failed responses are dropped, and the
            others stay a group if at least `min_group_size` (1) remain. As `on_failed` of a buffer.
        eos_token_id: Token that an empty response with the finish reason "stop" gets; None: it stays empty.
        train_empty: Whether that token is trained on.
        on_invalid: `"raise"`: an unusable result (a reward of NaN) stops the consuming loop. `"drop"`: it is counted.
        unique_prompt_ids: Whether a `prompt_id` names one request, so that a result that arrives twice (a restart
            generates it again) is stored once. False: the same id may come in every epoch.

        filter_zero_std: Whether groups with equal rewards are filtered.
        zero_std_eps: Rewards whose standard deviation is at most this are equal.
        max_possible_score: Reward of a response that solves its prompt.
        predicates: Functions of a group; the group is filtered if one returns False.
        keep_filtered: Whether filtered groups are stored with the status FILTERED, for inspection.
        when_filtered: `"wait"`: a step waits until `global_batch_size` groups passed the filters. `"shorten"`: a step has the
            groups that passed out of `global_batch_size` results; if none passed, it takes as many results again, so that it
            is never empty. `"yield"`: the same without the second condition, so that it may be empty.
        no_resampling_pass_rate: Prompts with at least this solve rate are reported to `Prompts.on_solved`.

        advantage: `"grpo"`: (r - mean) / (std + 1e-8). `"centered"`: r - mean. `"leave_one_out"`: r - mean of the others. Or a
            function from the rewards of a group to advantages. None: 0 for all, and rewards are not needed; otherwise a
            result without rewards is unusable (see `on_invalid`).
        late_rewards: Whether results may come without rewards: `buffer.patch` sets them before the step of their group is
            prepared (with `async_steps=0`: before it is requested); otherwise preparation fails.
        priorities_from_advantages: Whether the priority of a group is its mean absolute advantage; False: as
            `priority_signal` of the buffer says.
        mask_truncated: Whether truncated responses are masked.
        importance_weights: Whether the weights of the sampler count in the loss.
        overlong: What happens to a sequence longer than a row: `"error"`: its result is unusable (see `on_invalid`);
            `"truncate"` or `"drop"` when it is packed.

        rows_per_micro_batch: Packed rows in a micro-batch.
        groups_per_micro_batch: With this, a micro-batch has the sequences of this number of whole groups instead.
        mini_batch_size: Groups of one optimizer update, over all ranks; None: the whole step is one update.
        num_iterations: How often a rank trains each step: `StepData.updates()` yields its mini-batches this number of times.
        pad_token_id: Token of rows without sequences; it is never trained on.

        async_steps: Steps that are prepared ahead of the one that ranks requested last; 0: none.
        allow_short: Whether the last step may have fewer groups after the source has ended.
        short_after_s: With `allow_short`: a requested step that is not full after this number of seconds may be short, too.
        max_staleness: Groups staler than this, as of the step that is prepared, are not trained; None: no bound. A mapping
            gives the bound by task.
        retry_expired: Whether groups that are too stale stay in the buffer to be generated again, or are dropped.

        replay_buffer: Configuration of the buffer. If each group is used once and no `capacity` is set, the capacity is
            the groups of a step x (async_steps + 2): enough to prepare ahead, and the source waits when it is full.

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
    on_failed: OnFailed = "group"
    eos_token_id: int | None = None
    train_empty: bool = False
    on_invalid: Literal["raise", "drop"] = "raise"
    unique_prompt_ids: bool = True

    filter_zero_std: bool = False
    zero_std_eps: Annotated[_Number, Field(ge=0)] = 1e-8
    max_possible_score: _Number = 1.0
    predicates: Annotated[tuple[Callable[[Sequence[Any]], bool], ...], Field(strict=False)] = ()
    keep_filtered: bool = False
    when_filtered: Literal["wait", "shorten", "yield"] = "wait"
    no_resampling_pass_rate: Annotated[_Number, Field(gt=0, le=1)] | None = None

    advantage: str | Callable[[Any], Any] | None = "grpo"
    late_rewards: bool = False
    priorities_from_advantages: bool = False
    mask_truncated: bool = False
    importance_weights: bool = False
    overlong: Literal["error", "truncate", "drop"] = "error"

    rows_per_micro_batch: _Count = 1
    groups_per_micro_batch: _Count | None = None
    mini_batch_size: _Count | None = None
    num_iterations: _Count = 1
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
                f"advantage is unknown: {self.advantage!r}; use a function or one of: {', '.join(METHODS)}"
            )
        if self.priorities_from_advantages and self.advantage is None:
            raise InvalidConfig("priorities_from_advantages needs advantages; set advantage")
        if self.short_after_s is not None and not self.allow_short:
            raise InvalidConfig("short_after_s makes steps short, and allow_short=False forbids it; set both")
        if self.groups_per_micro_batch is not None and self.rows_per_micro_batch != 1:
            raise InvalidConfig(
                "rows_per_micro_batch and groups_per_micro_batch exclude each other; set one of them"
            )
        if self.mini_batch_size is not None and self.mini_batch_size > self.global_batch_size:
            raise InvalidConfig(
                f"mini_batch_size={self.mini_batch_size} is more than global_batch_size={self.global_batch_size}; lower it"
            )
        if sum(self.sizes.values()) != self.global_batch_size:
            raise InvalidConfig(
                f"task_batch_sizes={self.task_batch_sizes} have {sum(self.sizes.values())} groups in a step, not "
                f"global_batch_size={self.global_batch_size}; make them equal"
            )
        for task, size in self.sizes.items():
            capacity = self.replay_buffer.for_task(task).capacity
            if capacity is not None and capacity < size:
                raise InvalidConfig(
                    f"replay_buffer.capacity={capacity} is less than the {size} groups of task {task!r} in a step, so "
                    "that no step would ever be full; raise it"
                )
        if isinstance(self.max_staleness, dict) and (
            unknown := self.max_staleness.keys() - self.sizes.keys()
        ):
            raise InvalidConfig(
                f"max_staleness names unknown tasks: {sorted(unknown)}; use {sorted(self.sizes)}"
            )
        return self

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

    @classmethod
    def from_args(cls, args: Iterable[str], *, file: str | PathLike[str] | None = None) -> Self:
        """Return the configuration in arguments such as `replay_buffer.capacity=50`. Values are JSON, or else strings.

        Args:
            args: arguments; they override those of the file.
            file: a configuration file; None: none.

        Raises:
            InvalidConfig: an argument is not `name=value` or names no option, or the file has another suffix.
            pydantic.ValidationError: the whole is invalid; a ValueError.

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
                    raise InvalidConfig(f"{arg!r} is no option: {part} has no parts; see PrepareConfig")
            try:
                place[name] = json.loads(value)
            except ValueError:
                place[name] = value
        return cls.model_validate(options)

    @property
    def sizes(self) -> dict[str, int]:
        """Groups of a step, by task."""
        return {self.task: self.global_batch_size} if self.task_batch_sizes is None else self.task_batch_sizes

    @property
    def is_in_order(self) -> bool:
        """Whether each group is trained once, in the order of arrival."""
        tasks = [self.replay_buffer.for_task(task) for task in self.sizes]
        return all(isinstance(task.sampler, Fifo) and task.max_times_sampled == 1 for task in tasks)

    def staleness_limit(self, task: str) -> int | None:
        """Return the smaller of the staleness bounds of the preparer and of the buffer; None: no bound.

        Args:
            task: name of the task.

        """
        limits = [self._own_limit(task), self.replay_buffer.for_task(task).max_staleness]
        return min((limit for limit in limits if limit is not None), default=None)

    def _own_limit(self, task: str) -> int | None:
        limit = self.max_staleness
        return limit.get(task) if isinstance(limit, dict) else limit

    def build_buffer(self) -> ReplayBuffer:
        """Return a new buffer, configured by `buffer_config`. Raises InvalidConfig if it could never proceed."""
        return self.buffer_config().build()

    def buffer_config(self) -> ReplayBufferConfig:
        """Return the configuration of the preparer's own buffer, with a default capacity and the staleness bounds."""
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
                # Built from fields instead of copied, so that the new values count as set.
                fields = {field: getattr(own, field) for field in own.model_fields_set}
                tasks[name] = type(own)(**{**fields, **more})
        return self.replay_buffer.model_copy(update={"tasks": tasks})
