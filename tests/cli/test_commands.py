"""The command line: help, version, and one line for what went wrong."""

import subprocess
import sys

import pytest

import reroll

HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {hidden!r}:
            raise ImportError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
from reroll.__main__ import main
sys.argv = ["reroll", *{arguments!r}]
main()
"""


def run(*arguments, hidden=None):
    code = HIDE.format(hidden=hidden, arguments=arguments)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_version():
    found = run("--version")
    assert (found.returncode, found.stdout.strip()) == (0, reroll.__version__)


def test_it_is_a_module():
    found = subprocess.run(
        [sys.executable, "-m", "reroll", "--version"], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == reroll.__version__


def test_help_names_the_commands_and_their_options():
    assert "export" in run("--help").stdout
    told = run("export", "--help").stdout
    for option in ("--rows-only", "--where", "Example"):
        assert option in told


def test_help_loads_nothing_heavy():
    code = "import sys; from reroll.cli.commands import app; print('torch' in sys.modules, 'plotly' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("hidden", "extra", "command"),
    [
        ("typer", "cli", ["--help"]),
        ("zmq", "server", ["ping", "tcp://127.0.0.1:1"]),
    ],
)
def test_a_missing_extra_is_named(hidden, extra, command):
    found = run(*command, hidden=hidden)
    assert found.returncode != 0
    assert f"pip install 'reroll[{extra}]'" in found.stderr
    assert "Traceback" not in found.stderr
