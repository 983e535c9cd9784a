"""What is refused really dead-locks, and what is accepted really goes on: both shown by the naive model."""

import random
import warnings

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from reroll import (
    Fifo,
    InvalidConfig,
    LeastUsed,
    MinSize,
    Mixture,
    Prioritized,
    Queue,
    SampleToInsertRatio,
    Stalest,
    Uniform,
    Unlimited,
)
from reroll.engine.limits import check_for_deadlock
from reroll.testing import TableConfig
from reroll.testing import strategies as its

STEPS = 400


class Player:
    """Plays producer and trainer on a naive table, for or against progress."""

    def __init__(self, config, seed=0):
        self.table = config.build_naive()
        self.dice = random.Random(seed)
        self.inserts = self.samples = 0

    @property
    def is_stuck(self):
        return not self.table.can_insert(1) and not self.table.can_sample(1)

    def insert(self):
        self.inserts += 1
        self.table.insert(self.inserts, None)

    def sample(self, n, spread):
        """Sample; where chance decides, the least used (`spread`) or anyone."""
        table = self.table
        n = min(n, len(table.items))
        order = self.dice.sample(table.items, len(table.items))
        if spread:
            order.sort(key=lambda item: item.uses)
        by_chance = isinstance(table.sampler, Uniform | Prioritized)
        table.sample(n, [item.key for item in order[:n]] if by_chance else None)
        self.samples += n

    def play_against(self):
        """Fill the table, then give each item all uses but its last: whoever needs an insert now is stuck."""
        for _ in range(STEPS):
            if self.table.can_insert(1):
                self.insert()
            elif self.table.can_sample(1):
                self.sample(1, spread=True)
            else:
                return

    def play_at_random(self):
        for _ in range(STEPS):
            n = self.dice.randint(1, 4)
            if self.dice.random() < 0.5 and self.table.can_insert(1):
                self.insert()
            elif self.table.items and self.table.can_sample(n):
                self.sample(n, spread=False)
            elif self.table.can_sample(1) and self.table.items:
                self.sample(1, spread=False)
            elif self.table.can_insert(1):
                self.insert()
            else:
                return


# Sample by sample, the least used first, is the worst case; samplers by chance and LeastUsed can meet it.
spreading = st.sampled_from([Uniform(), LeastUsed(), Prioritized()])
# Removers that leave nothing to chance: whom they evict changes no counter.
removers = st.sampled_from([None, None, Fifo(), LeastUsed()])


@st.composite
def configs(draw, samplers):
    return TableConfig(
        max_size=draw(st.integers(1, 5)),
        sampler=draw(samplers),
        remover=draw(removers),
        max_times_sampled=draw(st.none() | st.integers(1, 4)),
        rate_limiter=draw(its.limiters()),
    )


@settings(max_examples=300)
@given(config=configs(spreading))
def test_what_is_refused_dead_locks(config):
    assume(not config.proceeds)
    player = Player(config)
    player.play_against()
    if config.rate_limiter.window.min_size > config.max_size:
        event("nobody can ever sample")
        assert player.samples == 0
    else:
        event("both wait for each other")
        assert player.is_stuck


@settings(max_examples=200)
@given(config=configs(its.certain_selectors() | spreading), seed=st.integers(0, 9))
def test_what_is_accepted_goes_on(config, seed):
    assume(config.proceeds)
    against, at_random = Player(config), Player(config, seed)
    against.play_against()
    at_random.play_at_random()
    for player in (against, at_random):
        assert not player.is_stuck, f"stuck after {player.inserts} inserts and {player.samples} samples"
        if config.remover is None and config.max_times_sampled is None:
            continue  # nothing ever leaves: a warning says so
        assert player.inserts > config.max_size
    assert at_random.samples > 10


@given(remover=removers, limiter=its.limiters(), size=st.integers(1, 5))
def test_fifo_without_a_use_limit_returns_the_same_for_ever(remover, limiter, size):
    config = TableConfig(
        max_size=size, sampler=Fifo(), remover=remover, max_times_sampled=None, rate_limiter=limiter
    )
    assert not config.proceeds
    table = config.build_naive()
    table.rate_limiter = Unlimited()
    for key in range(size):
        table.insert(key, None)
    assert {table.sample(1)[0].key for _ in range(10)} == {0}


def check(**changes):
    check_for_deadlock(
        **{
            "capacity": 4,
            "sampler": Uniform(),
            "remover": None,
            "max_times_sampled": 1,
            "limiter": MinSize(1),
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("changes", "consequence"),
    [
        ({"limiter": MinSize(5)}, "at most 4 fit"),
        ({"sampler": Fifo(), "max_times_sampled": None}, "same items forever"),
        ({"sampler": Stalest(), "max_times_sampled": None}, "same items forever"),
        ({"remover": Mixture(0.5)}, "cannot be a remover"),
        ({"max_times_sampled": 2, "limiter": Queue(3)}, "deadlock"),
        ({"max_times_sampled": None, "limiter": SampleToInsertRatio(5, 1, 10)}, "deadlock"),
        ({"max_times_sampled": 3, "limiter": SampleToInsertRatio(3, 4, (12, 40))}, "deadlock"),
    ],
)
def test_refusals_name_the_consequence(changes, consequence):
    with pytest.raises(InvalidConfig, match=consequence):
        check(**changes)


@pytest.mark.parametrize("uses", [2, None])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_mixture_whose_fresh_part_can_never_fill_again_is_refused(share, uses):
    """Full of groups that were sampled once: samples wait for fresh ones, inserts for room, nobody ever leaves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(InvalidConfig, match="fresh"):
            check(sampler=Mixture(share), max_times_sampled=uses)
        check(sampler=Mixture(share), max_times_sampled=uses, remover=Fifo())
        check(sampler=Mixture(share), max_times_sampled=uses, capacity=None)
        check(sampler=Mixture(share), max_times_sampled=1)
        check(sampler=Mixture(0.0), max_times_sampled=2)


@pytest.mark.parametrize(
    ("changes", "waste"),
    [
        ({"remover": Prioritized()}, "most valuable groups first"),
        ({"remover": Fifo(), "capacity": None}, "never evicts anything"),
        ({"max_times_sampled": None}, "nothing ever leaves"),
        ({"remover": Fifo(), "limiter": SampleToInsertRatio(2, 1, 2)}, "never reached"),
    ],
)
def test_waste_warns(changes, waste):
    with pytest.warns(UserWarning, match=waste):
        check(**changes)


def test_sound_configurations_are_silent():
    check()
    check(sampler=Fifo())
    check(remover=Fifo(), max_times_sampled=None)
    check(limiter=Queue(4))
    check(max_times_sampled=2, limiter=SampleToInsertRatio(2, 1, (-4, 8)))
    check(capacity=None, max_times_sampled=None)
