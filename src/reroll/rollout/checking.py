"""Whether a rollout can be put. Nothing is changed here, whether it can or not."""

from typing import Any

from reroll.errors import InvalidArgument
from reroll.rollout.foreign import REQUIRED_FIELDS, count_tokens, read_seq_staleness
from reroll.rollout.lengths import find_mismatch
from reroll.rollout.reward import read_score
from reroll.rollout.status import read_status


def check_one(rollout: Any, *, partial: bool) -> None:
    """Raise InvalidArgument, naming the field, unless a rollout can be stamped, expired and stored."""
    if isinstance(rollout, dict):
        raise InvalidArgument("a dict has no attributes; wrap it as reroll.DictRollout(d)")
    missing = [field for field in REQUIRED_FIELDS if not hasattr(rollout, field)]
    if missing:
        raise InvalidArgument(
            f"{type(rollout).__name__} has no {', '.join(missing)}; a rollout needs {', '.join(REQUIRED_FIELDS)}"
        )
    try:
        read_status(rollout.status)
    except InvalidArgument as error:
        raise InvalidArgument(f"status: {error}") from error
    read_seq_staleness(rollout)
    read_score(getattr(rollout, "reward", None))
    count_tokens(rollout)
    if (mismatch := find_mismatch(rollout, partial=partial)) is not None:
        raise InvalidArgument(mismatch)


def check_writable(rollout: Any) -> None:
    """Refuse frozen objects now: what is put must be able to take a status, a staleness and versions later.

    Writing back what was read is the one test that holds for every kind of class.
    """
    told = getattr(
        rollout, "__pydantic_fields_set__", None
    )  # which fields were given, for models of pydantic
    before = None if told is None else set(told)
    for field in ("status", "seq_staleness", "response_model_steps"):
        try:
            setattr(rollout, field, getattr(rollout, field))
            if told is not None and before is not None:
                told.intersection_update(before)
        except Exception as error:
            raise InvalidArgument(
                f"{field} of {type(rollout).__name__} cannot be assigned ({error}); put objects that can change"
            ) from error
