"""ReplayMixin: a GRPO trainer of TRL that trains groups again, with the log-probs of the policy that made them.

It stands where TRL has scored what it generated: each rank's rows are gathered to whole groups, the main rank puts them and
draws others, and every rank gets its part of the result. What is drawn, and how often, is decided by the buffer.
"""

from collections.abc import Callable, Mapping, Sequence
from os.path import join
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from reroll.buffer.blocking import BlockingReplayBuffer
from reroll.config import ReplayBufferConfig
from reroll.errors import InvalidConfig
from reroll.integrations.trl.memory import GroupMemory
from reroll.integrations.trl.rows import LOGPROBS, TOTAL, batch_of, loss_mask, rollouts_of

_Trainer: Any = GRPOTrainer if TYPE_CHECKING else object
_ON_POLICY = "on_policy"
"""Of a row whose old log-probs are those of the loss's own forward pass."""


class ReplayMixin(_Trainer):
    """Put it before a GRPOTrainer of your own: `class Mine(ReplayMixin, MyGRPOTrainer)`.

    Args:
        replay_buffer: what the buffer is made from; a mapping is completed by defaults; None: no replay.
        replay_share: which part of each generated batch is replaced by older groups; None: groups whose rewards do not
            differ.

    Raises InvalidConfig for data with images, and for a reference model that changes.
    """

    def __init__(
        self,
        *args: Any,
        replay_buffer: ReplayBufferConfig | Mapping[str, Any] | None = MappingProxyType({}),
        replay_share: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._replays = replay_buffer is not None
        self._memory: GroupMemory | None = None
        self._scored: tuple[Any, list[int]] | None = None
        self._in_loss: dict[str, Any] | None = None
        self._resumed_from: str | None = None
        if replay_buffer is None:
            return
        self._refuse_what_cannot_be_replayed()
        if self.accelerator.is_main_process:
            every = self.args.save_steps if self.args.save_steps >= 1 else 0
            self._memory = GroupMemory(
                replay_buffer, share=replay_share, seed=self.args.seed, kept_steps=2 * int(every)
            )
        self.add_callback(_InStep(self))

    @property
    def replay_buffer(self) -> BlockingReplayBuffer | None:
        """The buffer; None on all ranks but the main one, and without replay."""
        return None if self._memory is None else self._memory.buffer

    # --- what TRL calls

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._scored = rewards, [len(ids) for ids in completion_ids_list]
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        batch = super()._generate_and_score_completions(inputs)
        return self._with_replay(batch) if self._replays and self.model.training else batch

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        if _ON_POLICY not in inputs:
            return super()._compute_loss(model, inputs)
        self._in_loss = dict(inputs)
        try:
            return super()._compute_loss(model, self._in_loss)
        finally:
            self._in_loss = None

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._in_loss is not None:
            # TRL takes the ratio of what it has just generated to be 1, exactly. So it stays for rows that are not replayed.
            fresh = self._in_loss[_ON_POLICY].unsqueeze(1)
            self._in_loss[LOGPROBS] = torch.where(fresh, found[0].detach(), self._in_loss[LOGPROBS])
        return found

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        self._resumed_from = kwargs.get("resume_from_checkpoint")
        return super()._inner_training_loop(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self._memory is not None:  # first, so that a whole checkpoint of the trainer always has it
            name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            self._memory.save(join(self._get_output_dir(trial=trial), name))  # noqa: PTH118  (TRL's own is a string)
        super()._save_checkpoint(model, trial)

    # ---

    def _refuse_what_cannot_be_replayed(self) -> None:
        columns = set(getattr(self.train_dataset, "column_names", None) or ())
        if images := sorted(columns & {"image", "images"}):
            raise InvalidConfig(f"{images} of the data set cannot be replayed: give replay_buffer=None")
        if self.args.sync_ref_model and self.beta:
            raise InvalidConfig(
                "sync_ref_model changes the reference, and replayed groups have the log-probs of the old one: give "
                "sync_ref_model=False, beta=0 or replay_buffer=None"
            )

    def _with_replay(self, batch: dict[str, Any]) -> dict[str, Any]:
        assert self._scored is not None  # noqa: S101  (TRL scores what it generated)
        by_function, lengths = self._scored
        rank = slice(self.accelerator.process_index * len(lengths), (self.accelerator.process_index + 1) * len(lengths))
        rewards = (by_function * self.reward_weights.to(by_function)).nansum(dim=1)
        rewards[by_function.isnan().all(dim=1)] = torch.nan
        known = batch if LOGPROBS in batch else {**batch, LOGPROBS: self._logprobs_of(batch)}
        size = self.num_generations
        everyone = gather_object(rollouts_of(known, lengths, rewards[rank].tolist()))
        groups = [everyone[first : first + size] for first in range(0, len(everyone), size)]
        signals = self._signals(groups, by_function, rewards)

        exchange = self._by_main_rank(
            lambda memory: memory.exchange(
                groups,
                signals,
                step=self.state.global_step,
                done_at=self._step + self.args.steps_per_generation * self.num_iterations,
            )
        )
        for name, value in exchange.metrics.items():
            self._metrics["train"][name].append(value)
        if not exchange.given:
            return batch
        rows = [row for number, group in enumerate(groups) for row in exchange.given.get(number, group)][rank]
        is_fresh = [number not in exchange.given for number in range(len(groups)) for _ in range(size)][rank]
        if not all(is_fresh):
            fresh = torch.tensor(is_fresh, device=self.accelerator.device)
            computed = {} if LOGPROBS in batch else {_ON_POLICY: fresh}
            batch = batch_of(rows, known, self._tokenizer.pad_token_id, self.pad_to_multiple_of) | computed
        total = self.accelerator.gather(loss_mask(batch).sum()).sum()
        return {**batch, TOTAL: total}

    def _logprobs_of(self, batch: Mapping[str, Any]) -> Any:
        """Return the log-probs of completions by the policy that has just made them."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        kept, size = batch["completion_ids"].size(1), self.args.per_device_train_batch_size
        with torch.no_grad(), disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            return self._get_per_token_logps_and_entropies(self.model, ids, mask, kept, batch_size=size)[0]

    def _signals(self, groups: Sequence[Sequence[Any]], by_function: Any, rewards: Any) -> list[float]:
        """Return the mean absolute advantage of each group, or 0 where what advantages are made of does not differ."""
        is_sum = self.multi_objective_aggregation == "sum_then_normalize"
        scores = (rewards.unsqueeze(1) if is_sum else by_function).view(len(groups), -1, 1 if is_sum else by_function.size(1))
        high = scores.nan_to_num(nan=-torch.inf).amax(dim=1)
        low = scores.nan_to_num(nan=torch.inf).amin(dim=1)
        differs = ((high > low) & ~torch.isclose(high, low)).any(dim=1).tolist()
        return [
            sum(abs(row.extra_fields["advantages"]).mean() for row in group) / len(group) if telling else 0.0
            for group, telling in zip(groups, differs, strict=True)
        ]

    def _by_main_rank(self, work: Callable[[GroupMemory], Any]) -> Any:
        """Let the main rank do something; all ranks get what it returns, or raise what it raises."""
        told: list[Any] = [None]
        if self._memory is not None:
            try:
                told = [work(self._memory)]
            except Exception as error:  # noqa: BLE001  (raised below, everywhere)
                told = [error]
        (answer,) = broadcast_object_list(told)
        if isinstance(answer, Exception):
            raise answer
        return answer


class ReplayGRPOTrainer(ReplayMixin, GRPOTrainer):
    """TRL's GRPOTrainer with replay; `replay_buffer` and `replay_share` as of ReplayMixin."""


class _InStep(TrainerCallback):
    """Keeps the buffer in step with the trainer and its checkpoints."""

    def __init__(self, trainer: ReplayMixin) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._trainer._memory is not None:
            self._trainer._memory.restore(state.global_step, self._trainer._resumed_from)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._trainer._memory is not None:
            self._trainer._memory.settle(self._trainer._step, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._trainer._memory is not None:
            self._trainer._memory.commit(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._trainer._memory is not None:
            self._trainer._memory.give_back()
