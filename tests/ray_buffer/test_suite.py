"""The conformance suite, run by handles of buffers in actors: of one shard, and of three."""

import asyncio
from typing import Any, ClassVar

import pytest

from ray_buffer.pool import all_wait, take
from reroll import ReplayBufferConfig
from reroll.ray.calling import Line
from reroll.ray.wire import Request
from reroll.testing.buffer.cancelling import CancellationSuite
from reroll.testing.buffer_suite import BufferSuite

pytestmark = pytest.mark.usefixtures("ray_cluster")


class Actors:
    """Buffers in actors, and a look at what goes on in them."""

    shards: ClassVar[int] = 1

    @pytest.fixture(autouse=True)
    def watched(self, monkeypatch):
        """Give the actors back at the end; know meanwhile which calls have no reply yet."""
        self.made: list[Any] = []
        self.open: set[str] = set()
        until_replied = Line._until_replied

        async def noted(line: Line, request: Request, *rest: Any) -> Any:
            self.open.add(request.id)
            try:
                return await until_replied(line, request, *rest)
            finally:
                self.open.discard(request.id)

        monkeypatch.setattr(Line, "_until_replied", noted)
        yield
        for buffer in self.made:
            buffer.give_back()

    async def make(self, config: ReplayBufferConfig) -> Any:
        self.made.append(take(config, num_shards=self.shards))
        return self.made[-1]

    async def settle(self) -> None:
        """Go on when every call that was started waits in its shard for others, or is over; seen twice."""
        before, now = None, await self._waiting()
        while now is None or now != before:
            before, now = now, await self._waiting()

    async def _waiting(self) -> set[str] | None:
        """Return the calls that wait in the shards, None if anything is on its way, there or here."""
        for _ in range(5):
            await asyncio.sleep(0)
        lines = [line for buffer in self.made for line in buffer._spread.lines]
        answers = [await line.actor.waiting.remote() for line in lines]
        waiting = {number for answer in answers for number in answer or ()}
        is_still = None not in answers and all_wait() and not any(line._told for line in lines)
        return waiting if is_still and waiting == self.open else None


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
        "test_a_taker_is_behind_in_one_of_its_tasks",
        "test_set_sampler_changes_the_share_of_a_mixture",
        "test_initial_priority_max_follows_the_largest_that_is_there",
        "test_shuffled_epochs_repeat_nothing_and_change_their_order",
    ),
    "uids": (
        "test_a_forgotten_group_is_deleted_and_new_when_it_comes_back",
        "test_uids_count_from_one_and_are_never_used_again",
        "test_the_same_put_id_stores_once",
        "test_a_stale_group_that_nobody_rolls_again_is_dropped",
        "test_query_finds_orders_and_limits",
    ),
    "parts of one or two": (
        "test_patch_many_changes_nothing_if_one_patch_is_wrong",
        "test_a_closed_limiter_looks_empty",
        "test_what_can_never_be_met_is_refused_at_once",
        "test_a_request_is_not_refused_that_can_be_met",
        "test_a_group_that_comes_back_and_is_evicted_at_once_leaves_the_others_alone",
        "test_only_the_newest_rejected_groups_stay",
        "test_every_group_is_in_one_bucket",
        "test_on_drop_reports_groups_that_a_newcomer_evicts",
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


class TestThreeShards(Actors, BufferSuite):
    shards = 3
    cancelled_share = 0.2
    locals().update(dict.fromkeys(name for names in _OF_ONE_SHARD.values() for name in names))


@pytest.mark.slow
@pytest.mark.timeout(1200)
class TestEveryAwaitOfThreeShards(Actors, CancellationSuite):
    shards = 3
