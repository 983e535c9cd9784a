"""Groups made of rollouts, of an engine's output, and of packed columns.

Each way fills a `Draft` field by field and finishes it once. Input is checked here: lengths, types, names. What does not
fit raises InvalidArgument that names the member and the field, and nothing of the input is changed or kept, but for
values that are not plain (`objects`).
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, repeat
from operator import is_
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from reroll.codec import checksum_of
from reroll.errors import InvalidArgument, shown
from reroll.group.layout import (
    BOUND,
    FIELD_COLUMNS,
    FIELD_NAMES,
    HAS_LOGPROBS,
    HAS_MASK,
    HAS_OBJECTS,
    INTEGER_REWARDS,
    MOST_TOKENS,
    ONE_VERSION,
    ONES_MASK,
    OTHER_REASON,
    OWN_IDS,
    OWN_STALENESS,
    PADDING,
    REASON_CODE,
    SHARED_PROMPT,
    STATUS_CODE,
    TOKENS_ABSENT,
    TOKENS_ARE_DERIVED,
    TOKENS_DERIVED,
    Array,
    Bytes,
    Column,
    Head,
    bounds_of,
    write_dtype,
)
from reroll.rollout import (
    STATE_SLOTS,
    Rollout,
    Status,
    VersionRuns,
    finish_error,
    read_score,
    status_from_finish_reason,
)
from reroll.rollout.arrays import as_columns, as_floats, as_ids, as_mask

_ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})
_MOST_DEPTH: Final = 16
_NONE: Final = type(None)
_DERIVED: Final = True
_NEW: Final = -1
"""The checksum of a column that is computed when the group is finished."""
_FREE_FIELDS: Final = FIELD_NAMES.difference({"group_uid", "group_id", "reward", "finish_reason", "checkout"})
_RESERVED: Final = FIELD_NAMES.union(FIELD_COLUMNS, ("prompt_ids", "response_ids", "columns")).difference(
    {"routed_experts"}
)


class Encoded(NamedTuple):
    """A finished group."""

    head: Head | None
    """None: `data` was not taken apart yet."""
    data: Bytes
    """The head as bytes."""
    body: Bytes
    objects: dict[str, list[Any]]
    """Fields with values that are not plain: one per member, or one for all."""


class Draft:
    """A group that is being made, or changed: every method sets one field of all members."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.head = Head(tuple(lengths))
        self.objects: dict[str, list[Any]] = {}
        self._count = len(self.head.lengths)
        self._parts: list[Any] = []
        self._columns: dict[str, tuple[Column, list[Any]]] = {}
        self._body: Bytes | None = None
        self._mask: bytes | None = None
        self._own_masks: Sequence[Any] | None = None

    @classmethod
    def of(cls, encoded: Encoded) -> "Draft":
        """Return a draft of a finished group; its columns stay, unless one is set anew. No token is copied."""
        head, body = encoded.head or Head.read(encoded.data), memoryview(encoded.body)
        draft = cls(head.lengths)
        meta = msgspec.structs.replace(head.meta, fields=dict(head.meta.fields))
        draft.head, draft.objects, draft._body = replace(head, meta=meta), dict(encoded.objects), encoded.body
        draft._parts = [body[: head.spans().others]]
        spans = head.column_spans()
        draft._columns = {each.name: (each, [body[slice(*spans[each.name])]]) for each in meta.columns}
        return draft

    # --- tokens, in the order of the body

    def prompts(self, prompts: Sequence[Any]) -> None:
        """Set the prompt of each member, ids in 4 bytes or None; one that all share is stored once."""
        head, first = self.head, prompts[0]
        if _is_one(prompts):
            if first is None:
                return
            held, lengths = first, None
        else:
            lengths = [-1 if prompt is None else len(prompt) for prompt in prompts]
            given = [prompt for prompt in prompts if prompt is not None]
            held = b"".join(given)
            if lengths.count(lengths[0]) == self._count:
                one = held[: 4 * lengths[0]]
                if held == one * self._count:
                    held, lengths = one, None
        if lengths is None:
            head.flags |= SHARED_PROMPT
            head.prompt_tokens = len(held) // 4 if type(held) is bytes else len(held)
        else:
            head.meta.prompts = lengths
            head.prompt_tokens = len(held) // 4
        self._parts += (held, PADDING[-4 * head.prompt_tokens % 16])

    def responses(self, responses: Sequence[Any]) -> None:
        """Set the response of each member, ids in 4 bytes; None where the length is -1."""
        given = [ids for ids in responses if ids is not None]
        self._parts += (*given, PADDING[-4 * sum(map(len, given)) % 16])

    def logprobs(self, logprobs: Sequence[Any]) -> None:
        """Set the log-probabilities of each member, 4 bytes each; None: absent."""
        lengths = tuple([-1 if each is None else len(each) for each in logprobs])
        if lengths == self.head.lengths and max(lengths) >= 0:
            self.head.flags |= HAS_LOGPROBS
            given = [each for each in logprobs if each is not None]
            self._parts += (*given, PADDING[-4 * sum(map(len, given)) % 16])
        else:
            self._field_column("logprobs", logprobs)

    def masks(self, masks: Sequence[Any]) -> None:
        """Set the mask of each member, a byte of 0 or 1 each; None: absent. A mask of ones takes no bytes."""
        lengths = tuple([-1 if each is None else len(each) for each in masks])
        if max(lengths) < 0:
            return
        if lengths != self.head.lengths:
            self._own_masks = masks
            self._field_column("response_mask", masks)
            return
        joined = b"".join([each for each in masks if each is not None])
        if 0 not in joined:
            self.head.flags |= ONES_MASK
            return
        self.head.flags |= HAS_MASK
        self._mask = joined
        self._parts += (joined, PADDING[-len(joined) % 16])

    # --- versions

    def versions(self, versions: Sequence[VersionRuns], model_step: int | None = None) -> None:
        """Set the versions of each member; tokens at the end without one get `model_step`. Raises InvalidArgument."""
        head = self.head
        found: list[list[int]] = []
        for place, (runs, length) in enumerate(zip(versions, head.lengths, strict=True)):
            values, ends = runs.parts
            stamped = ends[-1] if ends else 0
            if stamped > length >= 0:
                raise InvalidArgument(
                    f"rollout {place}: response_model_steps has {stamped} entries, but response_ids has {length}; "
                    f"give one per response token"
                )
            if model_step is not None and stamped < length:
                values, ends = runs.extended(model_step, length - stamped).parts
            if len(values) < 2:
                found.append([*values, *ends])
            else:
                counts = [end - start for start, end in pairwise((0, *ends))]
                found.append([number for run in zip(values, counts, strict=True) for number in run])
        head.flags &= ~ONE_VERSION
        head.version = head.meta.versions = None
        if not any(found):
            return
        first = next(runs[0] for runs in found if runs)
        if all(
            runs == [first, length] if length > 0 else not runs
            for runs, length in zip(found, head.lengths, strict=True)
        ):
            head.flags |= ONE_VERSION
            head.version = first
        else:
            head.meta.versions = found

    def stamp(self, model_step: int, masks: Sequence[Any]) -> None:
        """Give a version to the response tokens that have none; `masks` are those of the members."""
        runs = [VersionRuns(zip(each[::2], each[1::2], strict=True)) for each in self.head.runs()]
        exempt = [False] * self._count
        for name in ("input_ids", "labels"):
            column = self._columns.get(name)
            if column is not None:
                lengths = column[0].lengths or self.head.lengths
                exempt = [one or size >= 0 for one, size in zip(exempt, lengths, strict=True)]
        self._own_masks = masks
        self.versions(runs, model_step)
        self.trainable(exempt)

    def trainable(self, exempt: Sequence[bool] = ()) -> None:
        """Find the newest version of a trainable token of each member, after masks and versions were set."""
        head = self.head
        head.meta.trainable = None
        if self._mask is None and self._own_masks is None and True not in exempt:
            return
        runs_of, bounds = head.runs(), bounds_of(head.lengths)
        found: list[int | None] = []
        for place, runs in enumerate(runs_of):
            mask = None
            if self._mask is not None:
                mask = self._mask[bounds[place] : bounds[place + 1]]
            elif self._own_masks is not None and self._own_masks[place] is not None:
                mask = bytes(self._own_masks[place])
            if exempt and exempt[place]:
                found.append(None)
                continue
            newest, at = None, 0
            for version, count in zip(runs[::2], runs[1::2], strict=True):
                if (newest is None or version > newest) and (not mask or 1 in mask[at : at + count]):
                    newest = version
                at += count
            found.append(newest)
        if found != head.trainable():
            head.meta.trainable = found

    # --- numbers

    def statuses(self, statuses: Sequence[Status]) -> None:
        """Set the status of each member."""
        self.head.statuses = bytes([STATUS_CODE[status] for status in statuses])

    def rewards(self, rewards: Sequence[Any]) -> None:
        """Set the reward of each member: a number, a dict with `score`, or None. Raises InvalidArgument."""
        head = self.head
        head.flags &= ~INTEGER_REWARDS
        kinds = set(map(type, rewards))
        if kinds == {float}:
            scores: Sequence[Any] = rewards
        else:
            rewards = [
                each.item() if isinstance(each, np.floating | np.integer) else each for each in rewards
            ]
            scores = [math.nan if (score := read_score(each)) is None else score for each in rewards]
            kinds = set(map(type, rewards))
        head.rewards = tuple(scores)
        total = sum(scores)
        if kinds <= {float, type(None)}:
            # A NaN in the record means no reward.
            gaps = [] if not math.isnan(total) else [math.isnan(score) for score in scores]
            is_exact = not gaps or gaps == [each is None for each in rewards]
        else:
            is_exact = kinds <= {int, type(None)} and all(
                abs(each) < 1 << 53 for each in rewards if each is not None
            )
            head.flags |= INTEGER_REWARDS if is_exact else 0
        self.field("reward", () if is_exact else rewards)

    def finish_reasons(self, reasons: Sequence[Any]) -> None:
        """Set the finish reason of each member."""
        codes = [
            REASON_CODE.get(each, OTHER_REASON) if type(each) in (str, _NONE) else OTHER_REASON
            for each in reasons
        ]
        self.head.reasons = bytes(codes)
        self.field("finish_reason", reasons if OTHER_REASON in codes else ())

    def staleness(self, staleness: Sequence[int]) -> None:
        """Set the staleness that each member states."""
        first = staleness[0]
        is_same = staleness.count(first) == self._count
        self.head.staleness = first if is_same else max(staleness)
        self.head.meta.staleness = None if is_same else list(staleness)
        self.head.flags = self.head.flags & ~OWN_STALENESS | (0 if is_same else OWN_STALENESS)

    def uids(self, uids: Sequence[Any]) -> None:
        """Set the group_uid of each member."""
        first = uids[0]
        is_same = all(uid is first or (type(uid) is type(first) is int and uid == first) for uid in uids)
        is_usual = is_same and (first is None or (type(first) is int and 0 < first < BOUND))
        self.head.uid = first or 0 if is_usual else 0
        self.field("group_uid", () if is_usual else uids)

    def shared(self, name: str, values: Sequence[Any]) -> None:
        """Set `group_id` or `checkout`, which all members mostly share."""
        first = values[0]
        kinds = (str, int) if name == "group_id" else (str,)
        is_same = all(
            each is first or (type(each) is type(first) is str and each == first) for each in values
        )
        if type(first) is int and not is_same:
            is_same = all(type(each) is int and each == first for each in values)
        is_usual = is_same and (first is None or type(first) in kinds)
        setattr(self.head.meta, name, first if is_usual else None)
        self.field(name, () if is_usual else values)

    # --- everything else

    def field(self, name: str, values: Sequence[Any]) -> None:
        """Set another field of Rollout: one value per member; none of them clears it."""
        fields = self.head.meta.fields
        fields.pop(name, None)
        self.objects.pop(name, None)
        if not values or set(map(type, values)) == {_NONE}:
            return
        held = [values[0]] if _is_one(values) else list(values)
        (fields if is_plain(held) else self.objects)[name] = held

    def column(self, name: str, values: Sequence[Any]) -> bool:
        """Set a further column: an array per member, None where absent. False if they are not of one dtype and shape."""
        given = [value for value in values if value is not None and value is not _DERIVED]
        kinds = {(value.dtype, value.shape[1:]) for value in given}
        if len(kinds) > 1:
            return False
        dtype, tail = kinds.pop() if kinds else (np.dtype(FIELD_COLUMNS[name]), ())
        lengths = [
            TOKENS_ABSENT if value is None else TOKENS_ARE_DERIVED if value is _DERIVED else len(value)
            for value in values
        ]
        parts = [
            value.reshape(-1).view(np.uint8) if value.size else b""
            for value in map(np.ascontiguousarray, given)
        ]
        stored = None if lengths == list(self.head.lengths) and min(lengths) >= 0 else lengths
        self._columns[name] = Column(name, write_dtype(dtype), tail, stored, _NEW), parts
        self._body = None
        return True

    def drop_column(self, name: str) -> None:
        """Remove a further column."""
        if self._columns.pop(name, None) is not None:
            self._body = None

    def _field_column(self, name: str, values: Sequence[Any]) -> None:
        if any(value is not None for value in values):
            self.column(
                name,
                [None if value is None else np.frombuffer(value, FIELD_COLUMNS[name]) for value in values],
            )

    @property
    def has_columns(self) -> bool:
        """Whether a further column was set."""
        return bool(self._columns)

    def finish(self) -> Encoded:
        """Return the group. O(bytes): one copy, and one checksum of columns that are new; O(members) if no token changed."""
        head = self.head
        if self._body is None:
            parts, columns = list(self._parts), []
            for column, pieces in self._columns.values():
                size = sum(memoryview(piece).nbytes for piece in pieces)
                joined = b"".join((*pieces, PADDING[-size % 16]))
                parts.append(joined)
                crc = checksum_of(joined) if column.crc == _NEW else column.crc
                columns.append(msgspec.structs.replace(column, crc=crc))
            head.meta.columns = columns
            self._body = b"".join(parts)
            head.body_size = len(self._body)
            head.body_crc = checksum_of(memoryview(self._body)[: head.spans().others])
        head.flags = head.flags | HAS_OBJECTS if self.objects else head.flags & ~HAS_OBJECTS
        has_ids = head.meta.checkout is not None or any(
            name in held for name in ("group_uid", "checkout") for held in (head.meta.fields, self.objects)
        )
        head.flags = head.flags | OWN_IDS if has_ids else head.flags & ~OWN_IDS
        try:
            data = head.write()
        except (OverflowError, UnicodeError, ValueError, TypeError):
            self._move_to_objects()
            data = head.write()
        return Encoded(head, data, self._body, self.objects)

    def _move_to_objects(self) -> None:
        """Keep values as objects that MessagePack cannot hold: integers beyond 64 bits, text with lone surrogates."""
        meta = self.head.meta
        for name, values in list(meta.fields.items()):
            if not _can_encode(values):
                self.objects[name] = meta.fields.pop(name)
        for name in ("group_id", "checkout"):
            if not _can_encode(getattr(meta, name)):
                self.objects[name] = [getattr(meta, name)]
                setattr(meta, name, None)
        self.head.flags |= HAS_OBJECTS if self.objects else 0


def _is_one(values: Sequence[Any]) -> bool:
    """Return whether all values are the same object; arrays are not compared."""
    return all(map(is_, values, repeat(values[0])))


def is_plain(value: Any, depth: int = _MOST_DEPTH) -> bool:
    """Return whether MessagePack holds a value as it is: atoms, lists, and dicts with text as keys, of exactly these types."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is dict and set(map(type, value)) <= {str}:
        value = list(value.values())
    elif kind is not list:
        return False
    kinds = set(map(type, value))
    return kinds <= _ATOMS or (depth > 0 and all(is_plain(each, depth - 1) for each in value))


def _can_encode(value: Any) -> bool:
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeError, ValueError, TypeError):
        return False
    return True


def from_rollouts(rollouts: Sequence[Rollout], model_step: int | None = None) -> Encoded:
    """Return the group of some Rollouts; tokens at the end without a version get `model_step`. Raises InvalidArgument.

    Costs one pass over the fields of each rollout, one copy and one checksum of their tokens.
    """
    count = len(rollouts)
    if not count or list(map(type, rollouts)).count(Rollout) != count:
        other = next((type(each).__name__ for each in rollouts if type(each) is not Rollout), None)
        raise InvalidArgument(
            "a RolloutGroup needs at least one rollout"
            if other is None
            else f"a RolloutGroup holds Rollout objects, not {other}; put groups of other classes as lists"
        )
    held = dict(zip(STATE_SLOTS, zip(*map(Rollout.state, rollouts), strict=True), strict=True))
    responses = held["_response_ids"]
    lengths = [-1 if ids is None else len(ids) for ids in responses]
    draft = Draft(lengths)
    draft.prompts(held["_prompt_ids"])
    draft.responses(responses)
    draft.logprobs(held["_logprobs"])
    draft.masks(held["_response_mask"])
    draft.versions(held["_response_model_steps"], model_step)
    draft.statuses(held["_status"])
    draft.rewards(held["reward"])
    draft.finish_reasons(held["finish_reason"])
    draft.staleness(held["_seq_staleness"])
    draft.uids(held["group_uid"])
    draft.shared("group_id", held["group_id"])
    draft.shared("checkout", held["checkout"])
    for name in _OTHER_FIELDS:
        values = held[name]
        # By identity: an array that is compared with None compares each of its entries.
        if any(value is not None for value in values):
            _set_other(draft, name.removeprefix("_"), values)
    exempt = [
        ids is not None or labels is not None
        for ids, labels in zip(held["_input_ids"], held["_labels"], strict=True)
    ]
    draft.trainable(exempt)
    if draft.has_columns:
        _check_lengths(draft.head, held)
    return draft.finish()


_OTHER_FIELDS: Final = (
    *(
        "_tokens",
        "_num_tokens",
        "_input_ids",
        "_labels",
        "rollout_id",
        "session_id",
        "message",
        "response",
        "error_msg",
    ),
    *("routed_experts", "mm_info", "tool_calls", "extra_fields", "_columns"),
)


def _set_other(draft: Draft, name: str, values: Sequence[Any]) -> None:
    if name == "columns":
        for column in dict.fromkeys(each for member in values if member for each in member):
            parts = [None if member is None else member.get(column) for member in values]
            if not draft.column(column, parts):
                raise InvalidArgument(
                    f"column {column!r} differs in dtype or shape between members; give all the same"
                )
    elif name == "tokens" and all(value is _DERIVED for value in values):
        draft.head.flags |= TOKENS_DERIVED
    elif name in FIELD_COLUMNS:
        draft.column(name, values)
    elif name == "num_tokens":
        for place, size in enumerate(values):
            if size is not None and not 0 <= size < MOST_TOKENS:
                raise InvalidArgument(
                    f"rollout {place}: num_tokens must be at least 0 and below {MOST_TOKENS}, not {size}"
                )
        draft.field(name, values)
    elif name != "routed_experts" or not _is_column(values) or not draft.column(name, values):
        draft.field(name, values)


def _is_column(values: Sequence[Any]) -> bool:
    """Return whether values are arrays of a type that a column can have."""
    given = [value for value in values if value is not None]
    if not all(type(value) is np.ndarray and value.ndim and value.dtype.itemsize for value in given):
        return False
    try:
        write_dtype(given[0].dtype)
    except InvalidArgument:
        return False
    return True


def _check_lengths(head: Head, held: Mapping[str, Sequence[Any]]) -> None:
    """Raise InvalidArgument if a field with one entry per token has another number of them."""
    for place, (length, prompt) in enumerate(zip(head.lengths, head.prompt_lengths(), strict=True)):
        if length < 0:
            continue
        whole, ids = length + max(0, prompt), held["_input_ids"][place]
        for name in ("response_mask", "logprobs"):
            values = held[f"_{name}"][place]
            entries = 0 if values is None else len(values)
            if (
                entries
                and entries != length
                and not (name == "logprobs" and ids is not None and entries == len(ids))
            ):
                raise InvalidArgument(
                    f"rollout {place}: {name} has {entries} entries, but response_ids has {length}; give one per response token"
                )
        for name, column in (held["_columns"][place] or {}).items():
            if len(column) not in (length, whole):
                raise InvalidArgument(
                    f"rollout {place}: column {name!r} has {len(column)} entries, but response_ids has {length} and "
                    f"prompt and response have {whole}; give one per token of either"
                )


# --- the output of an engine


def from_engine(
    prompt_ids: Any,
    responses: Sequence[Any],
    *,
    logprobs: Sequence[Any] | None = None,
    masks: Sequence[Any] | None = None,
    rewards: Sequence[Any] | None = None,
    finish_reasons: Sequence[str | None] | None = None,
    status: Any = None,
    versions: Sequence[Any] | None = None,
    model_step: int | None = None,
    group_id: Any = None,
    columns: Mapping[str, Any] | None = None,
    fields: Mapping[str, Sequence[Any]] | None = None,
) -> Encoded:
    """Return the group of an engine's output; see `RolloutGroup.pack`. Raises InvalidArgument."""
    count = len(responses)
    if not count:
        raise InvalidArgument("responses is empty; give one list or array of token ids per member")
    named = {
        "logprobs": logprobs,
        "masks": masks,
        "rewards": rewards,
        "finish_reasons": finish_reasons,
        "versions": versions,
    }
    for name, values in (*named.items(), *(fields or {}).items()):
        if values is not None and (isinstance(values, str | Mapping) or len(values) != count):
            raise InvalidArgument(
                f"{name} must have one entry per response, {count} of them, not {shown(values)}"
            )
    ids = [None if response is None else _ids("responses", response) for response in responses]
    draft = Draft([-1 if each is None else len(each) for each in ids])
    draft.prompts(_prompts(prompt_ids, count))
    draft.responses(ids)
    for name, given, convert, set_values in (
        ("logprobs", logprobs, _floats, draft.logprobs),
        ("masks", masks, _mask, draft.masks),
    ):
        if given is not None:
            found = [None if each is None else convert(name, each) for each in given]
            for place, (each, length) in enumerate(zip(found, draft.head.lengths, strict=True)):
                if each is not None and len(each) != length:
                    raise InvalidArgument(
                        f"{name} of member {place} has {len(each)} entries, its response {length}"
                    )
            set_values(found)
    known = [
        VersionRuns.of(None if versions is None else each, "versions") for each in versions or [None] * count
    ]
    draft.versions(known, None if model_step is None else VersionRuns([(model_step, 1)])[0])
    draft.trainable()
    others = dict(fields or {})
    statuses, errors = read_statuses(status, finish_reasons, count)
    if any(errors) and "error_msg" not in others:
        others["error_msg"] = errors
    draft.statuses(statuses)
    draft.rewards(
        [None] * count
        if rewards is None
        else rewards.tolist()
        if isinstance(rewards, np.ndarray)
        else rewards
    )
    draft.finish_reasons([None] * count if finish_reasons is None else finish_reasons)
    draft.staleness([0] * count)
    draft.shared("group_id", [group_id] * count)
    set_fields(draft, others)
    set_columns(draft, columns or {})
    return draft.finish()


def set_fields(draft: Draft, fields: Mapping[str, Sequence[Any]]) -> None:
    """Set other fields of Rollout, one value per member. Raises InvalidArgument."""
    for name, values in fields.items():
        if name not in _FREE_FIELDS:
            raise InvalidArgument(f"fields has {name!r}; use one of: {', '.join(sorted(_FREE_FIELDS))}")
        if name == "routed_experts":
            draft.drop_column(name)
        _set_other(draft, name, list(values))


def set_columns(draft: Draft, columns: Mapping[str, Any]) -> None:
    """Set further columns: each one array per member, or one flat array; None removes it. Raises InvalidArgument."""
    lengths = [max(0, length) for length in draft.head.lengths]
    whole = [
        length + max(0, prompt) for length, prompt in zip(lengths, draft.head.prompt_lengths(), strict=True)
    ]
    for name, given in columns.items():
        if given is None:
            draft.drop_column(name)
            continue
        if isinstance(given, np.ndarray) and given.ndim and len(given) in (sum(lengths), sum(whole)):
            bounds = bounds_of(lengths if len(given) == sum(lengths) else whole)
            given = parts_of(given, bounds)  # noqa: PLW2901
        elif not isinstance(given, list | tuple) or len(given) != len(lengths):
            raise InvalidArgument(
                f"column {name!r} must be one array per member, or one flat array of {sum(lengths)} or {sum(whole)} entries"
            )
        parts = [
            None if each is None else (as_columns({name: each}, _RESERVED) or {})[name] for each in given
        ]
        full = next((part for part in parts if part is not None and len(part)), None)
        if full is not None:  # an empty list has no dtype
            pairs = zip(given, parts, strict=True)
            parts = [full[:0] if type(each) is list and not each else part for each, part in pairs]
        for place, part in enumerate(parts):
            if part is not None and len(part) not in (lengths[place], whole[place]):
                raise InvalidArgument(
                    f"column {name!r} of member {place} has {len(part)} entries, its response {lengths[place]}, "
                    f"prompt and response {whole[place]}"
                )
        if not draft.column(name, parts):
            raise InvalidArgument(
                f"column {name!r} differs in dtype or shape between members; give all the same"
            )
        if name == "routed_experts":
            draft.field(name, ())


def from_columns(prompt_ids: Any, lengths: Any, response_ids: Any, **columns: Any) -> Encoded:
    """Return the group of packed arrays; see `RolloutGroup.from_columns`. Raises InvalidArgument."""
    sizes = [int(size) for size in np.asarray(lengths).tolist()]
    if min(sizes, default=-1) < 0:
        raise InvalidArgument(
            f"lengths must be response tokens of each member, at least one member, not {shown(lengths)}"
        )
    bounds = bounds_of(sizes)
    flat = {
        "response_ids": response_ids,
        "logprobs": columns.pop("logprobs"),
        "masks": columns.pop("response_mask"),
    }
    split: dict[str, Any] = {}
    for name, values in flat.items():
        if values is not None and len(values) != bounds[-1]:
            raise InvalidArgument(f"{name} has {len(values)} entries, but lengths add up to {bounds[-1]}")
        split[name] = None if values is None else parts_of(values, bounds)
    responses = split.pop("response_ids")
    return from_engine(prompt_ids, responses or [], **split, **columns)


def read_statuses(
    status: Any, finish_reasons: Sequence[Any] | None, count: int
) -> tuple[list[Status], list[str | None]]:
    """Return the status of each member, and why it failed."""
    if status is not None:
        given = [status] * count if isinstance(status, str) else list(status)
        if len(given) != count:
            raise InvalidArgument(
                f"status must be one for all members, or {count} of them, not {shown(status)}"
            )
        return [Status.of(each) for each in given], [None] * count
    if finish_reasons is None:
        return [Status.COMPLETED] * count, [None] * count
    found = [status_from_finish_reason(reason) for reason in finish_reasons]
    errors = [
        finish_error(reason) if each is Status.FAILED else None
        for each, reason in zip(found, finish_reasons, strict=True)
    ]
    return found, errors


def _prompts(prompt_ids: Any, count: int) -> list[Any]:
    """Return the prompt of each member: one for all, or a list of one per member."""
    if prompt_ids is None:
        return [None] * count
    if (
        isinstance(prompt_ids, list | tuple)
        and prompt_ids
        and (prompt_ids[0] is None or hasattr(prompt_ids[0], "__len__"))
    ):
        if len(prompt_ids) != count:
            raise InvalidArgument(
                f"prompt_ids has {len(prompt_ids)} prompts for {count} responses; give one, or one each"
            )
        return [None if prompt is None else _ids("prompt_ids", prompt) for prompt in prompt_ids]
    return [_ids("prompt_ids", prompt_ids)] * count


def _ids(name: str, value: Any) -> Any:
    """Return token ids as a buffer of 4 bytes each; `array` takes half of the time of numpy for lists."""
    if type(value) is np.ndarray and value.dtype == np.int32 and value.ndim == 1:
        return np.ascontiguousarray(value)
    if type(value) is list and value and type(value[0]) is int:
        try:
            return array("i", value)
        except (TypeError, OverflowError):
            pass
    return as_ids(name, value)


def _floats(name: str, value: Any) -> Any:
    if type(value) is np.ndarray and value.dtype == np.float32 and value.ndim == 1:
        return np.ascontiguousarray(value)
    if type(value) is list:
        try:
            return array("f", value)
        except TypeError:
            pass
    return as_floats(name, value)


def _mask(name: str, value: Any) -> Any:
    if type(value) is list:
        try:
            found = bytes(value)
        except (TypeError, ValueError):
            return as_mask(name, value)
        if found.translate(None, b"\0\1"):
            raise InvalidArgument(f"{name} must be zeros and ones, one per response token")
        return found
    return as_mask(name, value)


def parts_of(array: Array, bounds: Sequence[int]) -> list[Array]:
    """Return the entries of each member of a flat array, without a copy."""
    return [array[start:end] for start, end in pairwise(bounds)]
