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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import render
import results
from environment_cost import measure_footprint
from environments import ENVIRONMENTS, CannotInstallError, Environment, installed
from matrix import CONTENDERS, FOOTPRINT, SECTIONS, Section
from turns import Turns
from workers import Worker


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
    start, load = perf_counter(), os.getloadavg()[0]

    def say(words: str) -> None:
        print(f"{perf_counter() - start:6.0f} s  {words}", flush=True)

    wanted = [section for section in (*SECTIONS, FOOTPRINT) if only is None or section.id[0] in only]
    if not wanted:
        raise SystemExit("no such section; there are: a to i")
    names = {name for section in wanted for name in _environments(section)}
    found, missing = _install([name for name in ENVIRONMENTS if name in names], say)
    for section in wanted:
        say(f"{section.id}: {section.title}")
        if section is FOOTPRINT:
            contenders, cells = measure_footprint(
                section, found, missing, rounds=section.quick_rounds if is_quick else section.rounds
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
    """Install two at a time: half of it is waiting."""
    found, missing = {}, {}

    def install(name: str) -> None:
        try:
            installed(ENVIRONMENTS[name], say)
            found[name] = ENVIRONMENTS[name]
        except CannotInstallError as error:
            missing[name] = f"cannot be installed: {error}"
            say(f"{name} {missing[name]}")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(install, names))
    return found, missing


def _measure(
    section: Section,
    found: dict[str, Environment],
    missing: dict[str, str],
    say: Callable[[str], None],
    *,
    is_quick: bool,
) -> tuple[dict[str, Any], list[results.Cell]]:
    turns = Turns(section, found, missing, say, section.quick_rounds if is_quick else section.rounds)
    try:
        for setting in section.quick if is_quick else section.settings:
            turns.take(setting)
    finally:
        turns.end()
    return turns.about, turns.cells


if __name__ == "__main__":
    sys.exit(main())
