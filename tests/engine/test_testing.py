"""The shipped testing package: what it exports, what it needs, and its fakes."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reroll.testing
from reroll import Fifo, MinSize, Prioritized, Queue, Uniform, Unlimited
from reroll.errors import WouldBlock
from reroll.testing import ManualClock, NaiveTable, strategies


def test_exports():
    assert sorted(reroll.testing.__all__) == reroll.testing.__all__
    for name in reroll.testing.__all__:
        assert getattr(reroll.testing, name) is not None


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_a_missing_extra_is_named(missing):
    told = run(f"import sys; sys.modules[{missing!r}] = None; import reroll.testing")
    assert told.returncode != 0
    assert "ImportError: reroll.testing needs" in told.stderr
    assert "pip install 'reroll[testing]'" in told.stderr


def test_reroll_does_not_load_it():
    told = run(
        "import sys, reroll; print([m for m in ('reroll.testing', 'pytest', 'hypothesis') if m in sys.modules])"
    )
    assert told.stdout.strip() == "[]", told.stderr


# --- the clock


def test_time_passes_when_told():
    clock = ManualClock(5)
    assert clock.monotonic() == clock() == 5
    clock.advance(2.5)
    assert clock() == 7.5
    with pytest.raises(ValueError, match="forwards"):
        clock.advance(-1)
    with pytest.raises(ValueError):
        clock.advance(float("nan"))
    assert clock() == 7.5


def test_what_is_due_is_called_in_order_and_at_its_moment():
    clock = ManualClock()
    heard = []
    for name, moment in (("c", 3), ("a", 1), ("later", 9), ("b", 3)):
        clock.call_at(moment, lambda name=name: heard.append((name, clock())))
    assert clock.next_moment == 1
    clock.advance(3)
    assert heard == [("a", 1), ("c", 3), ("b", 3)]
    assert (clock(), clock.next_moment) == (3, 9)


def test_a_callback_may_wait_again_within_the_same_advance():
    clock = ManualClock()
    ticks = []

    def tick():
        ticks.append(clock())
        clock.call_at(clock() + 2, tick)

    clock.call_at(1, tick)
    clock.advance(6)
    assert ticks == [1, 3, 5]
    assert clock() == 6


def test_what_was_cancelled_is_not_called():
    clock = ManualClock()
    ticket = clock.call_at(1, pytest.fail)
    assert clock.cancel(ticket)
    assert not clock.cancel(ticket)
    clock.advance(5)
    assert clock.next_moment is None


# --- the naive model


def naive(sampler=Uniform(), remover=None, uses=None, limiter=Unlimited(), size=3):  # noqa: B008  (immutable)
    return NaiveTable(size, sampler, remover, uses, limiter)


def test_the_model_refuses_impossible_samples():
    table = naive(Prioritized())
    for key, priority in (("a", 1), ("b", 0), ("c", 2)):
        table.insert(key, None, priority)
    for picked in (["x"], ["a", "a"], ["a"], ["a", "b"]):
        with pytest.raises(AssertionError):
            table.sample(2 if len(picked) < 3 and picked != ["x"] else 1, picked)
    (one, zero, other) = table.sample(3, ["c", "b", "a"])
    assert (one.probability, zero.probability, other.probability) == (2 / 3, 0, 1 / 3)
    assert (one.weight, zero.weight, other.weight) == (0.5, 1, 1)


def test_the_model_refuses_impossible_victims():
    table = naive(remover=Fifo())
    for key in "abc":
        table.insert(key, None)
    with pytest.raises(AssertionError):
        table.insert("d", None, victim="b")
    table = naive(remover=Prioritized(), size=1)
    table.insert("a", None, 0)
    with pytest.raises(AssertionError, match="cannot be evicted"):
        table.insert("b", None, 1, victim="a")


def test_the_model_raises_would_block():
    table = naive(limiter=Queue(1))
    with pytest.raises(WouldBlock):
        table.sample(1, [])
    table.insert("a", 1)
    with pytest.raises(WouldBlock):
        table.insert("b", 2)
    table.insert("a", 2)
    assert table.sample(5, ["a"])[0].data == 2


# --- the strategies


@given(config=strategies.table_configs())
def test_configurations_that_proceed_build(config):
    table = config.build()
    assert table.info.max_size == config.max_size
    table.insert("a", 1, timeout=0)


@given(limiter=strategies.limiters(), selector=strategies.selectors(), priority=strategies.priorities())
def test_strategies_give_what_they_say(limiter, selector, priority):
    assert limiter.type
    assert selector.type
    assert 0 <= priority <= 1e6


@given(data=st.data())
def test_both_kinds_of_configurations_are_drawn(data):
    config = data.draw(strategies.table_configs(proceeding=False))
    assert config.proceeds in (True, False)
    assert MinSize(1) != config.rate_limiter or config.proceeds is not None
