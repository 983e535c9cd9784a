"""BufferSuite: what everything with the verbs of ReplayBuffer holds to, in process or far away.

Only what is returned is looked at, never whether it is the same object, and never the rollouts that were put. The tests
are coroutines: run them with pytest-asyncio in auto mode.
"""

from reroll.testing.buffer.bounds import BoundSuite, LeaseBoundSuite
from reroll.testing.buffer.cancelling import CancellationSuite
from reroll.testing.buffer.columns import ColumnSuite, LeaseColumnSuite
from reroll.testing.buffer.drops import DropSuite
from reroll.testing.buffer.hand_out import HandOutSuite
from reroll.testing.buffer.intervals import IntervalSuite
from reroll.testing.buffer.limits import LimitSuite
from reroll.testing.buffer.look_and_change import LookAndChangeSuite
from reroll.testing.buffer.many_puts import ManyPutsSuite, ManyPutsWaitingSuite
from reroll.testing.buffer.puts import PutSuite
from reroll.testing.buffer.rolled_again import RolledAgainSuite, RolledUnderLeaseSuite
from reroll.testing.buffer.samplers import SamplerSuite
from reroll.testing.buffer.shared import SharedSuite
from reroll.testing.buffer.versions import VersionSuite
from reroll.testing.buffer.waiting import WaitingSuite


class VerbSuite(
    PutSuite,
    ManyPutsSuite,
    ColumnSuite,
    HandOutSuite,
    LimitSuite,
    BoundSuite,
    LookAndChangeSuite,
    SamplerSuite,
    DropSuite,
    RolledAgainSuite,
    VersionSuite,
    IntervalSuite,
    SharedSuite,
):
    """One call at a time. Subclass as `class TestMine(VerbSuite)` with `make`; pytest runs the rest."""


class BufferSuite(
    VerbSuite,
    ManyPutsWaitingSuite,
    LeaseColumnSuite,
    LeaseBoundSuite,
    WaitingSuite,
    CancellationSuite,
    RolledUnderLeaseSuite,
):
    """Calls that overlap, besides: waiting, order, cancellation, leases."""
