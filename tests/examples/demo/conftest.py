"""What the tests of the demo share: one whole demo, with one seed and all modes."""

import fcntl
import json
import os
import pickle
from io import StringIO

import pytest
import torch
from rich.console import Console

from demo.__main__ import demo


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Compute with one thread, as the demo does: results do not depend on the order of tests."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def quick(tmp_path_factory):
    """Run the demo as `--quick` does, and return its report, its directory, and what was printed.

    Processes that share the suite share it: the first one runs it, the others wait.
    """
    base = tmp_path_factory.getbasetemp()
    out = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "quick-demo"
    out.mkdir(exist_ok=True)
    with (out / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = out / "report.pickle"
        if not kept.exists():
            console = Console(file=StringIO(), width=160)
            report = demo(seeds=1, out=out, console=console)
            kept.write_bytes(pickle.dumps((report, console.file.getvalue())))
        report, printed = pickle.loads(kept.read_bytes())  # noqa: S301  (our own)
    return report, out, printed


@pytest.fixture(scope="session")
def quick_json(quick):
    return json.loads((quick[1] / "report.json").read_text())
