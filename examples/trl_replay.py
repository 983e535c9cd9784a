"""Replay in TRL: a tiny model learns to answer with the last letter of its prompt, from groups that it trains several times.

At first hardly any answer is right, so most groups of four have equal rewards and teach nothing. `ReplayGRPOTrainer` trains
older groups in their place, with the log-probs of the policy that made them. Needs `pip install 'reroll[trl]'`, and neither
a GPU nor a network.

    python examples/trl_replay.py
"""

import argparse
import random
import tempfile

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig

from reroll.integrations.trl import ReplayGRPOTrainer

LETTERS = "abcdefghijklmnopqrstuvwx"


def make_tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<pad>", "<eos>"]
    made.train_from_iterator(
        [LETTERS], trainers.BpeTrainer(vocab_size=26, special_tokens=special, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token=special[0], eos_token=special[1])


def make_model():
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=26,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=16,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )


def is_last_letter(prompts, completion_ids, **_):
    """Reward an answer that is the last letter of the prompt."""
    return [
        float(ids[0] == 2 + LETTERS.index(prompt[-1]))
        for prompt, ids in zip(prompts, completion_ids, strict=True)
    ]


def train(where, *, steps, seed, replay_buffer):
    """Train, and return the trainer."""
    import torch  # noqa: PLC0415

    torch.manual_seed(seed)
    rng = random.Random(seed)
    prompts = ["".join(rng.choices(LETTERS, k=3)) for _ in range(steps * 8)]
    trainer = ReplayGRPOTrainer(
        model=make_model(),
        reward_funcs=is_last_letter,
        args=GRPOConfig(
            output_dir=where,
            max_steps=steps,
            per_device_train_batch_size=32,
            num_generations=4,
            max_completion_length=1,
            learning_rate=5e-3,
            lr_scheduler_type="constant",
            logging_steps=1,
            seed=seed,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=make_tokenizer(),
        replay_buffer=replay_buffer,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # What a mapping leaves out is filled in: 256 groups, the newest and most telling first, four uses, at most 16 steps old.
    with tempfile.TemporaryDirectory() as where:
        trainer = train(
            where, steps=arguments.steps, seed=arguments.seed, replay_buffer={"max_times_sampled": 4}
        )
    history = [row for row in trainer.state.log_history if "reward" in row]
    for row in history[:: max(1, len(history) // 8)]:
        print(
            f"step {row['step']:3}: reward {row['reward']:.2f}, {row['replay/without_signal']:.0f} of 8 groups are tied, "
            f"{row['replay/groups']:.0f} are replaced by older ones"
        )
    books = trainer.replay_buffer.ledger()["train"]
    replayed = sum(row["replay/groups"] for row in history)
    print(f"{books['put'].groups} groups taught something, and were trained {replayed:.0f} times more")


if __name__ == "__main__":
    main()
