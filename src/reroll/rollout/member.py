"""One rollout of a group, looked at once: everything that a put has to know about it."""

from typing import Any, NamedTuple

from reroll.errors import InvalidArgument
from reroll.rollout.checking import check_one
from reroll.rollout.foreign import count_tokens, read_length, read_seq_staleness
from reroll.rollout.reward import read_score
from reroll.rollout.size import count_bytes, count_bytes_beside_tokens, holds_only_tokens
from reroll.rollout.status import Status, read_status
from reroll.rollout.tally import count_versions, tally_versions


class Member(NamedTuple):
    """What is known of one rollout."""

    status: Status
    seq_staleness: int
    score: float | None
    num_tokens: int
    num_bytes: int
    version_tokens: dict[int, int]
    """How many tokens each version made."""
    newest_trainable: int | None
    """The newest version that made a trainable token, None if token expiry exempts it."""
    response_tokens: int


def look_at(rollout: Any, model_step: int | None = None) -> Member:
    """Check a rollout and return what is known of it, with `model_step` as if it were stamped already.

    Raises InvalidArgument that names the field; changes nothing.
    """
    try:
        seen = look_at_usual(rollout, model_step)
    except (AttributeError, InvalidArgument):  # the general look says what is wrong, if anything is
        seen = None
    return look_at_any(rollout, model_step) if seen is None else seen


def look_at_any(rollout: Any, model_step: int | None) -> Member:
    """Return what `look_at` returns, of any rollout."""
    check_one(rollout, partial=model_step is not None)
    tally = tally_versions(rollout, model_step)
    return Member(
        read_status(rollout.status),
        read_seq_staleness(rollout),
        read_score(getattr(rollout, "reward", None)),
        count_tokens(rollout),
        count_bytes(rollout),
        tally.counts,
        tally.newest_trainable,
        read_length("response_ids", rollout.response_ids) or 0,
    )


def look_at_usual(rollout: Any, model_step: int | None) -> Member | None:
    """Return the same of a foreign rollout that holds what nearly all hold, in lists, and None for any other.

    Puts spend most of their time here, so each field is read once and nothing is called that needs not be.
    """
    num_tokens = ids = labels = None
    response, prompt, versions = rollout.response_ids, rollout.prompt_ids, rollout.response_model_steps
    mask, logprobs = rollout.response_mask, rollout.logprobs
    status, stated = rollout.status, rollout.seq_staleness
    reward = getattr(rollout, "reward", None)
    if not (
        type(response) is type(prompt) is type(versions) is list
        and (type(mask) is list or mask is None)
        and (type(logprobs) is list or logprobs is None)
    ):
        return None
    if type(status) is not Status:
        status = read_status(status)
    if type(stated) is not int or stated != 0:
        stated = read_seq_staleness(rollout)
    beside = 0
    if not holds_only_tokens(rollout):
        num_tokens = getattr(rollout, "num_tokens", None)
        ids, labels = getattr(rollout, "input_ids", None), getattr(rollout, "labels", None)
        beside = count_bytes_beside_tokens(rollout)
    if ids is not None or labels is not None:
        return None
    length, stamped = len(response), len(versions)
    missing = length - stamped
    if (
        (mask is not None and (len(mask) != length or not length or not mask[-1]))
        or (logprobs is not None and len(logprobs) != length)
        or missing < 0
        or (missing and stamped and model_step is None)
    ):
        return None
    newest: int | None
    if stamped:
        counts = count_versions(versions)
        newest, last = max(counts), versions[-1]
        if missing and model_step is not None:
            counts[model_step] = counts.get(model_step, 0) + missing
            newest, last = max(newest, model_step), model_step
        # The last token is trainable; if it is of the newest version too, no other needs a look.
        if newest != last:
            return None
    elif missing and model_step is not None:
        counts, newest = {model_step: missing}, model_step
    else:
        counts, newest = {}, None
    num_bytes = beside
    for held in (response, prompt, versions, mask, logprobs):
        if held:
            if type(held[0]) not in _PLAIN:
                num_bytes = count_bytes(rollout)
                break
            num_bytes += 8 * len(held)
    return Member(
        status,
        stated,
        reward if type(reward) is float else read_score(reward),
        len(prompt) + length if num_tokens is None else count_tokens(rollout),
        num_bytes,
        counts,
        newest,
        length,
    )


_PLAIN = (int, float)
