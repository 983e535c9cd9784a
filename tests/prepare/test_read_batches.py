"""A batch that came from another process: what it holds is read-only, and torch must not warn of it."""

import pytest

from reroll import register
from reroll.codec import decode, encode
from reroll.prepare import (
    GenerationResult,
    GlobalCounts,
    PackedBatch,
    RankBatch,
    sequences_of,
    split,
    to_group,
)

torch = pytest.importorskip("torch")


def test_a_batch_that_was_read_becomes_tensors() -> None:
    for kind in (PackedBatch, RankBatch, GlobalCounts):
        register(kind)
    result = GenerationResult(
        prompt_id="p",
        prompt_ids=[1],
        responses=[[2, 3], [4]],
        finish_reasons=["stop", "stop"],
        rewards=[0.0, 1.0],
        logprobs=[[-1.0, -2.0], [-3.0]],
        model_step=0,
    )
    (part,) = split(sequences_of([to_group(result)]), 1, pack_length=8)
    (read,) = decode(encode(part)).micro_batches
    (made,) = part.micro_batches
    tensors = made.to_torch()
    for name, tensor in read.to_torch().items():
        assert torch.equal(tensor, tensors[name])
        tensor.zero_()  # it may be written to
    assert read.arrays()["input_ids"].any()
