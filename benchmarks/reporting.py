"""What every benchmark reports besides its tables: versions, claims with PASS or MISS, the load, and JSON."""

import argparse
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from measure import Timing, microseconds, per_operation, print_table


class Claim(NamedTuple):
    """A promise, and what became of it."""

    text: str
    measured: str
    holds: bool | None
    """None: could not be measured in this run."""

    @property
    def verdict(self) -> str:
        return "-" if self.holds is None else "PASS" if self.holds else "MISS"


def versions() -> dict[str, str]:
    """Return what the numbers depend on."""
    found = {"python": platform.python_version(), "cpus": str(os.cpu_count())}
    for name in ("reroll", "numpy", "numba"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def print_title(title: str) -> None:
    print(f"{title}, {', '.join(f'{name} {value}' for name, value in versions().items())}")


def arguments(what: str, json_name: str) -> argparse.ArgumentParser:
    """Return the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a claim is missed")
    default = Path(__file__).parent / "results" / json_name
    parser.add_argument("--json", metavar="PATH", type=Path, default=default, help="where the numbers go")
    return parser


def seconds(timing: Timing) -> dict[str, float]:
    """Return a timing with the unit in its names."""
    return {f"{name}_s": value for name, value in timing._asdict().items()}


def conclude(
    claims: Sequence[Claim], report: Mapping[str, Any], taken_s: float, options: argparse.Namespace
) -> int:
    """Print the claims, write the report, and return the exit code."""
    print_table(
        "Claims", ("claim", "measured", ""), [(claim.text, claim.measured, claim.verdict) for claim in claims]
    )
    pace = microseconds(_pace())
    print(
        f"\nA loop of 10,000 additions takes {pace} us here and now; where it is 250, all calls are as much quicker."
    )
    print(f"{taken_s:.0f} s, load {_load()} on {os.cpu_count()} processors (work of others widens spreads)")
    judged = [claim._asdict() | {"verdict": claim.verdict} for claim in claims]
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({**report, "claims": judged}, indent=1) + "\n")
    print(f"All numbers: {options.json}")
    missed = any(claim.holds is False for claim in claims)
    return 1 if options.check and missed else 0


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def _pace() -> float:
    """How quick Python is here and now, in seconds; claims of milliseconds depend on it."""

    def loop() -> None:
        total = 0
        for number in range(10_000):
            total += number

    return statistics.median(per_operation(loop) for _ in range(101))
