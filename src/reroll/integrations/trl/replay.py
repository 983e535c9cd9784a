"""ReplayMixin: a GRPO trainer of TRL that trains groups again, with the log-probs of the policy that made them.

It stands where TRL has scored what it generated: each rank's rows are gathered to whole groups, the main rank puts them and
draws others, and every rank gets its part of the result. What is drawn, and how often, is decided by the buffer.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch
from accelerate.utils import broadcast_object_list, gather_object
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from reroll.buffer.blocking import BlockingReplayBuffer
from reroll.errors import InvalidConfig
from reroll.integrations.trl.memory import Config, GroupMemory
from reroll.integrations.trl.rows import LOGPROBS, TOTAL, batch_of, loss_mask, rollouts_of

_Trainer: Any = GRPOTrainer if TYPE_CHECKING else object
_ON_POLICY: Final = "on_policy"
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
        replay_buffer: Config | None = MappingProxyType({}),
        replay_share: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._replays = replay_buffer is not None
        self._memory: GroupMemory | None = None
        self._in_loss: dict[str, Any] | None = None
        if replay_buffer is not None:
            self._refuse_what_cannot_be_replayed()
            if self.accelerator.is_main_process:
                self._memory = GroupMemory(self, replay_buffer, replay_share)
                self.add_callback(self._memory)

    @property
    def replay_buffer(self) -> BlockingReplayBuffer | None:
        """The buffer; None on all ranks but the main one, and without replay."""
        return None if self._memory is None else self._memory.buffer

    def _refuse_what_cannot_be_replayed(self) -> None:
        columns = getattr(self.train_dataset, "column_names", None) or ()
        if images := {"image", "images"}.intersection(columns):
            raise InvalidConfig(f"{images} of the data cannot be replayed: give replay_buffer=None")
        if self.args.sync_ref_model and self.beta:
            raise InvalidConfig("replayed groups have log-probs of one reference: give sync_ref_model=False")

    # --- what TRL calls

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
            # TRL takes the ratio of what it has just generated to be 1, exactly. So it stays for rows that are not replayed.
            fresh = self._in_loss[_ON_POLICY].unsqueeze(1)
            self._in_loss[LOGPROBS] = torch.where(fresh, found[0].detach(), self._in_loss[LOGPROBS])
        return found

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        self._resumed_from = kwargs.get("resume_from_checkpoint")
        return super()._inner_training_loop(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self._memory is not None:  # first, so that a whole checkpoint of the trainer always has it
            self._memory.save(Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}"))
        super()._save_checkpoint(model, trial)

    # ---

    def _with_replay(self, batch: dict[str, Any], by_function: Any, lengths: Sequence[int]) -> dict[str, Any]:
        """Return this rank's rows of the batch with older groups in place of some."""
        first, size = self.accelerator.process_index * len(lengths), self.num_generations
        mine = slice(first, first + len(lengths))
        rewards = (by_function * self.reward_weights.to(by_function)).nansum(dim=1)
        rewards[by_function.isnan().all(dim=1)] = torch.nan
        known = batch if LOGPROBS in batch else {**batch, LOGPROBS: self._logprobs_of(batch)}
        everyone = gather_object(rollouts_of(known, lengths, rewards[mine].tolist()))
        groups = [everyone[start : start + size] for start in range(0, len(everyone), size)]
        memory, signals = self._memory, self._signals(groups, by_function, rewards)
        (given,) = broadcast_object_list([memory.exchange(groups, signals) if memory else None])
        if not given:
            return batch
        rows = [row for number, group in enumerate(groups) for row in given.get(number, group)][mine]
        fresh = [number not in given for number in range(len(groups)) for _ in range(size)][mine]
        mixed = batch_of(rows, known, self._tokenizer.pad_token_id, self.pad_to_multiple_of)
        if LOGPROBS not in batch:
            mixed[_ON_POLICY] = torch.tensor(fresh, device=self.accelerator.device)
        return {**mixed, TOTAL: self.accelerator.gather(loss_mask(mixed).sum()).sum()}

    def _logprobs_of(self, batch: Mapping[str, Any]) -> Any:
        """Return the log-probs of completions by the policy that has just made them."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        kept, args = batch["completion_ids"].size(1), self.args
        with torch.no_grad(), disable_gradient_checkpointing(self.model, args.gradient_checkpointing_kwargs):
            size = args.per_device_train_batch_size
            return self._get_per_token_logps_and_entropies(self.model, ids, mask, kept, batch_size=size)[0]

    def _signals(self, groups: Sequence[Sequence[Any]], by_function: Any, rewards: Any) -> list[float]:
        """Return the mean absolute advantage of each group, or 0 where what advantages are made of does not differ."""
        is_sum = self.multi_objective_aggregation == "sum_then_normalize"
        scores = (rewards.unsqueeze(1) if is_sum else by_function).unflatten(0, (len(groups), -1))
        high = scores.nan_to_num(nan=-torch.inf).amax(dim=1)
        low = scores.nan_to_num(nan=torch.inf).amin(dim=1)
        differs = ((high > low) & ~torch.isclose(high, low)).any(dim=1).tolist()
        means = [sum(abs(row.extra_fields["advantages"]) for row in group) / len(group) for group in groups]
        return [float(mean) if telling else 0.0 for mean, telling in zip(means, differs, strict=True)]


class ReplayGRPOTrainer(ReplayMixin, GRPOTrainer):
    """TRL's GRPOTrainer with replay; `replay_buffer` and `replay_share` as of ReplayMixin."""
