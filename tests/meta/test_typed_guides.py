"""The python blocks of guides pass mypy in strict mode, as a reader's editor would check them."""

import subprocess
import sys

import pytest

from meta.markdown import ROOT, blocks_of

TYPED = ("README.md",)
"""Guides whose examples are typed."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_examples_pass_strict_type_checks(tmp_path):
    files = []
    for name in TYPED:
        lines: list[str] = []
        for block in blocks_of((ROOT / name).read_text()):
            if block.language == "python" and block.is_run:
                lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
        files.append(
            tmp_path / f"{name.replace('.', '_').replace('/', '_')}.py"
        )  # with the lines of the guide
        files[-1].write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
