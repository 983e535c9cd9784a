"""The conformance suite, run by handles of buffers in actors: of one shard, and of three."""

from typing import Any, ClassVar

import pytest

from ray_buffer.pool import take, until_still
from remote.of_one_shard import OF_ONE_SHARD
from reroll import ReplayBufferConfig
from reroll.testing.buffer.cancelling import CancellationSuite
from reroll.testing.buffer_suite import BufferSuite

pytestmark = pytest.mark.usefixtures("ray_cluster")


class Actors:
    """Buffers in actors, which are given back at the end."""

    shards: ClassVar[int] = 1

    @pytest.fixture(autouse=True)
    def made_here(self):
        self.made: list[Any] = []
        yield
        for buffer in self.made:
            buffer.give_back()

    async def make(self, config: ReplayBufferConfig) -> Any:
        self.made.append(take(config, num_shards=self.shards))
        return self.made[-1]

    async def settle(self) -> None:
        await until_still(self.made)


class TestOneShard(Actors, BufferSuite):
    pass


class TestThreeShards(Actors, BufferSuite):
    shards = 3
    cancelled_share = 0.2
    test_more_rejected_groups_than_are_kept_can_never_be_met = None  # of two, each of three shards keeps one
    locals().update(dict.fromkeys(OF_ONE_SHARD))


@pytest.mark.slow
@pytest.mark.timeout(1200)
class TestEveryAwaitOfThreeShards(Actors, CancellationSuite):
    shards = 3
