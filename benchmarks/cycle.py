"""The prioritized cycle: sample 256 and update their 256 priorities, at several sizes, beside other libraries.

At the level of the selector arrays go in and out, as in the peers; the Table adds keys, payloads, lock, limiter,
use counts and ledger. We draw distinct rows; the peers draw with replacement.
"""

import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from filling import filled_selector, filled_table
from measure import Case, Timing, interleave, per_operation
from reroll import Prioritized

BATCH, ALPHA, BETA = 256, 0.6, 0.4
HEAVY_SHARE = 0.99

NUMBA, NUMPY, TABLE = "reroll selector, numba", "reroll selector, numpy", "reroll Table"
HOW_TO_INSTALL = (
    "cpprb and torchrl are measured too if an interpreter has them: python3 -m venv PEERS && PEERS/bin/pip install "
    "cpprb torch==2.14.1 torchrl==0.14.1 (torchrl runs only with the torch it was built with), then "
    "--peers-python PEERS/bin/python"
)


class Measured(NamedTuple):
    """One contender at one size."""

    contender: str
    rows: int


def has_numba() -> bool:
    """Whether the `fast` extra is installed."""
    return find_spec("numba") is not None


class Peers:
    """The peers' process; see peers.py for what is said."""

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("peers.py")
        self._process = subprocess.Popen(
            [python, "-W", "ignore", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        hello = self._answer()
        self.versions: dict[str, str] = hello["peers"]
        self.missing: dict[str, str] = hello["missing"]

    def cases(self, rows: int, cycles: int) -> dict[Measured, Case]:
        """Fill every peer with so many rows."""
        levels = [level for peer in self.versions for level in self.ask(open=peer, rows=rows)["levels"]]
        return {Measured(level, rows): self._case(level, rows, cycles) for level in levels}

    def _case(self, level: str, rows: int, cycles: int) -> Case:
        return lambda: self.ask(run=level, rows=rows, cycles=cycles)["seconds"]

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for the answer."""
        assert self._process.stdin is not None  # noqa: S101
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peers' process ended with code {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def measure_cycles(
    sizes: Sequence[int], rounds: int, cycles: int, peers_python: str | None
) -> tuple[dict[Measured, Timing], dict[str, str], list[str]]:
    """Time all contenders in turn; return the timings, the versions of the peers, and what has to be said."""
    notes = [] if has_numba() else ["numba is missing: pip install reroll[fast]"]
    peers = Peers(peers_python or sys.executable)
    notes += [f"{name} was not measured: {why}"[:160] for name, why in peers.missing.items()]
    notes += [HOW_TO_INSTALL] if peers.missing else []
    results: dict[Measured, Timing] = {}
    try:
        for rows in sizes:
            cases: dict[Measured, Case] = {}
            if has_numba():
                cases[Measured(NUMBA, rows)] = selector_case(rows, cycles, numba=True)
            cases[Measured(NUMPY, rows)] = selector_case(rows, cycles, numba=False)
            cases |= peers.cases(rows, cycles)
            cases[Measured(TABLE, rows)] = table_case(rows, 1)
            results |= interleave(cases, rounds)
            peers.ask(close=rows)
            del cases
            gc.collect()
    finally:
        peers.close()
    return results, peers.versions, notes


def measure_heavy(sizes: Sequence[int], rounds: int, picks: int) -> dict[Measured, tuple[Timing, Timing]]:
    """Time 256 distinct picks from even weights, and with one row that holds 99 % of the mass."""
    results: dict[Measured, tuple[Timing, Timing]] = {}
    for rows in sizes:
        cases: dict[tuple[str, bool], Case] = {}
        for numba in (True, False) if has_numba() else (False,):
            for heavy in (False, True):
                cases[NUMBA if numba else NUMPY, heavy] = _pick_case(rows, picks, numba=numba, heavy=heavy)
        timings = interleave(cases, rounds)
        for contender in dict.fromkeys(name for name, _ in cases):
            results[Measured(contender, rows)] = timings[contender, False], timings[contender, True]
    return results


def selector_case(rows: int, cycles: int, *, numba: bool) -> Case:
    columns, selector = filled_selector(Prioritized(alpha=ALPHA, beta=BETA), rows, numba=numba)
    rng = np.random.default_rng(0)
    new = rng.random(BATCH) + 0.01

    def cycle() -> None:
        picks = selector.pick(BATCH, rng)
        picks.weights()  # the peers compute them too
        columns.priority[picks.slots] = new
        selector.touch(picks.slots)

    return lambda: per_operation(cycle, cycles)


def table_case(rows: int, cycles: int) -> Case:
    table = filled_table(rows, Prioritized(alpha=ALPHA, beta=BETA))
    new = (np.random.default_rng(0).random(BATCH) + 0.01).tolist()

    def cycle() -> None:
        samples = table.sample_items(BATCH) or []
        table.update_priorities(
            {sample.info.key: priority for sample, priority in zip(samples, new, strict=False)}
        )

    return lambda: per_operation(cycle, cycles)


def _pick_case(rows: int, picks: int, *, numba: bool, heavy: bool) -> Case:
    columns, selector = filled_selector(Prioritized(), rows, numba=numba)
    rng = np.random.default_rng(0)
    if heavy:
        row = np.array([rows // 2])
        others = columns.priority[:rows].sum() - columns.priority[row]
        columns.priority[row] = others * HEAVY_SHARE / (1 - HEAVY_SHARE)
        selector.touch(row)
    return lambda: per_operation(lambda: selector.pick(BATCH, rng), picks)
