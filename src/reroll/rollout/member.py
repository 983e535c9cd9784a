"""One rollout of a group, looked at once: everything that a put has to know about it."""

from operator import attrgetter
from typing import Any, NamedTuple

from reroll.errors import InvalidArgument
from reroll.rollout.checking import check_one
from reroll.rollout.foreign import count_tokens, read_length, read_seq_staleness
from reroll.rollout.model import Rollout
from reroll.rollout.reward import read_score
from reroll.rollout.size import count_bytes, count_bytes_beside_tokens
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
    """Return the same of a rollout that holds what nearly all hold, in arrays or lists, and None for any other.

    Puts spend most of their time here, so each field is read once and nothing is called that needs not be.
    """
    own = type(rollout) is Rollout
    fields = _read_own(rollout) if own else _read_lists(rollout)
    response, prompt, versions, mask, logprobs, status, stated, reward, num_tokens, ids, labels = fields
    if response is None or prompt is None or ids is not None or labels is not None:
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
        newest, last = max(counts), versions.last if own else versions[-1]
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
    return Member(
        status,
        stated,
        reward if type(reward) is float else read_score(reward),
        len(prompt) + length if num_tokens is None else count_tokens(rollout),
        _own_bytes(rollout, fields[:5]) if own else _list_bytes(rollout, fields[:5]),
        counts,
        newest,
        length,
    )


def _own_bytes(rollout: Rollout, tokens: tuple[Any, ...]) -> int:
    """Return `count_bytes` of a rollout whose arrays and runs were read."""
    num_bytes = 0
    for held in tokens:
        if held is not None:
            num_bytes += held.nbytes
    return num_bytes + count_bytes_beside_tokens(rollout)


def _list_bytes(rollout: Any, tokens: tuple[Any, ...]) -> int:
    """Return `count_bytes` of a rollout whose lists were read: 8 bytes an entry, if those are plain numbers."""
    entries = 0
    for held in tokens:
        if held:
            if type(held[0]) not in _PLAIN:
                return count_bytes(rollout)
            entries += len(held)
    return 8 * entries + count_bytes_beside_tokens(rollout)


_PLAIN = (int, float)

# All at once and past the properties; in the order of `_read_lists`.
_read_own = attrgetter(
    *("_response_ids", "_prompt_ids", "_response_model_steps", "_response_mask", "_logprobs"),
    *("_status", "_seq_staleness", "reward", "_num_tokens", "_input_ids", "_labels"),
)


def _read_lists(rollout: Any) -> tuple[Any, ...]:
    """Return the same fields of any object, without response if not all tokens are in lists."""
    response, prompt, versions = rollout.response_ids, rollout.prompt_ids, rollout.response_model_steps
    mask, logprobs = rollout.response_mask, rollout.logprobs
    status, stated = rollout.status, rollout.seq_staleness
    if not (
        type(response) is type(prompt) is type(versions) is list
        and (mask is None or type(mask) is list)
        and (logprobs is None or type(logprobs) is list)
    ):
        response = None
    return (
        response,
        prompt,
        versions,
        mask,
        logprobs,
        status if type(status) is Status else read_status(status),
        0 if stated == 0 else read_seq_staleness(rollout),
        getattr(rollout, "reward", None),
        getattr(rollout, "num_tokens", None),
        getattr(rollout, "input_ids", None),
        getattr(rollout, "labels", None),
    )
