"""The contenders of a section, measured in turn; whoever fails or hangs leaves cells that say so, and the others go on."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter

import results
from environments import Environment
from matrix import CONTENDERS, Section, Setting
from workers import CannotError, HangsError, NoFigureError, Worker

ANSWER_S = 240.0
AT_ONCE = 2
"""Contenders that prepare at the same time."""
FEWEST_ROUNDS = 3


class Turns:
    """The contenders of a section, alive, who are measured in turn."""

    def __init__(
        self,
        section: Section,
        found: dict[str, Environment],
        missing: dict[str, str],
        say: Callable[[str], None],
        rounds: int,
    ) -> None:
        self._section, self._found, self._missing, self._say = section, found, missing, say
        self._rounds = rounds
        self._last_start = perf_counter() + section.budget_s
        self._workers: dict[str, Worker] = {}
        self._hung: dict[str, HangsError] = {}
        self.about: dict[str, dict[str, str]] = {}
        """Version of each contender, and how it is measured."""
        self.cells: list[results.Cell] = []

    def take(self, setting: Setting) -> None:
        """Measure one setting."""
        taken: dict[str, list[dict[str, float]]] = {}
        with self._opened(setting) as ready:
            for name in ready:
                taken[name] = []
            for number in range(self._rounds):
                if number >= FEWEST_ROUNDS and perf_counter() > self._last_start:
                    break
                for name in list(ready)[:: -1 if number % 2 else 1]:
                    self._once(name, setting, ready, taken[name])
                    if self._section.is_fresh and number + 1 < self._rounds:
                        self._renew(name, setting, ready)
        for name, rounds in taken.items():
            if name in ready:
                self._say(f"  {setting.title}: {name}")
                self.cells += results.measured(self._section, setting, name, rounds)

    def end(self) -> None:
        for worker in self._workers.values():
            worker.end()

    def _once(
        self, name: str, setting: Setting, ready: dict[str, Worker], into: list[dict[str, float]]
    ) -> None:
        if name not in ready:
            return
        try:
            into.append(ready[name].run())
        except NoFigureError as error:
            del ready[name]
            self._fail(name, setting, error)

    def _renew(self, name: str, setting: Setting, ready: dict[str, Worker]) -> None:
        """Let a contender start from nothing: what is kept from this round is not there in the next."""
        if name in ready:
            self._drop(name)
            worker = self._open(name, setting)
            if worker is None:
                del ready[name]
            else:
                ready[name] = worker

    @contextmanager
    def _opened(self, setting: Setting) -> Iterator[dict[str, Worker]]:
        """Let all prepare; those that can are yielded."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            opened = pool.map(lambda name: (name, self._open(name, setting)), self._section.contenders)
            ready = {name: worker for name, worker in opened if worker is not None}
        yield ready
        for name, worker in list(ready.items()):
            try:
                worker.close()
            except NoFigureError:
                self._drop(name)

    def _open(self, name: str, setting: Setting) -> Worker | None:
        try:
            worker = self._worker(name)
            how = worker.open(self._section.cell, dict(setting.values))
        except NoFigureError as error:
            self._fail(name, setting, error)
            return None
        self.about[name] = {"version": worker.version, "how": how}
        return worker

    def _worker(self, name: str) -> Worker:
        if name not in self._workers:
            environment = CONTENDERS[name].environment
            if environment in self._missing:
                raise NoFigureError(self._missing[environment])
            if name in self._hung:  # who hangs once in a section is not waited for again
                raise self._hung[name]
            self._workers[name] = Worker(name, self._found[environment], ANSWER_S)
        return self._workers[name]

    def _fail(self, name: str, setting: Setting, error: NoFigureError) -> None:
        self._say(
            f"  {setting.title}: {name} {'cannot' if isinstance(error, CannotError) else 'failed'}: {error}"
        )
        self.cells += results.unmeasured(self._section, setting, name, error)
        if isinstance(error, HangsError):
            self._hung[name] = error
        if not isinstance(error, CannotError):
            self._drop(name)

    def _drop(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.kill()
