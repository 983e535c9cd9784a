"""`import reroll` is light: nothing optional is loaded, nothing is started."""

import json
import subprocess
import sys

import pytest

HEAVY = (
    *("ray", "torch", "pandas", "pyarrow", "numba", "zmq"),
    *("yaml", "typer", "rich", "starlette", "uvicorn"),
    *("hypothesis", "pytest"),
)

# Opening a socket is counted through the audit hook, which sees it whoever asks.
PROBE = """
import json, sys
events = []
sys.addaudithook(lambda event, args: events.append(event) if event.split(".")[0] in ("socket", "subprocess") else None)
{before}
import reroll
import threading
print(json.dumps({{
    "modules": sorted({{name.split(".")[0] for name in sys.modules}}),
    "threads": threading.active_count(),
    "events": events,
    "file": reroll.__file__,
}}))
"""


def probe(before: str = "") -> dict[str, object]:
    """Import reroll in a fresh interpreter and tell what that loaded and started."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE.format(before=before)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def after_import() -> dict[str, object]:
    return probe()


@pytest.mark.parametrize("name", HEAVY)
def test_nothing_heavy_is_loaded(name, after_import):
    assert name not in after_import["modules"], (
        f"`import reroll` loads {name}; import it inside the function that needs it"
    )


def test_nothing_is_started(after_import):
    assert after_import["threads"] == 1, "`import reroll` starts a thread"
    assert after_import["events"] == [], "`import reroll` opens a socket or starts a process"


def test_the_probe_sees_what_it_looks_for():
    found = probe(
        "import hypothesis, socket, threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "socket.socket().close()"
    )
    assert "hypothesis" in found["modules"]
    assert found["threads"] == 2
    assert found["events"]
