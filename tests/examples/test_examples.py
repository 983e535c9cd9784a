"""Every example runs by itself, quickly, and says what it promises; the pictures of the docs can be made again."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PICTURES = ROOT / "docs" / "pictures"

# A line that each must print: what it is there to show.
SHOWS = {
    "sync_loop.py": r"ledger: 32 groups put, 32 trained, 0 left over",
    "async_partial.py": r"        one response: \d+ tokens of version \d \+ \d+ tokens of version \d.*",
    "disaggregated_multitask.py": r"math: .* evicted 0; puts held back by a full buffer: [1-9]\d*",
    "inspect_buffer.py": r'  QueryError: where\.stalenes: unknown field; did you mean "staleness"\?',
    "prepare_loop.py": r"72 groups trained, of 72 prompts: each once",
    "ray_grpo.py": r"48 prompts, 48 trained, the most often 1 time",
    "replay_priorities.py": r"step 9: out of memory; 16 groups came back, and no use was counted; once more",
    "server_processes.py": r"96 groups trained, 96 different ones, of 96",
    "staleness_window.py": r"  trained groups by staleness: \{0: \d+, 1: \d+, 2: \d+\}, largest 2",
    "threads.py": r"80 different groups trained, 80 by the ledger",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return what an example prints; each is run once for all that look at it."""
    known: dict[str, tuple[list[str], Path]] = {}

    def lines_of(name: str) -> tuple[list[str], Path]:
        if name not in known:
            where = tmp_path_factory.mktemp("examples")
            known[name] = run(name, where), where
        return known[name]

    return lines_of


def run(name: str, where: Path) -> list[str]:
    """Run an example from another directory, with warnings as errors, and return the lines that it prints."""
    if name == "ray_grpo.py":
        pytest.importorskip("ray", reason="there is no Ray for this Python")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=where,
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},  # else it leaves a token in the home directory
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, f"{name} fails:\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_every_example_is_listed():
    here = [path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("trl_")]
    assert sorted(SHOWS) == sorted(here), "those of TRL are run by make test-trl"


@pytest.mark.parametrize("name", SHOWS)
def test_example_shows_what_it_promises(name, said):
    lines, where = said(name)
    assert any(re.fullmatch(SHOWS[name], line) for line in lines), "\n".join(lines)
    assert len(lines) < 50  # an account that can be read
    assert list(where.iterdir()) == []


@pytest.mark.parametrize("name", sorted(set(SHOWS) - {"threads.py", "ray_grpo.py"}))
def test_example_says_the_same_each_time(name, said, tmp_path):
    assert run(name, tmp_path) == said(name)[0]


@pytest.mark.parametrize("name", SHOWS)
def test_example_has_a_docstring_and_uses_public_names_only(name):
    source = (EXAMPLES / name).read_text()
    assert source.startswith('"""')
    assert f"python examples/{name}" in source
    modules = re.findall(r"^(?:from|import) (reroll\S*)", source, re.MULTILINE)
    assert modules
    assert set(modules) <= {"reroll", "reroll.prepare", "reroll.ray"}


def test_partial_rollouts_expire_and_come_back(said):
    text = "\n".join(said("async_partial.py")[0])
    assert re.search(r"[1-9]\d* expired before, [1-9]\d* aborted after", text)
    assert re.search(r"^[1-9]\d* trained groups had been put more than once$", text, re.MULTILINE)
    put, *parts = map(
        int, re.search(r"(\d+) groups put = (\d+) trained \+ (\d+) here \+ (\d+) with", text).groups()
    )
    assert put == sum(parts)


def test_replay_keeps_its_limits(said):
    text = "\n".join(said("replay_priorities.py")[0])
    batches = re.findall(r"(\d+) fresh, (\d+) replayed, (\d+) for the last time; staleness (\{.*\});", text)
    assert [int(fresh) for fresh, *_ in batches] == [16] + 15 * [8]
    assert all(max(map(int, re.findall(r"(\d+):", staleness))) <= 5 for *_, staleness in batches)
    uses = {int(k): int(n) for k, n in re.findall(r"(\d): (\d+)", re.search(r"by uses: (.*)", text)[1])}
    assert sum(k * n for k, n in uses.items()) == 16 * 16
    assert max(uses) == 4
    ledger = re.search(
        r"ledger: (\d+) groups put = (\d+) used .* \+ (\d+) passed staleness \d+ \+ (\d+) here", text
    )
    put, used_up, old, here = map(int, ledger.groups())
    assert put == used_up + old + here == sum(uses.values())
    assert used_up == uses[4] == sum(int(last) for *_, last, _ in batches)


def test_under_a_window_nothing_expires(said):
    text = "\n".join(said("staleness_window.py")[0])
    under, without = text.split("no window:")
    assert set(re.findall(r"(\d+) expired", under)) == {"0"}
    assert int(re.search(r"trained \+ (\d+) expired", without)[1]) > 0
    for part in (under, without):
        started, back = map(int, re.search(r"(\d+) groups started, (\d+) given back", part).groups())
        put, trained, expired, here = map(
            int, re.search(r"(\d+) put = (\d+) trained \+ (\d+) expired \+ (\d+) here", part).groups()
        )
        assert started - back == put == trained + expired + here


def test_pictures_are_what_their_script_makes(tmp_path):
    script = ROOT / "benchmarks" / "pictures.py"
    subprocess.run(
        [sys.executable, "-W", "error", str(script), "--to", str(tmp_path)], check=True, timeout=100
    )
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in PICTURES.glob("*.svg")}, (
        "run python benchmarks/pictures.py"
    )


@pytest.mark.parametrize("path", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.name)
def test_pictures_stand_alone(path):
    text = path.read_text()
    assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314  (our own file)
    assert re.findall(r"https?://[^\s\"]+", text) == ["http://www.w3.org/2000/svg"]  # loads nothing
    assert "<script" not in text
    assert len(text) < 20_000


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_torchrun_trainer_survives_kills_of_a_rank_and_of_the_server(tmp_path):
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "torchrun" / "run.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=380,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed rank 0" in done.stdout
    assert "killed the server" in done.stdout
    assert "40 prompts trained, 40 different ones, of 40" in done.stdout
