"""Rollouts that a producer has, and may be writing into: seen as of the last token that all their fields tell of."""

import copy
from typing import Any, Final

from reroll.rollout.adapters import read_length

_PER_TOKEN: Final = ("response_ids", "logprobs", "response_mask", "response_model_steps")
"""The fields that hold one entry for each response token; None and empty mean absent."""


def as_far_as_written(rollout: Any) -> Any:
    """Return a copy of a rollout whose fields agree about the number of response tokens; the rollout stays as it is.

    A producer that continues a response adds to one field after the other, so what was there when it got the rollout is
    in all of them.
    """
    seen = copy.copy(rollout)
    fields: dict[str, Any] = {name: getattr(seen, name, None) for name in _PER_TOKEN}
    lengths = {name: read_length(name, value) for name, value in fields.items()}
    if lengths["response_ids"] is None:
        return seen
    if lengths["logprobs"] == read_length("input_ids", getattr(seen, "input_ids", None)):
        del lengths["logprobs"]  # one for each position of the whole sequence
    present = {name: length for name, length in lengths.items() if length or name == "response_ids"}
    tokens = min(length or 0 for length in present.values())
    for name, length in present.items():
        # Lists are copied even if they have that length: they may grow while they are being encoded.
        if length != tokens or isinstance(fields[name], list):
            setattr(seen, name, fields[name][:tokens])
    return seen
