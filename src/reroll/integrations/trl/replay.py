"""`ReplayMixin`: a GRPO trainer of TRL that trains groups again, with the log-probabilities of their generating policy.

The mixin acts after TRL has scored what it generated: it gathers whole groups from all ranks, the callback on the main rank
puts them and draws others, and every rank gets its part of the mixed batch. The buffer decides what is drawn.
"""

import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from reroll.buffer.blocking import BlockingReplayBuffer
from reroll.config import ReplayBufferConfig
from reroll.engine.selectors.specs import Prioritized
from reroll.errors import InvalidConfig
from reroll.integrations.trl.batches import LOGPROBS, TOTAL, batch_of, loss_mask, rollouts_of
from reroll.rollout import Rollout

Config = ReplayBufferConfig | Mapping[str, Any]
"""Configuration of a buffer; defaults fill in what a mapping does not set."""
TASK: Final = "train"
_FOLDER: Final = "replay_buffer"
"""Subdirectory of the trainer's checkpoint for a buffer in memory."""
_TAGS: Final = {"made_here": True}
_DEFAULTS: Final = ReplayBufferConfig(
    capacity=256, remover="fifo", sampler=Prioritized(half_life=8), max_times_sampled=4, max_staleness=16
)
_ON_POLICY: Final = "on_policy"
"""Batch entry: whether a row's old log-probabilities are those of the loss's own forward pass."""
_Trainer: Any = GRPOTrainer if TYPE_CHECKING else object


def complete_config(config: Config, defaults: ReplayBufferConfig, args: Any) -> ReplayBufferConfig:
    """Fill in defaults of a mapping, and make a durable buffer able to rewind to the trainer's checkpoints."""
    if isinstance(config, Mapping):
        config = type(defaults)(**{"seed": args.seed, **defaults.model_dump(exclude_unset=True), **config})
    required: dict[str, Any] = {"on_stale": "drop"}  # TRL does not regenerate groups
    if config.store is not None and config.max_uncommitted_steps is None:
        required["max_uncommitted_steps"] = max(64, 2 * int(args.save_steps))
    return config.model_copy(update=required)


class ReplayBufferCallback(TrainerCallback):
    """The buffer of a trainer's main rank: stores generated groups, draws groups to replay, follows checkpoints.

    Args:
        trainer: the trainer that generates the groups.
        config: configuration of the buffer; defaults fill in what a mapping does not set.
        share: the share of a batch that is replaced, groups with the smallest signal first; None: groups without signal.

    """

    def __init__(self, trainer: Any, config: Config, share: float | None = None) -> None:
        if share is not None and not 0 < share <= 1:
            raise InvalidConfig(f"replay_share must be above 0 and at most 1, not {share}")
        config = complete_config(config, _DEFAULTS, trainer.args)
        if config.capacity is not None and config.remover is None:
            raise InvalidConfig("deadlock: a full buffer would block the trainer; give remover='fifo'")
        self._trainer, self._config, self._share = trainer, config, share
        # Leased batches, with the number of the trainer's micro-batch after which each is trained.
        self._leased: deque[tuple[int, Any]] = deque()
        self.buffer: BlockingReplayBuffer = config.build_blocking()

    def exchange(
        self, groups: Sequence[Sequence[Rollout]], signals: Sequence[float]
    ) -> dict[int, Sequence[Rollout]]:
        """Store groups that the policy has just generated, and draw replayed groups for some of their places.

        Args:
            groups: the generated groups.
            signals: the learning signal of each group; groups with signal 0 are not stored.

        Returns:
            Replayed groups by the index that they replace.

        """
        step, order = self._trainer.state.global_step, sorted(range(len(groups)), key=signals.__getitem__)
        without_signal = signals.count(0.0)
        replaced = order[: without_signal if self._share is None else round(self._share * len(groups))]
        drawn = self._draw(len(replaced), step + 1) if replaced else []
        for group, signal in zip(groups, signals, strict=True):
            if signal:
                priority = None if self._config.priority_signal else signal
                self.buffer.put(group, TASK, model_step=step, priority=priority, tags=_TAGS, timeout=0)
        metrics = {"groups": len(drawn), "without_signal": without_signal, "size": len(self.buffer)}
        if drawn:
            metrics["staleness"] = sum(sample.info.staleness for sample in drawn) / len(drawn)
        for name, value in metrics.items():
            self._trainer._metrics["train"][f"replay/{name}"].append(float(value))
        return {number: sample.group for number, sample in zip(replaced, drawn, strict=False)}

    def _draw(self, number: int, step: int) -> list[Any]:
        batch = self.buffer.lease({TASK: number}, train_step=step).take()
        spans = self._trainer.args.steps_per_generation * self._trainer.num_iterations
        self._leased.append((self._trainer._step + spans, batch))
        return list(batch.samples[TASK])

    def save(self, checkpoint: Path) -> None:
        """Save a buffer in memory into the trainer's checkpoint; a durable buffer is on disk already.

        Args:
            checkpoint: directory of the checkpoint.

        """
        if self._config.store is None:
            self.buffer.save(checkpoint / _FOLDER)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore the buffer of the step from which the trainer continues.

        Args:
            args: arguments of the trainer.
            state: state of the trainer.
            control: control of the trainer.

        Raises:
            CannotRewind: the buffer cannot return to that step.

        """
        checkpoint = self._trainer._resumed_from
        if self._config.store is not None:
            self.buffer.rewind(state.global_step)
            # The trainer generates these again, from the same prompts.
            self.buffer.delete({"version": {"$gte": state.global_step}, "tags.made_here": True})
        elif checkpoint is not None:
            self.buffer.close()
            self.buffer = self._config.build_blocking()
            if (Path(checkpoint) / _FOLDER).exists():
                self.buffer.resume(Path(checkpoint) / _FOLDER)
            else:
                warnings.warn(f"{checkpoint} has no {_FOLDER}: the buffer starts empty", stacklevel=2)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Acknowledge the leased groups whose last micro-batch this step has trained.

        Args:
            args: arguments of the trainer.
            state: state of the trainer.
            control: control of the trainer.

        """
        while self._leased and self._leased[0][0] <= self._trainer._step:
            self._leased.popleft()[1].ack(train_step=state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Commit the step whose checkpoint is on disk.

        Args:
            args: arguments of the trainer.
            state: state of the trainer.
            control: control of the trainer.

        """
        self.buffer.commit(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Return groups that were not trained to the end.

        Args:
            args: arguments of the trainer.
            state: state of the trainer.
            control: control of the trainer.

        """
        while self._leased:
            self._leased.pop()[1].nack()


class ReplayMixin(_Trainer):
    """Replay for a GRPOTrainer of your own: `class Mine(ReplayMixin, MyGRPOTrainer)`.

    Args:
        replay_buffer: configuration of the buffer; defaults fill in what a mapping does not set; None: no replay.
        replay_share: the share of each generated batch that is replaced by older groups; None: groups whose rewards are
            all equal.

    Raises InvalidConfig for data with images, and for a reference model that changes.

    """

    def __init__(
        self,
        *args: Any,
        replay_buffer: Config | None = MappingProxyType({}),
        replay_share: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._replays = replay_buffer is not None
        self._callback: ReplayBufferCallback | None = None
        self._in_loss: dict[str, Any] | None = None
        if replay_buffer is not None:
            columns = getattr(self.train_dataset, "column_names", None) or ()
            if images := {"image", "images"}.intersection(columns):
                raise InvalidConfig(f"{images} of the data cannot be replayed; give replay_buffer=None")
            if self.args.sync_ref_model and self.beta:
                raise InvalidConfig("replayed log-probs are of one reference; give sync_ref_model=False")
            if self.accelerator.is_main_process:
                self._callback = ReplayBufferCallback(self, replay_buffer, replay_share)
                self.add_callback(self._callback)

    @property
    def replay_buffer(self) -> BlockingReplayBuffer | None:
        """The buffer of the main rank; None on other ranks, and without replay."""
        return None if self._callback is None else self._callback.buffer

    # --- methods of TRL's trainer

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Any:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._scored = rewards, [len(ids) for ids in completion_ids_list]
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        batch = super()._generate_and_score_completions(inputs)
        return self._with_replay(batch, *self._scored) if self._replays and self.model.training else batch

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        self._in_loss = inputs = dict(inputs)
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._in_loss = None

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._in_loss is not None and _ON_POLICY in self._in_loss:
            # For rows that it has just generated, TRL sets the ratio to exactly 1; only replayed rows differ.
            fresh = self._in_loss[_ON_POLICY].unsqueeze(1)
            self._in_loss[LOGPROBS] = torch.where(fresh, found[0].detach(), self._in_loss[LOGPROBS])
        return found

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        self._resumed_from = kwargs.get("resume_from_checkpoint")
        return super()._inner_training_loop(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self._callback is not None:  # first, so that every complete checkpoint of the trainer has it
            folder = f"checkpoint-{self.state.global_step}"
            self._callback.save(Path(self._get_output_dir(trial=trial), folder))
        super()._save_checkpoint(model, trial)

    # --- mixing

    def _with_replay(self, batch: dict[str, Any], by_function: Any, lengths: Sequence[int]) -> dict[str, Any]:
        """Return this rank's rows of the batch with older groups in place of some."""
        first, size = self.accelerator.process_index * len(lengths), self.num_generations
        mine = slice(first, first + len(lengths))
        rewards = (by_function * self.reward_weights.to(by_function)).nansum(dim=1)
        rewards[by_function.isnan().all(dim=1)] = torch.nan
        known = batch if LOGPROBS in batch else {**batch, LOGPROBS: self._logprobs_of(batch)}
        members = gather_object(rollouts_of(known, lengths, rewards[mine].tolist()))
        groups = [members[start : start + size] for start in range(0, len(members), size)]
        callback, signals = self._callback, self._signals(groups, by_function, rewards)
        (replayed,) = broadcast_object_list([callback.exchange(groups, signals) if callback else None])
        if not replayed:
            return batch
        rows = [row for number, group in enumerate(groups) for row in replayed.get(number, group)][mine]
        fresh = [number not in replayed for number in range(len(groups)) for _ in range(size)][mine]
        mixed = batch_of(rows, known, self._tokenizer.pad_token_id, self.pad_to_multiple_of)
        if LOGPROBS not in batch:
            mixed[_ON_POLICY] = torch.tensor(fresh, device=self.accelerator.device)
        return {**mixed, TOTAL: self.accelerator.gather(loss_mask(mixed).sum()).sum()}

    def _logprobs_of(self, batch: Mapping[str, Any]) -> Any:
        """Return the log-probabilities of completions under the policy that has just generated them."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        kept, args = batch["completion_ids"].size(1), self.args
        with torch.no_grad(), disable_gradient_checkpointing(self.model, args.gradient_checkpointing_kwargs):
            size = args.per_device_train_batch_size
            return self._get_per_token_logps_and_entropies(self.model, ids, mask, kept, batch_size=size)[0]

    def _signals(self, groups: Sequence[Sequence[Any]], by_function: Any, rewards: Any) -> list[float]:
        """Return the mean absolute advantage of each group; 0 if its rewards are all equal."""
        is_sum = self.multi_objective_aggregation == "sum_then_normalize"
        scores = (rewards.unsqueeze(1) if is_sum else by_function).unflatten(0, (len(groups), -1))
        high = scores.nan_to_num(nan=-torch.inf).amax(dim=1)
        low = scores.nan_to_num(nan=torch.inf).amin(dim=1)
        differs = ((high > low) & ~torch.isclose(high, low)).any(dim=1).tolist()
        means = [sum(abs(row.extra_fields["advantages"]) for row in group) / len(group) for group in groups]
        return [float(mean) if differ else 0.0 for mean, differ in zip(means, differs, strict=True)]


class ReplayGRPOTrainer(ReplayMixin, GRPOTrainer):
    """TRL's GRPOTrainer with replay; `replay_buffer` and `replay_share` as of ReplayMixin."""
