"""Every limiter runs the suite that is shipped for users' own; its numbers, and what files say."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from reroll import InvalidConfig, MinSize, Queue, SampleToInsertRatio, Stack, Unlimited
from reroll.engine.limits import LIMITERS, Counters, Window, limiter_of
from reroll.engine.options import options_of
from reroll.testing import LimiterSuite

pytestmark = pytest.mark.filterwarnings("ignore:the limiter admits more:UserWarning")


class TestUnlimited(LimiterSuite):
    limiter = Unlimited()


class TestMinSize(LimiterSuite):
    limiter = MinSize(4)


class TestQueue(LimiterSuite):
    limiter = Queue(5)


class TestQueueOfOne(LimiterSuite):
    limiter = Queue(1)


class TestStack(LimiterSuite):
    limiter = Stack(3)


class TestRatio(LimiterSuite):
    limiter = SampleToInsertRatio(1.5, 2, (-1, 3))


class TestRatioAsNarrowAsCanBe(LimiterSuite):
    limiter = SampleToInsertRatio(3, 4, 3)


class TestRatioBelowOne(LimiterSuite):
    limiter = SampleToInsertRatio(0.3, 3, 1)


class TestRatioOpenBelow(LimiterSuite):
    limiter = SampleToInsertRatio(2, 3, (-math.inf, 10))


@pytest.mark.parametrize(
    ("limiter", "window"),
    [
        (Unlimited(), (1, 0, -math.inf, math.inf)),
        (MinSize(7), (1, 7, -math.inf, math.inf)),
        (SampleToInsertRatio(2, 3, 4), (2, 3, 2, 10)),
        (SampleToInsertRatio(1.5, 2, (-1, 3)), (1.5, 2, -1, 3)),
        (SampleToInsertRatio(0.5, 4, 2.5), (0.5, 4, -0.5, 4.5)),
        (Queue(9), (1, 1, 0, 9)),
        (Stack(9), (1, 1, 0, 9)),
    ],
)
def test_windows(limiter, window):
    assert limiter.window == window


def test_the_largest_sample():
    assert SampleToInsertRatio(2, 3, 4).window.largest_sample == 8
    assert (
        SampleToInsertRatio(1, 10, (0, 5)).window.largest_sample == 10
    )  # min_size lets in more than the window
    assert Queue(4).window.largest_sample == 4
    assert MinSize(4).window.largest_sample == math.inf


@pytest.mark.parametrize(
    "limiter",
    [
        Unlimited(),
        MinSize(2),
        SampleToInsertRatio(1, 2, 3.5),
        SampleToInsertRatio(1, 2, (-1, 3)),
        Queue(3),
        Stack(4),
    ],
)
def test_options_go_there_and_back(limiter):
    options = options_of(limiter)
    assert options["type"] == limiter.type
    assert LIMITERS[limiter.type] is type(limiter)
    assert limiter_of(options) == limiter


def test_what_files_say():
    assert limiter_of("unlimited") == Unlimited()
    assert limiter_of({"type": "min_size", "min_size": 10}) == MinSize(10)
    ratio = {
        "type": "sample_to_insert_ratio",
        "samples_per_insert": 1,
        "min_size": 2,
        "error_buffer": [-1, 3],
    }
    assert limiter_of(ratio) == SampleToInsertRatio(1, 2, (-1, 3))
    assert hash(limiter_of(ratio)) == hash(SampleToInsertRatio(1, 2, (-1, 3)))


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        "",
        "min_size",
        {},
        {"type": "nobody"},
        {"type": "queue"},
        {"type": "queue", "size": 3, "x": 1},
        MinSize,
    ],
)
def test_what_is_no_limiter(value):
    with pytest.raises(InvalidConfig):
        limiter_of(value)


@pytest.mark.parametrize(
    ("limiter", "consequence"),
    [
        (lambda: SampleToInsertRatio(0, 1, 10), "nothing could ever be sampled"),
        (lambda: SampleToInsertRatio(1, 1, 0.5), "wait for each other forever"),
        (lambda: SampleToInsertRatio(1, 1, (2, 10)), "samples would still wait"),
    ],
)
def test_refusals_name_the_consequence(limiter, consequence):
    with pytest.raises(InvalidConfig, match=consequence):
        limiter()


def test_counters_go_there_and_back():
    counters = Counters(5, 3, 2)
    assert counters.size == 3
    other = Counters()
    other.restore(counters.state())
    assert other == counters


# --- the suite itself fails for those who break it


@dataclass(frozen=True)
class _Broken:
    fault: str
    type: str = "broken"
    window: ClassVar[Window] = Window(1.0, 1, 0, 4)

    def can_insert(self, counters, k=1):
        if self.fault == "counts":
            counters.inserts += 1
        if self.fault == "dead-locks":
            return counters.inserts + k - counters.samples <= 0 or counters.inserts == 0
        if self.fault == "fickle":
            return k > 1 or Queue(4).can_insert(counters, k)
        return Queue(5 if self.fault == "wide" else 4).can_insert(counters, k)

    def can_sample(self, counters, k=1):
        if self.fault == "dead-locks":
            return counters.inserts - counters.samples - k >= 3
        return Queue(4).can_sample(counters, k)


FAULTS = {
    "counts": "test_asking_changes_nothing",
    "wide": "test_agrees_with_the_inequalities",
    "dead-locks": "test_someone_can_always_go_on",
    "fickle": "test_who_may_do_many_may_do_few",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_suite_finds_what_is_broken(fault):
    suite = LimiterSuite()
    suite.limiter = _Broken("none")
    getattr(suite, FAULTS[fault])(1)
    suite.limiter = _Broken(fault)
    with pytest.raises(AssertionError):
        getattr(suite, FAULTS[fault])(1)
