"""What a rollout's versions say about it, read in one pass and without changing it.

Foreign lists are the only thing here that costs time per token, so everything that staleness, expiry and
metrics need to know is taken from that one pass: how many tokens each version made, and the newest version
that made a trainable token.
"""

from collections import Counter
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from reroll.errors import InvalidArgument
from reroll.rollout.foreign import RolloutLike, read_integer, read_length
from reroll.rollout.versions import VersionRuns, version_array

_CHUNK = 256


class VersionTally(NamedTuple):
    """Tokens per version, and the newest version that made a trainable token (None: token expiry exempts it)."""

    counts: dict[int, int]
    newest_trainable: int | None

    @property
    def oldest(self) -> int | None:
        """The smallest version, None without versions."""
        return min(self.counts, default=None)

    @property
    def newest(self) -> int | None:
        """The largest version, None without versions."""
        return max(self.counts, default=None)


def tally_versions(rollout: RolloutLike, model_step: int | None = None) -> VersionTally:
    """Return the tally of a rollout, with `model_step` as if it were stamped already; raises InvalidArgument."""
    held = rollout.response_model_steps
    counts = count_versions(held)
    exempt = _is_given(rollout, "input_ids") or _is_given(rollout, "labels")
    mask: Any = getattr(rollout, "response_mask", None)
    trainable = None if exempt or not counts else _newest_trainable(held, counts, mask)
    missing = 0 if model_step is None else count_unstamped(rollout)
    if model_step is not None and missing:
        counts[model_step] = counts.get(model_step, 0) + missing
        if not exempt and (_is_absent(mask) or _any(mask[-missing:])):
            trainable = model_step if trainable is None else max(trainable, model_step)
    return VersionTally(counts, trainable)


def count_unstamped(rollout: RolloutLike) -> int:
    """Return how many response tokens, all at the end, have no version yet."""
    tokens = read_length("response_ids", rollout.response_ids) or 0
    versions = read_length("response_model_steps", rollout.response_model_steps) or 0
    return max(0, tokens - versions)


def count_versions(versions: Any) -> dict[int, int]:
    """Return how many tokens each version made; raises InvalidArgument."""
    if type(versions) is VersionRuns:
        return versions.counts()
    if versions is None or len(versions) == 0:
        return {}
    if not isinstance(versions, (list, tuple)):
        values, counts = np.unique(version_array(versions), return_counts=True)
        whole = [read_integer("response_model_steps", value) for value in values.tolist()]
        return dict(zip(whole, counts.tolist(), strict=True))
    try:
        found = _count_list(versions)
    except TypeError as error:
        raise InvalidArgument(f"response_model_steps must be one integer per token ({error})") from error
    return {read_integer("response_model_steps", version): count for version, count in found.items()}


def _count_list(versions: list[int] | tuple[int, ...]) -> dict[int, int]:
    """Count chunk by chunk: nearly every chunk is of one version, and `count` compares by identity first.

    About 1 ns a token, 10 where equal versions are separate objects; a Counter of the whole takes 40.
    """
    first, last = versions[0], versions[-1]
    if type(first) is type(last) is int:  # nearly always one version made it all, or two, one after the other
        found = {version: versions.count(version) for version in {first, last}}
        if sum(found.values()) == len(versions):
            return found
    counts: dict[int, int] = {}
    for start in range(0, len(versions), _CHUNK):
        chunk = versions[start : start + _CHUNK]
        same = chunk.count(chunk[0])
        parts = {chunk[0]: same} if same == len(chunk) else Counter(chunk)
        for version, count in parts.items():
            counts[version] = counts.get(version, 0) + count
    return counts


def _newest_trainable(held: Any, counts: dict[int, int], mask: Any) -> int | None:
    """Return the newest version among the tokens that have one and that the mask keeps, None if it keeps none."""
    newest = max(counts)
    if _is_absent(mask):
        return newest
    kept = mask if len(mask) == len(held) else mask[: len(held)]
    if len(counts) == 1:
        return newest if _any(kept) else None
    if isinstance(held, (list, tuple)):
        flags = kept if isinstance(kept, (list, tuple)) else kept.tolist()
        # The end of a response is the newest, and mostly kept.
        if newest in compress(held[-_CHUNK:], flags[-_CHUNK:]):
            return newest
        return max(compress(held, flags), default=None)
    trainable = np.asarray(held)[np.asarray(kept) != 0]
    return int(trainable.max()) if len(trainable) else None


def _is_absent(mask: Any) -> bool:
    return mask is None or len(mask) == 0


def _any(mask: Any) -> bool:
    if isinstance(mask, np.ndarray):
        return bool(mask[-1] or mask.any())  # the end of a response is mostly kept
    return any(mask) if isinstance(mask, (list, tuple)) else bool(mask.any())


def _is_given(rollout: Any, field: str) -> bool:
    return getattr(rollout, field, None) is not None
