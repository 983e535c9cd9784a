"""Who waits, for how long, and what they are told: dead producers, old steps, back-pressure, errors, the end."""

import asyncio
import queue
import threading
import time
import warnings

import pytest

from prepare_loops.results import TIMEOUT, config, filled, prompts_of, result
from reroll import Closed, InvalidArgument, LoopFailed, ReplayBufferConfig, SourceEnded, StepGone, WaitTimeout
from reroll.prepare import BlockingPreparer, Preparer, Prompts


def in_threads(count, work):
    """Run work(number) in so many threads, and return what each returned or raised."""
    found = [None] * count

    def run(number):
        try:
            found[number] = work(number)
        except Exception as error:  # noqa: BLE001
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads, found


def test_a_dead_producer_is_a_timeout_that_says_how_many_groups_are_missing():
    source = filled(result(n) for n in range(1, 6))
    with BlockingPreparer(config(4), source) as preparer:
        preparer.get_data(0, 1, TIMEOUT)
        with pytest.raises(WaitTimeout, match=r"3 of 4 groups are missing for step 2; .*, 5 in all"):
            preparer.get_data(0, 2, 0.2)
        for n in range(6, 9):  # it was not dead
            source.put(result(n))
        assert prompts_of(preparer.get_data(0, 2, TIMEOUT)) == [5, 6, 7, 8]


def test_a_timeout_says_that_results_failed_and_why():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reason is unknown
        results = [result(n) for n in range(1, 9)]
        for each in results:
            each.finish_reasons = ["xyz"] * len(each.responses)
        with (
            BlockingPreparer(config(4), filled(results)) as preparer,
            pytest.raises(WaitTimeout, match=r"8 of 8 results failed: finish_reason 'xyz'"),
        ):
            preparer.get_data(0, 1, 2)


def test_a_step_that_is_gone_is_a_typed_error():
    with BlockingPreparer(config(1, num_ranks=2), filled(result(n) for n in range(1, 9))) as preparer:
        for step in (1, 2, 3):
            preparer.get_data(0, step, TIMEOUT)
            preparer.get_data(1, step, TIMEOUT)
        again = preparer.get_data(1, 2, TIMEOUT)  # the previous step can be read again
        assert prompts_of(again, preparer.get_data(0, 2, TIMEOUT)) == [2]
        with pytest.raises(StepGone, match=r"step 1 is gone: every rank has asked for step 3"):
            preparer.get_data(1, 1, TIMEOUT)
        with pytest.raises(StepGone, match="step 0 is gone"):
            preparer.get_data(1, 0, TIMEOUT)


def test_a_step_that_nobody_got_is_not_done():
    """To ask for a step says that the one before is trained: it is not, if it never came."""
    with BlockingPreparer(config(1)) as preparer:
        with pytest.raises(WaitTimeout):
            preparer.get_data(0, 1, 0)
        with pytest.raises(InvalidArgument, match="rank 0 has not got step 1 yet"):
            preparer.get_data(0, 2, 0)
        with pytest.raises(InvalidArgument, match="no rank has got it"):
            preparer.done(1)
        preparer.put(result(1))
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [1]
        preparer.done(1)


@pytest.mark.parametrize(("rank", "step"), [(2, 1), (-1, 1), (True, 1), (0, 3), (0, 1.0)])
def test_wrong_questions_are_refused(rank, step):
    with BlockingPreparer(config(1, num_ranks=2)) as preparer, pytest.raises(InvalidArgument):
        preparer.get_data(rank, step, 0)


def test_wrong_timeouts_are_refused():
    with BlockingPreparer(config(1)) as preparer, pytest.raises(InvalidArgument):
        preparer.get_data(0, 1, -1)


@pytest.mark.parametrize("async_steps", [0, 1, 3])
def test_never_more_than_async_steps_ahead(async_steps):
    made = []
    options = config(2, async_steps=async_steps, predicates=[]).model_copy(
        update={"advantage": lambda rewards: made.append(None) or rewards * 0}
    )
    with BlockingPreparer(options, filled(result(n) for n in range(1, 41))) as preparer:
        for step in range(1, 11):
            preparer.get_data(0, step, TIMEOUT)
            wait_until(lambda step=step: len(made) >= 2 * min(step + async_steps, 20))
            assert len(made) <= 2 * (step + async_steps)


def wait_until(possible):
    deadline = time.monotonic() + TIMEOUT
    while not possible():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_rank_does_not_run_away_from_the_others():
    source = filled(result(n) for n in range(1, 20))
    with BlockingPreparer(config(1, num_ranks=2, async_steps=0), source) as preparer:
        preparer.get_data(0, 1, TIMEOUT)
        with pytest.raises(WaitTimeout, match="another rank is"):
            preparer.get_data(0, 2, 0.1)
        preparer.get_data(1, 1, TIMEOUT)
        assert prompts_of(preparer.get_data(0, 2, TIMEOUT), preparer.get_data(1, 2, TIMEOUT)) == [2]


def test_a_full_buffer_holds_the_source_back():
    source = filled(result(n) for n in range(1, 101))
    with BlockingPreparer(config(2, async_steps=1), source) as preparer:
        for step in range(1, 51):
            assert prompts_of(preparer.get_data(0, step, TIMEOUT)) == [2 * step - 1, 2 * step]
            taken = 100 - source.qsize()
            assert taken <= 2 * (step - 1) + 2 * 3 + 1  # what was trained, its capacity, and the one in hand


def test_groups_are_consumed_when_every_rank_asked_for_the_next_step():
    source = filled(result(n) for n in range(1, 9))
    with BlockingPreparer(config(2, num_ranks=2, async_steps=0), source) as preparer:

        def consumed():
            return preparer.buffer.ledger()["train"]["consumed"].groups

        for rank in (0, 1):
            preparer.get_data(rank, 1, TIMEOUT)
        assert consumed() == 0
        preparer.get_data(0, 2, TIMEOUT)
        assert consumed() == 0
        preparer.get_data(1, 2, TIMEOUT)
        assert consumed() == 2
        preparer.done(2)
        assert consumed() == 4
        preparer.done(1)  # told before
        assert consumed() == 4
        with pytest.raises(InvalidArgument, match="no rank has got it"):
            preparer.done(3)


def test_an_error_of_the_consuming_loop_reaches_all_who_wait():
    source = filled([result(1), result(2)])
    with BlockingPreparer(config(2, num_ranks=2), source) as preparer:
        threads, found = in_threads(2, lambda rank: [preparer.get_data(rank, s, TIMEOUT) for s in (1, 2)])
        source.put(result(3, (float("nan"), 1.0)))
        for thread in threads:
            thread.join(TIMEOUT)
        for error in found:
            assert isinstance(error, LoopFailed)
            assert "consuming loop failed: InvalidArgument: prompt '3'" in str(error)
            assert isinstance(error.__cause__, InvalidArgument)
        assert prompts_of(*(preparer.get_data(rank, 1, 0) for rank in (0, 1))) == [1, 2]  # was prepared


def test_an_error_of_the_preparing_loop_gives_the_groups_back():
    def wrong(rewards):
        raise ZeroDivisionError("my advantage")

    with BlockingPreparer(config(2, advantage=wrong), filled(result(n) for n in (1, 2))) as preparer:
        with pytest.raises(LoopFailed, match="preparing loop failed: ZeroDivisionError: my advantage"):
            preparer.get_data(0, 1, TIMEOUT)
        assert preparer.buffer.ledger()["train"]["leased"].groups == 0
        assert preparer.buffer.count("train", "completed") == 2


def test_an_error_of_the_source_reaches_whoever_waits():
    def source():
        raise ConnectionError("engine gone")

    with (
        BlockingPreparer(config(1), source) as preparer,
        pytest.raises(LoopFailed, match="ConnectionError: engine gone"),
    ):
        preparer.get_data(0, 1, TIMEOUT)


def leave(*_):
    raise SystemExit(3)


@pytest.mark.parametrize("options", [{"predicates": [leave]}, {"advantage": leave}])
def test_an_exit_reaches_whoever_waits(options):
    with (
        BlockingPreparer(config(1, **options), filled([result(1)])) as preparer,
        pytest.raises(LoopFailed, match="SystemExit"),
    ):
        preparer.get_data(0, 1, TIMEOUT)


def test_an_error_of_whoever_has_the_prompts_reaches_whoever_waits():
    class Mine(Prompts):
        def on_stored(self, results):
            raise KeyError("my cursor")

    with (
        BlockingPreparer(config(2), filled([result(1)]), prompts=Mine()) as preparer,
        pytest.raises(LoopFailed, match="my cursor"),
    ):
        preparer.get_data(0, 1, TIMEOUT)


def test_a_useless_result_can_be_left_out():
    source = filled([result(1, (float("nan"), 1.0)), result(2)])
    with BlockingPreparer(config(1, on_invalid="drop"), source) as preparer:
        data = preparer.get_data(0, 1, TIMEOUT)
        assert prompts_of(data) == [2]
        assert data.metrics["gen/invalid"] == 1


def unrewarded(number, rewards=None):
    made = result(number)
    made.rewards = rewards
    return made


@pytest.mark.parametrize("rewards", [None, [1.0, None]])
def test_a_result_without_rewards_is_refused_when_it_comes(rewards):
    with BlockingPreparer(config(1)) as preparer:
        with pytest.raises(
            InvalidArgument, match=r"prompt '1': response \d has no reward.*late_rewards=True"
        ):
            preparer.put(unrewarded(1, rewards))
        preparer.put(result(2))  # and spoils no step
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [2]
    with BlockingPreparer(
        config(1, on_invalid="drop"), filled([unrewarded(1, rewards), result(2)])
    ) as preparer:
        data = preparer.get_data(0, 1, TIMEOUT)
        assert prompts_of(data) == [2]
        assert data.metrics["gen/invalid"] == 1


def test_rewards_may_come_later_if_that_is_configured():
    with BlockingPreparer(config(1, late_rewards=True, async_steps=0, advantage="centered")) as preparer:
        assert preparer.put(unrewarded(1)) == 1
        (row,) = preparer.buffer.query({})
        preparer.buffer.patch(row.uid, reward=[3.0, 1.0])
        assert preparer.get_data(0, 1, TIMEOUT).metrics["train/score_mean"] == 2.0


def test_a_sequence_that_fits_into_no_row_is_a_result_that_cannot_be_used():
    long = result(1, (1.0,) * 15)  # 2 + 15 tokens, and 16 in a row
    with (
        BlockingPreparer(config(1)) as preparer,
        pytest.raises(InvalidArgument, match="prompt '1': a sequence of 17"),
    ):
        preparer.put(long)
    with BlockingPreparer(config(1, on_invalid="drop"), filled([long, result(2)])) as preparer:
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [2]
    with BlockingPreparer(config(1, overlong="drop"), filled([long])) as preparer:
        data = preparer.get_data(0, 1, TIMEOUT)
        assert data.metrics["train/rollouts"] == data.batch.counts.sequences == 14
        assert data.metrics["pack/dropped"] == 1


def test_shutdown_while_ranks_wait():
    before = set(threading.enumerate())
    preparer = BlockingPreparer(config(4, num_ranks=3), queue.Queue()).start()
    threads, found = in_threads(3, lambda rank: preparer.get_data(rank, 1, None))
    time.sleep(0.05)
    preparer.shutdown()
    for thread in {
        *threads,
        *threading.enumerate(),
    } - before:  # those of the preparer have said that they are over, and end by themselves
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert all(isinstance(error, Closed) for error in found)
    with pytest.raises(Closed):
        preparer.get_data(0, 1, 0)
    preparer.shutdown()  # again is harmless


def test_shutdown_loses_no_result():
    """What was taken from the source and found no room is returned; the rest is in the source or the buffer."""

    async def resident(buffer):
        return await buffer.count("train", "completed")

    import asyncio  # noqa: PLC0415

    source = filled(result(n) for n in range(1, 11))
    buffer = ReplayBufferConfig(sampler="fifo", capacity=3).build()
    preparer = BlockingPreparer(config(3, async_steps=0), source, buffer=buffer).start()
    preparer.get_data(0, 1, TIMEOUT)
    wait_until(lambda: source.qsize() == 6)
    left = preparer.shutdown()
    assert [one.prompt_id for one in left] == ["4"]
    assert asyncio.run(resident(buffer)) == 3  # step 1 was not done: it gave its groups back


def test_nothing_is_read_after_the_end():
    """The queue may have other readers, which get what comes then."""
    source = queue.Queue()
    preparer = BlockingPreparer(config(1), source).start()
    source.put(result(1))
    preparer.get_data(0, 1, TIMEOUT)
    threads, found = in_threads(1, lambda _: source.get(timeout=TIMEOUT))
    preparer.shutdown()
    source.put("mine")
    threads[0].join(TIMEOUT)
    assert found == ["mine"]


def test_results_that_were_put_by_hand_are_left_with_whoever_put_them():
    preparer = BlockingPreparer(config(1, replay_buffer={"capacity": 1})).start()
    preparer.put(result(1))
    with pytest.raises(WaitTimeout):
        preparer.put(result(2), timeout=0)
    assert preparer.shutdown() == []


def test_a_put_that_times_out_tells_what_it_took_in():
    """Two steps are prepared ahead, which hold 4 of the 6 groups that fit."""
    with BlockingPreparer(config(2)) as preparer:
        results = [result(number) for number in range(1, 9)]
        preparer.put(results[:4], timeout=TIMEOUT)
        preparer.get_data(0, 1, TIMEOUT)
        wait_until(lambda: preparer.buffer.ledger()["train"]["leased"].groups == 4)
        with pytest.raises(
            WaitTimeout,
            match=r"2 of 4 results were taken in, and not those of prompts '7', '8'; put them again, or all.*"
            r"'resident': 2, 'leased': 4",
        ) as caught:
            preparer.put(results[4:], timeout=0.1)
        assert "nothing was changed" not in str(caught.value)
        preparer.get_data(0, 2, TIMEOUT)
        preparer.done(2)
        assert preparer.put(results[4:], timeout=TIMEOUT) == 4  # two were there
        assert [prompts_of(preparer.get_data(0, step, TIMEOUT)) for step in (3, 4)] == [[5, 6], [7, 8]]
    with (
        BlockingPreparer(config(1, unique_prompt_ids=False, replay_buffer={"capacity": 1})) as preparer,
        pytest.raises(WaitTimeout, match=r"1 of 20 results .*'2', .*'9' and 11 more; put only these again"),
    ):
        preparer.put([result(number) for number in range(1, 21)], timeout=0)


def test_shutdown_of_what_never_started():
    preparer = BlockingPreparer(config(1))
    with pytest.raises(Closed, match="not started"):
        preparer.get_data(0, 1, 0)
    preparer.shutdown()
    BlockingPreparer(config(1)).shutdown()


@pytest.mark.parametrize("is_used", [True, False])
def test_a_second_shutdown_returns_the_same(is_used):
    source = filled(result(n) for n in range(1, 11))
    preparer = BlockingPreparer(config(1, async_steps=0, replay_buffer={"capacity": 1}), source)
    if is_used:
        preparer.start().get_data(0, 1, TIMEOUT)
        wait_until(lambda: source.qsize() == 8)
    threads, found = in_threads(3, lambda _: preparer.shutdown())
    for thread in threads:
        thread.join(TIMEOUT)
    assert [[one.prompt_id for one in left] for left in (*found, preparer.shutdown())] == [
        ["2"] if is_used else []
    ] * 4
    with pytest.raises(Closed):
        preparer.buffer.stats()


async def test_a_second_shutdown_waits_for_the_first():
    preparer = await Preparer(config(1), queue.Queue()).start()
    first, second = await asyncio.gather(preparer.shutdown(), preparer.shutdown())
    assert first == second == await preparer.shutdown() == []
    with pytest.raises(Closed):
        await preparer.put(result(1))
    with pytest.raises(Closed):
        await preparer.start()


def test_a_source_that_ended_is_an_error_that_says_what_is_missing():
    with BlockingPreparer(config(4), iter([result(n) for n in range(1, 7)])) as preparer:
        preparer.get_data(0, 1, TIMEOUT)
        for _ in range(2):
            with pytest.raises(SourceEnded, match="2 of 4 groups are missing for step 2"):
                preparer.get_data(0, 2, TIMEOUT)
        preparer.put([result(7), result(8)])  # somebody has some more
        assert prompts_of(preparer.get_data(0, 2, TIMEOUT)) == [5, 6, 7, 8]


def test_the_last_step_may_be_short():
    with BlockingPreparer(config(4, allow_short=True), iter([result(n) for n in range(1, 7)])) as preparer:
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [1, 2, 3, 4]
        last = preparer.get_data(0, 2, TIMEOUT)
        assert prompts_of(last) == [5, 6]
        assert last.batch.counts.groups == 2
        with pytest.raises(SourceEnded, match="4 of 4 groups"):
            preparer.get_data(0, 3, TIMEOUT)


def test_a_step_may_be_short_after_a_while():
    source = filled([result(1)])
    with BlockingPreparer(config(4, allow_short=True, short_after_s=0.1, async_steps=1), source) as preparer:
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [1]
        with pytest.raises(WaitTimeout):
            preparer.get_data(0, 2, 0.3)  # but never empty
        source.put(result(2))
        assert prompts_of(preparer.get_data(0, 2, TIMEOUT)) == [2]


def test_a_blocking_buffer_is_refused():
    with pytest.raises(InvalidArgument, match="coroutines"):
        BlockingPreparer(config(1), buffer=ReplayBufferConfig().build_blocking())


async def test_the_same_with_asyncio():
    async def source():
        for n in range(1, 5):
            yield result(n)

    async with Preparer(config(2, num_ranks=2), source()) as preparer:
        for step in (1, 2):
            parts = [await preparer.get_data(rank, step, TIMEOUT) for rank in (0, 1)]
            assert prompts_of(*parts) == [2 * step - 1, 2 * step]
        with pytest.raises(SourceEnded):
            await preparer.get_data(0, 3, TIMEOUT)


def test_a_step_that_is_done_lets_producers_start(tmp_path):
    """The preparer advances the buffer, which a staleness window waits for."""
    window = {"rate_limiter": {"type": "staleness_window", "max_staleness": 0, "batch": 2}}
    with BlockingPreparer(config(2, async_steps=0, replay_buffer=window)) as preparer:
        preparer.put([result(1), result(2)])
        preparer.get_data(0, 1, TIMEOUT)
        with pytest.raises(WaitTimeout):
            preparer.buffer.reserve(1, "train", timeout=0.05)
        preparer.done(1)
        assert preparer.buffer.reserve(2, "train", timeout=TIMEOUT).groups == 2


async def test_a_put_that_waits_for_room_in_the_buffer_of_another_ends_with_the_preparer():
    buffer = ReplayBufferConfig(capacity=1).build()
    preparer = await Preparer(config(1), buffer=buffer).start()
    await preparer.put(result(1))  # it is prepared ahead, and keeps its place
    putting = asyncio.create_task(preparer.put(result(2)))
    await asyncio.sleep(0)
    await preparer.shutdown()
    with pytest.raises(Closed, match="the preparer was shut down"):
        await asyncio.wait_for(putting, TIMEOUT)
    assert await buffer.count("train", "completed") == 1  # and what was prepared is there again


def test_a_callback_that_would_wait_for_itself_is_told():
    class Eager(Prompts):
        def on_replacement_needed(self, count):
            preparer.put([result(9 + number) for number in range(count)])

    with BlockingPreparer(config(1, filter_zero_std=True), prompts=Eager()) as preparer:
        with pytest.raises(InvalidArgument, match="called from its own event loop"):
            preparer.put(result(1, (0.0, 0.0)))
        preparer.put(result(2))
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [2]
