"""`reroll dashboard` and `reroll serve --dashboard`, as a user starts them: on a server, and on a store in use."""

import json
import signal
import socket
import subprocess
from contextlib import contextmanager
from urllib.request import urlopen

import pytest

from cli.test_commands import run as run_hiding
from reroll import ReplayBufferConfig, connect_blocking
from reroll.testing.buffer.builders import group
from server.program import COMMAND, run


@contextmanager
def running(*arguments, lines=1):
    """Run a command; give what it said in its first lines, and the process, which is stopped and has to end well."""
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        said = [process.stdout.readline().strip() for _ in range(lines)]
        yield said, process
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def fetch(address):
    with urlopen(address, timeout=60) as answer:  # noqa: S310  (our own page)
        return answer.read().decode()


def page_in(line):
    assert line.startswith("dashboard at http://127.0.0.1:"), line
    return line.removeprefix("dashboard at ")


def test_a_server_and_its_store_are_looked_at(tmp_path):
    store = tmp_path / "buffer"
    serve = ("serve", "--bind", "tcp://127.0.0.1:0", "--store", str(store), "--dashboard", "0")
    with running(*serve, lines=2) as ((page, ready), _):
        address = ready.removeprefix("ready at ")
        with connect_blocking(address) as client:
            client.put(group("a", message="why?"), "math")
            own = page_in(page)
            assert json.loads(fetch(f"{own}groups"))["total"] == 1
            assert "reroll_puts_total" in fetch(f"{own}metrics")
            assert "Occupancy" in fetch(own)
            viewer = urlopen(f"{own}events", timeout=60)  # noqa: S310  (it does not keep the server from stopping)
            assert viewer.readline() == b"event: history\n"

            with running("dashboard", address, "--port", "0", "--interval-s", "0.2") as ((said,), _):
                other = page_in(said)
                uid = json.loads(fetch(f"{other}groups"))["rows"][0]["uid"]
                assert json.loads(fetch(f"{other}groups/{uid}"))["rollouts"][0]["message"] == "why?"

            token = tmp_path / "token"
            with running("dashboard", str(store), "--port", "0", "--token", str(token)) as ((said,), _):
                assert said.endswith(f", with the token in {token}")
                assert token.read_text().strip() not in said
            assert client.count("math", "completed") == 1
    viewer.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved")
    buffer = ReplayBufferConfig(sampler="fifo").build_blocking()
    buffer.put(group("a"), "math")
    buffer.save(path)
    buffer.close()
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dashboard", "nowhere"), "nowhere"),
        (("dashboard", "http://127.0.0.1:5555"), "not an address of a buffer"),
        (("dashboard", "SAVED", "--host", "0.0.0.0"), "token"),  # noqa: S104
        (("dashboard", "SAVED", "--port", "TAKEN"), "cannot listen on"),
        (("dashboard", "SAVED", "--token", "/dev/null"), "one word"),
        (("serve", "--bind", "tcp://127.0.0.1:0", "--dashboard", "page"), "host:port"),
        (("serve", "--bind", "tcp://127.0.0.1:0", "--dashboard", "0.0.0.0:0"), "token"),
    ],
)
def test_what_is_wrong_is_one_line(saved, arguments, said):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        known = {"SAVED": saved, "TAKEN": str(taken.getsockname()[1])}
        done = run(*(known.get(argument, argument) for argument in arguments))
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.splitlines()[-1].startswith("reroll: ")


@pytest.mark.parametrize("hidden", ["starlette", "uvicorn", "plotly"])
def test_a_missing_extra_is_named(saved, hidden):
    found = run_hiding("dashboard", saved, hidden=hidden)
    assert found.returncode == 2
    assert found.stderr.startswith(
        f"reroll: reroll.dashboard needs {hidden}: pip install 'reroll[dashboard]'"
    )
    assert len(found.stderr.splitlines()) == 1


def test_help_has_examples():
    told = run("dashboard", "--help").stdout
    assert "Example: reroll dashboard ./buffer" in told
    assert "--token" in told
