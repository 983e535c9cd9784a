"""How long an import takes, and how much an environment is."""

import subprocess
from collections.abc import Mapping
from typing import Any

import results
from environments import Environment, how_installed, size_bytes
from matrix import Section
from workers import NoFigureError

IMPORTS = {
    "core": "import reroll",
    "reroll": "import reroll",
    "cpprb": "import cpprb",
    "torchrl": "from torchrl.data import ReplayBuffer",
    "reverb": "import reverb",
    "transfer_queue": "import transfer_queue",
}
IMPORT_S = 240
CODE = "from time import perf_counter; start = perf_counter(); {}; print(perf_counter() - start)"


def measure_footprint(
    section: Section, found: Mapping[str, Environment], missing: Mapping[str, str], *, rounds: int
) -> tuple[dict[str, Any], list[results.Cell]]:
    """Import in turn, each time in a fresh process; the first time does not count."""
    setting = section.settings[0]
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in found}
    failed = dict(missing)
    for number in range(rounds + 1):
        for name, environment in found.items():
            if name in failed:
                continue
            try:
                seconds = _import_s(environment, IMPORTS[name])
            except (subprocess.SubprocessError, ValueError) as error:
                failed[name] = str(error)
                continue
            if number:
                taken[name].append({"import": seconds, "disk": size_bytes(environment.packages) / 1e6})
    cells = []
    for name in section.contenders:
        if name in failed:
            cells += results.unmeasured(section, setting, name, NoFigureError(failed[name]))
        elif name in taken:
            cells += results.measured(section, setting, name, taken[name])
    how = {name: f"`{IMPORTS[name]}`. {how_installed(environment)}" for name, environment in found.items()}
    return {name: {"version": "", "how": how[name]} for name in found}, cells


def _import_s(environment: Environment, statement: str) -> float:
    command = [str(environment.python), "-W", "ignore", "-c", CODE.format(statement)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=IMPORT_S).stdout
    return float(said.split()[-1])
