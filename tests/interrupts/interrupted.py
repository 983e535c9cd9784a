"""A program whose main thread is interrupted at seeded moments, and which then compares the groups with its notes.

Arguments: kind (memory, durable, client, table), seed, number of interrupts, directory or address.
"""

import contextlib
import faulthandler
import json
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

from durable_errors.samples import TASK, config, group, numbers
from reroll import Table, WaitTimeout, connect_blocking
from reroll.engine.ledger import closes

CAPACITY = 12


class Interrupter:
    """Raises KeyboardInterrupt in a call, after a moment that is drawn anew each time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0
        self._is_armed = False
        signal.signal(signal.SIGALRM, self._handle)

    def _handle(self, *_: Any) -> None:
        if self._is_armed:
            self._is_armed = False
            self.count += 1
            raise KeyboardInterrupt

    def during(self, call: Callable[[], Any]) -> Any:
        """Make a call that is interrupted, if it takes that long."""
        longest = self.random.choice([30e-6, 200e-6, 1e-3, 5e-3])
        try:
            self._is_armed = True
            signal.setitimer(signal.ITIMER_REAL, 1e-6 + longest * self.random.random())
            return call()
        finally:
            self._is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)


class Program:
    """Puts, leases, takes and saves until it was interrupted often enough."""

    def __init__(self, kind: str, seed: int, interrupts: int, where: str) -> None:
        self.kind, self.where, self.interrupts = kind, where, interrupts
        self.interrupter = Interrupter(seed)
        self.random = self.interrupter.random
        self.last = 0
        self.put: set[int] = set()
        self.consumed: list[int] = []
        self.maybe_consumed: set[int] = set()  # the call that consumes them was interrupted
        self.unseen = 0  # groups that an interrupted take may have consumed

    def opened(self) -> Any:
        if self.kind == "client":
            return connect_blocking(self.where)
        return config(
            store=self.where if self.kind == "durable" else None, capacity=CAPACITY
        ).build_blocking()

    def run(self) -> dict[str, int]:
        buffer = self.opened()
        lives = 0
        while self.interrupter.count < self.interrupts:
            lives += 1
            faulthandler.dump_traceback_later(100, exit=True)  # a call hangs
            for _ in range(60):
                self.step(buffer)
            if self.kind == "memory":
                self.check(buffer)
                continue
            try:
                self.interrupter.during(buffer.close)
            except KeyboardInterrupt:
                buffer.close()
            buffer = self.opened()
            self.check(buffer)
        buffer.close()
        return {"interrupts": self.interrupter.count, "lives": lives, "unseen": self.unseen}

    def step(self, buffer: Any) -> None:
        verb = self.random.choice([self.put_one, self.put_one, self.lease, self.take, self.wait, self.save])
        try:
            verb(buffer)
        except KeyboardInterrupt:
            buffer.count(TASK, "completed")  # works, and does not hang

    def put_one(self, buffer: Any) -> None:
        number = self.last + 1
        try:
            self.interrupter.during(lambda: buffer.put(group(number), TASK, put_id=number, timeout=0.002))
        except WaitTimeout:
            return  # it is full
        except KeyboardInterrupt:
            self.last = number
            try:
                buffer.put(group(number), TASK, put_id=number, timeout=0.002)
            except WaitTimeout:
                return
        self.last = number
        self.put.add(number)

    def lease(self, buffer: Any) -> None:
        def leased() -> None:
            with buffer.lease({TASK: 2}) as batch:
                taken.extend(numbers(batch.groups[TASK]))
                self.maybe_consumed.update(taken)
                batch.ack()

        taken: list[int] = []
        self.interrupter.during(leased)
        self.consumed += taken
        self.maybe_consumed.difference_update(taken)

    def take(self, buffer: Any) -> None:
        try:
            groups, _ = self.interrupter.during(
                lambda: buffer.take_batch({TASK: 1}, wait=True, timeout=0.002)
            )
        except WaitTimeout:
            return
        except KeyboardInterrupt:
            self.unseen += 1
            raise
        self.consumed += numbers(groups[TASK])

    def wait(self, buffer: Any) -> None:
        with contextlib.suppress(WaitTimeout):
            self.interrupter.during(lambda: buffer.take_batch({"another": 1}, wait=True, timeout=0.005))

    def save(self, buffer: Any) -> None:
        if self.kind != "client" and self.random.random() < 0.2:
            self.interrupter.during(lambda: buffer.save(self.where + "-saved"))

    def check(self, buffer: Any) -> None:
        here = numbers(buffer.peek([row.uid for row in buffer.query({})]))
        assert len(set(here)) == len(here), "a group is there twice"
        assert len(set(self.consumed)) == len(self.consumed), "a group was handed out twice"
        assert not set(here) & set(self.consumed), "a consumed group is there"
        missing = self.put - set(here) - set(self.consumed) - self.maybe_consumed
        assert len(missing) <= self.unseen, f"lost: {missing}"
        ledger = buffer.ledger()[TASK]
        assert closes(ledger), ledger
        assert self.kind == "memory" or ledger["leased"].groups == 0, ledger
        self.put &= set(here)  # the others are accounted for


class TableProgram(Program):
    """Inserts into a table and samples from it."""

    def opened(self) -> Any:
        return Table.queue(CAPACITY)

    def run(self) -> dict[str, int]:
        table = self.opened()
        while self.interrupter.count < self.interrupts:
            faulthandler.dump_traceback_later(100, exit=True)
            for _ in range(60):
                try:
                    self.random.choice([self.insert, self.sample])(table)
                except KeyboardInterrupt:
                    len(table)
            info = table.info
            assert closes(info.ledger), info
            assert len(table.keys()) == len(table) == info.size == info.inserts - info.deletes
            assert info.waiting_inserts == info.waiting_samples == 0
            assert len(set(self.consumed)) == len(self.consumed)
            missing = self.put - set(table.keys()) - set(self.consumed)
            assert len(missing) <= self.unseen, missing
        table.shutdown()
        return {"interrupts": self.interrupter.count, "unseen": self.unseen}

    def insert(self, table: Any) -> None:
        self.last += 1
        number = self.last
        try:
            self.interrupter.during(lambda: table.insert(number, number, timeout=0.002))
        except WaitTimeout:
            return
        self.put.add(number)

    def sample(self, table: Any) -> None:
        try:
            self.consumed += self.interrupter.during(lambda: table.sample(1, timeout=0.002))
        except WaitTimeout:
            pass
        except KeyboardInterrupt:
            self.unseen += 1
            raise


if __name__ == "__main__":
    kind, seed, interrupts, where = sys.argv[1:]
    program = (TableProgram if kind == "table" else Program)(kind, int(seed), int(interrupts), where)
    sys.stdout.write(json.dumps(program.run()))
