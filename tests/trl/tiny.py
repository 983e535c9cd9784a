"""A tiny model and tokenizer made here, a task for them, and trainers over both: nothing is read from a network."""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig

SPECIAL = ["<pad>", "<eos>"]
LETTERS = "ab0123456789=+"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    # Of so few bytes that every sixteenth token ends a completion: they are of unequal length.
    made.train_from_iterator(
        [LETTERS], trainers.BpeTrainer(vocab_size=16, special_tokens=SPECIAL, show_progress=False)
    )
    padding, end = SPECIAL
    fast = PreTrainedTokenizerFast(tokenizer_object=made, pad_token=padding, eos_token=end)
    fast.chat_template = TEMPLATE
    return fast


def model(seed=0, **options):
    torch.manual_seed(seed)
    words = len(tokenizer())
    config = Qwen2Config(
        **{
            "vocab_size": words,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 128,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "bos_token_id": None,
            **options,
        }
    )
    return Qwen2ForCausalLM(config)


def prompts(count=24):
    """Prompts of unequal length."""
    return Dataset.from_dict({"prompt": ["ab" * (1 + number % 4) + str(number) for number in range(count)]})


def is_even(completion_ids, **_):
    """Reward what looks like chance, so that half of the groups of two are tied."""
    return [float(sum(ids) % 2) for ids in completion_ids]


def arguments(where, **options):
    """Return settings for a run that is over in a second."""
    return GRPOConfig(
        output_dir=str(where),
        **{
            "per_device_train_batch_size": 8,
            "num_generations": 2,
            "max_completion_length": 6,
            "max_steps": 6,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "report_to": [],
            "save_strategy": "no",
            "use_cpu": True,
            "bf16": False,
            "seed": 3,
            "disable_tqdm": True,
            "generation_kwargs": {"suppress_tokens": [0]},  # so that 0 is padding, wherever it stands
            **options,
        },
    )


def parameters(trainer):
    """Return all weights as one vector."""
    whole = trainer.accelerator.unwrap_model(trainer.model)
    return torch.cat([value.detach().flatten() for _, value in sorted(whole.named_parameters())])
