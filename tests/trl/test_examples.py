"""The examples of TRL run by themselves, and say what they promise; the picture of the docs is made by its script."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
SHOWS = {
    "trl_replay.py": r"\d+ groups taught something, and were trained [1-9]\d* times more",
    "trl_async.py": r"8 steps of 2 groups: 16 groups trained, each once",
}


@pytest.mark.parametrize("name", SHOWS)
def test_example_shows_what_it_promises(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=220,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert any(re.fullmatch(SHOWS[name], line) for line in done.stdout.splitlines()), done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_picture_stands_alone():
    text = (ROOT / "docs/images/trl_replay.svg").read_text()
    assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314  (our own file)
    assert re.findall(r"https?://[^\s\"]+", text) == ["http://www.w3.org/2000/svg"]
