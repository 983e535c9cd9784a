"""Check a group and summarize it: everything that a buffer needs to know about it without reading its rollouts again.

`summarize` has two ways with the same result: `inspect_any` reads any rollout, `inspect_lists` objects that hold lists. Groups
of `Rollout`s have columns, and `RolloutGroup.summary` reads those. Nothing is changed here.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from reroll.errors import InvalidArgument
from reroll.rollout.adapters import (
    RolloutLike,
    check_rollout,
    check_writable,
    count_tokens,
    read_integer,
    read_length,
    read_score,
    read_seq_staleness,
)
from reroll.rollout.rollout import OTHER_HEAVY_FIELDS, TOKEN_FIELDS, Rollout
from reroll.rollout.status import Status, combine_statuses, read_status
from reroll.rollout.versions import count_versions, tally_versions

_NUMBERS: Final = (int, float)


class Measure(NamedTuple):
    """Lengths and scores of a group's responses, in a form that adds up over groups."""

    tokens: int
    bits: bytes
    """Bit length of each response's length, one byte each: counters count the joined bytes of a batch at once."""
    scored: int
    """Number of rollouts with a finite reward; the fields below are about these."""
    score: float
    """Sum of rewards."""
    solved: int
    """Number of rewards above 0."""
    is_compared: bool
    """Whether there are at least two rewards."""
    is_uniform: bool
    """Whether there are at least two rewards, and all are equal."""


@dataclass(slots=True, kw_only=True)
class GroupSummary:
    """Summary of a group."""

    status: Status
    group_id: Any
    """The first `group_id` of a member that is not None."""
    version: int | None
    """Oldest version of all tokens, None without versions."""
    newest_version: int | None
    staleness: int
    """Largest `seq_staleness` of a member."""
    num_rollouts: int
    num_tokens: int
    num_bytes: int
    """Estimated bytes of the payload, see `count_bytes`."""
    reward_mean: float | None
    """Mean over the members with a reward, None if there are none."""
    reward_std: float | None
    """Standard deviation of the population."""
    version_tokens: dict[int, int]
    """Number of tokens of each version."""
    member_versions: tuple[int | None, ...]
    """Oldest version of each member."""
    member_newest_trainable: tuple[int | None, ...]
    """Newest version of a trainable token of each member, None for members that are exempt from token expiry."""
    member_tokens: tuple[int, ...]
    member_staleness: tuple[int, ...]
    """`seq_staleness` of each member."""
    measure: Measure
    prompt_tokens: int | None = None
    """Prompt tokens of all members, None if they were not counted."""


class Member(NamedTuple):
    """Summary of one rollout."""

    status: Status
    seq_staleness: int
    score: float | None
    num_tokens: int
    num_bytes: int
    version_tokens: dict[int, int]
    """Number of tokens of each version."""
    newest_trainable: int | None
    """Newest version of a trainable token, None if the rollout is exempt from token expiry."""
    response_tokens: int


# --- groups


def group_status(rollouts: Iterable[RolloutLike]) -> Status:
    """Return the status of a group, see `combine_statuses`."""
    return combine_statuses(read_status(rollout.status) for rollout in rollouts)


def check(rollouts: Sequence[Any], *, model_step: int | None = None) -> None:
    """Raise InvalidArgument, which names rollout and field, unless all rollouts can be stamped, expired and stored.

    With `model_step`, the last tokens of a response may have no version.
    """
    summarize(rollouts, model_step=model_step)


def summarize(rollouts: Sequence[RolloutLike], *, model_step: int | None = None) -> GroupSummary:
    """Check a group and return its summary, as it would be after stamping with `model_step`.

    O(rollouts) for a group of `Rollout`s, O(tokens) for objects that hold lists.

    Raises:
        InvalidArgument: A rollout cannot be stored; the message names rollout and field.

    """
    if model_step is not None:
        model_step = read_integer("model_step", model_step)
    return combine(inspect_members(rollouts, model_step), find_group_id(rollouts))


def inspect_members(rollouts: Sequence[Any], model_step: int | None) -> list[Member]:
    """Check a group and return the summary of each rollout. Raises InvalidArgument."""
    members: list[Member] = []
    writable: type = Rollout
    for position, rollout in enumerate(rollouts):
        try:
            members.append(inspect_member(rollout, model_step))
            if type(rollout) is not writable:
                check_writable(rollout)
                writable = type(rollout)
        except InvalidArgument as error:
            raise InvalidArgument(f"rollout {position}: {error}") from error
    return members


def combine(members: Sequence[Member], group_id: Any) -> GroupSummary:
    """Return the summary of a group from those of its members."""
    columns = zip(*members, strict=True) if members else [()] * len(Member._fields)
    statuses, staleness, scores, tokens, num_bytes, counts, trainable, lengths = columns
    version_tokens: dict[int, int] = {}
    for found in counts:
        for version, count in found.items():
            version_tokens[version] = version_tokens.get(version, 0) + count
    oldest = tuple([min(found, default=None) for found in counts])
    reward_mean, reward_std = mean_and_std([score for score in scores if score is not None])
    return GroupSummary(
        status=combine_statuses(statuses),
        group_id=group_id,
        version=min(version_tokens, default=None),
        newest_version=max(version_tokens, default=None),
        staleness=max(staleness, default=0),
        num_rollouts=len(members),
        num_tokens=sum(tokens),
        num_bytes=sum(num_bytes),
        reward_mean=reward_mean,
        reward_std=reward_std,
        version_tokens=version_tokens,
        member_versions=oldest,
        member_newest_trainable=oldest if trainable == oldest else trainable,  # equal tuples share memory
        member_tokens=tokens,
        member_staleness=staleness,
        measure=measure(lengths, scores),
    )


def find_group_id(rollouts: Sequence[Any]) -> Any:
    """Return the first `group_id` of a rollout that is not None."""
    ids = (getattr(rollout, "group_id", None) for rollout in rollouts)
    return next((group_id for group_id in ids if group_id is not None), None)


def mean_and_std(scores: Sequence[float]) -> tuple[float | None, float | None]:
    """Return mean and standard deviation of the population, (None, None) without scores.

    Both are NaN if they are undefined, as for inf and -inf, or too large.
    """
    if not scores:
        return None, None
    try:
        mean = math.fsum(scores) / len(scores)
        return mean, math.sqrt(math.fsum([(score - mean) ** 2 for score in scores]) / len(scores))
    except (ValueError, OverflowError):
        return math.nan, math.nan


def measure(lengths: Sequence[int], scores: Sequence[float | None]) -> Measure:
    """Return the measure of responses with these lengths and scores."""
    finite = [score for score in scores if score is not None]
    total = sum(finite)
    if not math.isfinite(total):
        finite = [score for score in finite if math.isfinite(score)]
        total = sum(finite)
    count = len(finite)
    return Measure(
        sum(lengths),
        bytes([length.bit_length() for length in lengths]),
        count,
        float(total),
        len([score for score in finite if score > 0]),
        count > 1,
        count > 1 and finite.count(finite[0]) == count,
    )


# --- members


def inspect_member(rollout: Any, model_step: int | None = None) -> Member:
    """Check a rollout and return its summary, as it would be after stamping. Raises InvalidArgument."""
    try:
        member = inspect_lists(rollout, model_step)
    except (AttributeError, InvalidArgument):  # `inspect_any` names the field, if one is wrong
        member = None
    return member or inspect_any(rollout, model_step)


def inspect_any(rollout: Any, model_step: int | None) -> Member:
    """Check any rollout and return its summary. Raises InvalidArgument."""
    check_rollout(rollout, partial=model_step is not None)
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


def inspect_lists(rollout: Any, model_step: int | None) -> Member | None:
    """Return the summary of a rollout with the usual fields in lists; None for others, which `inspect_any` reads.

    Puts of foreign objects spend most of their time here: it takes about a fifth of the time of `inspect_any`.
    """
    response, prompt, versions = rollout.response_ids, rollout.prompt_ids, rollout.response_model_steps
    mask, logprobs = rollout.response_mask, rollout.logprobs
    status, declared = rollout.status, rollout.seq_staleness
    reward = getattr(rollout, "reward", None)
    if not (
        type(response) is type(prompt) is type(versions) is list
        and (type(mask) is list or mask is None)
        and (type(logprobs) is list or logprobs is None)
    ):
        return None
    if type(status) is not Status:
        status = read_status(status)
    if type(declared) is not int or declared != 0:
        declared = read_seq_staleness(rollout)
    num_tokens, num_bytes = None, 0
    if not _holds_only_tokens(rollout):
        if any(getattr(rollout, field, None) is not None for field in ("input_ids", "labels")):
            return None
        num_tokens = getattr(rollout, "num_tokens", None)
        num_bytes = sum(map(count_value, _held(rollout, _OTHER_HEAVY)))
    length, stamped = len(response), len(versions)
    missing = length - stamped
    if (
        (mask is not None and (len(mask) != length or not length or not mask[-1]))
        or (logprobs is not None and len(logprobs) != length)
        or missing < 0
        or (missing and stamped and model_step is None)
    ):
        return None
    counts = count_versions(versions) if stamped else {}
    last = versions[-1] if stamped else None
    if missing and model_step is not None:
        counts[model_step] = counts.get(model_step, 0) + missing
        last = model_step
    # The last token is trainable; if it has the newest version, the other tokens do not matter.
    if counts and max(counts) != last:
        return None
    for held in (response, prompt, versions, mask, logprobs):
        if held:
            if type(held[0]) not in _NUMBERS:
                num_bytes = count_bytes(rollout)
                break
            num_bytes += 8 * len(held)
    return Member(
        status,
        declared,
        reward if type(reward) is float else read_score(reward),
        len(prompt) + length if num_tokens is None else count_tokens(rollout),
        num_bytes,
        counts,
        last,
        length,
    )


# --- bytes of the payload
#
# Arrays and tensors count their own bytes, strings their length, and lists 8 bytes an entry: the pointer. The numbers
# behind the pointers may be shared, or take up to 28 bytes more each, so for lists this is a lower bound.

_MAX_DEPTH: Final = 4  # of {"images": [{"pixels": array}]}; deeper values are not walked at each put


class _HeavyFields(dict[type, tuple[tuple[str, ...], tuple[str, ...]]]):
    """By class: the heavy fields that its objects have, and those that only their `__dict__` may have.

    Reading an attribute that an object does not have is slow, and most objects have few of the fields.
    """

    def __init__(self, fields: tuple[str, ...]) -> None:
        super().__init__()
        self._fields = fields

    def __missing__(self, kind: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
        has_any = hasattr(kind, "__getattr__")
        present = tuple(field for field in self._fields if has_any or hasattr(kind, field))
        self[kind] = present, tuple(field for field in self._fields if field not in present)
        return self[kind]


_ALL_HEAVY: Final = _HeavyFields((*TOKEN_FIELDS, *OTHER_HEAVY_FIELDS))
_OTHER_HEAVY: Final = _HeavyFields(OTHER_HEAVY_FIELDS)
_NOT_ONLY_TOKENS: Final = _HeavyFields((*OTHER_HEAVY_FIELDS, "num_tokens"))


def count_bytes(rollout: Any) -> int:
    """Return the estimated bytes of a rollout's payload. O(fields): lists of tokens are not walked."""
    held = rollout.stored_payload() if isinstance(rollout, Rollout) else _held(rollout, _ALL_HEAVY)
    return sum([value.nbytes if type(value) is np.ndarray else count_value(value) for value in held])


def count_value(value: Any, depth: int = 0) -> int:
    """Return the estimated bytes of a value."""
    if type(value) is list and value and type(value[0]) in _NUMBERS:  # the usual case
        return 8 * len(value)
    if isinstance(value, (list, tuple)):
        # The first entry decides whether it is a list of tokens.
        is_flat = not value or depth >= _MAX_DEPTH or isinstance(value[0], (int, float))
        return 8 * len(value) + (0 if is_flat else sum(count_value(entry, depth + 1) for entry in value))
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, dict):
        inside = () if depth >= _MAX_DEPTH else value.values()
        return 16 * len(value) + sum(count_value(entry, depth + 1) for entry in inside)
    size = getattr(value, "nbytes", None)  # of arrays and tensors
    return size if isinstance(size, int) else 8


def _held(rollout: Any, fields: _HeavyFields) -> list[Any]:
    """Return the heavy values of a foreign object."""
    present, others = fields[type(rollout)]
    held = [getattr(rollout, field, None) for field in present] if present else []
    own = getattr(rollout, "__dict__", None)
    if own and others:
        held += [own[field] for field in others if field in own]
    return [value for value in held if value is not None] if held else held


def _holds_only_tokens(rollout: Any) -> bool:
    """Return whether a foreign object has none of the other heavy fields, nor `num_tokens`."""
    present, others = _NOT_ONLY_TOKENS[type(rollout)]
    own = getattr(rollout, "__dict__", None)
    return not present and (not own or own.keys().isdisjoint(others))
