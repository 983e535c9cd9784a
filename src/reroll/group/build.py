"""Groups made of rollouts, of an engine's output, and of packed columns.

Each way fills a `Draft` and finishes it once. Input is checked here: lengths, types, names. What does not fit raises
InvalidArgument that names the member and the field, and nothing of the input is changed or kept, but for values that are
not plain (`objects`).
"""

import math
import struct
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import chain, pairwise, repeat
from operator import is_
from typing import Any, Final, NamedTuple, cast

import msgspec
import numpy as np

from reroll.codec.arrays import write_dtype
from reroll.errors import InvalidArgument, NotStorable, shown
from reroll.group.layout import (
    ABSENT,
    BOUND,
    DERIVED,
    FIELD_COLUMNS,
    FIELD_NAMES,
    HAS_LOGPROBS,
    HAS_MASK,
    HAS_OBJECTS,
    INTEGER_REWARDS,
    ONE_VERSION,
    ONES_MASK,
    OTHER_REASON,
    OWN_IDS,
    OWN_STALENESS,
    PADDING,
    REASON_CODE,
    SHARED_PROMPT,
    STATUS_CODE,
    TOKENS_DERIVED,
    Array,
    Bytes,
    Column,
    Head,
    bounds_of,
)
from reroll.rollout import (
    Rollout,
    RolloutLike,
    Status,
    VersionRuns,
    count_tokens,
    finish_error,
    read_score,
    status_from_finish_reason,
    tally_versions,
)
from reroll.rollout.adapters import find_mismatch
from reroll.rollout.arrays import as_columns, as_floats, as_ids, as_mask
from reroll.rollout.rollout import OTHER_SLOTS, USUAL_SLOTS, is_empty_dict, read_slots
from reroll.rollout.versions import NO_VERSIONS

_ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})
_MOST_DEPTH: Final = 16
_COMPLETED: Final = bytes([STATUS_CODE[Status.COMPLETED]])
_UNENCODABLE: Final = (OverflowError, UnicodeError, ValueError, TypeError)
_FREE_FIELDS: Final = FIELD_NAMES.difference({"group_uid", "group_id", "reward", "finish_reason", "checkout"})
_RESERVED: Final = FIELD_NAMES.union(FIELD_COLUMNS, ("prompt_ids", "response_ids", "columns")).difference(
    {"routed_experts"}
)


class Encoded(NamedTuple):
    """A finished group."""

    head: Head | None
    """None: `data` was not taken apart yet."""
    data: Bytes | None
    """The head as bytes, None: not written yet."""
    body: Bytes
    objects: dict[str, list[Any]]
    """Fields with values that are not plain: one per member, or one for all."""


class _Tokens(NamedTuple):
    """What `tally_versions` reads of a rollout."""

    response_model_steps: VersionRuns
    response_mask: Any
    input_ids: Any
    labels: Any = None
    response_ids: Any = None
    status: Any = None
    seq_staleness: Any = 0


class Draft:
    """A group that is being made, or changed: every method sets one field of all members."""

    def __init__(self, head: Head, objects: Mapping[str, list[Any]], parts: list[Any]) -> None:
        self.head, self.objects, self._parts = head, dict(objects), parts
        self._columns: dict[str, tuple[Column, list[Any]]] = {}
        self._body: Bytes | None = None
        lengths = head.lengths
        self._tokens = sum(lengths) if min(lengths) >= 0 else sum([max(0, each) for each in lengths])

    @classmethod
    def of(cls, encoded: Encoded) -> "Draft":
        """Return a draft of a finished group; its columns stay, unless one is set anew. No token is copied."""
        head, body = copy(encoded.head or Head.read(encoded.data or b"")), memoryview(encoded.body)
        draft = cls(head, encoded.objects, [body[: head.columns_at()]])
        head.meta = msgspec.structs.replace(head.meta, fields=dict(head.meta.fields))
        draft._body = encoded.body
        for each in head.meta.columns:
            span = head.spans()[each.name]
            draft._columns[each.name] = each, [body[span.start : span.start + span.size]]
        return draft

    # --- tokens, in the order of the body

    def prompts(self, prompts: Sequence[Any]) -> None:
        """Set the prompt of each member, ids or None; one that all share is stored once."""
        head, held = self.head, prompts[0]
        if not _is_one(prompts):
            lengths = _lengths(prompts)
            joined = b"".join([prompt for prompt in prompts if prompt is not None])
            if lengths.count(lengths[0]) != len(prompts) or joined != bytes(held) * len(prompts):
                head.meta.prompts, head.prompt_tokens = list(lengths), len(joined) // 4
                self._add([joined], len(joined))
                return
        if held is not None:
            head.flags |= SHARED_PROMPT
            head.prompt_tokens = len(held)
            self._add([held], 4 * len(held))

    def _add(self, parts: Sequence[Any], size: int) -> None:
        self._parts += (*parts, PADDING[-size % 16])

    def responses(self, responses: Sequence[Any]) -> None:
        """Set the response of each member; None where the length is -1."""
        self._add(_given(responses), 4 * self._tokens)

    def logprobs(self, logprobs: Sequence[Any]) -> None:
        """Set the log-probabilities of each member; None: absent."""
        if self._is_column("logprobs", logprobs):
            self.head.flags |= HAS_LOGPROBS
            self._add(_given(logprobs), 4 * self._tokens)

    def masks(self, masks: Sequence[Any]) -> None:
        """Set the mask of each member; None: absent. A mask of ones takes no bytes."""
        if self._is_column("response_mask", masks):
            joined = b"".join(_given(masks))
            self.head.flags |= HAS_MASK if 0 in joined else ONES_MASK
            if 0 in joined:
                self._add([joined], len(joined))

    def _is_column(self, name: str, values: Sequence[Any]) -> bool:
        """Return whether values have the lengths of the responses; others become a further column."""
        if _is_nothing(values):
            return False
        if _lengths(values) == self.head.lengths:
            return True
        self.column(name, values)
        return False

    # --- versions

    def versions(
        self,
        versions: Sequence[VersionRuns],
        masks: Sequence[Any],
        model_step: int | None = None,
        exempt: Sequence[Any] = (),
    ) -> None:
        """Set the versions of each member; tokens at the end without one get `model_step`. Raises InvalidArgument."""
        head, lengths = self.head, self.head.lengths
        head.flags &= ~ONE_VERSION
        head.meta.versions = head.meta.trainable = None
        has_masks = not head.flags & ONES_MASK and not _is_nothing(masks)
        if (
            not exempt and not has_masks and versions[0] is NO_VERSIONS and _is_one(versions)
        ):  # the usual case
            if model_step is not None and max(lengths) > 0:
                head.flags |= ONE_VERSION
                head.version = model_step
            return
        found, ends = list(versions), [each.parts[1] for each in versions]
        for place, (end, length) in enumerate(zip(ends, lengths, strict=True)):
            stamped = end[-1] if end else 0
            if stamped > length >= 0:
                raise InvalidArgument(
                    f"rollout {place}: response_model_steps has {stamped} entries, but response_ids has {length}; "
                    f"give one per response token"
                )
            if model_step is not None and stamped < length:
                found[place] = found[place].extended(model_step, length - stamped)
        values = {version for each in found for version in each.parts[0]}
        if len(values) == 1 and [each.parts[1][-1:] for each in found] == [
            (length,) if length > 0 else () for length in lengths
        ]:
            head.flags |= ONE_VERSION
            head.version = values.pop()
        elif values:
            head.meta.versions = [list(chain.from_iterable(each.runs())) for each in found]
        if has_masks or any(exempt):
            members = zip(found, masks, [each or None for each in exempt] or repeat(None), strict=False)
            tallies = [tally_versions(cast("RolloutLike", _Tokens(*each))) for each in members]
            trainable = [tally.newest_trainable for tally in tallies]
            if trainable != head.member_trainable():
                head.meta.trainable = trainable

    def stamp(self, model_step: int, masks: Sequence[Any]) -> None:
        """Give a version to the response tokens that have none; `masks` are those of the members."""
        runs = [VersionRuns(zip(each[::2], each[1::2], strict=True)) for each in self.head.runs()]
        exempt = [False] * len(runs)
        for name in ("input_ids", "labels"):
            if name in self._columns:
                lengths = self._columns[name][0].lengths or self.head.lengths
                exempt = [one or size >= 0 for one, size in zip(exempt, lengths, strict=True)]
        self.versions(runs, masks, model_step, exempt)

    # --- numbers

    def statuses(self, statuses: Sequence[Status]) -> None:
        """Set the status of each member."""
        if statuses.count(Status.COMPLETED) == len(statuses):
            self.head.statuses = _COMPLETED * len(statuses)
        else:
            self.head.statuses = bytes([STATUS_CODE[status] for status in statuses])

    def rewards(self, rewards: Sequence[Any]) -> None:
        """Set the reward of each member: a number, a dict with `score`, or None. Raises InvalidArgument."""
        head, kinds = self.head, set(map(type, rewards))
        head.flags &= ~INTEGER_REWARDS
        if kinds == {float} and not math.isnan(sum(rewards)):
            head.rewards = tuple(rewards)
            self.field("reward", ())
            return
        rewards = [each.item() if isinstance(each, np.floating | np.integer) else each for each in rewards]
        head.rewards = [math.nan if (score := read_score(each)) is None else score for each in rewards]
        kinds = set(map(type, rewards)) - {type(None)}
        is_exact = kinds <= {float}  # a NaN in the record means no reward
        if is_exact:
            is_exact = [math.isnan(each) for each in head.rewards] == [each is None for each in rewards]
        elif kinds == {int} and all(abs(each) < 1 << 53 for each in rewards if each is not None):
            is_exact = True
            head.flags |= INTEGER_REWARDS
        self.field("reward", () if is_exact else rewards)

    def finish_reasons(self, reasons: Sequence[Any]) -> None:
        """Set the finish reason of each member."""
        distinct = reasons[:1] if _is_one(reasons) else reasons
        codes = [
            REASON_CODE.get(each, OTHER_REASON) if each is None or type(each) is str else OTHER_REASON
            for each in distinct
        ]
        self.head.reasons = bytes(codes) * (len(reasons) // len(codes))
        self.field("finish_reason", reasons if OTHER_REASON in codes else ())

    def staleness(self, staleness: Sequence[int]) -> None:
        """Set the staleness that each member states."""
        is_same = staleness.count(staleness[0]) == len(staleness)
        self.head.staleness = staleness[0]
        self.head.meta.staleness = None if is_same else list(staleness)
        self.head.flags = self.head.flags & ~OWN_STALENESS | (0 if is_same else OWN_STALENESS)

    def ids(self, name: str, values: Sequence[Any]) -> None:
        """Set `group_uid`, `group_id` or `checkout`, which all members mostly share."""
        first, kinds = values[0], _ID_KINDS[name]
        is_usual = (first is None or type(first) in kinds) and (
            _is_one(values) or all(type(each) is type(first) and each == first for each in values)
        )
        if name == "group_uid":
            is_usual = is_usual and (first is None or 0 < first < BOUND)
            self.head.uid = (first or 0) if is_usual else 0
        else:
            setattr(self.head.meta, name, first if is_usual else None)
        self.field(name, () if is_usual else values)

    # --- everything else

    def field(self, name: str, values: Sequence[Any]) -> None:
        """Set another field of Rollout: one value per member; none of them clears it."""
        fields = self.head.meta.fields
        fields.pop(name, None)
        self.objects.pop(name, None)
        if values and not _is_nothing(values):
            held = [values[0]] if _is_one(values) else list(values)
            (fields if is_plain(held) else self.objects)[name] = held

    def column(self, name: str, values: Sequence[Any]) -> None:
        """Set a further column: an array per member, None where absent, True where derived. Raises InvalidArgument."""
        given = [value for value in values if value is not None and value is not True]
        kinds: set[Any] = {(value.dtype, value.shape[1:]) for value in given}
        if len(kinds) > 1:
            raise InvalidArgument(
                f"column {name!r} differs in dtype or shape between members; give all the same"
            )
        dtype, tail = kinds.pop() if kinds else (np.dtype(FIELD_COLUMNS[name]), ())
        try:
            written = write_dtype(dtype)
        except NotStorable:
            raise InvalidArgument(
                f"column {name!r} of dtype {dtype} cannot be stored; convert it to a numeric dtype"
            ) from None
        lengths = [ABSENT if value is None else DERIVED if value is True else len(value) for value in values]
        parts = [
            value.reshape(-1).view(np.uint8) if value.size else b""
            for value in map(np.ascontiguousarray, given)
        ]
        stored = None if lengths == list(self.head.lengths) and min(lengths) >= 0 else lengths
        self._columns[name] = Column(name, written, tail, stored), parts
        self._body = None

    @property
    def has_columns(self) -> bool:
        """Whether a further column was set."""
        return bool(self._columns)

    def drop_column(self, name: str) -> None:
        """Remove a further column."""
        if self._columns.pop(name, None) is not None:
            self._body = None

    def set_fields(self, fields: Mapping[str, Sequence[Any]]) -> None:
        """Set other fields of Rollout, one value per member. Raises InvalidArgument."""
        for name, values in fields.items():
            if name not in _FREE_FIELDS:
                raise InvalidArgument(f"fields has {name!r}; use one of: {', '.join(sorted(_FREE_FIELDS))}")
            self.set_other(name, list(values))

    def set_other(self, name: str, values: Sequence[Any]) -> None:
        """Set a field that few rollouts have. Raises InvalidArgument."""
        if name == "columns":
            for column in dict.fromkeys(each for member in values if member for each in member):
                self.column(column, [None if member is None else member.get(column) for member in values])
        elif name == "tokens" and all(value is True for value in values):
            self.head.flags |= TOKENS_DERIVED
        elif name in FIELD_COLUMNS:
            self.column(name, values)
        else:
            if name == "num_tokens":
                for place, size in enumerate(values):
                    _named(place, count_tokens, _Stated(size))
            self.drop_column(name)
            if name == "routed_experts" and _is_array(values):
                self.field(name, ())
                self.column(name, values)
            else:
                self.field(name, values)

    def set_columns(self, columns: Mapping[str, Any]) -> None:
        """Set further columns: each one array per member, or one flat array; None removes it. Raises InvalidArgument."""
        lengths = [max(0, length) for length in self.head.lengths]
        whole = [
            length + max(0, prompt)
            for length, prompt in zip(lengths, self.head.prompt_lengths(), strict=True)
        ]
        for name, given in columns.items():
            if given is None:
                self.drop_column(name)
                continue
            if isinstance(given, np.ndarray) and given.ndim and len(given) in (sum(lengths), sum(whole)):
                given = parts_of(given, bounds_of(lengths if len(given) == sum(lengths) else whole))  # noqa: PLW2901
            elif not isinstance(given, list | tuple) or len(given) != len(lengths):
                raise InvalidArgument(
                    f"column {name!r} must be one array per member, or one flat array of {sum(lengths)} or {sum(whole)} entries"
                )
            parts = [
                None if each is None else (as_columns({name: each}, _RESERVED) or {})[name] for each in given
            ]
            full = next((part for part in parts if part is not None and len(part)), None)
            for place, part in enumerate(parts):
                if part is None:
                    continue
                if len(part) not in (lengths[place], whole[place]):
                    raise InvalidArgument(
                        f"column {name!r} of member {place} has {len(part)} entries, its response {lengths[place]}, "
                        f"prompt and response {whole[place]}"
                    )
                if full is not None and type(given[place]) is list and not len(part):
                    parts[place] = full[:0]  # an empty list has no dtype
            self.column(name, parts)
            if name == "routed_experts":
                self.field(name, ())

    def finish(self) -> Encoded:
        """Return the group. O(bytes) for one copy, or O(members) if no token changed."""
        head, meta = self.head, self.head.meta
        if self._body is None:
            for _, pieces in self._columns.values():
                size = sum([memoryview(piece).nbytes for piece in pieces])
                self._parts += (*pieces, PADDING[-size % 16])
            self._body = b"".join(self._parts)
            head.body_size, head.body_crc, head.cached_spans = len(self._body), None, None
            meta.columns = [msgspec.structs.replace(column, crc=None) for column, _ in self._columns.values()]
        set_flags(head, self.objects)
        head.derive()
        return Encoded(head, None, self._body, self.objects)


def set_flags(head: Head, objects: Mapping[str, Any]) -> None:
    """Set the flags of objects, and of ids in the meta or the objects."""
    head.flags &= ~(HAS_OBJECTS | OWN_IDS)
    names = [*head.meta.fields, *objects]
    if objects:
        head.flags |= HAS_OBJECTS
    if head.meta.checkout is not None or "group_uid" in names or "checkout" in names:
        head.flags |= OWN_IDS


def written(encoded: Encoded) -> Encoded:
    """Return a group with its head as bytes. O(bytes) for checksums that were not computed yet."""
    if encoded.data is not None or encoded.head is None:
        return encoded
    head, objects = copy(encoded.head), dict(encoded.objects)
    head.seal(encoded.body)
    try:
        return Encoded(head, head.write(), encoded.body, objects)
    except _UNENCODABLE:  # integers beyond 64 bits, text with lone surrogates
        meta = head.meta = msgspec.structs.replace(head.meta, fields=dict(head.meta.fields))
        for name in [name for name, values in meta.fields.items() if not _can_encode(values)]:
            objects[name] = meta.fields.pop(name)
        for name in ("group_id", "checkout"):
            if not _can_encode(value := getattr(meta, name)):
                objects[name] = [value]
                setattr(meta, name, None)
        set_flags(head, objects)
        return Encoded(head, head.write(), encoded.body, objects)


_ID_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "group_uid": (int,),
    "group_id": (str, int),
    "checkout": (str,),
}


class _Stated(NamedTuple):
    num_tokens: Any
    response_ids: Any = None


def _named(place: int, check: Any, *arguments: Any) -> Any:
    try:
        return check(*arguments)
    except InvalidArgument as error:
        raise InvalidArgument(f"rollout {place}: {error}") from None


# By identity: an array that is compared with None compares each of its entries.


def _is_one(values: Sequence[Any]) -> bool:
    """Return whether all values are the same object."""
    return all(map(is_, values, repeat(values[0])))


def _is_nothing(values: Sequence[Any]) -> bool:
    """Return whether all values are None."""
    return values[0] is None and all(map(is_, values, repeat(None)))


def _given(values: Sequence[Any]) -> Sequence[Any]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def _lengths(values: Sequence[Any]) -> tuple[int, ...]:
    """Return the length of each value, -1 for None."""
    try:
        return tuple(map(len, values))
    except TypeError:
        return tuple([ABSENT if value is None else len(value) for value in values])


def is_plain(value: Any, depth: int = _MOST_DEPTH) -> bool:
    """Return whether MessagePack holds a value as it is: atoms, lists, and dicts with text as keys, of exactly these types."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is dict and set(map(type, value)) <= {str}:
        value = list(value.values())
    elif kind is not list:
        return False
    return _ATOMS.issuperset(map(type, value)) or (
        depth > 0 and all(is_plain(each, depth - 1) for each in value)
    )


def _can_encode(value: Any) -> bool:
    try:
        msgspec.msgpack.encode(value)
    except _UNENCODABLE:
        return False
    return True


def _is_array(values: Sequence[Any]) -> bool:
    """Return whether values are arrays of one type that a column can have."""
    given = [value for value in values if value is not None]
    if not all(type(value) is np.ndarray and value.ndim and value.dtype.itemsize for value in given):
        return False
    try:
        write_dtype(given[0].dtype)
    except NotStorable:
        return False
    return len({(value.dtype, value.shape[1:]) for value in given}) == 1


# --- rollouts


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
    *columns, others = zip(*map(read_slots, rollouts), strict=True)
    draft = from_slots(dict(zip(USUAL_SLOTS, columns, strict=True)), model_step, others)
    if draft.has_columns:
        for place, rollout in enumerate(rollouts):
            if problem := find_mismatch(rollout, partial=True):
                raise InvalidArgument(f"rollout {place}: {problem}")
    return draft.finish()


def from_slots(
    held: Mapping[str, Sequence[Any]],
    model_step: int | None = None,
    others: Sequence[Mapping[str, Any] | None] = (None,),
) -> Draft:
    """Return the draft of a group from the values of each slot of its Rollouts, and their other values.

    Raises InvalidArgument.
    """
    responses, masks = held["_response_ids"], held["_response_mask"]
    draft = Draft(Head(lengths=_lengths(responses)), {}, [])
    draft.prompts(held["_prompt_ids"])
    draft.responses(responses)
    draft.logprobs(held["_logprobs"])
    draft.masks(masks)
    draft.statuses(held["_status"])
    draft.rewards(held["reward"])
    draft.finish_reasons(held["finish_reason"])
    draft.staleness(held["_seq_staleness"])
    for name in _ID_KINDS:
        if not _is_nothing(held[name]):
            draft.ids(name, held[name])
    exempt: Sequence[Any] = ()
    if not _is_nothing(others):
        members = [each or {} for each in others]
        for slot in OTHER_SLOTS:
            values = [each.get(slot) for each in members]
            if slot == "extra_fields":
                values = [None if is_empty_dict(fields) else fields for fields in values]
            if not _is_nothing(values):
                draft.set_other(slot.removeprefix("_"), values)
        exempt = ["_input_ids" in each or "_labels" in each for each in members]
        exempt = exempt if any(exempt) else ()
    draft.versions(held["_response_model_steps"], masks, model_step, exempt)
    return draft


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
    given: dict[str, Any] = {
        "logprobs": logprobs,
        "masks": masks,
        "rewards": rewards,
        "finish_reasons": finish_reasons,
        "versions": versions,
        **(fields or {}),
    }
    check_counts(given, count, "response")
    nothing = (None,) * count
    slots: dict[str, Sequence[Any]] = dict.fromkeys(USUAL_SLOTS, nothing)
    slots["_prompt_ids"] = _prompts(prompt_ids, count)
    ids = slots["_response_ids"] = [_ids("responses", each) for each in responses]
    for name, values, convert in (("logprobs", logprobs, _floats), ("masks", masks, _mask)):
        if values is not None:
            found = [convert(name, each) for each in values]
            for place, (each, own) in enumerate(zip(found, ids, strict=True)):
                if each is not None and len(each) != (-1 if own is None else len(own)):
                    raise InvalidArgument(
                        f"{name} of member {place} has {len(each)} entries, its response {0 if own is None else len(own)}"
                    )
            slots["_logprobs" if name == "logprobs" else "_response_mask"] = found
    if versions is None:
        slots["_response_model_steps"] = [NO_VERSIONS] * count
    else:
        slots["_response_model_steps"] = [VersionRuns.of(each, "versions") for each in versions]
    slots["_status"], errors = read_statuses(status, finish_reasons, count)
    slots["reward"] = rewards.tolist() if isinstance(rewards, np.ndarray) else rewards or nothing
    slots["finish_reason"] = finish_reasons or nothing
    slots["_seq_staleness"], slots["group_id"] = [0] * count, [group_id] * count
    draft = from_slots(slots, model_step)
    if any(errors):
        draft.field("error_msg", errors)
    draft.set_fields(fields or {})
    draft.set_columns(columns or {})
    return draft.finish()


def check_counts(given: Mapping[str, Any], count: int, what: str) -> None:
    """Raise InvalidArgument unless every sequence has one entry per member."""
    for name, values in given.items():
        if values is not None and (isinstance(values, str | Mapping) or len(values) != count):
            raise InvalidArgument(
                f"{name} must have one entry per {what}, {count} of them, not {shown(values)}"
            )


def from_columns(prompt_ids: Any, lengths: Any, response_ids: Any, **columns: Any) -> Encoded:
    """Return the group of packed arrays; see `RolloutGroup.from_columns`. Raises InvalidArgument."""
    sizes = [int(size) for size in np.asarray(lengths).tolist()]
    if min(sizes, default=-1) < 0:
        raise InvalidArgument(
            f"lengths must be response tokens of each member, at least one member, not {shown(lengths)}"
        )
    bounds = bounds_of(sizes)
    flat = {
        "responses": response_ids,
        "logprobs": columns.pop("logprobs"),
        "masks": columns.pop("response_mask"),
    }
    for name, values in flat.items():
        if values is not None and len(values) != bounds[-1]:
            raise InvalidArgument(f"{name} has {len(values)} entries, but lengths add up to {bounds[-1]}")
        columns[name] = None if values is None else parts_of(values, bounds)
    return from_engine(prompt_ids, **columns)


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
    if finish_reasons.count("stop") == count:
        return [Status.COMPLETED] * count, [None] * count
    found = [status_from_finish_reason(reason) for reason in finish_reasons]
    errors = [
        finish_error(reason) if each is Status.FAILED else None
        for each, reason in zip(found, finish_reasons, strict=True)
    ]
    return found, errors


def _prompts(prompt_ids: Any, count: int) -> list[Any]:
    """Return the prompt of each member: one for all, or a list of one per member."""
    if (
        isinstance(prompt_ids, list | tuple)
        and prompt_ids
        and (prompt_ids[0] is None or hasattr(prompt_ids[0], "__len__"))
    ):
        if len(prompt_ids) != count:
            raise InvalidArgument(
                f"prompt_ids has {len(prompt_ids)} prompts for {count} responses; give one, or one each"
            )
        return [_ids("prompt_ids", prompt) for prompt in prompt_ids]
    return [_ids("prompt_ids", prompt_ids)] * count


# Lists are packed by `struct`, which takes half of the time of numpy.


def _ids(name: str, value: Any) -> Any:
    if type(value) is np.ndarray and value.dtype == np.int32 and value.ndim == 1:
        return value if value.flags.c_contiguous else value.copy()
    if type(value) is list and value and type(value[0]) is int:
        try:
            return np.frombuffer(struct.pack(f"<{len(value)}i", *value), np.int32)
        except struct.error:  # a value that is no such integer, which `as_ids` names
            pass
    return as_ids(name, value)


def _floats(name: str, value: Any) -> Any:
    if type(value) is np.ndarray and value.dtype == np.float32 and value.ndim == 1:
        return value if value.flags.c_contiguous else value.copy()
    if type(value) is list:
        try:
            return np.frombuffer(struct.pack(f"<{len(value)}f", *value), np.float32)
        except (struct.error, OverflowError):
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
        return np.frombuffer(found, np.uint8)
    return as_mask(name, value)


def parts_of(array: Array, bounds: Sequence[int]) -> list[Any]:
    """Return the entries of each member of a flat array, without a copy."""
    return [array[start:end] for start, end in pairwise(bounds)]
