"""A trainer that writes down what it generated, what it trained and by which ratio, row by row."""

import torch
from tiny import arguments, is_even, model, prompts, tokenizer

from reroll.integrations.trl import ReplayGRPOTrainer


def rows_of(batch, lengths=None):
    """Return the rows of a batch without padding: lists by name."""
    found = []
    for row in range(len(batch["prompt_ids"])):
        prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].tolist()
        # 0 pads, and is never a token of a completion.
        length = int((batch["completion_ids"][row] != 0).sum())
        one = {"prompt": prompt}
        for name, value in batch.items():
            if name.startswith("prompt") or value.ndim == 0:
                continue
            one[name] = (value[row, :length] if value.ndim == 2 else value[row]).tolist()
        found.append(one)
    return found


def name_of(row):
    return (tuple(row["prompt"]), tuple(row["completion_ids"]))


class Watched(ReplayGRPOTrainer):
    def __init__(self, *args, **kwargs):
        self.generated, self.trained, self.losses = [], [], []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self.trained.append((rows_of(batch), int(batch["num_items_in_batch"])))
        return batch

    def _with_replay(self, batch, *scored):
        fresh = rows_of(batch)
        for row, expected in zip(fresh, self.plain_logprobs(fresh), strict=True):
            row["expected_logprobs"] = expected
        self.generated.append(fresh)
        return super()._with_replay(batch, *scored)

    def plain_logprobs(self, rows):
        """Compute log-probs of completions one by one, without padding and without TRL."""
        policy, found = self.accelerator.unwrap_model(self.model), []
        for row in rows:
            ids = torch.tensor([row["prompt"] + row["completion_ids"]])
            with torch.no_grad():
                logits = policy.model(ids).last_hidden_state @ policy.lm_head.weight.T / self.temperature
            scores = logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            found.append(scores[len(row["prompt"]) - 1 :].tolist())
        return found

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._in_loss is not None:
            old = self._in_loss.get("old_per_token_logps", found[0].detach())
            seen = {**self._in_loss, "ratio": torch.exp(found[0].detach() - old)}
            self.losses.append((self.state.global_step, rows_of(seen)))
        return found


def run(
    where, kind=Watched, *, train=True, resume=None, data=None, rewards=is_even, rollout_func=None, **options
):
    """Make a trainer, train it, and return it; options of the trainer and of its arguments."""
    own = {name: options.pop(name) for name in ("replay_buffer", "replay_share") if name in options}
    if rollout_func is not None:
        own["rollout_func"] = rollout_func
    policy = model()
    if options.get("beta"):  # TRL loads the reference by the name of the model
        policy.save_pretrained(where / "model")
        policy = type(policy).from_pretrained(where / "model")
    trainer = kind(
        model=policy,
        reward_funcs=rewards,
        args=arguments(where, **options),
        train_dataset=prompts() if data is None else data,
        processing_class=tokenizer(),
        **own,
    )
    if train:
        trainer.train(resume_from_checkpoint=resume)
    return trainer
