"""One table of the sequences of a batch: everything that is indexed together, so that it can never be misaligned.

A sequence is a prompt and a response. Its tokens stay in the arrays of its rollout, without a copy, until they are packed.
A row leaves the table with all its columns (`where`, `select`) or not at all; masking a row leaves it where it is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.prepare.advantages import Method, advantages_by_group, priority_of
from reroll.prepare.filters import prompt_id_of, scores_of
from reroll.prepare.members import Floats, Ids, Mask, read_members
from reroll.rollout import VersionRuns, effective_response_mask, read_score
from reroll.sample import Sample, SampleInfo

TRUNCATED: Final = "length"
"""The finish reason of a response that was cut."""

IntColumn = npt.NDArray[np.int64]
FloatColumn = npt.NDArray[np.float64]
BoolColumn = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequences:
    """Rows in the order of the groups and of their members; all columns have the same length."""

    prompts: list[Ids]
    responses: list[Ids]
    logprobs: list[Floats | None]
    """Of the response tokens, NaN where a token has none; None: none has."""
    masks: list[Mask | None]
    """1 for response tokens to train on; None: all of them."""
    versions: list[VersionRuns]
    """Of the response tokens; empty: unknown."""
    uids: list[Any]
    """The group's, in its buffer."""
    prompt_ids: list[Any]
    """What the group calls its prompt (`group_id`)."""
    finish_reasons: list[str | None]
    group: IntColumn
    """Number of the group in the batch."""
    member: IntColumn
    """Place in the group."""
    prompt_length: IntColumn
    response_length: IntColumn
    trainable: IntColumn
    """How many response tokens the mask keeps."""
    reward: FloatColumn
    """NaN where none was asked for."""
    advantage: FloatColumn
    weight: FloatColumn
    """Of the sequence in the loss: 1, or the importance weight of the draw."""
    staleness: IntColumn
    times_used: IntColumn
    """How often the group was drawn, this time included."""
    is_truncated: BoolColumn
    """Whether the response was cut for its length."""
    is_masked: BoolColumn
    """Whether all of its tokens were masked because it was cut."""
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
        """How many groups have a sequence here."""
        return len(np.unique(self.group))

    def where(self, mask: npt.ArrayLike) -> Self:
        """Return the rows for which the mask is true, in order."""
        chosen = np.asarray(mask)
        if chosen.dtype != np.bool_ or chosen.shape != (len(self),):
            raise InvalidArgument(f"where needs a boolean for each of {len(self)} sequences, not {chosen!r}")
        return self.select(np.flatnonzero(chosen))

    def select(self, rows: npt.ArrayLike) -> Self:
        """Return these rows, in this order."""
        index = np.asarray(rows, np.int64)
        places = index.tolist()
        columns: dict[str, Any] = {}
        for column in fields(self):
            values = getattr(self, column.name)
            columns[column.name] = [values[i] for i in places] if isinstance(values, list) else values[index]
        return type(self)(**columns)

    def shortened(self, rows: Iterable[int], most: int) -> Self:
        """Return the table with these sequences cut at the end to at most so many tokens."""
        prompts, responses, logprobs = self.prompts.copy(), self.responses.copy(), self.logprobs.copy()
        masks, versions = self.masks.copy(), self.versions.copy()
        trainable = self.trainable.copy()
        for row in rows:
            prompts[row] = prompts[row][:most]
            rest = most - len(prompts[row])
            given, mask = logprobs[row], masks[row]
            responses[row] = responses[row][:rest]
            logprobs[row] = None if given is None else given[:rest]
            masks[row] = None if mask is None else mask[:rest]
            versions[row] = versions[row][:rest]
            trainable[row] = len(responses[row]) if mask is None else np.count_nonzero(mask[:rest])
        return replace(
            self,
            prompts=prompts,
            responses=responses,
            logprobs=logprobs,
            masks=masks,
            versions=versions,
            trainable=trainable,
            prompt_length=_lengths(prompts),
            response_length=_lengths(responses),
        )

    def priorities(self) -> dict[Any, float]:
        """Return a priority for each group that has a uid, from its advantages: what `update_priorities` takes."""
        starts = np.flatnonzero(np.diff(self.group, prepend=-1))
        parts = np.split(self.advantage, starts[1:])
        named = zip([self.uids[start] for start in starts.tolist()], parts, strict=False)
        return {uid: priority_of(part) for uid, part in named if uid is not None}


def sequences_of(
    samples: Iterable[Sample | Sequence[Any]],
    *,
    advantage: Method | None = "standard",
    mask_truncated: bool = False,
    use_importance_weights: bool = False,
    train_step: int | None = None,
    token_stale_threshold: int | None = None,
) -> Sequences:
    """Return the table of sampled groups, or of plain lists of rollouts; O(rollouts), the tokens are not touched.

    `mask_truncated` masks every token of responses that were cut for their length. Staleness is that of `train_step`,
    else that of the draw. With `token_stale_threshold`, tokens that are too stale for it are masked. `advantage=None`
    gives advantages of 0 and needs no rewards. Raises InvalidArgument, which names the prompt, for rewards that are
    missing or not finite and for fields that disagree.
    """
    if token_stale_threshold is not None and train_step is None:
        raise InvalidArgument("token_stale_threshold needs train_step, since staleness is that of a step")
    drawn = [sample if isinstance(sample, Sample) else Sample(sample, _info_of(sample)) for sample in samples]
    groups = [sample.group for sample in drawn]
    infos = [sample.info for sample in drawn]
    sizes = np.array([len(group) for group in groups], np.int64)
    scores = _read_scores(groups, needed=advantage is not None)
    advantages = np.zeros(len(scores)) if advantage is None else advantages_by_group(scores, sizes, advantage)
    group = np.repeat(np.arange(len(drawn)), sizes)
    places = group.tolist()
    named = [prompt_id_of(group) for group in groups]
    prompt_ids = [named[place] for place in places]
    rollouts = [rollout for group in groups for rollout in group]
    prompts, responses, logprobs, masks, versions, reasons = read_members(rollouts, prompt_ids)
    times_used = np.array([info.times_sampled for info in infos], np.int64)[group]
    weight = np.array([info.weight for info in infos], np.float64)[group]
    staleness = np.array([info.staleness for info in infos], np.int64)[group]
    if train_step is not None:
        staleness = _staleness(versions, staleness, train_step)
    is_truncated = np.array([reason == TRUNCATED for reason in reasons], np.bool_)
    if token_stale_threshold is not None and train_step is not None:
        for row in np.flatnonzero(staleness >= token_stale_threshold).tolist():
            fresh = effective_response_mask(rollouts[row], train_step, token_stale_threshold)
            masks[row] = np.asarray(fresh, np.uint8)
    is_masked = is_truncated & mask_truncated
    for row in np.flatnonzero(is_masked).tolist():
        masks[row] = np.zeros(len(responses[row]), np.uint8)
    return Sequences(
        prompts=prompts,
        responses=responses,
        logprobs=logprobs,
        masks=masks,
        versions=versions,
        uids=[infos[place].uid for place in places],
        prompt_ids=prompt_ids,
        finish_reasons=reasons,
        group=group,
        member=np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes),
        prompt_length=_lengths(prompts),
        response_length=_lengths(responses),
        trainable=_trainable(responses, masks),
        reward=scores,
        advantage=advantages,
        weight=weight if use_importance_weights else np.ones(len(group)),
        staleness=staleness,
        times_used=times_used,
        is_truncated=is_truncated,
        is_masked=is_masked,
        is_replayed=times_used > 1,
    )


def _read_scores(groups: Sequence[Sequence[Any]], *, needed: bool) -> FloatColumn:
    """Return the reward of every member, NaN where there is none; raises InvalidArgument if it is needed."""
    found = [getattr(rollout, "reward", None) for group in groups for rollout in group]
    if not set(map(type, found)) <= {float, type(None)}:
        found = list(map(read_score, found))
    scores = np.array(found, np.float64)  # None becomes NaN
    if not np.isfinite(scores).all():
        for group in groups:
            known = scores_of(group)  # refuses what is not finite
            if needed and None in known:
                raise InvalidArgument(
                    f"prompt {prompt_id_of(group)!r}: rollout {known.index(None)} has no reward;"
                    f" patch it before, or use advantage=None"
                )
    return scores


def _staleness(versions: Sequence[VersionRuns], told: IntColumn, train_step: int) -> IntColumn:
    """Return the staleness of each sequence at this step; without versions it is what the draw told."""
    runs = [held.parts[0] for held in versions]
    oldest = [values[0] if len(values) == 1 else min(values, default=None) for values in runs]
    known = np.array([version is not None for version in oldest], np.bool_)
    staleness = told.copy()
    staleness[known] = train_step - 1 - np.array([v for v in oldest if v is not None], np.int64)
    return staleness


def _lengths(values: Sequence[Ids]) -> IntColumn:
    return np.fromiter(map(len, values), np.int64, len(values))


def _trainable(responses: Sequence[Ids], masks: Sequence[Mask | None]) -> IntColumn:
    pairs = zip(responses, masks, strict=True)
    counts = (len(ids) if mask is None else np.count_nonzero(mask) for ids, mask in pairs)
    return np.fromiter(counts, np.int64, len(responses))


def _info_of(group: Sequence[Any]) -> SampleInfo:
    """Return what there is to say of a group that was not drawn by chance."""
    uid = next((found for one in group if (found := getattr(one, "group_uid", None)) is not None), None)
    staleness = max((rollout.seq_staleness or 0 for rollout in group), default=0)
    return SampleInfo(uid, 1.0, 1.0, 1.0, 1, staleness, 1)
