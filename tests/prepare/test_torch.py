"""Batches as tensors that share the memory of the arrays."""

import sys

import numpy as np
import pytest

from prepare.batches import group_of
from reroll.prepare import pack, pad, sequences_of, split


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"reroll\[torch\]"):
        pack(sequences_of([group_of([1.0])]), 8).to_torch()


@pytest.mark.parametrize(
    "make",
    [lambda table: pack(table, 16), pad, lambda table: split(table, 1, pack_length=16)[0].micro_batches[0]],
)
def test_tensors_are_views(make):
    torch = pytest.importorskip("torch")
    batch = make(sequences_of([group_of([0.0, 1.0], [3, 4], logprobs=None)]))
    tensors = batch.to_torch()
    assert tensors["input_ids"].dtype == torch.int32
    assert tensors["response_mask"].dtype == tensors["logprob_mask"].dtype == torch.bool
    assert tensors["advantages"].dtype == torch.float32
    for name, tensor in tensors.items():
        assert np.array_equal(tensor.numpy(), getattr(batch, name)), name
    tensors["logprobs"][...] = 3.0
    assert (batch.logprobs == 3.0).all()
