"""The comparison with peers goes on when a contender fails, and its page says what was found; run on made-up contenders."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTENDER = '''
import os, time
CANNOT = {{"other": "it is not made for that"}}

def version():
    return "1.0"

def cell(size):
    """Does nothing, so many times."""
    rounds = []

    def measure():
        rounds.append(size)
        {act}
        return {{"us": size * {factor}}}

    yield measure
'''
ACTS = {
    "ours": ("pass", 1),
    "slower": ("pass", 3),
    "quicker": ("pass", 0.5),
    "raising": ("raise KeyError('a part is missing')", 1),
    "dying": ("os._exit(3)", 1),
    "hanging": ("time.sleep(1000)", 1),
}
# Contenders start with all the time in the world, and only the one that hangs is waited for a moment.
DRIVER = """
import sys
sys.path.append(sys.argv[1] + "/benchmarks")
import matrix, render, results
from turns import Turns
from environments import Environment

class Here(Environment):
    python = sys.executable

names = ["ours", "slower", "quicker", "raising", "dying", "hanging"]
for name in names:
    matrix.CONTENDERS[name] = matrix.Contender(name, name.capitalize(), "here", is_ours=name == "ours")
found = {"here": Here("here", "", ())}
settings = [matrix.Setting(f"{size} rows", {"size": size}) for size in (10, 20)]
section = matrix.Section("z", "A made-up section", "Something is done.", sys.argv[2], (matrix.Metric("us", "one call", "us", False),),
                         names, settings, settings, rounds=3)
turns = Turns(section, found, {}, print, 3)
turns._worker("hanging").timeout_s = 0.2 if sys.argv[2] == "cell" else 60
for setting in settings:
    turns.take(setting)
turns.end()
results.write(section, turns.about, turns.cells, load=0.0, is_quick=True)
render.SECTIONS, render.FOOTPRINT = (section,), matrix.FOOTPRINT
print(render.write())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Lend a copy of the comparison with contenders that are made up."""
    folder = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "benchmarks/side_by_side", folder / "benchmarks/side_by_side")
    shutil.copy(ROOT / "benchmarks/svg.py", folder / "benchmarks/svg.py")
    (folder / "docs").mkdir()
    for name, (act, factor) in ACTS.items():
        path = folder / "benchmarks/side_by_side/contenders" / f"{name}.py"
        path.write_text(CONTENDER.format(act=act, factor=factor))
    return folder


def run(folder: Path, cell: str) -> tuple[dict[str, list[dict]], str]:
    """Measure, and return the cells of each contender, and the page."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, '.')\n{DRIVER}", str(folder), cell]
    done = subprocess.run(
        command, cwd=folder / "benchmarks/side_by_side", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((folder / "benchmarks/results/side_by_side/z.json").read_text())
    cells: dict[str, list[dict]] = {}
    for cell_found in report["cells"]:
        cells.setdefault(cell_found["contender"], []).append(cell_found)
    return cells, (folder / "docs/benchmarks.md").read_text()


def test_whoever_fails_leaves_cells_that_say_why(folder):
    cells, page = run(folder, "cell")
    assert [cell["median"] for cell in cells["ours"]] == [10, 20]
    assert [cell["rounds"] for cell in cells["slower"]] == [3, 3]
    assert {cell["failed"] for cell in cells["raising"]} == {"KeyError: 'a part is missing'"}
    assert {cell["failed"] for cell in cells["dying"]} == {"its process ended with code 3"}
    assert {cell["failed"] for cell in cells["hanging"]} == {"no answer within 0.2 s"}
    assert all(len(of_one) == 2 for of_one in cells.values()), "each has a cell for each setting"

    rows = [line for line in page.splitlines() if line.startswith("| 10 rows")]
    assert rows == ["| 10 rows: one call, us | 10 | 30; 3x | 5; 0.50x | failed | failed | failed |"]
    assert "- **Slower** (1.0): Does nothing, so many times." in page
    assert "Failed (10 rows): its process ended with code 3." in page
    behind = page.split("## Where reroll is behind")[1]
    assert "z, 10 rows: one call, us: 0.50x against Quicker" in behind
    assert "Slower" not in behind
    assert (folder / "docs/pictures/side_by_side_z.svg").read_text().startswith("<svg")
    assert "quick runs" in page


def test_what_a_contender_cannot_do_is_said(folder):
    cells, page = run(folder, "other")
    assert {cell["cannot"] for of_one in cells.values() for cell in of_one} == {"it is not made for that"}
    assert "- **Ours**: Cannot: it is not made for that." in page
    assert "Nowhere in these runs." in page
