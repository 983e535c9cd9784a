"""Buffers of both kinds, and disks that fail."""

import asyncio
import contextlib
import os
import subprocess

import pytest

from durable_errors.samples import Plain, config
from reroll.errors import RerollError


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk():
    """No machine crashes here, so nothing need reach a disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


async def _awaited(call):
    return await call


@pytest.fixture(params=["asyncio", "blocking"])
def make(request):
    """Yield a function that makes a buffer whose verbs are plain calls; all are closed in the end."""
    made = []
    with asyncio.Runner() as runner:

        def build(**options):
            if request.param == "blocking":
                buffer = Plain(config(**options).build_blocking(), lambda result: result)
            else:
                buffer = Plain(config(**options).build(), lambda call: runner.run(_awaited(call)))
            made.append(buffer)
            return buffer

        yield build
        for buffer in made:
            with contextlib.suppress(RerollError):
                buffer.close()


@pytest.fixture
def read_only():
    """Yield a function that makes a directory read-only, for root as well."""
    mounted = []

    def make(directory):
        if os.geteuid() != 0:
            directory.chmod(0o555)
            return
        for options in (["--bind"], ["-o", "remount,bind,ro"]):
            try:
                command = ["mount", *options, str(directory), str(directory)]
                subprocess.run(command, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                pytest.skip("root writes everywhere, and may not mount here")
            if not mounted:
                mounted.append(directory)

    yield make
    for directory in mounted:
        subprocess.run(["umount", "-l", str(directory)], check=True)  # noqa: S607
