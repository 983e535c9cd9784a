"""After a crash or a restart the next step follows, and no prompt is skipped or doubled."""

import asyncio
import json
import queue
import subprocess
import sys
from pathlib import Path

import pytest

from prepare_loops.results import TIMEOUT, config, filled, prompts_of, result
from reroll import CannotRewind, InvalidArgument
from reroll.prepare import BlockingPreparer, Preparer, PromptCursor

PROMPTS = list(range(1, 31))


def ask(cursor, source, count):
    for one in cursor.take(count):
        source.put(answer(one))


def answer(one):
    made = result(one.prompt)
    made.prompt_id, made.index = one.prompt_id, one.index
    return made


def test_a_restart_from_a_saved_buffer(tmp_path):
    """The state is taken at step 2, while step 3 is prepared and results are on their way; the rest is lost."""
    cursor, source = PromptCursor(PROMPTS, epochs=1), queue.Queue()
    trained = []
    first = BlockingPreparer(config(3), source, prompts=cursor).start()
    ask(cursor, source, 11)
    for step in (1, 2):
        trained += prompts_of(first.get_data(0, step, TIMEOUT))
    cursor.take(4)  # with the engines
    state = json.loads(json.dumps(first.state(step=2, save_to=tmp_path / "buffer")))
    assert state["step"] == 2
    ask(cursor, source, 6)
    first.get_data(0, 3, TIMEOUT)  # trained in vain: no checkpoint
    first.shutdown()

    cursor, source = PromptCursor(PROMPTS, epochs=1), queue.Queue()
    second = BlockingPreparer(config(3), source, prompts=cursor)
    second.restore(state)
    with second:
        ask(cursor, source, 30)
        for step in range(3, 11):
            trained += prompts_of(second.get_data(0, step, TIMEOUT))
    assert sorted(trained) == PROMPTS
    assert len(trained) == 30


def test_a_state_that_would_lose_groups_is_refused():
    with BlockingPreparer(config(1)) as preparer, pytest.raises(InvalidArgument, match="in memory only"):
        preparer.state()


def test_restore_goes_before_start(tmp_path):
    with BlockingPreparer(config(1)) as preparer:
        state = preparer.state(save_to=tmp_path)
        with pytest.raises(InvalidArgument, match="before that"):
            preparer.restore(state)
    other = BlockingPreparer(config(1))
    with pytest.raises(InvalidArgument, match="no state of a preparer"):
        other.restore({})
    other.shutdown()


def test_a_trainer_that_falls_back_gets_its_steps_again(tmp_path):
    """The checkpoint is that of step 1; steps 2 and 3 were trained after it."""
    durable = config(2, replay_buffer={"store": tmp_path / "store"})
    with BlockingPreparer(durable, filled(result(n) for n in range(1, 13))) as preparer:
        preparer.get_data(0, 1, TIMEOUT)
        state = preparer.state(step=1)
        preparer.commit(1)
        lost = [prompts_of(preparer.get_data(0, step, TIMEOUT)) for step in (2, 3)]
        preparer.done(3)
    again = BlockingPreparer(durable, filled(result(n) for n in range(1, 13)))  # the source begins anew
    again.restore(state)
    with again:
        assert [prompts_of(again.get_data(0, step, TIMEOUT)) for step in (2, 3)] == lost
        rest = [prompts_of(again.get_data(0, step, TIMEOUT)) for step in (4, 5, 6)]
    assert rest == [[7, 8], [9, 10], [11, 12]]


DIES = """
import os, sys
from prepare_loops.results import config, result
from reroll.prepare import BlockingPreparer

preparer = BlockingPreparer(config(2, replay_buffer={"store": sys.argv[1]})).start()
preparer.put([result(number) for number in range(1, 7)])
for step in (1, 2):
    preparer.get_data(0, step, 20)
preparer.done(2)
os._exit(9)
"""


def killed(code, *arguments):
    """Return a process that ran to its end, or was killed."""
    src, tests = Path(__file__).parents[2] / "src", Path(__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        env={"PYTHONPATH": f"{src}:{tests}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_crash_before_the_first_checkpoint_takes_back_all_steps(tmp_path):
    """Steps 1 and 2 were trained, and no state was ever taken; the prompts are asked for again."""
    assert killed(DIES, tmp_path / "store").returncode == 9
    with BlockingPreparer(config(2, replay_buffer={"store": tmp_path / "store"})) as preparer:
        assert preparer.put([result(number) for number in range(1, 7)]) == 6
        steps = [prompts_of(preparer.get_data(0, step, TIMEOUT)) for step in (1, 2)]
        assert preparer.put([result(7), result(8)], timeout=TIMEOUT) == 2
        steps += [prompts_of(preparer.get_data(0, step, TIMEOUT)) for step in (3, 4)]
        assert steps == [[1, 2], [3, 4], [5, 6], [7, 8]]
        preparer.done(4)
        preparer.commit(4)
        assert preparer.buffer.ledger()["train"]["consumed"].groups == 8


def test_a_later_first_step_leaves_those_before_it(tmp_path):
    durable = {"store": tmp_path / "store"}
    with BlockingPreparer(config(2, replay_buffer=durable)) as preparer:
        preparer.put([result(number) for number in range(1, 7)])
        for step in (1, 2):
            preparer.get_data(0, step, TIMEOUT)
        preparer.done(2)
    with BlockingPreparer(config(2, first_step=2, replay_buffer=durable)) as preparer:
        assert prompts_of(preparer.get_data(0, 2, TIMEOUT)) == [3, 4]


async def test_steps_that_were_committed_are_not_begun_again(tmp_path):
    durable = {"store": tmp_path / "store"}
    with BlockingPreparer(config(2, replay_buffer=durable)) as preparer:
        preparer.put([result(number) for number in range(1, 7)])
        for step in (1, 2):
            preparer.get_data(0, step, TIMEOUT)
        state = preparer.state(step=2)
        preparer.commit(2)
    for _ in range(2):  # nobody holds the store after that
        with pytest.raises(
            CannotRewind, match=r"begins with step 1 without a state: .*restore\(\) the state"
        ):
            BlockingPreparer(config(2, replay_buffer=durable)).__enter__()
        with pytest.raises(CannotRewind):
            await Preparer(config(2, replay_buffer=durable)).__aenter__()
    with BlockingPreparer(config(2, first_step=3, replay_buffer=durable)) as preparer:
        assert prompts_of(preparer.get_data(0, 3, TIMEOUT)) == [5, 6]
    again = BlockingPreparer(config(2, replay_buffer=durable))
    again.restore(state)
    with again:
        assert prompts_of(again.get_data(0, 3, TIMEOUT)) == [5, 6]


def told(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


@pytest.mark.parametrize("when_filtered", ["wait", "yield"])
def test_what_was_generated_is_told_again_after_a_restart(tmp_path, when_filtered):
    """Step 2 is prepared, step 3 is not, and every third result was filtered."""
    options = config(2, filter_zero_std=True, when_filtered=when_filtered)
    results = [
        result(n, (float(n), 0.0) if n % 3 else (1.0, 1.0), reward_metrics={"n": n}) for n in range(1, 9)
    ]
    with BlockingPreparer(options) as preparer:
        preparer.put(results)
        preparer.get_data(0, 1, TIMEOUT)
        state = json.loads(json.dumps(preparer.state(step=1, save_to=tmp_path)))
        expected = [told(preparer.get_data(0, step, TIMEOUT).metrics) for step in (2, 3)]
    again = BlockingPreparer(options)
    again.restore(state)
    with again:
        assert [told(again.get_data(0, step, TIMEOUT).metrics) for step in (2, 3)] == expected
    assert expected[0]["gen/filtered/groups"] == 1


def test_what_comes_again_after_a_restart_is_not_counted_as_new(tmp_path):
    """Also when all of it is consumed, and the buffer is empty."""
    with BlockingPreparer(config(2)) as preparer:
        preparer.put([result(1), result(2)])
        preparer.get_data(0, 1, TIMEOUT)
        state = preparer.state(step=1, save_to=tmp_path)
    again = BlockingPreparer(config(2))
    again.restore(state)
    with again:
        again.put([result(n) for n in (1, 2, 3, 4)])
        data = again.get_data(0, 2, TIMEOUT)
        assert prompts_of(data) == [3, 4]
        assert data.metrics["gen/repeated"] == data.metrics["gen/groups"] == 2


RUN = """
import json, os, queue, sys, threading
from pathlib import Path

from prepare_loops.results import config, prompts_of
from prepare_loops.test_restart import PROMPTS, answer
from reroll.prepare import BlockingPreparer, PromptCursor

where, die_after = Path(sys.argv[1]), int(sys.argv[2])
cursor = PromptCursor(PROMPTS, epochs=1)
source = queue.Queue(4)
preparer = BlockingPreparer(config(3, num_ranks=2, replay_buffer={"store": where / "store"}), source, prompts=cursor)
checkpoint = where / "checkpoint.json"
step, log = 0, []
if checkpoint.exists():
    saved = json.loads(checkpoint.read_text())
    preparer.restore(saved["state"])
    step, log = saved["state"]["step"], saved["log"]
preparer.start()

def generate():
    while asked := cursor.take(2):
        for one in reversed(asked):  # answers come out of order
            source.put(answer(one))

threading.Thread(target=generate, daemon=True).start()
while step < 10:
    step += 1
    parts = [preparer.get_data(rank, step, 20) for rank in (0, 1)]
    if step == die_after:
        os._exit(9)  # in the middle of a step, with others prepared and results on their way
    log.append(prompts_of(*parts))
    state = preparer.state(step=step)
    (where / "new").write_text(json.dumps({"state": state, "log": log}))
    (where / "new").replace(checkpoint)
    preparer.commit(step)
preparer.shutdown()
"""


@pytest.mark.parametrize("die_after", [[2, 5], [1, 1, 9]])
def test_a_killed_process_skips_and_doubles_no_prompt(tmp_path, die_after):
    for number, last in enumerate([*die_after, 0]):
        done = killed(RUN, tmp_path, last)
        assert done.returncode == (9 if number < len(die_after) else 0), done.stderr
    log = json.loads((tmp_path / "checkpoint.json").read_text())["log"]
    assert [len(groups) for groups in log] == [3] * 10
    assert sorted(number for groups in log for number in groups) == PROMPTS


def test_what_was_filtered_is_stored_once(tmp_path):
    """Those that are kept to be looked at, and come again after a restart."""
    options = {"filter_zero_std": True, "keep_filtered": True, "replay_buffer": {"store": tmp_path / "store"}}
    state = None
    for _ in range(2):
        preparer = BlockingPreparer(config(1, **options))
        if state is not None:
            preparer.restore(state)
        with preparer:
            preparer.put([result(1, rewards=(1.0, 1.0)), result(2)], timeout=TIMEOUT)
            if state is None:
                preparer.get_data(0, 1, TIMEOUT)
                state = preparer.state(step=1)
            assert preparer.buffer.ledger()["train"]["put"].groups == 2
            assert preparer.buffer.count("train", "filtered") == 1


async def test_what_comes_from_two_at_the_same_time_counts_once(tmp_path):
    options = config(2, async_steps=0, replay_buffer={"store": str(tmp_path / "buffer")})
    async with Preparer(options) as preparer:
        puts = (preparer.put(one) for one in (result(1), result(1), result(2)))
        assert await asyncio.gather(*puts) == [1, 1, 1]
        metrics = (await preparer.get_data(0, 1, TIMEOUT)).metrics
        assert (metrics["gen/groups"], metrics["gen/repeated"], metrics["train/groups"]) == (2, 1, 2)
