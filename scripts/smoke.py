"""Smoke test of an installed reroll: the core, one extra alone, and the messages of the extras that are missing.

Run by the interpreter of a fresh environment, in an empty directory: python -I smoke.py EXTRA
EXTRA is `core` for an installation without extras. `scripts/check_dist.py` runs it in one environment for each extra.
"""

import asyncio
import importlib
import importlib.metadata
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import reroll
from reroll import Prioritized, ReplayBufferConfig, Rollout, Table

PIN = re.compile(r"pip install (?:verl|TransferQueue)==[\d.]+")
"""Hint of the integrations that need one version of a framework, which no extra installs."""
PINNED = ("reroll.integrations.transfer_queue", "reroll.integrations.verl")
HINT = re.compile(r"pip install 'reroll\[(\w+)\]' \(in a clone: pip install '\.\[\1\]'\)")


def group(reward: float = 1.0) -> list[Rollout]:
    """Return a group of two rollouts."""
    return [
        Rollout(prompt_ids=[1, 2], response_ids=[3, 4], reward=reward, status="completed") for _ in range(2)
    ]


def core() -> None:
    """Put, sample and lease; save and resume; reopen a store."""

    async def run() -> None:
        buffer = ReplayBufferConfig(sampler=Prioritized(), max_times_sampled=None).build()
        for reward in (0.0, 1.0):
            await buffer.put(group(reward), "math", model_step=0)
        assert len(await buffer.sample(2, "math")) == 2
        await buffer.save("saved.reroll")
        resumed = ReplayBufferConfig(sampler=Prioritized(), max_times_sampled=None).build()
        await resumed.resume("saved.reroll")
        assert len(resumed) == 2
        async with ReplayBufferConfig(store="store").build() as durable:
            await durable.put(group(), "math", model_step=0)
        async with ReplayBufferConfig(store="store").build() as durable:
            async with durable.lease({"math": 1}) as batch:
                assert batch.groups["math"][0][0].reward == 1.0
                await batch.ack()
            assert len(durable) == 0

    asyncio.run(run())
    table = Table(10, "uniform", "fifo")
    table.insert("key", "data")
    assert table.sample(1) == ["data"]


def fast() -> None:
    """Compile the tree of priorities."""
    from reroll.engine.selectors.tree import weight_tree  # noqa: PLC0415

    assert weight_tree(fast=True) is not None


def cli() -> None:
    """Look at the store that `core` left, by the command line."""
    command = Path(sys.executable).with_name("reroll")
    for arguments in (["--help"], ["inspect", "store"], ["verify", "store"]):
        subprocess.run([command, *arguments], check=True, stdout=subprocess.DEVNULL)
    Path("buffer.yaml").write_text("capacity: 8\n")
    subprocess.run([command, "config", "check", "buffer.yaml"], check=True, stdout=subprocess.DEVNULL)


def server() -> None:
    """Serve a buffer to a client."""

    async def run() -> None:
        address = f"ipc://{Path('socket').resolve()}"
        async with reroll.Server(ReplayBufferConfig(), address), reroll.connect(address) as buffer:
            await buffer.put(group(), "math", model_step=0)
            assert await buffer.count("math", "completed") == 1

    asyncio.run(run())


def ray() -> None:
    """Import the buffer on Ray; a cluster is the matter of the tests."""
    from reroll.ray import RayReplayBuffer  # noqa: PLC0415

    assert RayReplayBuffer.create


def torch() -> None:
    """Encode and decode a tensor."""
    import torch  # noqa: PLC0415

    from reroll.codec import decode, encode  # noqa: PLC0415
    from reroll.prepare import PreparedDataset  # noqa: PLC0415

    (back,) = decode(encode([{"x": torch.arange(3)}]))
    assert back["x"].tolist() == [0, 1, 2]
    assert PreparedDataset


def dashboard() -> None:
    """Import the dashboard, and ask for the help of its command."""
    from reroll.dashboard import Dashboard  # noqa: PLC0415

    assert Dashboard
    cli()
    command = Path(sys.executable).with_name("reroll")
    subprocess.run([command, "dashboard", "--help"], check=True, stdout=subprocess.DEVNULL)


def arrow() -> None:
    """Read the store that `core` saved as a table."""
    with reroll.open_readonly("saved.reroll") as saved:
        assert saved.to_arrow().num_rows == 2


def trl() -> None:
    """Import the trainers for TRL."""
    from reroll.integrations.trl import ReplayGRPOTrainer, RerollRolloutWorker  # noqa: PLC0415

    assert ReplayGRPOTrainer
    assert RerollRolloutWorker


def testing() -> None:
    """Import the conformance suites."""
    from reroll.testing import BufferSuite, NaiveTable  # noqa: PLC0415

    assert BufferSuite
    assert NaiveTable


def demo() -> None:
    """Use what the demo of a clone needs."""
    cli()
    server()
    torch()


def everything() -> None:
    """Use each extra that `all` contains."""
    for test in (fast, cli, server, ray, torch, dashboard, arrow):
        test()


# Each extra with its test, and the modules that need it.
TESTS: dict[str, Callable[[], None]] = {
    "core": lambda: None,
    "fast": fast,
    "cli": cli,
    "server": server,
    "ray": ray,
    "torch": torch,
    "dashboard": dashboard,
    "arrow": arrow,
    "trl": trl,
    "testing": testing,
    "demo": demo,
    "all": everything,
}
NEEDS = {
    "reroll.cli": "cli",
    "reroll.dashboard": "dashboard",
    "reroll.server": "server",
    "reroll.ray": "ray",
    "reroll.prepare.dataset": "torch",
    "reroll.integrations.trl": "trl",
    "reroll.testing": "testing",
}
CONTAINS = {
    "dashboard": {"cli"},
    "demo": {"cli", "server", "torch"},
    "trl": {"torch"},
    "all": {"fast", "cli", "server", "ray", "torch", "dashboard", "arrow"},
}


def installed(extra: str) -> set[str]:
    """Return the extras that come with an extra."""
    return {extra, *CONTAINS.get(extra, ())}


def check_modules(extra: str) -> None:
    """Import every module: each works, or raises an ImportError that names the extra which is missing."""
    problems, missing = [], set()
    for name in _module_names():
        needed = next((need for prefix, need in NEEDS.items() if name.startswith(prefix)), None)
        try:
            importlib.import_module(name)
        except ImportError as error:
            if name.startswith(PINNED) and PIN.search(str(error)):
                continue
            hint = HINT.search(str(error))
            if hint is None or hint[1] in installed(extra) or needed not in (hint[1], None):
                problems.append(f"import {name}: {type(error).__name__}: {error}")
            else:
                missing.add(hint[1])
    assert not problems, "\n".join(problems)
    if extra == "core":
        silent = set(NEEDS.values()) - missing
        assert not silent, f"without extras no module raised the error that names {silent}"


def _module_names() -> list[str]:
    """Return all modules but `__main__`, found in the files: a package that raises hides none."""
    root = Path(reroll.__file__).parent
    return ["reroll"] + [
        found.name
        for folder in [
            root,
            *sorted(path.parent for path in root.rglob("__init__.py") if path.parent != root),
        ]
        for found in pkgutil.iter_modules(
            [str(folder)], ".".join(("reroll", *folder.relative_to(root).parts, ""))
        )
        if not found.name.endswith("__main__")
    ]


def check_features() -> None:
    """Use features of missing extras: each raises an ImportError that names the extra."""

    async def to_arrow() -> None:
        await ReplayBufferConfig().build().to_arrow()

    def tree() -> None:
        from reroll.engine.selectors.tree import weight_tree  # noqa: PLC0415

        weight_tree(fast=True)

    def yaml() -> None:
        Path("config.yaml").write_text("capacity: 8\n")
        ReplayBufferConfig.from_file("config.yaml")

    features: dict[str, Callable[[], object]] = {
        "arrow": lambda: asyncio.run(to_arrow()),
        "fast": tree,
        "cli": yaml,
        "server": lambda: reroll.connect("tcp://127.0.0.1:1"),
    }
    for extra, use in features.items():
        try:
            use()
        except ImportError as error:
            hint = HINT.search(str(error))
            assert hint, f"the message names no extra: {error}"
            assert hint[1] == extra, f"the message names {hint[1]}, not {extra}: {error}"
        else:
            raise AssertionError(f"the feature of the extra {extra!r} works without it")
    command = [Path(sys.executable).with_name("reroll"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert HINT.search(done.stderr), done.stderr


def main(extra: str) -> None:
    """Run the tests of an extra."""
    core()
    TESTS[extra]()
    check_modules(extra)
    if extra == "core":
        check_features()
    print(f"ok: {extra}, reroll {importlib.metadata.version('reroll')}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
