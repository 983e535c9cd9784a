"""`Sequences`: one table with everything about the sequences of a step that is indexed together.

A sequence is the prompt and the response of a rollout. Its tokens stay in the arrays of the rollout, without a copy, until
they are packed. A row leaves the table with all its columns (`where`, `select`) or not at all; masking keeps the row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.group.group import RolloutGroup
from reroll.prepare.advantages import Method, advantages_by_group, priority_of
from reroll.prepare.array_pool import Column
from reroll.prepare.filters import prompt_id_of, scores_of
from reroll.rollout import Rollout, VersionRuns, effective_response_mask, read_score
from reroll.rollout.arrays import Floats, Ids, Mask, as_floats, as_ids, as_mask
from reroll.sample import Sample, SampleInfo

TRUNCATED: Final = "length"
"""Finish reason of a truncated response."""

IntColumn = npt.NDArray[np.int64]
FloatColumn = npt.NDArray[np.float64]
BoolColumn = npt.NDArray[np.bool_]

_OWN: Final = (
    *("prompt_ids", "response_ids", "logprobs", "response_mask", "response_model_steps", "finish_reason"),
    *("reward", "columns", "routed_experts"),
)
# Read together: a batch has thousands of rollouts.
_read_own = attrgetter(*_OWN)
_NO_TOKENS: Final[Ids] = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequences:
    """Rows in the order of groups and members; every column has one entry for each sequence."""

    prompts: list[Ids]
    responses: list[Ids]
    logprobs: list[Floats | None]
    """Of the response tokens, NaN for a token without one; None: no token has one."""
    masks: list[Mask | None]
    """1 for response tokens to train on; None: all of them."""
    versions: list[VersionRuns]
    """Of the response tokens; empty: unknown."""
    columns: list[Mapping[str, Column]]
    """Further columns of the response tokens, or of all tokens, by name; every sequence with tokens has the same."""
    uids: list[Any]
    """Of the group in its buffer."""
    prompt_ids: list[Any]
    """The `group_id` of the group."""
    finish_reasons: list[str | None]
    group: IntColumn
    """Number of the group in the step."""
    member: IntColumn
    """Place in the group."""
    prompt_length: IntColumn
    response_length: IntColumn
    trainable: IntColumn
    """Number of response tokens that the mask keeps."""
    reward: FloatColumn
    """NaN where it is unknown."""
    advantage: FloatColumn
    weight: FloatColumn
    """Weight in the loss: 1, or the importance weight of the draw."""
    staleness: IntColumn
    times_used: IntColumn
    """How often the group was drawn, this time included."""
    is_truncated: BoolColumn
    """Whether the response was cut for its length."""
    is_masked: BoolColumn
    """Whether all its tokens are masked because it is truncated."""
    is_replayed: BoolColumn
    """Whether the group was trained on before."""

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def length(self) -> IntColumn:
        """Tokens of each sequence, prompt and response."""
        return self.prompt_length + self.response_length

    @property
    def num_groups(self) -> int:
        """Number of groups with a sequence in the table."""
        return len(np.unique(self.group))

    def where(self, mask: npt.ArrayLike) -> Self:
        """Return the rows for which a mask is True, in order.

        Args:
            mask: one boolean for each row.

        Raises:
            InvalidArgument: the mask has another shape or dtype.

        """
        chosen = np.asarray(mask)
        if chosen.dtype != np.bool_ or chosen.shape != (len(self),):
            raise InvalidArgument(f"where needs a boolean for each of {len(self)} sequences, not {chosen!r}")
        return self.select(np.flatnonzero(chosen))

    def select(self, rows: npt.ArrayLike) -> Self:
        """Return rows in the given order.

        Args:
            rows: row numbers.

        """
        index = np.asarray(rows, np.int64)
        places = index.tolist()
        columns: dict[str, Any] = {}
        for column in fields(self):
            values = getattr(self, column.name)
            columns[column.name] = [values[i] for i in places] if isinstance(values, list) else values[index]
        return type(self)(**columns)

    def truncate(self, rows: Iterable[int], length: int) -> Self:
        """Return the table with some sequences cut at the end.

        Args:
            rows: row numbers of the sequences.
            length: largest number of tokens.

        """
        names = ("prompts", "responses", "logprobs", "masks", "versions", "columns", "trainable")
        cut: dict[str, Any] = {name: getattr(self, name).copy() for name in names}
        for row in rows:
            cut["prompts"][row] = prompt = self.prompts[row][:length]
            rest = length - len(prompt)
            cut["responses"][row] = response = self.responses[row][:rest]
            for name in ("logprobs", "masks"):
                values = cut[name][row]
                cut[name][row] = None if values is None else values[:rest]
            cut["versions"][row] = self.versions[row][:rest]
            whole = len(self.prompts[row]) + len(self.responses[row])
            cut["columns"][row] = {
                name: values[: length if len(values) == whole else rest]
                for name, values in self.columns[row].items()
            }
            mask = cut["masks"][row]
            cut["trainable"][row] = len(response) if mask is None else np.count_nonzero(mask)
        cut["prompt_length"], cut["response_length"] = _lengths(cut["prompts"]), _lengths(cut["responses"])
        return replace(self, **cut)

    def priorities(self) -> dict[Any, float]:
        """Return a priority for each group with a uid, from its advantages; `update_priorities` takes it."""
        starts = np.flatnonzero(np.diff(self.group, prepend=-1))
        parts = np.split(self.advantage, starts[1:])
        named = zip([self.uids[start] for start in starts.tolist()], parts, strict=False)
        return {uid: priority_of(part) for uid, part in named if uid is not None}


def sequences_of(
    samples: Iterable[Sample | Sequence[Any]],
    *,
    advantage: Method | None = "grpo",
    mask_truncated: bool = False,
    use_importance_weights: bool = False,
    train_step: int | None = None,
    token_stale_threshold: int | None = None,
) -> Sequences:
    """Return the table of sampled groups, or of plain lists of rollouts.

    O(rollouts): token arrays are referenced, not copied.

    Args:
        samples: What `sample` or `lease` of a buffer returned, or lists of rollouts of any class.
        advantage: See `advantages_of`; None sets 0 for all and needs no rewards.
        mask_truncated: Whether all tokens of truncated responses are masked.
        use_importance_weights: Whether sequences have the importance weight of their draw; else the weight is 1.
        train_step: The step for which staleness is computed; None: the staleness as of the draw.
        token_stale_threshold: Tokens whose staleness is at least this are masked; needs `train_step`.

    Raises:
        InvalidArgument: A reward is missing or not finite, or fields of a rollout disagree. The message names the
            prompt.

    """
    if token_stale_threshold is not None and train_step is None:
        raise InvalidArgument("token_stale_threshold needs train_step, since staleness is that of a step")
    drawn = [sample if isinstance(sample, Sample) else Sample(sample, _info_of(sample)) for sample in samples]
    groups = [sample.group for sample in drawn]
    infos = [sample.info for sample in drawn]
    sizes = np.array([len(group) for group in groups], np.int64)
    named = [prompt_id_of(group) for group in groups]
    group = np.repeat(np.arange(len(drawn)), sizes)
    places = group.tolist()
    prompt_ids = [named[place] for place in places]
    member = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    read = read_members(groups, prompt_ids)
    tokens = read.tokens
    scores = _read_scores(groups, read.rewards, needed=advantage is not None)
    advantages = np.zeros(len(scores)) if advantage is None else advantages_by_group(scores, sizes, advantage)
    times_used = np.array([info.times_sampled for info in infos], np.int64)[group]
    weight = np.array([info.weight for info in infos], np.float64)[group]
    staleness = np.array([info.staleness for info in infos], np.int64)[group]
    if train_step is not None:
        staleness = _staleness(tokens.versions, staleness, train_step)
    is_truncated = np.array([reason == TRUNCATED for reason in tokens.finish_reasons], np.bool_)
    if token_stale_threshold is not None and train_step is not None:
        for row in np.flatnonzero(staleness >= token_stale_threshold).tolist():
            rollout = groups[places[row]][int(member[row])]
            fresh = effective_response_mask(rollout, train_step, token_stale_threshold)
            tokens.masks[row] = np.asarray(fresh, np.uint8)
    is_masked = is_truncated & mask_truncated
    for row in np.flatnonzero(is_masked).tolist():
        tokens.masks[row] = np.zeros(len(tokens.responses[row]), np.uint8)
    pairs = zip(tokens.responses, tokens.masks, strict=True)
    trainable = (len(ids) if mask is None else np.count_nonzero(mask) for ids, mask in pairs)
    return Sequences(
        **tokens._asdict(),
        columns=_read_columns(read, prompt_ids),
        uids=[infos[place].uid for place in places],
        prompt_ids=prompt_ids,
        group=group,
        member=member,
        prompt_length=_lengths(tokens.prompts),
        response_length=_lengths(tokens.responses),
        trainable=np.fromiter(trainable, np.int64, len(group)),
        reward=scores,
        advantage=advantages,
        weight=weight if use_importance_weights else np.ones(len(group)),
        staleness=staleness,
        times_used=times_used,
        is_truncated=is_truncated,
        is_masked=is_masked,
        is_replayed=times_used > 1,
    )


class Tokens(NamedTuple):
    """Token fields of rollouts: a list for each field, with an entry for each rollout."""

    prompts: list[Ids]
    responses: list[Ids]
    logprobs: list[Floats | None]
    masks: list[Mask | None]
    versions: list[VersionRuns]
    finish_reasons: list[str | None]


class Members(NamedTuple):
    """Fields of rollouts that a table needs: a list for each field, with an entry for each rollout."""

    tokens: Tokens
    rewards: list[Any]
    columns: list[Any]
    routed_experts: list[Any]


def read_members(groups: Sequence[Sequence[Any]], prompt_ids: Sequence[Any]) -> Members:
    """Return fields of the rollouts of any class. Raises InvalidArgument, which names the prompt.

    A RolloutGroup makes no rollouts for it: the values are views of its columns.
    """
    found: list[list[Any]] = [[] for _ in _OWN]
    others: dict[int, Any] = {}  # rollouts of other classes, by row
    for group in groups:
        if isinstance(group, RolloutGroup):
            values: Iterable[Sequence[Any]] = group.values(_OWN)
        elif set(map(type, group)) == {Rollout}:
            values = zip(*map(_read_own, group), strict=True)
        else:
            others.update(enumerate(group, len(found[0])))
            values = [[None] * len(group) for _ in _OWN[:6]]
            values += [[getattr(one, name, None) for one in group] for name in _OWN[6:]]
        for column, part in zip(found, values, strict=True):
            column.extend(part)
    tokens = Tokens(*found[:6])
    rows = sorted({*others, *_irregular(tokens, others)})
    if len(rows) > len(others):
        members = [one for group in groups for one in group]
        others = {row: members[row] for row in rows}
    for row in rows:
        try:
            read = _read_rollout(others[row])
        except InvalidArgument as error:
            raise InvalidArgument(f"prompt {prompt_ids[row]!r}: {error}") from error
        for column, value in zip(found[:6], read, strict=True):
            column[row] = value
    return Members(tokens, *found[6:])


def _irregular(found: Tokens, others: Mapping[int, Any]) -> list[int]:
    """Return the rows, except `others`, with a missing field or disagreeing lengths: they are read one by one."""

    def lengths(column: Sequence[Any]) -> Column:
        return np.array([-1 if values is None else len(values) for values in column])

    response = lengths(found.responses)
    ends = [() if row in others else versions.parts[1] for row, versions in enumerate(found.versions)]
    irregular = np.array([ids is None for ids in found.prompts], np.bool_) | (response < 0)
    version = np.array([end[-1] if end else -1 for end in ends])
    for length in (lengths(found.logprobs), lengths(found.masks), version):
        irregular |= (length >= 0) & (length != response)
    return np.flatnonzero(irregular).tolist()


def _read_rollout(rollout: Any) -> tuple[Any, ...]:
    """Return the token fields of one rollout of any class."""
    if type(rollout) is Rollout:
        prompt, response, logprobs, mask, versions, reason = _read_own(rollout)[:6]
    else:
        prompt = as_ids("prompt_ids", getattr(rollout, "prompt_ids", None))
        response = as_ids("response_ids", rollout.response_ids)
        logprobs = as_floats("logprobs", getattr(rollout, "logprobs", None))
        mask = as_mask("response_mask", getattr(rollout, "response_mask", None))
        versions = VersionRuns.of(rollout.response_model_steps)
        reason = getattr(rollout, "finish_reason", None)
    if response is None:
        response = _NO_TOKENS
    if prompt is None:
        prompt = _prompt_in_whole(rollout, len(response))
    logprobs = _of_response("logprobs", logprobs, len(prompt), len(response))
    mask = _of_response("response_mask", mask, len(prompt), len(response))
    if versions and len(versions) != len(response):
        raise InvalidArgument(
            f"response_model_steps has {len(versions)} entries, but response_ids has {len(response)}; give one for each"
        )
    return prompt, response, logprobs, mask, versions, reason


def _prompt_in_whole(rollout: Any, length: int) -> Ids:
    """Return the tokens before the response in `tokens` or `input_ids`; no tokens if there is neither."""
    for name in ("tokens", "input_ids"):
        whole = as_ids(name, getattr(rollout, name, None))
        if whole is not None and len(whole) >= length:
            return whole[: len(whole) - length]
    return _NO_TOKENS


def _of_response(name: str, values: Any, prompt: int, length: int) -> Any:
    """Return the entries of the response, also from those of the whole sequence; None if there are none."""
    if values is None or len(values) == length:
        return values
    if not len(values):
        return None
    if len(values) != prompt + length:
        raise InvalidArgument(
            f"{name} has {len(values)} entries, but response_ids has {length}; give one for each"
        )
    return values[prompt:]


def _read_columns(read: Members, prompt_ids: Sequence[Any]) -> list[Mapping[str, Column]]:
    """Return the further per-token columns of each rollout. Raises InvalidArgument if rollouts disagree."""
    tokens = read.tokens
    given = [columns if isinstance(columns, Mapping) else {} for columns in read.columns]
    if _has_routed_experts(read):
        both = zip(given, read.routed_experts, strict=True)
        given = [{**columns, "routed_experts": experts} for columns, experts in both]
    if not any(given):
        return [{}] * len(given)
    kinds = {
        name: (array.dtype, array.shape[1:])
        for columns in given
        for name, values in columns.items()
        if len(array := np.asarray(values))
    }
    found: list[Mapping[str, Column]] = []
    for row, columns in enumerate(given):
        prompt, length = len(tokens.prompts[row]), len(tokens.responses[row])
        cut: dict[str, Column] = {}
        for name, (dtype, shape) in kinds.items():
            values = columns.get(name, ())
            if length and not len(values):
                raise InvalidArgument(
                    f"prompt {prompt_ids[row]!r}: column {name!r} is missing, and other rollouts of the step have it; "
                    "put it on every rollout"
                )
            values = np.asarray(values) if length else np.empty((0, *shape), dtype)
            if (values.dtype, values.shape[1:]) != (dtype, shape):
                raise InvalidArgument(
                    f"prompt {prompt_ids[row]!r}: column {name!r} has {values.dtype} {values.shape[1:]}, and other rollouts "
                    f"of the step have {dtype} {shape}; use one dtype and shape"
                )
            if len(values) not in (length, prompt + length):
                raise InvalidArgument(
                    f"prompt {prompt_ids[row]!r}: column {name!r} has {len(values)} entries, but response_ids has {length}; give "
                    "one for each"
                )
            cut[name] = values
        found.append(cut)
    return found


def _has_routed_experts(read: Members) -> bool:
    """Return whether all rollouts have an array `routed_experts` with an entry for each token."""
    rows = zip(read.routed_experts, read.tokens.prompts, read.tokens.responses, strict=True)
    return bool(read.routed_experts) and all(
        isinstance(experts, np.ndarray)
        and experts.ndim > 0
        and len(experts) in (len(response), len(prompt) + len(response))
        for experts, prompt, response in rows
    )


def _read_scores(groups: Sequence[Sequence[Any]], found: list[Any], *, needed: bool) -> FloatColumn:
    """Return the reward of each member, NaN where it is unknown. Raises InvalidArgument if all are needed."""
    if not set(map(type, found)) <= {float, type(None)}:
        found = list(map(read_score, found))
    scores = np.array(found, np.float64)  # None becomes NaN
    if not np.isfinite(scores).all():
        for group in groups:
            known = scores_of(group)  # raises if one is not finite
            if needed and None in known:
                raise InvalidArgument(
                    f"prompt {prompt_id_of(group)!r}: rollout {known.index(None)} has no reward; patch it before, or use"
                    " advantage=None"
                )
    return scores


def _staleness(versions: Sequence[VersionRuns], drawn: IntColumn, train_step: int) -> IntColumn:
    """Return the staleness of each sequence at a step; that of the draw where versions are unknown."""
    runs = [held.parts[0] for held in versions]
    oldest = [values[0] if len(values) == 1 else min(values, default=None) for values in runs]
    known = np.array([version is not None for version in oldest], np.bool_)
    staleness = drawn.copy()
    staleness[known] = train_step - 1 - np.array([v for v in oldest if v is not None], np.int64)
    return staleness


def _lengths(values: Sequence[Ids]) -> IntColumn:
    return np.fromiter(map(len, values), np.int64, len(values))


def _info_of(group: Sequence[Any]) -> SampleInfo:
    """Return the info of a group that was not drawn from a buffer."""
    if isinstance(group, RolloutGroup):
        return SampleInfo(group.uid, 1.0, 1.0, 1.0, 1, group.staleness, 1)
    uid = next((found for one in group if (found := getattr(one, "group_uid", None)) is not None), None)
    staleness = max((rollout.seq_staleness or 0 for rollout in group), default=0)
    return SampleInfo(uid, 1.0, 1.0, 1.0, 1, staleness, 1)
