"""SelectorSuite: what every selector holds to, as sampler and as remover."""

import random
from collections.abc import Mapping
from copy import copy

import numpy as np
import pytest

from reroll.engine.rows import NO_VERSION, Columns
from reroll.engine.selectors.selector import Picks, Role, Selector, SelectorSpec
from reroll.engine.selectors.specs import selector_spec
from reroll.errors import WouldBlock

_SEEDS = pytest.mark.parametrize("seed", range(3))


class _World:
    """Real columns with a live selector, and the list of slots it should hold; all chance comes from one seed."""

    def __init__(
        self, spec: SelectorSpec, seed: int, role: Role = "sampler", columns: Columns | None = None
    ) -> None:
        self.spec = spec
        self.dice = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.columns = Columns() if columns is None else columns
        self.selector: Selector = spec.build(self.columns, role)
        self.role: Role = role
        self.held: list[int] = []
        self.step: int | None = None
        self.ticks = 0

    def add(self, count: int) -> None:
        slots = [self.columns.allocate(self._values()) for _ in range(count)]
        self.selector.add(np.array(slots, np.int64))
        self.held += slots

    def remove(self, count: int) -> list[int]:
        """Let random rows go and free their slots; return their uids."""
        slots = self.dice.sample(self.held, min(count, len(self.held)))
        uids: list[int] = self.columns.uid[slots].tolist()
        self.selector.remove(np.array(slots, np.int64))
        self.columns.release(np.array(slots, np.int64))
        gone = set(slots)
        self.held = [slot for slot in self.held if slot not in gone]
        return uids

    def change(self, count: int) -> None:
        """Change what may change of rows that are held: priority, touched, uses, staleness."""
        slots = self.dice.sample(self.held, min(count, len(self.held)))
        for slot in slots:
            self.ticks += 1
            self.columns.touched[slot] = self.ticks
            self.columns.priority[slot] = self._priority()
            self.columns.uses[slot] += self.dice.choice((0, 1))
            self.columns.staleness[slot] = self.dice.randint(-1, 5)
        self.selector.touch(np.array(slots, np.int64))

    def advance(self) -> None:
        self.step = (self.step or 0) + self.dice.randint(1, 3)

    def walk(self, steps: int, largest: int = 20) -> None:
        """Add, remove, change, advance and pick at random."""
        for _ in range(steps):
            count = self.dice.randint(1, largest)
            match self.dice.choice(("add", "add", "remove", "change", "advance", "pick")):
                case "add":
                    self.add(count)
                case "remove":
                    self.remove(count)
                case "change":
                    self.change(count)
                case "advance":
                    self.advance()
                case _:
                    self.pick(count)

    def pick(self, n: int, *, replace: bool = False) -> Picks | None:
        """Pick; None: the selector would wait, as it said before."""
        can = self.selector.can_pick(n, self.rng)
        try:
            return self.selector.pick(n, self.rng, step=self.step, replace=replace)
        except WouldBlock:
            assert not can, f"can_pick({n}) promised what pick does not give"
            return None

    def picked_uids(self, n: int) -> list[int] | None:
        picks = self.pick(n)
        return None if picks is None else self.columns.uid[picks.slots].tolist()

    def pick_all(self) -> list[int]:
        """Return the slots of all that is held, as picked."""
        picks = self.pick(len(self.held))
        return [] if picks is None else picks.slots.tolist()

    def rows(self) -> dict[int, dict[str, float]]:
        """Return the columns of all that is held, by slot."""
        columns = self.columns.rows(np.array(self.held, np.int64))
        values = {name: column.tolist() for name, column in columns.items() if isinstance(column, np.ndarray)}
        rows = (dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True))
        return dict(zip(self.held, rows, strict=True))

    def restored(self) -> "_World":
        """Return a world with rows without gaps and a fresh selector, as after a save; this one's chances go on."""
        other = copy(self)
        alive = self.columns.alive()
        row_of = np.full(int(alive.max(initial=0)) + 1, -1, np.int64)
        row_of[alive] = np.arange(len(alive))
        other.columns = Columns()
        other.columns.restore(self.columns.rows(alive))
        other.selector = self.spec.build(other.columns, self.role)
        other.selector.restore(self.selector.state(), row_of[np.array(self.held, np.int64)])
        other.held = row_of[self.held].tolist()
        other.dice = random.Random()
        other.dice.setstate(self.dice.getstate())
        other.rng = np.random.default_rng()
        other.rng.bit_generator.state = self.rng.bit_generator.state
        return other

    def _values(self) -> dict[str, float]:
        self.ticks += 1
        known = self.dice.random() < 0.7
        return {
            "uid": self.ticks,
            "timestamp": self.ticks,
            "touched": self.ticks,
            "version": (self.step or 3) - self.dice.randint(0, 6) if known else NO_VERSION,
            "staleness": self.dice.randint(-1, 5),
            "priority": self._priority(),
            "uses": self.dice.choice((0, 0, 1, 2)),
            "num_tokens": self.dice.randint(1, 9),
        }

    def _priority(self) -> float:
        return self.dice.choice((0.0, 1.0, 1.0, 2.0, self.dice.random()))


class SelectorSuite:
    """Subclass as `class TestMine(SelectorSuite): spec = Mine()`; pytest runs the rest.

    A selector that leaves nothing to chance defines `sort_key` as well, and its order is compared with it.
    """

    spec: SelectorSpec

    def sort_key(self, row: Mapping[str, float], step: int | None) -> tuple[float, ...] | None:  # noqa: ARG002
        """Return what rows are sorted by, from their columns and the task's step; None: chance decides."""
        return None

    def test_is_a_selector(self) -> None:
        assert selector_spec(self.spec) is self.spec
        assert isinstance(self.spec.type, str)
        assert self.spec == copy(self.spec)

    def test_empty_gives_nothing(self) -> None:
        world = _World(self.spec, 0)
        assert len(world.selector) == 0
        for n in (0, 1, 5):
            picks = world.pick(n)
            assert picks is None or len(picks.slots) == 0
        world.add(3)
        world.remove(3)
        assert len(world.selector) == 0
        assert not world.pick_all()

    @_SEEDS
    def test_picks_are_distinct_and_held(self, seed: int) -> None:
        world = _World(self.spec, seed)
        for _ in range(30):
            world.walk(5)
            n = world.dice.randint(0, len(world.held) + 5)
            picks = world.pick(n)
            if picks is not None:
                slots = picks.slots.tolist()
                assert len(set(slots)) == len(slots)
                assert len(slots) == min(n, len(world.held))
                assert set(slots) <= set(world.held)

    @_SEEDS
    def test_all_are_picked_when_all_are_asked_for(self, seed: int) -> None:
        world = _World(self.spec, seed)
        world.walk(60)
        assert sorted(world.selector.slots().tolist()) == sorted(world.held)
        if world.selector.can_pick(len(world.held), world.rng):
            assert sorted(world.pick_all()) == sorted(world.held)

    @_SEEDS
    def test_picking_changes_nothing(self, seed: int) -> None:
        world = _World(self.spec, seed)
        world.walk(60)
        before = world.columns.rows(world.columns.alive())
        size = len(world.selector)
        for n in (1, 3, size, size + 1):
            world.pick(n)
            assert len(world.selector) == size == len(world.held)
        after = world.columns.rows(world.columns.alive())
        for name, column in before.items():
            np.testing.assert_array_equal(column, after[name], err_msg=name)

    @_SEEDS
    def test_removed_rows_never_come_back(self, seed: int) -> None:
        world = _World(self.spec, seed)
        world.add(100)
        gone: set[int] = set()
        while world.held:
            gone.update(world.remove(7))
            assert len(world.selector) == len(world.held)
            world.change(5)
            for n in (1, len(world.held)):
                assert not gone & set(world.picked_uids(n) or [])

    @_SEEDS
    def test_can_pick_tells_the_truth(self, seed: int) -> None:
        world = _World(self.spec, seed)
        for _ in range(40):
            world.walk(4, largest=5)
            n = world.dice.randint(0, len(world.held) + 3)
            can = world.selector.can_pick(n, world.rng)
            picks = world.pick(n)
            assert can == (picks is not None and len(picks.slots) == n)

    @_SEEDS
    def test_same_seed_and_calls_give_the_same_picks(self, seed: int) -> None:
        one, other = _World(self.spec, seed), _World(self.spec, seed)
        for _ in range(20):
            one.walk(5)
            other.walk(5)
            assert one.picked_uids(10) == other.picked_uids(10)

    @_SEEDS
    def test_restored_goes_on_with_the_same_picks(self, seed: int) -> None:
        world = _World(self.spec, seed)
        for steps in (0, 3, 60):
            world.walk(steps)
            other = world.restored()
            assert len(other.selector) == len(world.selector)
            for _ in range(15):
                mine, its = world.pick(8), other.pick(8)
                assert (mine is None) == (its is None)
                if mine is not None and its is not None:
                    np.testing.assert_array_equal(world.columns.uid[mine.slots], other.columns.uid[its.slots])
                    np.testing.assert_array_equal(mine.probability, its.probability)
                    np.testing.assert_array_equal(mine.weights(), its.weights())
                world.walk(2, largest=5)
                other.walk(2, largest=5)

    def test_survives_thousands_of_changes(self) -> None:
        world = _World(self.spec, 9)
        for _ in range(15):
            world.add(400)
            world.change(50)
            world.advance()
            world.remove(world.dice.randint(300, 500))
        assert len(world.selector) == len(world.held)
        assert len(world.columns) == len(world.held)  # slots were used again
        if world.selector.can_pick(len(world.held), world.rng):
            assert sorted(world.pick_all()) == sorted(world.held)
        world.remove(len(world.held))
        assert len(world.selector) == 0

    @_SEEDS
    def test_probabilities_and_weights_make_sense(self, seed: int) -> None:
        world = _World(self.spec, seed)
        for _ in range(30):
            world.walk(5)
            picks = world.pick(world.dice.randint(1, 10))
            if picks is None or not len(picks.slots):
                continue
            weights = picks.weights()
            assert len(picks.slots) == len(picks.probability) == len(weights)
            assert (picks.probability >= 0).all()
            assert (picks.probability <= 1).all()
            assert (weights > 0).all()
            assert weights.max() == 1

    @_SEEDS
    def test_order_is_that_of_the_sort_key(self, seed: int) -> None:
        if self.sort_key(_example_row(), None) is None:
            pytest.skip("chance decides")
        world = _World(self.spec, seed)
        for _ in range(30):
            world.walk(5)
            key_of = {slot: self.sort_key(row, world.step) or () for slot, row in world.rows().items()}
            expected = sorted(key_of, key=lambda slot: key_of[slot])
            assert world.pick_all() == expected
            picks = world.pick(3)
            assert picks is not None
            assert picks.slots.tolist() == expected[:3]
            assert (picks.probability == 1).all()

    @_SEEDS
    def test_selectors_over_the_same_columns_leave_each_other_alone(self, seed: int) -> None:
        columns = Columns()
        one = _World(self.spec, seed, columns=columns)
        other = _World(self.spec, seed + 100, columns=columns)
        alone = _World(self.spec, seed)
        for _ in range(20):
            one.walk(3)
            other.walk(3)
            alone.walk(3)
            both = zip(one.pick_all(), alone.pick_all(), strict=True)
            assert all(columns.timestamp[slot] == alone.columns.timestamp[its] for slot, its in both)
        assert not set(one.held) & set(other.held)

    @_SEEDS
    def test_serves_as_sampler_and_remover_of_the_same_rows(self, seed: int) -> None:
        world = _World(self.spec, seed)
        remover = self.spec.build(world.columns, "remover")
        for _ in range(20):
            world.add(5)
            remover.add(np.array(world.held[-5:], np.int64))
            if not remover.can_pick(2, world.rng):
                continue
            victims = remover.pick(2, world.rng, step=world.step).slots
            remover.remove(victims)
            world.selector.remove(victims)
            world.held = [slot for slot in world.held if slot not in victims.tolist()]
            world.columns.release(victims)
            world.advance()
            assert len(remover) == len(world.selector) == len(world.held)
            if world.selector.can_pick(len(world.held), world.rng):
                assert sorted(world.pick_all()) == sorted(world.held)


def _example_row() -> dict[str, float]:
    world = _World(selector_spec("fifo"), 0)
    world.add(1)
    return world.rows()[0]
