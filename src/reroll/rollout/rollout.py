"""`Rollout`: one response with its prompt and metadata, compact in memory.

It is a record: it checks and converts the values that are assigned to it, and decides nothing. The rules of versions,
staleness, expiry and reset are functions that work for other classes just as well.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.rollout.adapters import derive_num_tokens, find_mismatch, read_integer
from reroll.rollout.arrays import Floats, Ids, Mask, as_columns, as_floats, as_ids, as_mask, same
from reroll.rollout.status import Status, read_status
from reroll.rollout.versions import NO_VERSIONS, VersionRuns

CHECKED_FIELDS: Final = (
    *("prompt_ids", "tokens", "response_ids", "logprobs", "response_mask", "response_model_steps"),
    *("input_ids", "labels", "seq_staleness", "status", "num_tokens", "columns"),
)
PLAIN_FIELDS: Final = (
    *("group_uid", "group_id", "rollout_id", "session_id", "message", "response", "reward", "finish_reason"),
    *("error_msg", "routed_experts", "mm_info", "tool_calls", "extra_fields"),
)
FIELDS: Final = CHECKED_FIELDS + PLAIN_FIELDS
TOKEN_FIELDS: Final = ("prompt_ids", "response_ids", "logprobs", "response_mask", "response_model_steps")
"""Fields with an entry per token that nearly every rollout has."""
OTHER_HEAVY_FIELDS: Final = (
    *("message", "tokens", "response", "routed_experts", "mm_info", "tool_calls", "input_ids", "labels"),
    *("extra_fields", "columns"),
)
"""Other fields that may need much memory; the rest are single numbers and short strings."""

# Stands for tokens that equal prompt_ids + response_ids. A plain True, since copy and pickle must keep its identity.
_DERIVED: Final = True
_OTHER_HEAVY_SLOTS: Final = tuple(
    f"_{name}" if name in CHECKED_FIELDS else name for name in OTHER_HEAVY_FIELDS
)
_KEPT_SLOTS: Final = ("rollout_id", "session_id", "message", "mm_info", "extra_fields")
"""Other values that stay when a response is removed."""
# The values of a rollout in their order in the stored format: append new ones at the end.
STATE_SLOTS: Final = (
    *("_prompt_ids", "_tokens", "_response_ids", "_logprobs", "_response_mask", "_input_ids", "_labels"),
    *("_response_model_steps", "_seq_staleness", "_status", "_num_tokens"),
    *("group_uid", "group_id", "rollout_id", "session_id", "message", "response", "reward", "finish_reason"),
    *("error_msg", "routed_experts", "mm_info", "tool_calls", "extra_fields", "checkout", "_columns"),
)
USUAL_SLOTS: Final = (
    *("_prompt_ids", "_response_ids", "_logprobs", "_response_mask", "_response_model_steps"),
    *("_seq_staleness", "_status", "group_uid", "group_id", "reward", "finish_reason", "checkout"),
)
OTHER_SLOTS: Final = tuple(slot for slot in STATE_SLOTS if slot not in USUAL_SLOTS)
"""Values that few rollouts have; one dict holds those that are not None."""
_NOT_COLUMNS: Final = frozenset(FIELDS).difference({"routed_experts"})
read_slots: Final = attrgetter(*USUAL_SLOTS, "_others")
"""Returns the usual values of a rollout, and the dict of the others or None, without copies."""
_set_flags: Final[Any] = np.ndarray.setflags  # called by position, which takes half of the time


def _checked(name: str, convert: Callable[[str, Any], Any]) -> property:
    """Return a property that converts the assigned value; the slot "_" + name holds it. Reading is done in C."""
    slot = f"_{name}"
    return property(attrgetter(slot), lambda rollout, value: setattr(rollout, slot, convert(name, value)))


def _other(slot: str) -> property:
    """Return a property of a value that few rollouts have. Writing replaces the dict, which copies of the rollout share."""

    def read(rollout: Any) -> Any:
        others = rollout._others  # noqa: SLF001
        return None if others is None else others.get(slot)

    def write(rollout: Any, value: Any) -> None:
        others = rollout._others or {}  # noqa: SLF001
        if value is not None:
            rollout._others = {**others, slot: value}  # noqa: SLF001
        elif slot in others:
            rollout._others = {name: others[name] for name in others if name != slot} or None  # noqa: SLF001

    return property(read, write)


def is_empty_dict(fields: Any) -> bool:
    """Return whether `extra_fields` are those of a new rollout."""
    return type(fields) is dict and not fields


def others_without_response(others: Mapping[str, Any] | None, prompt_ids: Ids | None) -> dict[str, Any]:
    """Return the other values of a rollout without those that describe its response."""
    kept = {slot: value for slot, value in (others or {}).items() if slot in _KEPT_SLOTS}
    return {**kept, "response": ""} if prompt_ids is None else {**kept, "response": "", "_tokens": _DERIVED}


class Rollout:
    """One response; every field is an optional keyword.

    Token fields accept lists, arrays or tensors and become arrays (ids int32, log-probs float32, mask uint8);
    `response_model_steps` reads like a list. `tokens` that equal prompt_ids + response_ids are not stored: each access
    joins them anew, so assign them instead of writing into them. `num_tokens` is prompt + response unless given.

    `columns` holds further arrays by name, with one entry per response token, or per token of prompt and response, and
    any dtype and shape behind that axis. Assign a new dict to change them. A column `routed_experts` sets that field.

    Wrong types and lengths raise InvalidArgument. A later assignment is checked by itself, and against the other fields
    when the rollout is put.

    `checkout` is written when a buffer delivers the rollout for regeneration, and cleared by `put`. Copies keep it, so
    the buffer recognises them. It is not a field and does not count in comparisons.
    """

    __slots__ = (*USUAL_SLOTS, "_others", "__weakref__")
    __hash__ = None  # type: ignore[assignment]  # mutable, and compared by value

    logprobs = _checked("logprobs", as_floats)
    response_mask = _checked("response_mask", as_mask)
    response_model_steps = _checked("response_model_steps", lambda field, value: VersionRuns.of(value, field))
    seq_staleness = _checked("seq_staleness", read_integer)
    status = _checked("status", lambda _, value: read_status(value))
    input_ids = _checked("input_ids", as_ids)
    labels = _checked("labels", as_ids)
    rollout_id = _other("rollout_id")
    session_id = _other("session_id")
    message = _other("message")
    response = _other("response")
    error_msg = _other("error_msg")
    routed_experts = _other("routed_experts")
    mm_info = _other("mm_info")
    tool_calls = _other("tool_calls")
    _tokens, _num_tokens, _columns = _other("_tokens"), _other("_num_tokens"), _other("_columns")
    _input_ids, _labels, _extra_fields = _other("_input_ids"), _other("_labels"), _other("extra_fields")

    _prompt_ids: Ids | None
    _response_ids: Ids | None
    _logprobs: Floats | None
    _response_mask: Mask | None
    _response_model_steps: VersionRuns
    _seq_staleness: int
    _status: Status
    _others: dict[str, Any] | None

    def __init__(
        self,
        *,
        group_uid: int | None = None,
        group_id: Any = None,
        rollout_id: Any = None,
        session_id: Any = None,
        message: Any = None,
        prompt_ids: npt.ArrayLike | None = None,
        tokens: npt.ArrayLike | None = None,
        response: str | None = None,
        response_ids: npt.ArrayLike | None = None,
        logprobs: npt.ArrayLike | None = None,
        response_mask: npt.ArrayLike | None = None,
        response_model_steps: npt.ArrayLike | VersionRuns | None = None,
        seq_staleness: int = 0,
        reward: float | Mapping[str, Any] | None = None,
        status: Status | str = Status.INIT,
        finish_reason: str | None = None,
        error_msg: str | None = None,
        routed_experts: Any = None,
        mm_info: Any = None,
        tool_calls: Any = None,
        num_tokens: int | None = None,
        input_ids: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
        extra_fields: Any = None,
        columns: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None:
        self.group_uid, self.group_id = group_uid, group_id
        self._prompt_ids = as_ids("prompt_ids", prompt_ids)
        self._response_ids = as_ids("response_ids", response_ids)
        self.logprobs = logprobs
        self.response_mask = response_mask
        self.response_model_steps = response_model_steps
        self.seq_staleness = seq_staleness
        self.reward = reward
        self.status = status
        self.finish_reason = finish_reason
        self.checkout: str | None = None
        others = {
            "rollout_id": rollout_id,
            "session_id": session_id,
            "message": message,
            "response": response,
            "error_msg": error_msg,
            "routed_experts": routed_experts,
            "mm_info": mm_info,
            "tool_calls": tool_calls,
            "extra_fields": extra_fields,
            "_input_ids": as_ids("input_ids", input_ids),
            "_labels": as_ids("labels", labels),
        }
        self._others = {slot: value for slot, value in others.items() if value is not None} or None
        self.tokens = tokens
        self.num_tokens = num_tokens
        self.columns = columns
        if (mismatch := find_mismatch(self, partial=True)) is not None:
            raise InvalidArgument(mismatch)

    @property
    def prompt_ids(self) -> Ids | None:
        return self._prompt_ids

    @prompt_ids.setter
    def prompt_ids(self, value: npt.ArrayLike | None) -> None:
        ids = as_ids("prompt_ids", value)
        self._tokens = self.tokens  # derived tokens must not follow the change
        self._prompt_ids = ids

    @property
    def response_ids(self) -> Ids | None:
        return self._response_ids

    @response_ids.setter
    def response_ids(self, value: npt.ArrayLike | None) -> None:
        ids = as_ids("response_ids", value)
        self._tokens = self.tokens
        self._response_ids = ids

    @property
    def tokens(self) -> Ids | None:
        tokens: Ids | Literal[True] | None = self._tokens
        if tokens is not _DERIVED:
            return tokens
        parts = [ids for ids in (self._prompt_ids, self._response_ids) if ids is not None]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    @tokens.setter
    def tokens(self, value: npt.ArrayLike | None) -> None:
        ids = as_ids("tokens", value)
        self._tokens = _DERIVED if ids is not None and self._is_derivable(ids) else ids

    def _is_derivable(self, tokens: Ids) -> bool:
        prompt, response = self._prompt_ids, self._response_ids
        split = 0 if prompt is None else len(prompt)
        if len(tokens) != split + (0 if response is None else len(response)):
            return False
        return (prompt is None or np.array_equal(tokens[:split], prompt)) and (
            response is None or np.array_equal(tokens[split:], response)
        )

    @property
    def num_tokens(self) -> int:
        given: int | None = self._num_tokens
        return derive_num_tokens(self) if given is None else given

    @num_tokens.setter
    def num_tokens(self, value: int | None) -> None:
        self._num_tokens = None if value is None else read_integer("num_tokens", value)

    @property
    def extra_fields(self) -> Any:
        if (held := self._extra_fields) is None:
            self._extra_fields = held = {}
        return held

    @extra_fields.setter
    def extra_fields(self, value: Any) -> None:
        self._extra_fields = value

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]] | None:
        columns: dict[str, npt.NDArray[Any]] | None = self._columns
        return columns

    @columns.setter
    def columns(self, value: Mapping[str, npt.ArrayLike] | None) -> None:
        columns = as_columns(value, _NOT_COLUMNS)
        if columns is not None and "routed_experts" in columns:
            self.routed_experts = columns.pop("routed_experts")
        self._columns = columns or None

    def append(
        self,
        token_ids: npt.ArrayLike,
        logprobs: npt.ArrayLike | None = None,
        version: int | None = None,
        mask: npt.ArrayLike | int | None = None,
    ) -> None:
        """Append tokens to the response, with their log-probabilities, version and mask.

        Cost: O(response tokens), one copy of each array.

        Args:
            token_ids: the new response tokens.
            logprobs: one number per new token; required if the response has log-probabilities.
            version: version of the weights that generated them; None leaves them to be stamped by `put`.
            mask: zeros and ones, or one of them for all new tokens; None means 1 if the response has a mask.

        Raises:
            InvalidArgument: lengths disagree, an earlier token has no version or log-probability, or a field is set that
                describes the shorter response (tokens other than prompt + response, input_ids, labels, num_tokens,
                columns). Nothing has changed.

        Example:
            >>> rollout = Rollout(prompt_ids=[1, 2])
            >>> rollout.append([7, 8], logprobs=[-0.1, -0.2], version=3)
            >>> rollout.append([9], logprobs=[0.0], version=4, mask=0)

        """
        ids = as_ids("token_ids", token_ids)
        if ids is None:
            raise InvalidArgument("token_ids is required: the tokens to append")
        stale = [
            field
            for field in ("tokens", "input_ids", "labels", "num_tokens", "columns")
            if (held := getattr(self, f"_{field}")) is not None and held is not _DERIVED
        ]
        if stale:
            raise InvalidArgument(
                f"append would leave {', '.join(stale)} with the shorter response; set it to None first"
            )
        before = 0 if self._response_ids is None else len(self._response_ids)
        after = before + len(ids)
        held_logprobs = self._logprobs if before else None
        added = as_floats("logprobs", logprobs)
        if len(ids) and before and (held_logprobs is None or not len(held_logprobs)) != (added is None):
            raise InvalidArgument(
                "logprobs must be given for all response tokens or for none: "
                + ("the response has none" if added is not None else "the response has them")
            )
        joined = added if held_logprobs is None or added is None else np.concatenate((held_logprobs, added))
        if joined is not None and len(joined) != after:
            raise InvalidArgument(f"logprobs has {len(joined) - before} entries for {len(ids)} new tokens")
        mask = np.full(len(ids), mask) if isinstance(mask, int) else mask
        flags, held_mask = as_mask("mask", mask), self._response_mask
        if flags is not None or (held_mask is not None and len(held_mask)):
            held_mask = held_mask if held_mask is not None and len(held_mask) else np.ones(before, np.uint8)
            flags = np.concatenate((held_mask, np.ones(len(ids), np.uint8) if flags is None else flags))
            if len(flags) != after:
                raise InvalidArgument(f"mask has {len(flags) - before} entries for {len(ids)} new tokens")
        versions = self._response_model_steps
        if version is not None:
            if len(versions) != before:
                raise InvalidArgument(
                    f"version {version} cannot be appended: {before - len(versions)} earlier tokens have no version"
                )
            versions = versions.extended(read_integer("version", version), len(ids))
        self._response_ids = ids if not before else np.concatenate((self._response_ids, ids))  # type: ignore[arg-type]
        if joined is not None:
            self._logprobs = joined
        if flags is not None:
            self._response_mask = flags
        self._response_model_steps = versions

    def stored_payload(self) -> list[Any]:
        """Return the heavy values in memory, without derived and unset ones."""
        usual = self._prompt_ids, self._response_ids, self._logprobs, self._response_mask
        others = [] if self._others is None else [self._others.get(slot) for slot in _OTHER_HEAVY_SLOTS]
        held = (*usual, self._response_model_steps, *others)
        return [value for value in held if value is not None and value is not _DERIVED]

    def state(self) -> tuple[Any, ...]:
        """Return the values in the order of STATE_SLOTS, without copies; None for `extra_fields` that are empty."""
        *usual, others = read_slots(self)
        held = {**dict(zip(USUAL_SLOTS, usual, strict=True)), **(others or {})}
        if is_empty_dict(held.get("extra_fields")):
            del held["extra_fields"]
        return tuple(map(held.get, STATE_SLOTS))

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Self:
        """Return the rollout with a `state`, which the caller has checked.

        Args:
            state: what `state` returned.

        """
        held = dict(zip(STATE_SLOTS, state, strict=True))
        others = {slot: held[slot] for slot in OTHER_SLOTS if held[slot] is not None}
        return cls.from_slots((*(held[slot] for slot in USUAL_SLOTS), others or None))

    @classmethod
    def from_slots(cls, slots: Sequence[Any]) -> Self:
        """Return the rollout with these values, as `read_slots` returns them, which the caller has checked.

        Args:
            slots: values of USUAL_SLOTS, and the dict of the others or None.

        """
        self = cls.__new__(cls)
        # A loop over names takes three times as long, and a batch restores thousands.
        (
            self._prompt_ids,
            self._response_ids,
            self._logprobs,
            self._response_mask,
            self._response_model_steps,
            self._seq_staleness,
            self._status,
            self.group_uid,
            self.group_id,
            self.reward,
            self.finish_reason,
            self.checkout,
            self._others,
        ) = slots
        return self

    def extend_versions(self, model_step: int) -> None:
        """Assign a version to the response tokens that have none. O(1).

        Args:
            model_step: the version.

        """
        versions, tokens = self._response_model_steps, self._response_ids
        if tokens is not None and (missing := len(tokens) - len(versions)) > 0:
            self._response_model_steps = versions.extended(model_step, missing)

    def freeze(self) -> None:
        """Make the arrays read-only, without a copy; fields can still be assigned."""
        # Without a loop: a batch has hundreds of rollouts.
        if self._prompt_ids is not None:
            _set_flags(self._prompt_ids, False)
        if self._response_ids is not None:
            _set_flags(self._response_ids, False)
        if self._logprobs is not None:
            _set_flags(self._logprobs, False)
        if self._response_mask is not None:
            _set_flags(self._response_mask, False)
        for array in (
            *(self._tokens, self._input_ids, self._labels, self.routed_experts),
            *(() if self._columns is None else self._columns.values()),
        ):
            if array is not None and isinstance(array, np.ndarray):
                array.setflags(write=False)

    def clear_response(self) -> None:
        """Remove the response, as `reset` does for any object, without checking values. O(1)."""
        self._response_ids, self._logprobs = np.empty(0, np.int32), np.empty(0, np.float32)
        self._response_model_steps = NO_VERSIONS
        self._response_mask = self.reward = self.finish_reason = None
        self._others = others_without_response(self._others, self._prompt_ids)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set; token fields as lists, the status as a string."""
        fields: dict[str, Any] = {}
        for field in FIELDS:
            value: Any = self._num_tokens if field == "num_tokens" else getattr(self, field)
            if value is not None and (field != "extra_fields" or value):
                plain = field in CHECKED_FIELDS and hasattr(value, "tolist")
                fields[field] = value.tolist() if plain else value
        fields["status"] = self.status.value
        if self._columns is not None:
            fields["columns"] = {name: column.tolist() for name, column in self._columns.items()}
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Rollout":
        """Return the rollout of a dict that `to_dict` returned.

        Args:
            fields: values by field name.

        Raises:
            InvalidArgument: a key is no field.

        """
        unknown = sorted(set(fields) - set(FIELDS))
        if unknown:
            raise InvalidArgument(
                f"a Rollout has no field {', '.join(unknown)}; put other values into extra_fields"
            )
        return cls(**fields)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rollout):
            return NotImplemented
        mine, theirs = self._extra_fields or {}, other._extra_fields or {}
        return same(mine, theirs) and all(
            same(getattr(self, field), getattr(other, field)) for field in FIELDS if field != "extra_fields"
        )

    def __repr__(self) -> str:
        versions = self.response_model_steps
        parts = [self.status.value]
        parts += [
            f"{name}={value!r}"
            for name in ("group_id", "rollout_id")
            if (value := getattr(self, name)) is not None
        ]
        parts += [f"{0 if self.prompt_ids is None else len(self.prompt_ids)} prompt"]
        parts += [f"{0 if self.response_ids is None else len(self.response_ids)} response tokens"]
        if versions:
            parts.append(f"versions {versions.oldest} to {versions.newest}")
        if self.reward is not None:
            parts.append(f"reward={self.reward!r}")
        return f"<Rollout {', '.join(parts)}>"
