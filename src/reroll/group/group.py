"""`RolloutGroup`: the rollouts of one prompt as columns, made into `Rollout` objects on demand."""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from math import isfinite, isnan
from operator import is_
from typing import Any, Final, Self, overload

import numpy as np
import numpy.typing as npt

from reroll.codec import RefReader, RefWriter, decode, encode
from reroll.display import html_table
from reroll.errors import CorruptData, InvalidArgument, NotStorable, UnsupportedFormat, shown
from reroll.group import build
from reroll.group.build import Draft, Encoded, check_counts, is_plain, parts_of
from reroll.group.engines import read_response
from reroll.group.layout import (
    ALIGNMENT,
    BOUND,
    FIELD_COLUMNS,
    FIELD_NAMES,
    HAS_LOGPROBS,
    HAS_MASK,
    HAS_OBJECTS,
    INTEGER_REWARDS,
    NO_VERSION,
    ONE_VERSION,
    ONES_MASK,
    OTHER_REASON,
    OWN_IDS,
    OWN_STALENESS,
    REASONS,
    SHARED_PROMPT,
    STATUSES,
    TOKENS_DERIVED,
    Array,
    Bytes,
    Head,
    body_size_of,
    bounds_of,
    check_frames,
    select_columns,
    with_numbers,
)
from reroll.rollout import STATE_SLOTS, GroupSummary, Rollout, Status, VersionRuns
from reroll.rollout.adapters import read_integer
from reroll.rollout.checkout import Checkout, read_checkouts
from reroll.rollout.rollout import USUAL_SLOTS, others_without_response, read_slots
from reroll.rollout.rules import Invalid, find_invalid
from reroll.rollout.summary import count_value, measure
from reroll.rollout.versions import NO_VERSIONS

_FIELD_FIRST: Final = re.compile(r"\['(\w+)'\]\[(\d+)\]")
_WITHOUT_RESPONSE: Final = {
    "_response_ids": np.empty(0, np.int32),
    "_logprobs": np.empty(0, np.float32),
    "_response_model_steps": NO_VERSIONS,
    "_status": Status.EXPIRED,
    **dict.fromkeys(("_response_mask", "reward", "finish_reason")),
}
"""The values of a member whose response expired."""
_SLOT_OF: Final = {slot.removeprefix("_"): slot for slot in STATE_SLOTS}


class RolloutGroup(Sequence[Rollout]):
    """The rollouts of one prompt, as a small head and a body of token columns.

    A group is a sequence of `Rollout`s: indexing and iteration make all of them at once, a slice is a
    list, and a group equals a list of equal rollouts. Token arrays are read-only views of the body; copy them to write.
    Rollouts that were made are the truth from then on: what is assigned to them shows in the group, and goes into the
    buffer when the group is put. A group that was not looked at is put as the bytes that it is.

    Make one with `of` (rollouts), `pack` (an engine's lists or arrays), `from_columns` (packed arrays) or `from_openai`.
    """

    __slots__ = (
        "__weakref__",
        "_body",
        "_data",
        "_head",
        "_is_behind",
        "_made_of",
        "_objects",
        "_rollouts",
        "_summary",
    )
    __hash__ = None  # type: ignore[assignment]  # equal to lists, and its uid changes

    _head: Head | None
    _data: Bytes | None
    """The head as bytes, None: not written yet; then `_head` is there."""
    _is_behind: bool
    """Whether uid and staleness of `_data` are older than those of `_head`."""
    _body: Bytes
    _objects: dict[str, list[Any]]
    _rollouts: list[Rollout] | None
    _made_of: list[Sequence[Any]] | None
    """The values of the rollouts as they were made, by slot; None if values may change without an assignment."""
    _summary: GroupSummary | None

    def __init__(self, rollouts: Iterable[Rollout]) -> None:
        """Make a group of rollouts, as `of` does."""
        self._rollouts = self._made_of = None
        self._set(build.from_rollouts(list(rollouts)))

    @classmethod
    def _of(cls, encoded: Encoded) -> Self:
        self = cls.__new__(cls)
        self._rollouts = self._made_of = None
        self._set(encoded)
        return self

    def _twin(self, head: Head) -> Self:
        """Return a group of the same bytes with this head, or one that differs from it in uid and staleness."""
        made = self.__new__(type(self))
        made._share(self, head)  # noqa: SLF001
        return made

    def _share(self, other: "RolloutGroup", head: Head) -> None:
        held = other._data, other._body, other._objects, other._is_behind or head is not other._head  # noqa: SLF001
        self._head, (self._data, self._body, self._objects, self._is_behind) = head, held
        self._rollouts = self._made_of = self._summary = None

    def _set(self, encoded: Encoded) -> None:
        head = encoded.head
        if head is not None and encoded.data is None and _can_change(head):
            encoded = build.written(encoded)
        self._head, self._data, self._body, self._objects = encoded
        self._is_behind, self._summary = False, None

    # --- making

    @classmethod
    def of(cls, rollouts: Iterable[Rollout], *, model_step: int | None = None) -> Self:
        """Return the group of these rollouts.

        Cost: one pass over the fields of each rollout, one copy and one checksum of their tokens.

        Args:
            rollouts: at least one `Rollout`; their arrays are copied, values that are not plain are kept.
            model_step: the version of response tokens that have none.

        Raises:
            InvalidArgument: an object is no `Rollout`, or lengths of token fields disagree.

        """
        return cls._of(build.from_rollouts(list(rollouts), _step(model_step)))

    @classmethod
    def pack(
        cls,
        prompt_ids: Any,
        responses: Sequence[Any],
        *,
        logprobs: Sequence[Any] | None = None,
        masks: Sequence[Any] | None = None,
        rewards: Sequence[Any] | None = None,
        finish_reasons: Sequence[str | None] | None = None,
        status: Status | str | Sequence[Status | str] | None = None,
        versions: Sequence[Any] | None = None,
        model_step: int | None = None,
        group_id: Any = None,
        columns: Mapping[str, Any] | None = None,
        fields: Mapping[str, Sequence[Any]] | None = None,
    ) -> Self:
        """Return the group of an engine's output, without a `Rollout` in between.

        Cost: one copy and one checksum of the tokens; lists cost about 20 ns a token more than arrays.

        Args:
            prompt_ids: the prompt that all responses share, or a list of one prompt per response.
            responses: token ids of each response, lists or arrays.
            logprobs: log-probabilities of each response.
            masks: zeros and ones for each response; None trains every token.
            rewards: a number, a dict with `score`, or None for each response.
            finish_reasons: how each response ended, as the engine says it.
            status: of all members, or one each; None: from `finish_reasons` if given, else COMPLETED. A reason that is
                unknown fails the member and is named in its `error_msg`.
            versions: version of each token of each response, a list or None per response.
            model_step: the version of tokens that have none.
            group_id: your name of the prompt.
            columns: further columns by name, one array per response or one flat array, over the response or over prompt
                and response.
            fields: other fields of `Rollout` by name, one value per response.

        Raises:
            InvalidArgument: lengths disagree, or a name or value cannot be stored.

        Example:
            >>> RolloutGroup.pack([1, 2], [[7, 8], [9]], rewards=[1.0, 0.0], finish_reasons=["stop", "stop"])

        """
        return cls._of(
            build.from_engine(
                prompt_ids,
                responses,
                logprobs=logprobs,
                masks=masks,
                rewards=rewards,
                finish_reasons=finish_reasons,
                status=status,
                versions=versions,
                model_step=_step(model_step),
                group_id=group_id,
                columns=columns,
                fields=fields,
            )
        )

    @classmethod
    def from_columns(  # noqa: PLR0917  (the columns of a group, in their order)
        cls,
        prompt_ids: Any,
        lengths: npt.ArrayLike,
        response_ids: Any,
        logprobs: Any = None,
        response_mask: Any = None,
        rewards: Sequence[Any] | Array | None = None,
        **options: Any,
    ) -> Self:
        """Return the group of packed arrays: the responses of all members one after the other.

        Cost: one copy and one checksum of the tokens.

        Args:
            prompt_ids: the prompt that all responses share, or a list of one prompt per response.
            lengths: the number of response tokens of each member.
            response_ids: the response tokens of all members.
            logprobs: one log-probability per response token.
            response_mask: one zero or one per response token.
            rewards: one per member.
            **options: as of `pack`: finish_reasons, status, versions, model_step, group_id, columns, fields.

        Raises:
            InvalidArgument: lengths disagree, or a name or value cannot be stored.

        """
        if "model_step" in options:
            options["model_step"] = _step(options["model_step"])
        return cls._of(
            build.from_columns(
                prompt_ids,
                lengths,
                response_ids,
                logprobs=logprobs,
                response_mask=response_mask,
                rewards=rewards,
                **options,
            )
        )

    @classmethod
    def from_openai(cls, response: Any, *, prompt_ids: Any = None, **options: Any) -> Self:
        """Return the group of a response of an inference engine, with token ids and log-probabilities.

        Reads chat and text completions of vLLM servers (`return_token_ids=True`) and SGLang servers, SGLang's `/generate`,
        and vLLM's `RequestOutput`, as dicts or objects. Versions come from the response's metadata where it has them.

        Args:
            response: what the engine returned for one prompt.
            prompt_ids: the prompt, if the response does not hold it.
            **options: as of `pack`, such as rewards, model_step, group_id; they win over the response.

        Raises:
            InvalidArgument: the response has no token ids, or an option does not fit.

        """
        read = read_response(response)
        fields = {**read.pop("fields"), **(options.pop("fields", None) or {})}
        if prompt_ids is not None:
            read["prompt_ids"] = prompt_ids
        return cls.pack(**{**read, **options, "fields": fields})

    @classmethod
    def open(
        cls,
        head: Bytes,
        body: Bytes,
        objects: Bytes | None = None,
        *,
        check_body: bool = True,
        refs: RefReader | None = None,
        allow_pickle: bool = False,
    ) -> Self:
        """Return the group of the bytes that `frames` gave, without a copy.

        Cost: O(bytes) for the checksums, about 1 ns for 64 bytes; the head is taken apart when it is first needed.

        Bytes with the right checksums are trusted; call `check` on a group that another program may have written.

        Args:
            head: the head.
            body: the columns; the group keeps this buffer, so it must not change.
            objects: the values that are not plain, if the group has any.
            check_body: whether to compare the body with its checksums; False for a relay that reads no tokens.
            refs: returns the Ray references that the group holds.
            allow_pickle: whether values may be unpickled, which runs code.

        Raises:
            CorruptData: bytes were cut or altered.
            UnsupportedFormat: another format, or a type that this process did not register.

        """
        flags = check_frames(head, body, check_body=check_body)
        if (objects is not None) != (flags & HAS_OBJECTS > 0):
            raise CorruptData("objects of a group are missing, or do not belong to it; use another copy")
        self = cls._of(Encoded(None, head, _aligned(body), {}))
        if objects is not None:
            self._objects = _read_objects(decode(objects, refs=refs, allow_pickle=allow_pickle), len(self))
        return self

    def check(self) -> None:
        """Compare the head with itself: lengths, names, types, sums. Raises CorruptData. O(members)."""
        self._read().check()

    @staticmethod
    def body_size(head: Bytes) -> int:
        """Return the bytes of the body that belongs to a head."""
        return body_size_of(head)

    def checkouts(self) -> set[Checkout]:
        """Return the checkouts that members carry."""
        meta = self._read().meta
        if meta.checkout is None and "checkout" not in meta.fields and "checkout" not in self._objects:
            return set()
        return read_checkouts(copy.copy(self))

    def frames(
        self, *, refs: RefWriter | None = None, root: str = "group", allow_pickle: bool = False
    ) -> tuple[Bytes, Bytes, bytes | None]:
        """Return head, body, and the values that are not plain as bytes: what `open` takes.

        Cost: none for a group that was not looked at; values that are not plain are encoded.

        Args:
            refs: stores what Ray references stand for.
            root: name of the group in messages.
            allow_pickle: whether values of other classes may be pickled.

        Raises:
            NotStorable: a value is of a class that is not registered; the message has its path.

        """
        data = self.head
        if not self._objects:
            return data, self._body, None
        try:
            objects = encode(self._objects, refs=refs, root=root, allow_pickle=allow_pickle)
        except NotStorable as error:  # which names field, then member
            raise NotStorable(_FIELD_FIRST.sub(r"[\2].\1", str(error), count=1)) from error
        return data, self._body, objects

    # --- the head

    def _read(self) -> Head:
        """Return the head, as rollouts that were made have left it."""
        self._sync()
        if self._head is None:
            self._head = Head.read(self._data or b"")
        return self._head

    def _sync(self) -> None:
        """Encode rollouts again that were made and may have changed."""
        if self._rollouts is None:
            return
        if self._made_of is not None:
            then, now = zip(*self._made_of, strict=True), map(read_slots, self._rollouts)
            if all(map(is_, chain.from_iterable(then), chain.from_iterable(now))):
                return
            self._made_of = None  # arrays that were assigned may be written to at any time
        self._set(self._rebuilt(self._rollouts))

    def _rebuilt(self, rollouts: Sequence[Rollout]) -> Encoded:
        """Return the group of other rollouts; the task stays."""
        encoded = build.from_rollouts(rollouts)
        task_name = (self._head or Head.read(self._data or b"")).meta.task_name
        if task_name is not None:
            draft = Draft.of(encoded)
            draft.head.meta.task_name = task_name
            encoded = draft.finish()
        return encoded

    @property
    def head(self) -> Bytes:
        """The head as bytes, written when it is first asked for; that computes the checksum of the body."""
        self._sync()
        if self._data is None:
            self._head, self._data, _, self._objects = build.written(self._encoded())
        elif self._is_behind and self._head is not None:
            self._data = with_numbers(self._data, self._head.uid, self._head.staleness)
        self._is_behind = False
        return self._data or b""

    @property
    def body(self) -> Bytes:
        """The columns as bytes."""
        self._sync()
        return self._body

    @property
    def uid(self) -> int | None:
        """The group's number in its buffer, None before it is put."""
        return self._read().uid or None

    @uid.setter
    def uid(self, uid: int | None) -> None:
        self._set_ids(uid, self.checkout)

    @property
    def checkout(self) -> str | None:
        """The checkout that all members carry; see `Rollout.checkout`."""
        return self._read().meta.checkout

    @checkout.setter
    def checkout(self, checkout: str | None) -> None:
        self._set_ids(self.uid, checkout)

    def assign(self, uid: int) -> None:
        """Set the uid and clear the checkout, in place, as `put` does. A microsecond."""
        self._set_ids(uid, None)

    def drop_own_ids(self) -> None:
        """Clear uid and checkout if members have different ones, or a uid that is no number of a buffer."""
        if self._read().flags & OWN_IDS:
            self._set_ids(None, None)

    def _set_ids(self, uid: int | None, checkout: str | None) -> None:
        number = 0 if uid is None else uid
        if type(number) is not int or not 0 <= number < BOUND:
            raise InvalidArgument(f"uid must be a positive integer or None, not {shown(uid)}")
        head = self._read()
        if checkout is None and not head.flags & OWN_IDS:
            self._head = copy.copy(head)  # other groups may share it
            self._head.uid, self._is_behind = number, True
        else:
            draft, count = Draft.of(self._encoded()), len(self)
            draft.ids("group_uid", [uid] * count)
            draft.ids("checkout", [checkout] * count)
            self._set(draft.finish())
        for rollout in self._rollouts or ():
            rollout.group_uid, rollout.checkout = uid, checkout
        if self._made_of is not None and self._rollouts is not None:
            self._made_of = list(zip(*map(read_slots, self._rollouts), strict=True))

    @property
    def task_name(self) -> str | None:
        """The task that the group was put to, None before."""
        return self._read().meta.task_name

    @task_name.setter
    def task_name(self, task_name: str | None) -> None:
        draft = Draft.of(self._encoded())
        draft.head.meta.task_name = task_name
        self._set(draft.finish())

    @property
    def group_id(self) -> Any:
        """The first group_id that a member has."""
        meta = self._read().meta
        found = meta.fields.get("group_id") or self._objects.get("group_id") or [meta.group_id]
        return next((each for each in found if each is not None), None)

    @property
    def status(self) -> Status:
        """COMPLETED if all members are, else the worst status that a member has."""
        return STATUSES[self._read().status]

    @property
    def statuses(self) -> list[Status]:
        """The status of each member."""
        return [STATUSES[code] for code in self._read().statuses]

    @property
    def finish_reasons(self) -> list[str | None]:
        """How each response ended."""
        return list(self._reasons(self._read()))

    @property
    def version(self) -> int | None:
        """The oldest version of all response tokens, None without versions."""
        return _known(self._read().version)

    @property
    def newest_version(self) -> int | None:
        """The newest version of all response tokens, None without versions."""
        return _known(self._read().newest)

    @property
    def staleness(self) -> int:
        """The largest staleness that a member states."""
        return self._read().staleness

    @property
    def num_tokens(self) -> int:
        """The tokens of all members, prompts included."""
        return self._read().num_tokens

    @property
    def nbytes(self) -> int:
        """The bytes of head and body."""
        head = self._read()
        if self._data is None:
            with suppress(OverflowError, UnicodeError, ValueError, TypeError):
                return head.size() + len(self._body)
        return len(self.head) + len(self._body)

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        """The score of each member, NaN without a reward."""
        return _frozen(np.array(self._read().rewards, np.float64))

    def summary(self) -> GroupSummary:
        """Return what a buffer keeps of the group, as `summarize` of its rollouts: from the head alone, and once.

        Cost: O(members) the first time. `num_bytes` counts head, body, and an estimate of values that are not plain.

        Raises:
            InvalidArgument: only a part of a response has versions.

        """
        head = self._read()
        if self._summary is not None:
            return self._summary
        lengths, scores, count, meta = head.lengths, head.scores(), len(head.lengths), head.meta
        version, newest = _known(head.version), _known(head.newest)
        versions: tuple[int | None, ...]
        if meta.versions is None:
            tokens = {} if version is None else {version: head.response_tokens}
            versions = (version,) * count
            if version is not None and min(lengths) < 1:
                versions = tuple([version if length > 0 else None for length in lengths])
        else:
            tokens, versions = {}, tuple([min(runs[::2], default=None) for runs in meta.versions])
            for place, runs in enumerate(meta.versions):
                stamped, length = sum(runs[1::2]), lengths[place]
                if 0 < stamped < length:
                    raise InvalidArgument(
                        f"rollout {place}: response_model_steps has {stamped} entries, but response_ids has {length}; give "
                        f"one per response token, or put with model_step to fill it up"
                    )
                for each, number in zip(runs[::2], runs[1::2], strict=True):
                    tokens[each] = tokens.get(each, 0) + number
        trainable = versions
        if meta.trainable is not None or meta.versions is not None:
            newest_trainable = tuple(head.member_trainable())
            trainable = versions if newest_trainable == versions else newest_trainable
        is_scored = not isnan(head.reward_mean) or any(score is not None for score in scores)
        objects = self._objects
        self._summary = GroupSummary(
            status=STATUSES[head.status],
            group_id=self.group_id,
            version=version,
            newest_version=newest,
            staleness=head.staleness,
            num_rollouts=count,
            num_tokens=head.num_tokens,
            num_bytes=self.nbytes + (sum(map(count_value, objects.values())) if objects else 0),
            reward_mean=head.reward_mean if is_scored else None,
            reward_std=head.reward_std if is_scored else None,
            version_tokens=tokens,
            member_versions=versions,
            member_newest_trainable=trainable,
            member_tokens=tuple(head.member_tokens()),
            member_staleness=tuple(head.member_staleness()),
            measure=measure(lengths if min(lengths) >= 0 else [max(0, each) for each in lengths], scores),
            prompt_tokens=head.prompt_tokens * (count if head.flags & SHARED_PROMPT else 1),
        )
        return self._summary

    def find_invalid(self) -> list[Invalid]:
        """Return the members with a reward that is not finite, or NaN as log-probability of a trained token, and why.

        Cost: one pass over the log-probabilities, 0.2 ns a token. FAILED members are not trained and pass.
        """
        head = self._read()
        is_fine = "reward" not in head.meta.fields and "reward" not in self._objects
        is_fine = is_fine and (
            isfinite(sum(head.rewards)) or all(isfinite(each) or isnan(each) for each in head.rewards)
        )
        if is_fine and head.has_column("logprobs"):
            logprobs = self._column("logprobs")
            is_fine = not len(logprobs) or not isnan(np.minimum.reduce(logprobs))
        return [] if is_fine else find_invalid(copy.copy(self))

    # --- columns

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """The number of response tokens of each member."""
        return _frozen(np.maximum(np.array(self._read().lengths, np.int32), 0))

    @property
    def prompt_lengths(self) -> npt.NDArray[np.int32]:
        """The number of prompt tokens of each member."""
        return _frozen(np.maximum(np.array(self._read().prompt_lengths(), np.int32), 0))

    @property
    def has_shared_prompt(self) -> bool:
        """Whether `prompt_ids` is one prompt that all members share."""
        return bool(self._read().flags & SHARED_PROMPT)

    @property
    def prompt_ids(self) -> npt.NDArray[np.int32]:
        """The prompt that all members share, or the prompts of all members one after the other."""
        return self._column("prompt_ids")

    @property
    def response_ids(self) -> npt.NDArray[np.int32]:
        """The response tokens of all members, one after the other."""
        return self._column("response_ids")

    @property
    def logprobs(self) -> npt.NDArray[np.float32] | None:
        """One log-probability per response token; None unless every member has them."""
        return self._column("logprobs") if self._read().flags & HAS_LOGPROBS else None

    @property
    def response_mask(self) -> npt.NDArray[np.uint8] | None:
        """One zero or one per response token; None unless every member has a mask."""
        head = self._read()
        if head.flags & ONES_MASK:
            return _ones(head.response_tokens)
        return self._column("response_mask") if head.flags & HAS_MASK else None

    @property
    def column_names(self) -> list[str]:
        """The names of further columns."""
        return [column.name for column in self._read().meta.columns if column.name not in FIELD_COLUMNS]

    def column(self, name: str) -> Array:
        """Return a further column of all members, one after the other, as a read-only array without a copy.

        Args:
            name: of a column that was given to `pack`, `from_columns` or `Rollout.columns`.

        Raises:
            InvalidArgument: the group has no such column.

        """
        if name not in self.column_names:
            raise InvalidArgument(
                f"group has no column {name!r}; its further columns are: {', '.join(self.column_names)}"
            )
        return self._column(name)

    def _column(self, name: str) -> Array:
        return self._read().column(name, self._body)

    def to_torch(self) -> dict[str, Any]:
        """Return lengths, rewards and all columns as tensors, by name; copies, which may be written to.

        Raises:
            ImportError: torch is not installed.

        """
        import torch  # noqa: PLC0415  (optional)

        arrays: dict[str, Any] = {
            "lengths": self.lengths,
            "prompt_lengths": self.prompt_lengths,
            "rewards": self.rewards,
        }
        arrays |= {"prompt_ids": self.prompt_ids, "response_ids": self.response_ids}
        arrays |= {"logprobs": self.logprobs, "response_mask": self.response_mask}
        arrays |= {name: self.column(name) for name in self.column_names}
        return {name: torch.from_numpy(found.copy()) for name, found in arrays.items() if found is not None}

    # --- changed copies

    def _encoded(self) -> Encoded:
        return Encoded(self._read(), None if self._is_behind else self._data, self._body, self._objects)

    def __copy__(self) -> Self:
        """Return a group that shares bytes and objects, but no rollouts that were made. O(1)."""
        made = self._twin(self._read())
        made._summary = self._summary  # noqa: SLF001
        return made

    def stamped(self, model_step: int) -> Self:
        """Return the group with this version for response tokens that have none; itself if all have one.

        Cost: a new head; the body is shared.

        Raises:
            InvalidArgument: `model_step` is no integer.

        """
        step, head = read_integer("model_step", model_step), self._read()
        if head.flags & ONE_VERSION or all(
            sum(runs[1::2]) >= length for runs, length in zip(head.runs(), head.lengths, strict=True)
        ):
            return self
        draft = Draft.of(self._encoded())
        draft.stamp(step, self._masks())
        return self._of(draft.finish())

    def with_staleness(self, staleness: int | Sequence[int | None]) -> Self:
        """Return the group with this staleness, of all members or one each; None leaves a member as it is.

        Cost: a microsecond; a new head where members differ. The body is shared.
        """
        head = self._read()
        given = [staleness] if isinstance(staleness, int) else staleness
        first = given[0]
        if first is not None and not head.flags & OWN_STALENESS and given.count(first) == len(given):
            stated = copy.copy(head)  # other groups may share it
            stated.staleness = first
            return self._twin(stated)
        draft, held = Draft.of(self._encoded()), head.member_staleness()
        given = given if len(given) == len(held) else list(given) * len(held)
        draft.staleness([old if new is None else new for old, new in zip(held, given, strict=True)])
        return self._of(draft.finish())

    def expired(self, staleness: Mapping[int, int]) -> Self:
        """Return the group with these members EXPIRED: without response, as `expire` leaves a Rollout.

        Cost: as of `of`.

        Args:
            staleness: by place of the member: the staleness with which it expired.

        """
        head = self._read()
        slots, others = self._slots(head)
        held = {slot: list(values) for slot, values in slots.items()}
        members = list(_by_member(others, len(self)))
        for place, value in staleness.items():
            for slot, empty in _WITHOUT_RESPONSE.items():
                held[slot][place] = empty
            held["_seq_staleness"][place] = value
            members[place] = others_without_response(members[place], held["_prompt_ids"][place])
        draft = build.from_slots(held, None, members)
        draft.head.meta.task_name = head.meta.task_name
        return self._of(draft.finish())

    def select(self, columns: Sequence[str] | None) -> Self:
        """Return the group without the further columns that are not named; None keeps all.

        Cost: none if nothing goes, else a copy of the body. A name that the group does not have is skipped.
        """
        found = None if columns is None else select_columns(self.head, columns)
        if found is None:
            return self
        head, ranges = found
        with memoryview(self._body) as body:
            chosen = b"".join([body[start:end] for start, end in ranges])
        return self._of(Encoded(None, head, _aligned(chosen), self._objects))

    def replaced(
        self,
        *,
        rewards: Sequence[Any] | None = None,
        status: Status | str | Sequence[Status | str] | None = None,
        finish_reasons: Sequence[str | None] | None = None,
        staleness: int | Sequence[int] | None = None,
        model_step: int | None = None,
        columns: Mapping[str, Any] | None = None,
        fields: Mapping[str, Sequence[Any]] | None = None,
    ) -> Self:
        """Return a group with other values; the uid stays.

        Cost: a new head; the body is shared, unless `columns` are given.

        Args:
            rewards: one per member.
            status: of all members, or one each.
            finish_reasons: one per member; they do not change the status.
            staleness: of all members, or one each.
            model_step: the version of response tokens that have none.
            columns: further columns to add or replace, as of `pack`; None instead of an array removes one.
            fields: other fields of `Rollout`, one value per member.

        Raises:
            InvalidArgument: a value does not fit.

        """
        count, draft = len(self), Draft.of(self._encoded())
        check_counts(
            {"rewards": rewards, "finish_reasons": finish_reasons, **(fields or {})}, count, "member"
        )
        if rewards is not None:
            draft.rewards(rewards.tolist() if isinstance(rewards, np.ndarray) else rewards)
        if status is not None:
            draft.statuses(build.read_statuses(status, None, count)[0])
        if finish_reasons is not None:
            draft.finish_reasons(finish_reasons)
        if staleness is not None:
            stated = staleness if isinstance(staleness, Sequence) else [staleness] * count
            check_counts({"staleness": stated}, count, "member")
            draft.staleness([read_integer("staleness", each) for each in stated])
        if model_step is not None:
            draft.stamp(read_integer("model_step", model_step), self._masks())
        draft.set_fields(fields or {})
        draft.set_columns(columns or {})
        return self._of(draft.finish())

    def become(self, other: "RolloutGroup") -> None:
        """Hold the versions, staleness, status and uid of another group, which was made from this one."""
        if self._rollouts is None or len(self._rollouts) != len(other):
            self._share(other, other._read())  # noqa: SLF001  (of this class)
            return
        for mine, theirs in zip(self._rollouts, copy.copy(other), strict=True):
            mine.response_model_steps = theirs.response_model_steps
            mine.seq_staleness, mine.status = theirs.seq_staleness, theirs.status
            mine.group_uid, mine.checkout = theirs.group_uid, theirs.checkout

    def extended(
        self,
        responses: Sequence[Any],
        logprobs: Sequence[Any] | None = None,
        *,
        model_step: int | None = None,
        masks: Sequence[Any] | None = None,
        finish_reasons: Sequence[str | None] | None = None,
        status: Status | str | Sequence[Status | str] | None = None,
    ) -> Self:
        """Return the group with more response tokens, such as a partial rollout that was continued; uid and checkout stay.

        Cost: as of `of`.

        Args:
            responses: the new tokens of each member; None or an empty list leaves a member as it is.
            logprobs: their log-probabilities; required where a response has log-probabilities.
            model_step: the version that generated the new tokens.
            masks: zeros and ones for the new tokens; None means 1 where a response has a mask.
            finish_reasons: how each response ended now; None leaves a member as it is.
            status: of all members, or one each; None: from `finish_reasons` if given, else COMPLETED for members that got
                tokens.

        Raises:
            InvalidArgument: lengths disagree, or a column or field would describe the shorter response.

        """
        count = len(self)
        given = {
            "responses": responses,
            "logprobs": logprobs,
            "masks": masks,
            "finish_reasons": finish_reasons,
        }
        check_counts(given, count, "member")
        members = list(copy.copy(self))
        grown = [tokens is not None and len(tokens) > 0 for tokens in responses]
        for place in [place for place in range(count) if grown[place]]:
            try:
                members[place].append(
                    responses[place],
                    None if logprobs is None else logprobs[place],
                    _step(model_step),
                    None if masks is None else masks[place],
                )
            except InvalidArgument as error:
                raise InvalidArgument(f"member {place}: {error}") from error
        reasons = [None] * count if finish_reasons is None else finish_reasons
        found, errors = build.read_statuses(status, finish_reasons, count)
        for place, member in enumerate(members):
            if status is not None or (grown[place] if finish_reasons is None else reasons[place] is not None):
                member.status, member.error_msg = found[place], errors[place]
            if reasons[place] is not None:
                member.finish_reason = reasons[place]
        return self._of(self._rebuilt(members))

    # --- rollouts

    def _masks(self) -> list[Any]:
        """Return the mask of each member, None where absent."""
        head, mask = self._read(), self.response_mask
        if mask is not None:
            return parts_of(mask, bounds_of(head.lengths))
        return self._parts("response_mask") or [None] * len(head.lengths)

    def _parts(self, name: str) -> list[Any] | None:
        """Return the array of each member of a further column, None where absent, True where derived."""
        head = self._read()
        column = next((each for each in head.meta.columns if each.name == name), None)
        if column is None:
            return None
        parts: list[Any] = parts_of(self._column(name), bounds_of(column.entries_of(head.lengths)))
        for place, size in enumerate(column.lengths or ()):
            if size < 0:
                parts[place] = True if size < -1 else None
        return parts

    def _reasons(self, head: Head) -> Sequence[Any]:
        if OTHER_REASON not in head.reasons:
            return [REASONS[code] for code in head.reasons]
        given = head.values_of("finish_reason") or self._objects.get("finish_reason") or [None]
        return given if len(given) == len(head.reasons) else list(given) * len(head.reasons)

    def _made(self) -> list[Rollout]:
        """Return the rollouts, made once."""
        if self._rollouts is None:
            head = self._read()
            is_fixed = not self._objects and not _can_change(head)
            if not is_fixed:  # rollouts may change these values, and other groups share the head
                head = self._head = Head.read(self.head)
            slots, others = self._slots(head)
            made_of = [*slots.values(), _by_member(others, len(head.lengths))]
            self._rollouts = list(map(Rollout.from_slots, zip(*made_of, strict=True)))
            self._made_of = made_of if is_fixed else None
        return self._rollouts

    def values(self, names: Iterable[str]) -> list[Sequence[Any]]:
        """Return fields of `Rollout` by name, each with one value per member, without making rollouts.

        Cost: O(members); token arrays are views.
        """
        slots = [_SLOT_OF[name] for name in names]
        if self._rollouts is not None:
            return [[getattr(rollout, slot) for rollout in self._rollouts] for slot in slots]
        usual, others = self._slots(self._read())
        nothing = (None,) * len(self)
        return [usual.get(slot) or others.get(slot, nothing) for slot in slots]

    def _slots(self, head: Head) -> tuple[dict[str, Sequence[Any]], dict[str, Sequence[Any]]]:
        """Return the values of all members by slot of Rollout: the usual ones, and others that a member has."""
        lengths, flags, meta, count = head.lengths, head.flags, head.meta, len(head.lengths)
        nothing = (None,) * count
        slots: dict[str, Sequence[Any]] = dict.fromkeys(USUAL_SLOTS, nothing)
        others: dict[str, Sequence[Any]] = {}
        bounds, has_gaps = bounds_of(lengths), min(lengths) < 0
        usual = head.usual_columns(self._body)
        prompts = usual.pop("prompt_ids")
        if flags & SHARED_PROMPT:
            slots["_prompt_ids"] = (prompts,) * count
        elif meta.prompts is not None:
            parts = parts_of(prompts, bounds_of(meta.prompts))
            slots["_prompt_ids"] = [
                None if size < 0 else part for size, part in zip(meta.prompts, parts, strict=True)
            ]
        if flags & ONES_MASK:
            usual["response_mask"] = _ones(head.response_tokens)
        for name, flat in usual.items():
            parts = parts_of(flat, bounds)
            if has_gaps:
                parts = [None if length < 0 else part for length, part in zip(lengths, parts, strict=True)]
            slots[f"_{name}"] = parts
        if flags & TOKENS_DERIVED:
            others["_tokens"] = (True,) * count
        slots["_response_model_steps"] = _versions(head)
        slots["_seq_staleness"] = head.member_staleness()
        slots["_status"] = [STATUSES[code] for code in head.statuses]
        slots["reward"] = head.rewards
        if flags & INTEGER_REWARDS or isnan(sum(head.rewards)):
            number = int if flags & INTEGER_REWARDS else float
            slots["reward"] = [None if isnan(reward) else number(reward) for reward in head.rewards]
        if any(head.reasons):
            slots["finish_reason"] = self._reasons(head)
        if head.uid:
            slots["group_uid"] = (head.uid,) * count
        slots["group_id"] = (meta.group_id,) * count
        if meta.checkout is not None:
            slots["checkout"] = (meta.checkout,) * count
        for name, values in chain(meta.fields.items(), self._objects.items()):
            if name != "finish_reason":
                slot = _SLOT_OF[name]
                held = slots if slot in slots else others
                held[slot] = values if len(values) == count else values * count
        if not meta.columns:
            return slots, others
        further: list[dict[str, Any]] = [{} for _ in lengths]
        for column in meta.columns:
            found = self._parts(column.name) or []
            if column.name in _SLOT_OF:
                slot = _SLOT_OF[column.name]
                (slots if slot in slots else others)[slot] = found
                continue
            for member, part in zip(further, found, strict=True):
                if part is not None:
                    member[column.name] = part
        if any(further):
            others["_columns"] = [member or None for member in further]
        return slots, others

    def __len__(self) -> int:
        return len(self._rollouts) if self._rollouts is not None else len(self._read().lengths)

    @overload
    def __getitem__(self, index: int) -> Rollout: ...
    @overload
    def __getitem__(self, index: slice) -> list[Rollout]: ...
    def __getitem__(self, index: int | slice) -> Rollout | list[Rollout]:
        return self._made()[index]

    def __iter__(self) -> Any:
        return iter(self._made())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RolloutGroup):
            is_same = (self.head, self.body) == (other.head, other.body)
            if is_same and not self._objects and not other._objects:
                return True
        elif not isinstance(other, list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(
            mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (type(self), bytes(self.head), bytes(self._body), self._objects)

    def __repr__(self) -> str:
        head, statuses = self._read(), self.statuses
        parts = [f"{statuses.count(status)} {status.value}" for status in dict.fromkeys(statuses)]
        parts.append(f"{head.num_tokens:,} tokens ({head.response_tokens:,} of responses)")
        if head.version != NO_VERSION:
            is_one = head.newest == head.version
            parts.append(f"version {head.version}" if is_one else f"versions {head.version} to {head.newest}")
        if not isnan(head.reward_mean):
            parts.append(f"reward {head.reward_mean:.3g} +- {head.reward_std:.3g}")
        parts += [f"columns {', '.join(self.column_names)}"] if self.column_names else []
        ids = {"uid": self.uid, "group_id": self.group_id}
        names = [f"{name}={value!r}" for name, value in ids.items() if value is not None]
        return f"<RolloutGroup {' '.join([*names, ''])}{', '.join(parts)}>"

    def _repr_html_(self) -> str:
        rows = zip(
            (status.value for status in self.statuses),
            self.prompt_lengths.tolist(),
            self.lengths.tolist(),
            self.rewards.tolist(),
            self.finish_reasons,
            strict=True,
        )
        columns = ("status", "prompt tokens", "response tokens", "reward", "finish_reason")
        return html_table(repr(self), columns, rows, len(self))


def _reopen(cls: type[RolloutGroup], head: bytes, body: bytes, objects: dict[str, list[Any]]) -> RolloutGroup:
    """Return the group of a copy or a pickle."""
    return cls._of(Encoded(None, head, body, dict(objects)))


def _read_objects(objects: Any, count: int) -> dict[str, list[Any]]:
    """Return fields that are not plain. Raises CorruptData, UnsupportedFormat."""
    if type(objects) is not dict or not objects or not all(type(name) is str for name in objects):
        raise CorruptData("objects of a group are no fields; use another copy")
    if not FIELD_NAMES.issuperset(objects):
        raise UnsupportedFormat(
            f"a group with fields that this reroll does not have: {', '.join(sorted(objects))}"
        )
    if not all(type(values) is list and len(values) in (1, count) for values in objects.values()):
        raise CorruptData("objects of a group have another number of members; use another copy")
    for name in ("num_tokens", "checkout"):
        if name in objects and not is_plain(objects[name], 0):
            raise CorruptData(f"{name} of a group has a wrong type; use another copy")
    return objects


def _versions(head: Head) -> Sequence[VersionRuns]:
    lengths, version = head.lengths, head.version
    if head.flags & ONE_VERSION:
        return [VersionRuns.one(version, length) if length > 0 else NO_VERSIONS for length in lengths]
    if head.meta.versions is None:
        return (NO_VERSIONS,) * len(lengths)
    return [VersionRuns(zip(runs[::2], runs[1::2], strict=True)) for runs in head.meta.versions]


def _by_member(others: Mapping[str, Sequence[Any]], count: int) -> Sequence[dict[str, Any] | None]:
    """Return the other values of each member that are not None."""
    if not others:
        return (None,) * count
    members = zip(*others.values(), strict=True)
    return [
        {slot: value for slot, value in zip(others, values, strict=True) if value is not None} or None
        for values in members
    ]


def _can_change(head: Head) -> bool:
    """Return whether a field holds lists or dicts, which a caller may change."""
    fields = head.meta.fields
    return bool(fields) and any(type(value) in (list, dict) for values in fields.values() for value in values)


def _step(model_step: int | None) -> int | None:
    return None if model_step is None else read_integer("model_step", model_step)


def _known(version: int) -> int | None:
    return None if version == NO_VERSION else version


def _frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array


_ones_held: Array = _frozen(np.ones(1 << 16, np.uint8))


def _ones(size: int) -> Array:
    """Return ones, of which all groups share the memory."""
    global _ones_held  # noqa: PLW0603  (it only grows)
    if size > len(_ones_held):
        _ones_held = _frozen(np.ones(max(size, 2 * len(_ones_held)), np.uint8))
    return _ones_held[:size]


def _aligned(body: Bytes) -> Bytes:
    """Return the same bytes where arrays are aligned: as they are, nearly always; and read-only."""
    if type(body) is bytes or not len(body):
        return body
    view = memoryview(body).cast("B").toreadonly()
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return view if address % ALIGNMENT == 0 else bytes(view)
