"""Whether the fields that hold one entry per response token agree about their number."""

from typing import Any

from reroll.rollout.foreign import read_length


def find_mismatch(rollout: Any, *, partial: bool) -> str | None:
    """Return what is wrong with the lengths, None if they agree; raises InvalidArgument for what has no length.

    Fields are compared with `response_ids`; without it there is nothing to compare with. None and empty mean
    absent. With `partial`, the last tokens may lack a version: they are about to be stamped.
    """
    tokens = read_length("response_ids", rollout.response_ids)
    if tokens is None:
        return None
    for field in ("response_mask", "logprobs"):
        entries = read_length(field, getattr(rollout, field, None))
        if not entries or entries == tokens:
            continue
        # A rollout prepared for training may hold a log-probability for each position of the whole sequence.
        whole = read_length("input_ids", getattr(rollout, "input_ids", None))
        if field == "logprobs" and entries == whole:
            continue
        return f"{field} has {entries} entries, but response_ids has {tokens}; give one per response token"
    columns = getattr(rollout, "_columns", None)  # of a Rollout
    if type(columns) is dict:
        whole = tokens + (read_length("prompt_ids", rollout.prompt_ids) or 0)
        for name, column in columns.items():
            if len(column) not in (tokens, whole):
                return (
                    f"column {name!r} has {len(column)} entries, but response_ids has {tokens} and prompt and "
                    f"response have {whole}; give one per token of either"
                )
    versions = read_length("response_model_steps", rollout.response_model_steps)
    if versions and (versions > tokens or (versions < tokens and not partial)):
        return (
            f"response_model_steps has {versions} entries, but response_ids has {tokens}; "
            f"give one per response token"
            + ("" if versions > tokens else ", or put with model_step to fill it up")
        )
    return None
