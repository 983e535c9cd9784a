"""Calls that are cancelled anywhere leave a buffer usable, its ledger closed, and nothing held."""

from pathlib import Path

import pytest

from reroll.testing.buffer.builders import New
from reroll.testing.buffer.hooks import Hooks
from reroll.testing.cancelling import CAPACITY, sweep


class CancellationSuite(Hooks):
    """Every verb, cancelled at every await."""

    cancelled_share = 1.0
    """The share of awaits at which calls are cancelled; less for a buffer whose calls are slow."""

    @pytest.mark.parametrize("late", [False, True], ids=["a_turn_later", "when_it_may_go_on"])
    async def test_every_verb_cancelled_at_every_await(self, new: New, tmp_path: Path, late: bool) -> None:
        buffer = await new(capacity=CAPACITY)
        await sweep(buffer, tmp_path, late=late, share=self.cancelled_share)
