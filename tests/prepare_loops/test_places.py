"""Every state finds the buffer that it was made with, or it is told where that is."""

import json

import pytest

from prepare_loops.results import TIMEOUT, config, prompts_of, result
from reroll import InvalidArgument, ReplayBufferConfig, SavedNotFound
from reroll.prepare import BlockingPreparer


def trained(preparer, *steps):
    return [prompts_of(preparer.get_data(0, step, TIMEOUT)) for step in steps]


def in_memory(**buffer):
    return config(2, replay_buffer={"capacity": 100, **buffer})


def stored(path):
    return in_memory(store=path)


def states_of(options, *saves):
    """Train from 12 results, and return the state of each step that is to be saved."""
    states = []
    with BlockingPreparer(options) as preparer:
        preparer.put([result(number) for number in range(1, 13)])
        for step in range(1, max(step for step, _ in saves) + 1):
            trained(preparer, step)
            states += [json.dumps(preparer.state(step=step, save_to=to)) for at, to in saves if at == step]
    return [json.loads(state) for state in states]


def restored(options, state, **where):
    preparer = BlockingPreparer(options)
    try:
        preparer.restore(state, **where)
    except BaseException:
        preparer.shutdown()
        raise
    return preparer


def test_an_older_state_finds_its_own_buffer(tmp_path):
    """All are saved to the same directory, as by a trainer that keeps several checkpoints."""
    first, third, again = states_of(in_memory(), (1, tmp_path), (3, tmp_path), (3, tmp_path))
    for state, expected in (
        (first, [[3, 4], [5, 6]]),
        (third, [[7, 8], [9, 10]]),
        (again, [[7, 8], [9, 10]]),
    ):
        step = state["step"]
        with restored(in_memory(), state) as preparer:
            assert trained(preparer, step + 1, step + 2) == expected
    with restored(in_memory(), first) as preparer:  # other results, and the same directory
        preparer.put([result(number) for number in range(21, 31)])
        trained(preparer, 2, 3)
        preparer.state(step=3, save_to=tmp_path)
    with restored(in_memory(), third) as preparer:
        assert trained(preparer, 4, 5, 6) == [[7, 8], [9, 10], [11, 12]]
        assert preparer.buffer.count("train", "completed") == 0


def test_a_state_of_a_saved_buffer_is_refused_by_a_store(tmp_path):
    (state,) = states_of(in_memory(), (1, tmp_path / "saved"))
    with pytest.raises(
        InvalidArgument, match=r"saved in \S+saved\S+, and this preparer has the store \S+store"
    ):
        restored(stored(tmp_path / "store"), state)

    with ReplayBufferConfig(
        sampler="fifo", capacity=100, store=tmp_path / "store"
    ).build_blocking() as buffer:
        buffer.resume(state["buffer"])
    with restored(stored(tmp_path / "store"), state, saved=tmp_path / "store") as preparer:
        assert trained(preparer, 2, 3) == [[3, 4], [5, 6]]


@pytest.mark.parametrize("saved", [{}, {"saved": "elsewhere"}])
def test_a_state_of_a_store_is_refused_in_memory(tmp_path, saved):
    (state,) = states_of(stored(tmp_path / "store"), (1, None))
    with pytest.raises(InvalidArgument, match=r"in the store \S+store, and .* new one in memory"):
        restored(in_memory(), state, **saved)


def test_a_state_of_a_store_is_refused_by_another_store(tmp_path):
    (state,) = states_of(stored(tmp_path / "one"), (1, None))
    for where in ({}, {"saved": tmp_path / "one"}):
        with pytest.raises(InvalidArgument, match=r"in \S*.*one.*, and this preparer has the store \S+other"):
            restored(stored(tmp_path / "other"), state, **where)
    with restored(
        stored(f"{tmp_path}/../{tmp_path.name}/one"), state
    ) as preparer:  # the same by another name
        assert trained(preparer, 2) == [[3, 4]]


def test_a_store_that_was_moved(tmp_path):
    (state,) = states_of(stored(tmp_path / "one"), (1, None))
    (tmp_path / "one").rename(tmp_path / "moved")
    with pytest.raises(InvalidArgument, match="0 groups were ever put into it, and the state knows of 12"):
        restored(stored(tmp_path / "one"), state)  # which is new and empty
    with restored(stored(tmp_path / "moved"), state, saved=tmp_path / "moved") as preparer:
        assert trained(preparer, 2, 3) == [[3, 4], [5, 6]]


@pytest.mark.parametrize("inside", ["", "step_1"])
def test_a_saved_buffer_that_was_moved(tmp_path, inside):
    (state,) = states_of(in_memory(), (1, tmp_path / "saved"))
    (tmp_path / "saved").rename(tmp_path / "moved")
    with pytest.raises(SavedNotFound, match="if it was moved, restore"):
        restored(in_memory(), state)
    with restored(in_memory(), state, saved=tmp_path / "moved" / inside) as preparer:
        assert trained(preparer, 2, 3) == [[3, 4], [5, 6]]


def test_a_relative_directory_is_found_from_another_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (state,) = states_of(in_memory(), (1, "saved"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with restored(in_memory(), state) as preparer:
        assert trained(preparer, 2) == [[3, 4]]


def test_a_state_without_its_buffer_is_of_somebody_elses(tmp_path):
    buffer = ReplayBufferConfig(sampler="fifo").build()
    with BlockingPreparer(config(2), buffer=buffer) as preparer:
        preparer.put([result(1), result(2)])
        trained(preparer, 1)
        state = preparer.state(step=1)
    for options in (in_memory(), stored(tmp_path / "store")):
        with pytest.raises(InvalidArgument, match="not owned by its preparer"):
            restored(options, state)
    owner = BlockingPreparer(config(2), buffer=buffer)
    with pytest.raises(InvalidArgument, match="leave `saved` out"):
        owner.restore(state, saved=tmp_path)
    owner.restore(state)
    owner.shutdown()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ('{"format": 1}', "json.loads"),
        (b"{}", "json.loads"),
        (None, "no state of a preparer"),
        ([], "no state of a preparer"),
        ({"format": 1, "step": 1}, "buffer, cursor, generated, store is missing"),
        (
            {"format": 1, "step": "1", "buffer": None, "cursor": None, "generated": {}, "store": None},
            "step is missing",
        ),
    ],
)
def test_what_is_no_state_is_told(wrong, why):
    with pytest.raises(InvalidArgument, match=why):
        restored(config(1), wrong)
