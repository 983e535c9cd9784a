"""Checkouts: tokens by which a buffer recognises the group that rollouts continue.

A producer checks out a group to regenerate it. The buffer writes the checkout into the rollouts: `Rollout` has an attribute
for it, other classes carry it in `extra_fields` if that is a dict. Copies keep it. Rollouts that cannot carry a checkout
are compared with the checked-out groups by `Fingerprint`.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np

from reroll.rollout.adapters import write_if_present
from reroll.rollout.rollout import Rollout

KEY: Final = "_reroll"
"""The entry of `extra_fields` that holds the checkout."""
_LARGEST: Final = 1 << 62


class Checkout(NamedTuple):
    """One checkout of a group: its buffer, its uid, and the number of the attempt."""

    buffer: str
    uid: int
    attempt: int

    @property
    def text(self) -> str:
        """The text that rollouts carry."""
        return f"{self.buffer}.{self.uid}.{self.attempt}"

    @classmethod
    def read(cls, text: Any) -> "Checkout | None":
        """Return the checkout of a text, None for other values."""
        if type(text) is not str:
            return None
        buffer, *numbers = text.split(".")
        if len(numbers) != 2 or not all(part.isascii() and part.isdecimal() for part in numbers):
            return None
        uid, attempt = map(int, numbers)
        return cls(buffer, uid, attempt) if 0 < uid < _LARGEST and 0 < attempt < _LARGEST else None


class MarkedFields(dict[Any, Any]):
    """`extra_fields` with a checkout: equal to the same fields without it. Copies are plain dicts."""

    __slots__ = ()
    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return unmarked(self) == (unmarked(other) if isinstance(other, dict) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __reduce__(self) -> tuple[type[dict[Any, Any]], tuple[dict[Any, Any]]]:
        return dict, (dict(self),)


def mark(rollouts: Iterable[Any], text: str) -> None:
    """Write a checkout into the rollouts that can carry one."""
    for rollout in rollouts:
        if isinstance(rollout, Rollout):
            rollout.checkout = text
        elif isinstance(fields := getattr(rollout, "extra_fields", None), dict):
            with suppress(
                Exception
            ):  # a class that refuses the entry: its groups are compared by fingerprint
                rollout.extra_fields = MarkedFields(fields, **{KEY: text})


def unmark(rollout: Any) -> None:
    """Remove the checkout from a rollout."""
    if isinstance(rollout, Rollout):
        rollout.checkout = None
    elif isinstance(fields := getattr(rollout, "extra_fields", None), dict) and KEY in fields:
        write_if_present(rollout, "extra_fields", unmarked(fields))


def unmarked(fields: dict[Any, Any]) -> dict[Any, Any]:
    """Return extra fields without the checkout."""
    return {name: value for name, value in fields.items() if name != KEY}


def can_carry(rollout: Any) -> bool:
    """Return whether a rollout can carry a checkout."""
    return isinstance(rollout, Rollout) or isinstance(getattr(rollout, "extra_fields", None), dict)


def read_checkouts(rollouts: Iterable[Any]) -> set[Checkout]:
    """Return the checkouts of rollouts; a Rollout whose `group_uid` was changed since has none."""
    found = set()
    for rollout in rollouts:
        if isinstance(rollout, Rollout):
            if rollout.checkout is None:  # the usual case
                continue
            checkout = Checkout.read(rollout.checkout)
            if checkout is not None and checkout.uid == rollout.group_uid:
                found.add(checkout)
        elif isinstance(fields := getattr(rollout, "extra_fields", None), dict) and KEY in fields:
            checkout = Checkout.read(fields[KEY])
            if checkout is not None:
                found.add(checkout)
    return found


class Fingerprint(NamedTuple):
    """Digests of a group, by which it is recognised without a checkout."""

    prompt: bytes
    """Digest of group_id, and of rollout_id and prompt of each member."""
    responses: tuple[tuple[int, bytes], ...]
    """Length and digest of each member's response."""
    prompts: frozenset[bytes]
    """Digests of the prompts alone."""


def fingerprint_of(rollouts: Sequence[Any]) -> Fingerprint | None:
    """Return the fingerprint of a group, None if a member has no prompt. O(tokens)."""
    ordered, digest, prompts = _ordered(rollouts), blake2b(digest_size=16), set()
    for rollout in ordered:
        prompt = getattr(rollout, "prompt_ids", None)
        prompt = getattr(rollout, "message", None) if prompt is None else prompt
        if prompt is None:
            return None
        named = (getattr(rollout, "group_id", None), getattr(rollout, "rollout_id", None))
        prompts.add(_digest(prompt))
        digest.update(repr(named).encode("utf-8", "surrogatepass") + b"\0" + _digest(prompt))
    responses = [_response(rollout) for rollout in ordered]
    known = tuple((len(response), _digest(response)) for response in responses)
    return Fingerprint(digest.digest(), known, frozenset(prompts))


def extends(old: Fingerprint, rollouts: Sequence[Any]) -> bool:
    """Return whether each response continues that of the fingerprint; the prompts have been compared."""
    return len(old.responses) == len(rollouts) and all(
        len(response) >= length and _digest(response[:length]) == digest
        for (length, digest), response in zip(old.responses, map(_response, _ordered(rollouts)), strict=True)
    )


def _ordered(rollouts: Iterable[Any]) -> list[Any]:
    """Return the members by rollout_id, since producers may return them in another order."""
    return sorted(rollouts, key=lambda rollout: repr(getattr(rollout, "rollout_id", None)))


def _response(rollout: Any) -> Any:
    ids = rollout.response_ids
    return (getattr(rollout, "response", None) or "") if ids is None else ids


def _digest(value: Any) -> bytes:
    try:
        written = np.asarray(value, np.int64).tobytes()
    except (TypeError, ValueError, OverflowError):  # text, or messages
        written = repr(value).encode("utf-8", "surrogatepass")
    return blake2b(written, digest_size=16).digest()
