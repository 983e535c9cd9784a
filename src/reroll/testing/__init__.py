"""Conformance suites, a naive model and fakes, for reroll's own tests and for yours: `pip install 'reroll[testing]'`.

A selector or limiter of your own runs the tests that reroll's run, by a subclass in a test module:

    from reroll.testing import LimiterSuite, SelectorSuite

    class TestLongestFirst(SelectorSuite):
        spec = LongestFirst()

        def sort_key(self, row, step):  # only where nothing is left to chance
            return (-row["num_tokens"], row["timestamp"])

    class TestNightShift(LimiterSuite):
        limiter = NightShift(samples_per_insert=2)

selector_suite   SelectorSuite: what every sampler and remover holds to
limiter_suite    LimiterSuite: what every rate limiter holds to
buffer_suite     BufferSuite: what everything with the verbs of ReplayBuffer holds to; its tests are in buffer/
naive_table      NaiveTable: a Table in lists and loops, the oracle of the real one
naive_buffer     NaiveBuffer: the same of the buffer
strategies       Hypothesis strategies for selectors, limiters, priorities and whole table configurations
clock            ManualClock: time that passes when a test says so

Everything is deterministic: random walks are seeded, no test sleeps or reads a clock.
"""

from reroll.errors import missing_extra

try:
    import hypothesis  # noqa: F401
    import pytest
except ImportError as error:
    raise missing_extra("reroll.testing", error.name, "testing") from error

# Before the suites are imported: their plain asserts then tell both sides when they fail.
pytest.register_assert_rewrite(
    "reroll.testing.buffer",
    "reroll.testing.limiter_suite",
    "reroll.testing.naive_buffer",
    "reroll.testing.naive_table",
    "reroll.testing.selector_suite",
)

from reroll.testing import strategies  # noqa: E402
from reroll.testing.buffer_suite import BufferSuite, VerbSuite  # noqa: E402
from reroll.testing.clock import ManualClock  # noqa: E402
from reroll.testing.limiter_suite import LimiterSuite  # noqa: E402
from reroll.testing.naive_buffer import NaiveBuffer, NaivePut  # noqa: E402
from reroll.testing.naive_table import NaiveTable  # noqa: E402
from reroll.testing.selector_suite import SelectorSuite  # noqa: E402
from reroll.testing.strategies import TableConfig  # noqa: E402

__all__ = [
    "BufferSuite",
    "LimiterSuite",
    "ManualClock",
    "NaiveBuffer",
    "NaivePut",
    "NaiveTable",
    "SelectorSuite",
    "TableConfig",
    "VerbSuite",
    "strategies",
]
