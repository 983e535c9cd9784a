"""Every example runs by itself, quickly, and says what it promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# A line that each must print: what it is there to show.
SHOWS = {
    "sync_loop.py": r"ledger: 32 groups put, 32 trained, 0 left over",
    "async_partial.py": r"        one response: \d+ tokens of version \d \+ \d+ tokens of version \d.*",
    "disaggregated_multitask.py": r"math: .* evicted 0; puts held back by a full buffer: [1-9]\d*",
    "inspect_buffer.py": r'  QueryError: where\.stalenes: unknown field; did you mean "staleness"\?',
    "threads.py": r"80 different groups trained, 80 by the ledger",
}


def run(name: str, where: Path) -> list[str]:
    """Run an example from another directory, with warnings as errors, and return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, f"{name} fails:\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_every_example_is_listed():
    assert sorted(SHOWS) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", SHOWS)
def test_example_shows_what_it_promises(name, tmp_path):
    lines = run(name, tmp_path)
    assert any(re.fullmatch(SHOWS[name], line) for line in lines), "\n".join(lines)
    assert len(lines) < 50  # an account that can be read
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(set(SHOWS) - {"threads.py"}))
def test_example_says_the_same_each_time(name, tmp_path):
    assert run(name, tmp_path) == run(name, tmp_path)


@pytest.mark.parametrize("name", SHOWS)
def test_example_has_a_docstring_and_uses_public_names_only(name):
    source = (EXAMPLES / name).read_text()
    assert source.startswith('"""')
    assert f"python examples/{name}" in source
    assert re.findall(r"^(?:from|import) (reroll\S*)", source, re.MULTILINE) == ["reroll"]


def test_partial_rollouts_expire_and_come_back(tmp_path):
    text = "\n".join(run("async_partial.py", tmp_path))
    assert re.search(r"[1-9]\d* expired before, [1-9]\d* aborted after", text)
    assert re.search(r"^[1-9]\d* trained groups had been put more than once$", text, re.MULTILINE)
    put, *parts = map(
        int, re.search(r"(\d+) groups put = (\d+) trained \+ (\d+) here \+ (\d+) with", text).groups()
    )
    assert put == sum(parts)
