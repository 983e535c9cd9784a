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
                         names, settings, settings, rounds=9, budget_s=0)
turns = Turns(section, found, {}, print, section.rounds)
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
    assert [cell["rounds"] for cell in cells["slower"]] == [3, 3], "no time for more"
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
    assert (folder / "docs/images/side_by_side_z.svg").read_text().startswith("<svg")
    assert "quick runs" in page


def test_what_a_contender_cannot_do_is_said(folder):
    cells, page = run(folder, "other")
    assert {cell["cannot"] for of_one in cells.values() for cell in of_one} == {"it is not made for that"}
    assert "- **Ours**: Cannot: it is not made for that." in page
    assert "Nowhere in these runs." in page


# A whole run of the real sections, in which each contender is one worse than the one before it.
WHOLE = """
import sys
sys.path.append(sys.argv[1] + "/benchmarks")
import matrix, render, results

for section in (*matrix.SECTIONS, matrix.FOOTPRINT):
    cells = []
    for setting in section.settings:
        for place, name in enumerate(section.contenders):
            figures = {m.key: 60 / (1 + place) if m.is_more_better else 60 * (1 + place) for m in section.metrics}
            cells += results.measured(section, setting, name, [figures] * 3)
    results.write(section, {}, cells, load=0.1, is_quick=False)
print(render.write())
"""


def test_a_whole_run_fills_the_lines_of_the_readme(folder):
    before = (ROOT / "README.md").read_text()
    (folder / "README.md").write_text(before)
    place = folder / "benchmarks/side_by_side"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, '.')\n{WHOLE}", str(folder)]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    start, end = "<!-- side by side: begin -->\n", "<!-- side by side: end -->"
    after = (folder / "README.md").read_text()
    filled = after.split(start)[1].split(end)[0]
    assert len([line for line in filled.splitlines() if "make bench-peers" in line]) == 5
    assert "4x against cpprb, 5x against torchrl, sampler alone" in filled
    assert after.replace(filled, "") == before.replace(before.split(start)[1].split(end)[0], "")
    page = (folder / "docs/benchmarks.md").read_text()
    assert all(f"## {letter}. " in page for letter in "abcdefghi")
    assert "quick runs" not in page
