"""The repository holds the product and nothing of the machine it was written on; its settings say what they promise."""

import ast
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Written so that the patterns do not match their own text.
TRACES = {
    "a path on a developer's machine": re.compile(
        r"(?<![\w.:/-])/(?:root|work|home/\w[\w.-]*|Users/\w[\w.-]*)(?:/|\b)"
    ),
    "the address of a package index": re.compile(
        r"pypi\.[a-z.]+/simple|https?://[^\s'\"]+/simple\b|index[-_]url\b|pip[-_]mirror|find[-_]links",
        re.IGNORECASE,
    ),
}

EXTRAS = {
    "fast": {"numba"},
    "cli": {"typer", "rich", "pyyaml"},
    "server": {"pyzmq"},
    "ray": {"ray"},
    "torch": {"torch"},
    "dashboard": {"starlette", "uvicorn", "plotly"},
    "arrow": {"pyarrow"},
    "trl": {"trl", "torch"},
    "demo": set(),
    "all": set(),
}


def traces_in(text: str) -> list[str]:
    """Return what the text gives away, with its line."""
    return [
        f"line {number}: {what}: {found[0]}"
        for number, line in enumerate(text.splitlines(), start=1)
        for what, pattern in TRACES.items()
        if (found := pattern.search(line))
    ]


def repository_files() -> list[Path]:
    """Return the files that git holds, or would if all were added."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted({ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()})


def project() -> dict[str, object]:
    table: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def packages(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s<>=!~;\[]", requirement)[0].lower() for requirement in requirements}


def test_no_file_gives_away_a_machine():
    found = {}
    for path in repository_files():
        try:
            traces = traces_in(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # not text
        if traces:
            found[str(path.relative_to(ROOT))] = traces
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "open('/" + "root/data.json')",
        "see /" + "home/ada/reroll",
        "PATH=/" + "work/bin",
        "python /" + "Users/ada/x.py",
        "pip install --index" + "-url x",
        "https://pypi" + ".org/simple",
        "http://10.0.0.1/mirror" + "/simple/",
    ],
)
def test_traces_are_found(text):
    assert len(traces_in(text)) >= 1


@pytest.mark.parametrize(
    "text", ["https://example.org/work/x", "src/work/a.py", "a/root/b", "./home/x", "/usr/bin"]
)
def test_harmless_text_is_left_alone(text):
    assert traces_in(text) == []


def test_the_core_needs_four_packages():
    assert packages(project()["dependencies"]) == {"numpy", "msgspec", "pydantic", "zlib-ng"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras(extra):
    extras = project()["optional-dependencies"]
    assert extra in extras, f"pyproject.toml lacks the extra {extra!r}"
    assert EXTRAS[extra] <= packages(extras[extra])


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src/reroll/py.typed").exists()
    assert "Typing :: Typed" in project()["classifiers"]


def test_ci_runs_the_commands_of_a_contributor():
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    lines = [line.strip() for line in script.read_text().splitlines()]
    assert "make lint" in lines
    assert "make test || {" in lines  # what fails is run once more, and must pass then
    assert "make test-trl" in lines
    assert "make browser" in lines  # without one the run fails: pages must not be skipped
    assert any(line.startswith("export REROLL_MUST_BROWSE=1") for line in lines)
    assert any(line.startswith("set -e") for line in lines), "a failing command must fail the run"


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile"])
def test_files_that_everyone_looks_for(name):
    assert (ROOT / name).stat().st_size > 0


def lines_of_code(text: str) -> int:
    """Return how many lines are neither blank, nor a comment, nor in a docstring or the note below an attribute."""
    notes: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            notes.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return sum(bool(line) and not line.startswith("#") and number not in notes for number, line in lines)


def test_lines_of_code_are_counted():
    assert lines_of_code('"""Say\nwhat."""\n\nA = 1\n"""Why."""\n# so\nB = [\n    2,  # two\n]\n') == 4


@pytest.mark.parametrize("name", ["trl", "transfer_queue", "verl"])
def test_the_integrations_that_extend_a_framework_stay_small(name):
    files = (ROOT / "src/reroll/integrations" / name).glob("*.py")
    assert 200 < sum(lines_of_code(path.read_text()) for path in files) < 420
