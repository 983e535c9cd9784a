"""A process that keeps groups by itself, and is killed as soon as it has acknowledged the last."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import work


def acknowledged_then_killed(code: str, path: str, groups: int) -> int:
    """Run code that keeps groups at a path and prints a line for each; kill it after so many, and return how many came.

    The code has the path and the number of groups as arguments, and can import what contenders can.
    """
    prelude = f"import sys; sys.path[:0] = [{str(Path(work.__file__).parent)!r}]\n"
    command = [sys.executable, "-c", prelude + code, path, str(groups)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None  # noqa: S101
    acknowledged = sum(process.stdout.readline() == "acknowledged\n" for _ in range(groups))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return acknowledged
