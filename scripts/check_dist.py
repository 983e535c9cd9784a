"""Check what `python -m build` wrote: the contents of wheel and sdist, and an installation with each extra alone.

Usage: python scripts/check_dist.py dist [--only EXTRA ...] [--pythons 3.11 3.12 3.13]

Each extra is installed into a fresh environment, where `smoke.py` uses it. The first Python tests every extra, the others those
without torch, which takes gigabytes. The wheel is installed with the pip of the interpreter that runs this script.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMOKE = Path(__file__).with_name("smoke.py")
PIN = "torch==2.13.0"
"""With a pin pip finds the small CPU build, where an index offers one."""
WITH_TORCH = ("torch", "trl", "demo", "all")
UNTESTED = ("dev",)
"""Extras of contributors; the test suite uses them."""


def check_contents(folder: Path) -> Path:
    """Check what wheel and sdist hold, and return the wheel."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        metadata = archive.read(next(name for name in packed if name.endswith("/METADATA"))).decode()
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    shipped = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src/reroll").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    info = {name for name in packed if ".dist-info/" in name}
    _equal("files of the wheel", packed - info, shipped)
    assert "reroll/py.typed" in packed, "the wheel has no py.typed"
    assert any(name.endswith("/licenses/LICENSE") for name in info), "the wheel has no licence"
    assert "License-Expression: Apache-2.0" in metadata, "the metadata name no licence"
    others = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}
    _equal(
        "files of the sdist",
        {name for name in sources if Path(name).suffix or name in others},
        others | {f"src/{name}" for name in shipped},
    )
    assert wheel.name.endswith("-py3-none-any.whl"), f"{wheel.name} is not for every platform"
    return wheel


def _equal(what: str, found: set[str], expected: set[str]) -> None:
    assert found == expected, (
        f"{what}: missing {sorted(expected - found)}, not expected {sorted(found - expected)}"
    )


def extras() -> list[str]:
    """Return the extras to test; each must have a test in `smoke.py`."""
    names = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tested = re.findall(
        r'^    "(\w+)": ', SMOKE.read_text().partition("TESTS")[2].partition("}")[0], re.MULTILINE
    )
    untested = set(names) - set(tested) - set(UNTESTED)
    assert not untested, f"extras without a test: {sorted(untested)}; add one to TESTS in scripts/smoke.py"
    return ["core", *(name for name in names if name not in UNTESTED)]


def find_python(version: str) -> str | None:
    """Return the interpreter of a Python release, on the PATH or of pyenv; None without one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "-c", "import venv"], capture_output=True, check=False)
        if done.returncode == 0:
            return str(candidate)
    return None


def pip_install(python: Path, *what: str, **options: object) -> None:
    """Install into the environment of an interpreter, with the pip that runs this script."""
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    subprocess.run([*command, "--disable-pip-version-check", *what], check=True, **options)  # type: ignore[call-overload]


def make_environment(python: str, where: Path) -> Path:
    """Create an empty environment, and return its interpreter."""
    subprocess.run([python, "-m", "venv", "--without-pip", where], check=True)
    return where / "bin/python"


def check_extra(wheel: Path, python: str, extra: str) -> None:
    """Install the wheel with one extra into an empty environment, and run its smoke test."""
    with tempfile.TemporaryDirectory(prefix=f"reroll-{extra}-") as folder:
        interpreter = make_environment(python, Path(folder, "env"))
        wanted = (
            f"reroll @ {wheel.resolve().as_uri()}"
            if extra == "core"
            else f"reroll[{extra}] @ {wheel.resolve().as_uri()}"
        )
        pip_install(interpreter, wanted, *([PIN] if extra in WITH_TORCH else []))
        place = Path(folder, "empty")
        place.mkdir()
        subprocess.run([interpreter, "-I", SMOKE, extra], cwd=place, check=True)


def check_source(python: str) -> None:
    """`pip install .` works without a compiler."""
    with tempfile.TemporaryDirectory(prefix="reroll-source-") as folder:
        interpreter = make_environment(python, Path(folder, "env"))
        no_compiler = {**os.environ, "CC": "false", "CXX": "false", "RUSTC": "false"}
        pip_install(
            interpreter, "--only-binary", "numpy,msgspec,pydantic-core,zlib-ng", str(ROOT), env=no_compiler
        )
        place = Path(folder, "empty")
        place.mkdir()
        subprocess.run([interpreter, "-I", SMOKE, "core"], cwd=place, check=True)


def main() -> None:
    """Check the distributions in a folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dist", type=Path)
    parser.add_argument("--only", nargs="+", metavar="EXTRA", help="test these extras only")
    parser.add_argument("--pythons", nargs="+", default=["3.11", "3.12", "3.13"], metavar="X.Y")
    options = parser.parse_args()
    wheel = check_contents(options.dist)
    print(f"ok: contents of {wheel.name} and its sdist")
    first = True
    for version in options.pythons:
        python = find_python(version)
        if python is None:
            print(f"skipped: Python {version} is not installed")
            continue
        if first:
            check_source(python)
        for extra in options.only or extras():
            if not first and extra in WITH_TORCH:
                print(f"skipped: {extra} on Python {version}: torch is tested with the first Python only")
            else:
                check_extra(wheel, python, extra)
        first = False
    if first:
        sys.exit(f"none of these Python releases is installed: {', '.join(options.pythons)}")


if __name__ == "__main__":
    main()
