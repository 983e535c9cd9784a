"""Groups that several samples share."""

from contextlib import suppress
from typing import Any

import numpy as np

from reroll.testing.buffer.builders import ABORTED, New, group
from reroll.testing.buffer.hooks import Hooks


def write_into(array: Any) -> None:
    """Try to change an array in place."""
    with suppress(ValueError):  # it is read-only
        array[:] = 0


class SharedSuite(Hooks):
    """What a holder of a sample may change."""

    async def test_a_sample_cannot_be_changed_by_another(self, new: New) -> None:
        buffer = await new(max_times_sampled=None, sampler="uniform")
        fields: dict[str, Any] = {
            "logprobs": [-0.5, -0.25],
            "response_mask": [1, 1],
            "routed_experts": np.array([[3], [4]]),
        }
        await buffer.put(group(response_ids=[7, 8], **fields), "t")
        (first,) = await buffer.sample(1, "t")
        names = ("prompt_ids", "response_ids", "logprobs", "response_mask", "routed_experts")
        for name in names:
            write_into(getattr(first.group[0], name))
        (second,) = await buffer.sample(1, "t")
        found = {name: getattr(second.group[0], name).tolist() for name in names}
        assert found == {
            "prompt_ids": [1, 2, 3],
            "response_ids": [7, 8],
            "logprobs": [-0.5, -0.25],
            "response_mask": [1, 1],
            "routed_experts": [[3], [4]],
        }

    async def test_a_producer_can_extend_a_group_that_it_took(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group("a", status=ABORTED), "t", model_step=1)
        ((taken,),) = await buffer.get(1, "t", ABORTED)
        taken.response_ids = np.concatenate([taken.response_ids, [9]])
        taken.status = "completed"
        assert await buffer.put([taken], "t", model_step=2) == uid
        ((back,),) = await buffer.get(1, "t", "completed")
        assert back.response_ids.tolist() == [0, 1, 9]
        assert list(back.response_model_steps) == [1, 1, 2]
