"""One virtual environment for each contender, made by pip; what cannot be had is told, and stops nobody else."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-peers"
INSTALL_TIMEOUT_S = 900


class Environment(NamedTuple):
    """What is installed, one list after another: the first that works is taken."""

    name: str
    imports: str
    """A statement that shows that it works."""
    attempts: tuple[tuple[str, ...], ...]
    newest_python: tuple[int, int] | None = None

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> Path:
        """Written when all is installed."""
        return self.folder / "installed.json"

    @property
    def packages(self) -> Path:
        """Where its packages are."""
        return next(self.folder.glob("lib/python*/site-packages"))


LOADS_TORCHRL = "from torchrl.data import PrioritizedSampler as P; P(8, alpha=0.6, beta=0.4)"
ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment("core", "import reroll", ((str(ROOT),),)),
        Environment(
            "reroll",
            "import reroll, numba, torch, ray, pandas, zmq",
            (("torch==2.13.0", "-e", f"{ROOT}[all]", "pandas"),),
        ),
        Environment("cpprb", "import cpprb", (("cpprb",),)),
        # Its compiled part loads only with the torch that it was built with.
        Environment(
            "torchrl", LOADS_TORCHRL, (("torch==2.13.0", "torchrl"), ("torch==2.14.1", "torchrl==0.14.1"))
        ),
        Environment(
            "reverb", "import reverb", (("dm-reverb==0.14.0", "tensorflow==2.15.1"),), newest_python=(3, 11)
        ),
        Environment("transfer_queue", "import transfer_queue", (("torch==2.13.0", "TransferQueue", "ray"),)),
    )
}


class CannotInstallError(Exception):
    """Why an environment is not there."""


def installed(environment: Environment, say: Callable[[str], None]) -> None:
    """Make an environment unless it is there; raises CannotInstallError."""
    if environment.stamp.exists() and _stamped(environment)["requirements"] in map(
        _line, environment.attempts
    ):
        return
    shutil.rmtree(environment.folder, ignore_errors=True)
    failed: dict[str, str] = {}
    for attempt in environment.attempts:
        say(f"installing {environment.name}: {_line(attempt)}")
        start = perf_counter()
        try:
            _install(environment, attempt)
        except CannotInstallError as error:
            failed[_line(attempt)] = str(error)
            say(f"  {environment.name} failed: {error}")
            continue
        say(f"  {environment.name}: {perf_counter() - start:.0f} s")
        environment.stamp.write_text(json.dumps({"requirements": _line(attempt), "failed": failed}))
        return
    raise CannotInstallError("; ".join(failed.values()))


def how_installed(environment: Environment) -> str:
    """Return the requirements that are installed, and which others were tried before, and why they failed."""
    stamped = _stamped(environment)
    failed = [f"`{line}` fails: {why}." for line, why in stamped["failed"].items()]
    return " ".join([f"`pip install {stamped['requirements']}`.", *failed])


def _stamped(environment: Environment) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(environment.stamp.read_text())
    return found


def _line(attempt: tuple[str, ...]) -> str:
    return " ".join(part.replace(str(ROOT), ".") for part in attempt)


def _install(environment: Environment, requirements: tuple[str, ...]) -> None:
    python = _interpreter(environment.newest_python)
    _run(python, "-m", "venv", str(environment.folder))
    own = str(environment.python)
    _run(own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
    _run(own, "-W", "ignore", "-c", environment.imports)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False, cwd=ROOT.anchor
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstallError(str(error)) from error
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise CannotInstallError(lines[-1] if lines else f"exit code {done.returncode}")


def _interpreter(newest: tuple[int, int] | None) -> str:
    """Return a Python that is new enough for reroll, and not newer than a contender can use."""
    if newest is None or sys.version_info[:2] <= newest:
        return sys.executable
    for python in _older(newest):
        found = shutil.which(python)
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    raise CannotInstallError(
        f"it needs Python {newest[0]}.{newest[1]} or older, and there is none on the path"
    )


def _older(newest: tuple[int, int]) -> Iterator[str]:
    yield from (f"python3.{minor}" for minor in range(newest[1], 8, -1))


def size_bytes(folder: Path) -> int:
    """Return what the files below take, links not followed."""
    return sum((Path(where) / name).lstat().st_size for where, _, names in os.walk(folder) for name in names)
