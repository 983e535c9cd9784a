"""What the tests of the demo share: one whole demo, with one seed and all modes."""

import json
from io import StringIO

import pytest
import torch
from rich.console import Console

from reroll.demo.command import demo


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Compute with one thread, as the demo does: results do not depend on the order of tests."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def quick(tmp_path_factory):
    """Run the demo as `--quick` does, and return its report, its directory, and what was printed."""
    out = tmp_path_factory.mktemp("demo")
    printed = StringIO()
    report = demo(seeds=1, out=out, console=Console(file=printed, width=160))
    return report, out, printed.getvalue()


@pytest.fixture(scope="session")
def quick_json(quick):
    return json.loads((quick[1] / "report.json").read_text())
