"""All operations of a table against the naive model, with saves and restores in the middle."""

import os
import warnings
from unittest.mock import patch

import pytest
from hypothesis import assume, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reroll import Prioritized, Table, Uniform, WaitTimeout
from reroll.testing import strategies as its
from table.threads import ledger_closes

KEYS = st.integers(0, 9)


class TableAgainstNaive(RuleBasedStateMachine):
    """Several real tables do the same, and must give the same: compiled, without numba, and restored from a save."""

    @initialize(config=its.table_configs())
    def start(self, config):
        self.config = config
        self.model = config.build_naive()
        self.data = 0
        self.tables = [config.build()]
        with patch.dict(os.environ, REROLL_NO_NUMBA="1"):
            self.tables.append(config.build())

    def all_do(self, act):
        """Let every table act; return what they agree on, or the error that all raised."""
        results = []
        for table in self.tables:
            try:
                results.append(act(table))
            except WaitTimeout:
                results.append(WaitTimeout)
        assert all(result == results[0] for result in results), results
        return results[0]

    @rule(key=KEYS, priority=its.priorities())
    def insert(self, key, priority):
        self.data += 1
        before = self.model.keys()
        passes = key in before or self.model.can_insert(1)
        done = self.all_do(lambda table: table.insert(key, self.data, priority, timeout=0))
        assert (done is None) == passes
        if passes:
            victims = [one for one in dict.fromkeys([*before, key]) if one not in self.tables[0]]
            assert len(victims) <= 1
            self.model.insert(key, self.data, priority, victims[0] if victims else None)

    @rule(n=st.integers(1, 8))
    def sample(self, n):
        assume(min(n, self.config.max_size) <= self.model_window().largest_sample)
        passes = self.model.can_sample(n)
        assert self.tables[0].can_sample(n) == passes
        samples = self.all_do(lambda table: table.sample_items(n, timeout=0))
        assert (samples is not WaitTimeout) == passes
        if not passes:
            return
        by_chance = isinstance(self.config.sampler, Uniform | Prioritized)
        expected = self.model.sample(n, [s.info.key for s in samples] if by_chance else None)
        assert len(samples) == len(expected)
        for sample, right in zip(samples, expected, strict=True):
            note(f"{sample} {right}")
            info = sample.info
            assert (info.key, sample.data, info.priority) == right[:3]
            assert info.probability == pytest.approx(right.probability, rel=1e-9)
            assert info.weight == pytest.approx(right.weight, rel=1e-6)
            assert (info.times_sampled, info.table_size) == right[5:]

    @rule(n=st.integers(1, 8))
    def plain_sample(self, n):
        """`sample` gives what `sample_items` gives: a table restored from the same state tells."""
        assume(min(n, self.config.max_size) <= self.model_window().largest_sample)
        assume(self.model.can_sample(n))
        one, other = (self.restored(self.tables[0]) for _ in range(2))
        assert one.sample(n) == [sample.data for sample in other.sample_items(n)]

    @rule(priorities=st.dictionaries(KEYS, its.priorities(), max_size=5))
    def update_priorities(self, priorities):
        unknown = self.all_do(lambda table: table.update_priorities(priorities))
        assert unknown == self.model.update_priorities(priorities)

    @rule(keys=st.lists(KEYS, max_size=3))
    def delete(self, keys):
        assert self.all_do(lambda table: table.delete(keys)) == self.model.delete(keys)

    @rule(bad=its.bad_priorities(), key=KEYS)
    def bad_priority(self, bad, key):
        for table in self.tables:
            with pytest.raises(ValueError):
                table.insert(key, None, bad, timeout=0)
            with pytest.raises(ValueError):
                table.update_priorities({0: 1.0, key: bad})

    @precondition(lambda self: len(self.model.items) > 2)
    @rule()
    def reset(self):
        self.all_do(lambda table: table.reset())
        self.model.reset()

    @rule(limiter=its.limiters())
    def change_limiter(self, limiter):
        changed = its.TableConfig(**{**vars(self.config), "rate_limiter": limiter})
        assume(changed.proceeds)
        self.config = changed
        self.model.rate_limiter = limiter
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for table in self.tables:
                table.rate_limiter = limiter

    @precondition(lambda self: len(self.tables) < 4)
    @rule(compiled=st.booleans())
    def save_and_restore(self, compiled):
        """From here on, one more table takes part, made from the state of the first, with another seed."""
        with patch.dict(os.environ, {} if compiled else {"REROLL_NO_NUMBA": "1"}):
            self.tables.append(self.restored(self.tables[0]))

    @precondition(lambda self: len(self.tables) > 2)
    @rule()
    def go_on_with_the_restored(self):
        self.tables = self.tables[-2:]

    @invariant()
    def looks_the_same(self):
        if not hasattr(self, "model"):
            return
        model, info = self.model, self.all_do(lambda table: table.info)
        assert self.all_do(Table.keys) == model.keys()
        assert info.size == self.all_do(len) == len(model.items) <= info.max_size
        assert (info.inserts, info.samples, info.deletes) == (model.inserts, model.samples, model.deletes)
        assert [self.tables[0].can_insert(k) for k in (1, 2)] == [model.can_insert(k) for k in (1, 2)]
        books = {name: (amount.groups, amount.trained_groups) for name, amount in info.ledger.items()}
        assert {name: amount for name, amount in books.items() if name in model.ledger()} == model.ledger()
        assert ledger_closes(self.tables[0])

    def restored(self, table):
        other = its.TableConfig(**{**vars(self.config), "seed": self.config.seed + 1}).build()
        other.insert("something else", None, timeout=0)
        other.restore(table.state())
        return other

    def model_window(self):
        return self.config.rate_limiter.window


TestTableAgainstNaive = TableAgainstNaive.TestCase
