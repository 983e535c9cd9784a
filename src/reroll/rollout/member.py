"""One rollout of a group, looked at once: everything that a put has to know about it."""

from typing import Any, NamedTuple

from reroll.rollout.checking import check_one
from reroll.rollout.foreign import count_tokens, read_seq_staleness
from reroll.rollout.model import Rollout
from reroll.rollout.reward import read_score
from reroll.rollout.size import count_bytes
from reroll.rollout.status import Status, read_status
from reroll.rollout.tally import VersionTally, tally_versions


class Member(NamedTuple):
    """What is known of one rollout."""

    status: Status
    seq_staleness: int
    score: float | None
    num_tokens: int
    num_bytes: int
    tally: VersionTally


def look_at(rollout: Any, model_step: int | None = None) -> Member:
    """Check a rollout and return what is known of it, with `model_step` as if it were stamped already.

    Raises InvalidArgument that names the field; changes nothing.
    """
    if type(rollout) is Rollout and (seen := _look_at_usual(rollout, model_step)) is not None:
        return seen
    check_one(rollout, partial=model_step is not None)
    return Member(
        read_status(rollout.status),
        read_seq_staleness(rollout),
        read_score(getattr(rollout, "reward", None)),
        count_tokens(rollout),
        count_bytes(rollout),
        tally_versions(rollout, model_step),
    )


def _look_at_usual(rollout: Rollout, model_step: int | None) -> Member | None:
    """Return the same for a rollout that holds what nearly all hold, None for any other.

    Puts spend most of their time here, so each field is read once and nothing is called that needs not be. `look_at`
    without this is the oracle.
    """
    response, prompt, mask = rollout.response_ids, rollout.prompt_ids, rollout.response_mask
    logprobs, versions = rollout.logprobs, rollout.response_model_steps
    if response is None or prompt is None or rollout.input_ids is not None or rollout.labels is not None:
        return None
    length, versioned = len(response), len(versions)
    missing = length - versioned
    if (
        rollout.num_tokens < 0
        or (mask is not None and (len(mask) != length or not length or not mask[-1]))
        or (logprobs is not None and len(logprobs) != length)
        or (missing and (model_step is None or missing < 0))
    ):
        return None
    counts = versions.counts()
    if missing and model_step is not None:
        counts[model_step] = counts.get(model_step, 0) + missing
    # The last token is trainable; if it is of the newest version too, no other needs a look.
    last = model_step if missing else versions.last
    newest = max(counts, default=None)
    if newest != last:
        return None
    return Member(
        rollout.status,
        rollout.seq_staleness,
        read_score(rollout.reward),
        rollout.num_tokens,
        count_bytes(rollout),
        VersionTally(counts, newest),
    )
