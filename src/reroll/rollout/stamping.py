"""Stamping: response tokens that have no version yet get one.

`tally_versions(rollout, model_step)` says beforehand what stamping would give; `stamp` then does it, and
cannot fail on a rollout that was checked.
"""

from itertools import repeat
from typing import Any

import numpy as np

from reroll.rollout.foreign import RolloutLike
from reroll.rollout.model import Rollout
from reroll.rollout.tally import count_unstamped
from reroll.rollout.versions import VersionRuns


def stamp(rollout: RolloutLike, model_step: int) -> None:
    """Give `model_step` to the response tokens without a version; those that have one keep it.

    The object gets a new list (or array, or tuple, as it had): the old one may be shared with others.
    """
    if type(rollout) is Rollout:
        rollout.extend_versions(model_step)
        return
    versions, tokens = rollout.response_model_steps, rollout.response_ids
    # Lists are counted here, for nearly all are, and every put stamps.
    in_lists = type(versions) is type(tokens) is list
    missing = len(tokens) - len(versions) if in_lists else count_unstamped(rollout)
    if missing > 0:
        rollout.response_model_steps = _extended(versions, model_step, missing)


def _extended(versions: Any, model_step: int, count: int) -> Any:
    if type(versions) is list:  # nearly always; copied once, for responses are long
        return [*versions, *repeat(model_step, count)] if versions else [model_step] * count
    if isinstance(versions, VersionRuns):
        return versions.extended(model_step, count)
    if isinstance(versions, np.ndarray):
        return np.append(versions, np.full(count, model_step, dtype=versions.dtype))
    if isinstance(versions, tuple):
        return (*versions, *[model_step] * count)
    held = [] if versions is None else versions.tolist() if hasattr(versions, "tolist") else list(versions)
    return held + [model_step] * count
