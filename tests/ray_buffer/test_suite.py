"""The conformance suite, run by handles of buffers in actors: of one shard, and of three."""

import asyncio
import uuid
from itertools import count
from typing import Any, ClassVar

import pytest
import ray

from reroll import ReplayBufferConfig
from reroll.ray import RayReplayBuffer
from reroll.ray import handle as handle_module
from reroll.ray.dividing import divided
from reroll.ray.shard import Place
from reroll.testing.buffer.limits import LimitSuite
from reroll.testing.buffer.puts import PutSuite
from reroll.testing.buffer_suite import BufferSuite

pytestmark = pytest.mark.usefixtures("ray_cluster")


class Actors:
    """Buffers whose actors are used again by the next test: starting a process for each would take minutes."""

    shards: ClassVar[int] = 1
    _names: ClassVar[Any] = count()
    _free: ClassVar[dict[int, list[Any]]] = {}

    @pytest.fixture(autouse=True)
    def kept(self, monkeypatch):
        self.used: list[Any] = []
        self.made: list[RayReplayBuffer] = []
        monkeypatch.setattr(handle_module, "_end", lambda about: None)
        yield
        Actors._free.setdefault(self.shards, []).extend(self.used)

    async def make(self, config: ReplayBufferConfig) -> Any:
        free = Actors._free.setdefault(self.shards, [])
        if not free:
            buffer = RayReplayBuffer.create(
                config, name=f"suite-{next(Actors._names)}", num_shards=self.shards
            )
        else:
            buffer = _anew(free.pop(), config)
        self.used.append(buffer)
        self.made.append(buffer)
        return buffer

    async def settle(self) -> None:
        """Let calls reach the actors, and replies come back."""
        for _ in range(2):
            for _ in range(5):
                await asyncio.sleep(0)
            for buffer in self.made:
                for line in buffer._spread.lines:
                    await line.call("count", {"task_name": "t", "group_status": "completed"})


def _anew(old: RayReplayBuffer, config: ReplayBufferConfig) -> RayReplayBuffer:
    """Return a new buffer in the actors of one that was closed."""
    about = old._about._replace(config=config, life=uuid.uuid4().hex)
    handle_module._made[about.life] = handle_module._made.pop(old._about.life)
    for index, part in enumerate(divided(config, about.shards)):
        actor = ray.get_actor(handle_module._actor_name(about, index))
        place = Place(handle_module._key(about, index), index, about.shards, about.life, about.holder_ttl_s)
        ray.get(actor.__ray_call__.remote(lambda shard, *args: shard.__init__(*args), part, place, about))
        if (error := ray.get(actor.ready.remote())) is not None:
            raise error
    return RayReplayBuffer(about)


class TestOneShard(Actors, BufferSuite):
    pass


# What holds within a shard only. Order and uids are those of a shard, and what is divided must be enough for all.
_OF_ONE_SHARD = {
    "order": (
        "test_the_order_of_samplers",
        "test_stalest_first_mixes_derived_and_told_staleness",
        "test_an_aborted_group_is_out_until_it_is_put_again",
        "test_priorities_can_change",
        "test_takers_of_one_pool_keep_their_order",
        "test_takers_of_several_tasks_do_not_lock_each_other_out",
        "test_a_late_comer_does_not_overtake",
    ),
    "uids": (
        "test_a_forgotten_group_is_deleted_and_new_when_it_comes_back",
        "test_uids_count_from_one_and_are_never_used_again",
        "test_the_same_put_id_stores_once",
        "test_a_stale_group_that_nobody_rolls_again_is_dropped",
        "test_query_finds_orders_and_limits",
    ),
    "parts of one or two": (
        "test_a_closed_limiter_looks_empty",
        "test_what_can_never_be_met_is_refused_at_once",
        "test_a_request_is_not_refused_that_can_be_met",
        "test_a_group_that_comes_back_and_is_evicted_at_once_leaves_the_others_alone",
        "test_only_the_newest_rejected_groups_stay",
        "test_every_group_is_in_one_bucket",
        "test_a_put_waits_for_room",
        "test_only_completed_groups_wait",
        "test_a_remover_makes_room",
        "test_the_remover_may_choose_the_newcomer",
        "test_a_queue_limiter_is_refunded_what_was_never_taken",
        "test_max_bytes_bounds_the_whole",
        "test_tasks_have_their_own_settings",
        "test_producers_are_held_back_in_order",
        "test_groups_of_other_statuses_pass_a_waiting_producer",
        "test_whatever_makes_room_wakes_a_producer",
        "test_a_group_that_becomes_stale_while_its_put_waits_expires",
        "test_a_put_whose_id_is_stored_meanwhile_needs_no_room",
        "test_close_wakes_everybody",
        "test_producers_and_consumers_lose_and_double_nothing",
    ),
}


class ThreeShards(Actors, BufferSuite):
    shards = 3
    locals().update(dict.fromkeys(name for names in _OF_ONE_SHARD.values() for name in names))


@pytest.mark.slow
class TestThreeShardsWhole(ThreeShards):
    pass


class TestThreeShards(ThreeShards):
    """What goes to one shard is that of one shard, and refused by the same: it is left to the long runs."""

    locals().update(
        dict.fromkeys(name for suite in (PutSuite, LimitSuite) for name in vars(suite) if name[:4] == "test")
    )
    locals().update(
        dict.fromkeys(
            (
                "test_an_unknown_status_is_an_error",
                "test_a_wrong_argument_changes_nothing",
                "test_a_closed_buffer_does_nothing",
            )
        )
    )
