"""Rollouts as dicts of lists, which is what engines return and most trainers keep, and torch.save."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import work
from worker import Measure

CANNOT: dict[str, str] = {}


def version() -> str:
    import torch  # noqa: PLC0415  (takes seconds)

    return f"torch {torch.__version__}"


def _listed(group: work.Group) -> list[dict[str, Any]]:
    start, made = 0, []
    for length, reward in zip(group.lengths.tolist(), group.rewards.tolist(), strict=True):
        part = slice(start, start + length)
        names = ("response_ids", "logprobs", "response_mask")
        made.append(
            {name: getattr(group, name)[part].tolist() for name in names}
            | {"prompt_ids": group.prompt_ids.tolist(), "reward": reward, "versions": [1] * length}
        )
        start += length
    return made


def memory(groups: int) -> Iterator[Measure]:
    """Dicts of Python lists: an object for each id and each log-prob; resident memory of the process."""

    def start(_: int) -> work.Keep:
        kept: list[Any] = []
        return lambda given: kept.extend(map(_listed, given))

    yield lambda: work.memory_of(start, groups)


def checkpoint(groups: int) -> Iterator[Measure]:
    """`torch.save` and `torch.load` of dicts of lists, of a twentieth of the groups, since it is slow; in the event loop, as in one of the starting points, so the stall is that of all groups."""
    import torch  # noqa: PLC0415

    share = max(1, groups // 20)
    given = work.make_groups(work.CHECKPOINTED, share)
    megabytes = sum(group.num_bytes for group in given) / 1e6
    lists = list(map(_listed, given))

    def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=".") as where:
            path = Path(where) / "groups.pt"
            start = perf_counter()
            torch.save(lists, path)
            save_s = perf_counter() - start
            start = perf_counter()
            torch.load(path, weights_only=False)
            resume_s = perf_counter() - start
        return {
            "save": megabytes / save_s,
            "resume": megabytes / resume_s,
            "stall": 1e3 * save_s * groups / share,
        }

    yield run
