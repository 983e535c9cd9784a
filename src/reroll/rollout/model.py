"""`Rollout`: one response with all that belongs to it, small in memory.

It is a record: it checks what is assigned to it and converts token fields, and decides nothing. The rules of
versions, staleness, expiry and reset are functions beside it that serve foreign classes just as well.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.rollout.arrays import Floats, Ids, Mask, as_columns, as_floats, as_ids, as_mask
from reroll.rollout.fields import CHECKED_FIELDS, FIELDS, HEAVY_FIELDS, PLAIN_FIELDS, TOKEN_FIELDS, checked
from reroll.rollout.foreign import derive_num_tokens, read_integer
from reroll.rollout.lengths import find_mismatch
from reroll.rollout.sameness import same
from reroll.rollout.status import Status, read_status
from reroll.rollout.versions import NO_VERSIONS, VersionRuns

# In place of tokens that equal prompt_ids + response_ids. A plain True, since it must survive copy and pickle.
_DERIVED: Final = True
_slot_of: Final = {name: f"_{name}" if name in CHECKED_FIELDS else name for name in HEAVY_FIELDS}
_heavy: Final = attrgetter(*_slot_of.values())
BESIDE_TOKENS: Final = tuple(slot for name, slot in _slot_of.items() if name not in TOKEN_FIELDS)
"""The slots that may be heavy, of those without an entry per token."""
_beside_tokens: Final = attrgetter(*BESIDE_TOKENS)
# What a rollout holds, as it lies in its slots. The order is part of the stored format: new fields come last.
STATE_SLOTS: Final = (
    *("_prompt_ids", "_tokens", "_response_ids", "_logprobs", "_response_mask", "_input_ids", "_labels"),
    *("_response_model_steps", "_seq_staleness", "_status", "_num_tokens"),
    *("group_uid", "group_id", "rollout_id", "session_id", "message", "response", "reward", "finish_reason"),
    *("error_msg", "routed_experts", "mm_info", "tool_calls", "extra_fields", "checkout", "_columns"),
)
_NOT_COLUMNS: Final = frozenset(FIELDS).difference({"routed_experts"})
_state: Final = attrgetter(*STATE_SLOTS)
_set_flags: Final[Any] = np.ndarray.setflags  # called by position, which takes half of the time


class Rollout:
    """One response; every field is an optional keyword.

    Token fields take lists, arrays or tensors and are arrays afterwards (ids int32, log-probs float32, mask
    uint8); `response_model_steps` reads like a list. `tokens` that equal prompt_ids + response_ids are not
    stored: they are joined anew at each access, so assign them, do not write into them. `num_tokens` is prompt
    + response unless given. `columns` holds further arrays by name, each with one entry per response token, or per
    token of prompt and response, of any dtype and shape behind that axis; assign a new dict to change them, and a
    column `routed_experts` sets the field of that name. Wrong types and lengths raise InvalidArgument; a later assignment is checked
    by itself, and against its siblings when the rollout is put.

    `checkout` is written by a buffer that hands the rollout out to be rolled again, and cleared by `put`: copies carry it,
    so that the buffer recognises them. It is no field, and does not count in comparisons.
    """

    __slots__ = (*(f"_{name}" for name in CHECKED_FIELDS), *PLAIN_FIELDS, "checkout", "__weakref__")
    __hash__ = None  # type: ignore[assignment]  # it changes, so it is compared by value

    logprobs = checked("logprobs", as_floats)
    response_mask = checked("response_mask", as_mask)
    response_model_steps = checked("response_model_steps", lambda field, value: VersionRuns.of(value, field))
    seq_staleness = checked("seq_staleness", read_integer)
    status = checked("status", lambda _, value: read_status(value))
    input_ids = checked("input_ids", as_ids)
    labels = checked("labels", as_ids)

    _prompt_ids: Ids | None
    _response_ids: Ids | None
    _tokens: Ids | Literal[True] | None
    _num_tokens: int | None
    _logprobs: Floats | None
    _response_mask: Mask | None
    _response_model_steps: VersionRuns
    _seq_staleness: int
    _status: Status
    _input_ids: Ids | None
    _labels: Ids | None
    _columns: dict[str, npt.NDArray[Any]] | None

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
        self.group_uid = group_uid
        self.group_id = group_id
        self.rollout_id = rollout_id
        self.session_id = session_id
        self.message = message
        self._prompt_ids = as_ids("prompt_ids", prompt_ids)
        self._response_ids = as_ids("response_ids", response_ids)
        self.tokens = tokens
        self.response = response
        self.logprobs = logprobs
        self.response_mask = response_mask
        self.response_model_steps = response_model_steps
        self.seq_staleness = seq_staleness
        self.reward = reward
        self.status = status
        self.finish_reason = finish_reason
        self.error_msg = error_msg
        self.routed_experts = routed_experts
        self.mm_info = mm_info
        self.tool_calls = tool_calls
        self.num_tokens = num_tokens
        self.input_ids = input_ids
        self.labels = labels
        self.extra_fields = extra_fields
        self.columns = columns
        self.checkout: str | None = None
        if (mismatch := find_mismatch(self, partial=True)) is not None:
            raise InvalidArgument(mismatch)

    @property
    def prompt_ids(self) -> Ids | None:
        return self._prompt_ids

    @prompt_ids.setter
    def prompt_ids(self, value: npt.ArrayLike | None) -> None:
        ids = as_ids("prompt_ids", value)
        self._tokens = self.tokens  # what was derived must not follow the change
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
        if self._tokens is not _DERIVED:
            return self._tokens
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
        return derive_num_tokens(self) if self._num_tokens is None else self._num_tokens

    @num_tokens.setter
    def num_tokens(self, value: int | None) -> None:
        self._num_tokens = None if value is None else read_integer("num_tokens", value)

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]] | None:
        return self._columns

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
        """Return the heavy values that are held in memory: nothing that is derived, nothing that is unset."""
        return [value for value in _heavy(self) if value is not None and value is not _DERIVED]

    def stored_beside_tokens(self) -> list[Any]:
        """Return those of them that do not have an entry per token."""
        return [value for value in _beside_tokens(self) if value is not None and value is not _DERIVED]

    def state(self) -> tuple[Any, ...]:
        """Return what the slots hold, in the order of STATE_SLOTS: nothing derived, nothing converted, no copy."""
        return _state(self)

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Self:
        """Return the rollout that `state` described. Nothing is checked: whoever reads it from outside checks it."""
        self = cls.__new__(cls)
        # One statement, since a batch restores thousands: a loop over names takes three times as long.
        (
            self._prompt_ids,
            self._tokens,
            self._response_ids,
            self._logprobs,
            self._response_mask,
            self._input_ids,
            self._labels,
            self._response_model_steps,
            self._seq_staleness,
            self._status,
            self._num_tokens,
            self.group_uid,
            self.group_id,
            self.rollout_id,
            self.session_id,
            self.message,
            self.response,
            self.reward,
            self.finish_reason,
            self.error_msg,
            self.routed_experts,
            self.mm_info,
            self.tool_calls,
            self.extra_fields,
            self.checkout,
            self._columns,
        ) = state
        return self

    def extend_versions(self, model_step: int) -> None:
        """Give this version to the response tokens that have none."""
        versions, tokens = self._response_model_steps, self._response_ids
        if tokens is not None and (missing := len(tokens) - len(versions)) > 0:
            self._response_model_steps = versions.extended(model_step, missing)

    def freeze(self) -> None:
        """Make the arrays read-only, without a copy; fields can still be assigned."""
        # Without a loop, since a batch has hundreds of rollouts.
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
        """Become what `reset` makes of any object, without a check of each value. O(1)."""
        self._tokens = None if self._prompt_ids is None else _DERIVED
        self._response_ids = np.empty(0, np.int32)
        self._logprobs = np.empty(0, np.float32)
        self._response_model_steps = NO_VERSIONS
        self.response = ""
        self._response_mask = self._input_ids = self._labels = self._num_tokens = self._columns = None
        self.reward = self.finish_reason = self.error_msg = self.routed_experts = self.tool_calls = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set, token fields as plain lists and the status as its string."""
        fields: dict[str, Any] = {}
        for field in FIELDS:
            value: Any = self._num_tokens if field == "num_tokens" else getattr(self, field)
            if value is not None:
                plain = field in CHECKED_FIELDS and hasattr(value, "tolist")
                fields[field] = value.tolist() if plain else value
        fields["status"] = self.status.value
        if self._columns is not None:
            fields["columns"] = {name: column.tolist() for name, column in self._columns.items()}
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Rollout":
        """Return the rollout that `to_dict` described; a key that is no field is an InvalidArgument."""
        unknown = sorted(set(fields) - set(FIELDS))
        if unknown:
            raise InvalidArgument(f"a Rollout has no field {', '.join(unknown)}; put it into extra_fields")
        return cls(**fields)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rollout):
            return NotImplemented
        return all(same(getattr(self, field), getattr(other, field)) for field in FIELDS)

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
