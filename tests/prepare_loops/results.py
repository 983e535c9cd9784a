"""Results to prepare from, small enough to compute with by hand."""

import queue
from collections.abc import Iterable, Sequence

from reroll.prepare import GenerationResult, PrepareConfig

TIMEOUT = 20.0


def result(
    number: int, rewards: Sequence[float] = (1.0, 0.0), *, version: int = 0, **fields
) -> GenerationResult:
    """Return a result whose responses have 1, 2, ... tokens, all equal to its number."""
    return GenerationResult(
        prompt_id=str(number),
        index=number,
        prompt_ids=[7, 8],
        responses=[[number] * (place + 1) for place in range(len(rewards))],
        finish_reasons=["stop"] * len(rewards),
        rewards=list(rewards),
        model_step=version,
        **fields,
    )


def filled(results: Iterable[object]) -> "queue.Queue[object]":
    source: queue.Queue[object] = queue.Queue()
    for one in results:
        source.put(one)
    return source


def config(groups: int = 4, **options) -> PrepareConfig:
    return PrepareConfig(**{"global_batch_size": groups, "pack_length": 16, **options})


def prompts_of(*parts) -> list[int]:
    """Return the numbers of the results that the parts of a step were made from, sorted."""
    found = {int(part.input_ids[end - 1]) for data in parts for part in data for end in part.cu_seqlens[1:]}
    return sorted(found - {0})  # 0 is the filler


def same_in(metrics, left: str, right: str, names: Iterable[str]) -> bool:
    return all(metrics[f"{left}/{name}"] == metrics[f"{right}/{name}"] for name in names)
