"""Further columns of groups: which ones a receiver gets."""

from typing import Any

import numpy as np

from reroll.errors import InvalidArgument
from reroll.group import RolloutGroup
from reroll.testing.buffer.builders import ABORTED, New, group, refused
from reroll.testing.buffer.hooks import Hooks

EXPERTS = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
REF = np.linspace(-1, 0, 5, dtype=np.float32)


def with_columns(**options: Any) -> RolloutGroup:
    """Return a group of two members, two and three tokens, with two further columns."""
    return RolloutGroup.pack(
        [1, 2], [[3, 4], [5, 6, 7]], model_step=0, columns={"experts": EXPERTS, "ref": REF}, **options
    )


def columns_of(given: Any) -> dict[str, Any]:
    """Return the further columns of a group."""
    return {name: given.column(name) for name in given.column_names}


class ColumnSuite(Hooks):
    """`columns` of `peek`, `take_batch`, `sample` and `lease`."""

    async def test_a_receiver_gets_the_columns_that_it_asks_for(self, new: New) -> None:
        buffer = await new(sampler="uniform", max_times_sampled=None)
        uid = await buffer.put(with_columns(), "t")
        for names, expected in (
            (None, {"experts", "ref"}),
            (["ref"], {"ref"}),
            (["ref", "?"], {"ref"}),
            ([], set()),
        ):
            (peeked,) = await buffer.peek([uid], columns=names)
            ((sampled, _),) = await buffer.sample(1, "t", columns=names)
            for found in (peeked, sampled):
                assert set(found.column_names) == expected
                assert list(found.response_ids) == [3, 4, 5, 6, 7]
                assert all(
                    np.array_equal(columns_of(with_columns())[name], found.column(name)) for name in expected
                )
                assert set(found[0].columns or ()) == expected
        (whole,) = await buffer.peek([uid])
        assert np.array_equal(whole.column("experts"), EXPERTS)

    async def test_a_taker_gets_the_columns_that_it_asks_for(self, new: New) -> None:
        buffer = await new()
        await buffer.put_many([with_columns(), with_columns()], "t")
        for names in ([], ["experts"]):
            taken, _ = await buffer.take_batch({"t": 1}, columns=names)
            assert taken["t"][0].column_names == names

    async def test_groups_that_are_put_again_keep_their_columns(self, new: New) -> None:
        buffer = await new()
        await buffer.put(with_columns(status=ABORTED), "t")
        async with refused(buffer, InvalidArgument, "columns cannot be chosen for aborted"):
            await buffer.take_batch({"t": 1}, group_status=ABORTED, columns=[])

    async def test_wrong_columns_are_refused(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group(), "t")
        for wrong in ("ref", 5, [1], [None]):
            async with refused(buffer, InvalidArgument, "columns"):
                await buffer.peek([uid], columns=wrong)
            async with refused(buffer, InvalidArgument, "columns"):
                await buffer.take_batch({"t": 1}, columns=wrong)
            async with refused(buffer, InvalidArgument, "columns"):
                await buffer.sample(1, "t", columns=wrong)


class LeaseColumnSuite(Hooks):
    """`columns` of leases."""

    async def test_a_lease_holder_gets_the_columns_that_it_asks_for(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(with_columns(), "t")
        async with buffer.lease({"t": 1}, columns=["ref"]) as batch:
            (leased,) = batch.groups["t"]
            assert leased.column_names == ["ref"]
            assert batch.samples["t"].uids.tolist() == [uid]
        async with buffer.lease({"t": 1}) as batch:
            assert batch.groups["t"][0].column_names == ["experts", "ref"]
            await batch.ack()
        await buffer.put(with_columns(status=ABORTED), "t")
        async with refused(buffer, InvalidArgument, "columns cannot be chosen for aborted"):
            await buffer.lease({"t": 1}, group_status=ABORTED, columns=["ref"])
