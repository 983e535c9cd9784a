"""reroll and what one would pick instead, on the same work, in one run. `make bench-peers` runs this.

    python benchmarks/side_by_side/run.py               all of it, within 40 minutes on 2 cores, installing included
    python benchmarks/side_by_side/run.py --quick       smaller sizes, fewer rounds, some minutes
    python benchmarks/side_by_side/run.py --only a,c    some sections
    python benchmarks/side_by_side/run.py --render      docs/benchmarks.md and its pictures from the results that are there

Each contender is a process of its own environment, and stays alive while the contenders of a section take turns, forwards
and backwards. One that cannot be installed, fails or hangs leaves cells that say so.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import render
import results
from environment_cost import measure_footprint
from environments import ENVIRONMENTS, CannotInstallError, Environment, installed
from matrix import CONTENDERS, FOOTPRINT, SECTIONS, Section, Setting
from workers import CannotError, NoFigureError, Worker

ANSWER_S = 300.0
AT_ONCE = 2
"""Contenders that prepare at the same time."""


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    if not options.render:
        measure(options.only, is_quick=options.quick)
    written = render.write()
    print(f"{written}, from {results.FOLDER}")
    return 0


def _leave(number: int, _: object) -> None:
    Worker.kill_all()
    os._exit(128 + number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure reroll beside its peers.")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    parser.add_argument("--only", type=lambda letters: set(letters.split(",")), help="sections, such as a,c")
    parser.add_argument(
        "--render", action="store_true", help="measure nothing, write the tables and pictures"
    )
    return parser.parse_args()


def measure(only: set[str] | None, *, is_quick: bool) -> None:
    """Install what can be had, and write the results of each section."""
    start = perf_counter()

    def say(words: str) -> None:
        print(f"{perf_counter() - start:6.0f} s  {words}", flush=True)

    wanted = [section for section in (*SECTIONS, FOOTPRINT) if only is None or section.id[0] in only]
    if not wanted:
        raise SystemExit("no such section; there are: a to i")
    names = {name for section in wanted for name in _environments(section)}
    found, missing = _install([name for name in ENVIRONMENTS if name in names], say)
    for section in wanted:
        say(f"{section.id}: {section.title}")
        load = os.getloadavg()[0]
        if section is FOOTPRINT:
            contenders, cells = measure_footprint(
                section, found, missing, rounds=1 if is_quick else section.rounds
            )
        else:
            contenders, cells = _measure(section, found, missing, say, is_quick=is_quick)
        results.write(section, contenders, cells, load=load, is_quick=is_quick)
    say("measured")


def _environments(section: Section) -> Sequence[str]:
    if section is FOOTPRINT:
        return section.contenders
    return [CONTENDERS[name].environment for name in section.contenders]


def _install(
    names: Sequence[str], say: Callable[[str], None]
) -> tuple[dict[str, Environment], dict[str, str]]:
    found, missing = {}, {}
    for name in names:
        try:
            installed(ENVIRONMENTS[name], say)
            found[name] = ENVIRONMENTS[name]
        except CannotInstallError as error:
            missing[name] = f"cannot be installed: {error}"
            say(f"{name} {missing[name]}")
    return found, missing


def _measure(
    section: Section,
    found: dict[str, Environment],
    missing: dict[str, str],
    say: Callable[[str], None],
    *,
    is_quick: bool,
) -> tuple[dict[str, Any], list[results.Cell]]:
    turns = Turns(section, found, missing, say, 3 if is_quick else section.rounds)
    try:
        for setting in section.quick if is_quick else section.settings:
            turns.take(setting)
    finally:
        turns.end()
    return turns.about, turns.cells


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
        self._workers: dict[str, Worker] = {}
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
            self._workers[name] = Worker(name, self._found[environment], ANSWER_S)
        return self._workers[name]

    def _fail(self, name: str, setting: Setting, error: NoFigureError) -> None:
        self._say(
            f"  {setting.title}: {name} {'cannot' if isinstance(error, CannotError) else 'failed'}: {error}"
        )
        self.cells += results.unmeasured(self._section, setting, name, error)
        if not isinstance(error, CannotError):
            self._drop(name)

    def _drop(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.kill()


if __name__ == "__main__":
    sys.exit(main())
