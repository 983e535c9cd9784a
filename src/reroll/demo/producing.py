"""Producers: they take the newest weights, generate, check, and put groups. In turn with the trainer, or ahead of it.

Both go on until the board or the buffer is closed. What they are given may be in this process or in another.
"""

import itertools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from reroll import Reservation, Rollout, Status, WaitTimeout, status_from_finish_reason
from reroll.demo.engine import Response, generate
from reroll.demo.letters import Prompt, is_right, make_prompt
from reroll.demo.modes import GROUP_SIZE, TASK, Mode
from reroll.demo.policy import Policy, load_weights
from reroll.prepare import GenerationResult, Verdict, judge

IN_FLIGHT = 8
"""Groups that are generated at once when the producer is ahead."""


class Notes(Protocol):
    """Who wants to know what a producer does."""

    def generated(self, began: float, tokens: int, rewards: Sequence[float]) -> None:
        """Learn of tokens that were made since a moment, and of the rewards of groups that are complete."""


class Unheard:
    """Notes that nobody reads."""

    def generated(self, began: float, tokens: int, rewards: Sequence[float]) -> None:
        """Do nothing."""


def produce(preparer: Any, board: Any, mode: Mode, seed: int, notes: Notes) -> None:
    """Produce as the mode says, until Closed is raised."""
    if mode.is_ahead:
        Ahead(preparer.buffer, board, seed, notes).produce()
    else:
        produce_in_turn(preparer, board, mode, seed, notes)


def produce_in_turn(preparer: Any, board: Any, mode: Mode, seed: int, notes: Notes) -> None:
    """Generate for each version what the next step needs, then wait for new weights.

    The prompts of a step are known by its number. So whoever begins a step again, after a crash, makes the same results
    once more; they have the same ids, and are stored once.
    """
    policy, version = Policy(), None
    while True:
        version, weights = board.newest(other_than=version)
        load_weights(policy, weights)
        step, asked = version + 1, itertools.count()
        missing = mode.fresh if step > 1 else mode.batch  # nothing can be replayed in the first step
        while missing:
            ids = [f"{step}-{next(asked)}" for _ in range(missing)]
            missing -= preparer.put(_roll_new(policy, version, ids, seed, notes))  # some teach nothing


def _roll_new(
    policy: Policy, version: int, ids: Sequence[str], seed: int, notes: Notes
) -> list[GenerationResult]:
    began = time.monotonic()
    prompts = [make_prompt(seed, prompt_id, GROUP_SIZE) for prompt_id in ids]
    groups = [[Response(prompt.tokens, draws) for draws in prompt.draws] for prompt in prompts]
    tokens = generate(policy, [response for group in groups for response in group])
    results = [_result(prompt, group, version) for prompt, group in zip(prompts, groups, strict=True)]
    notes.generated(began, tokens, [_reward(response) for group in groups for response in group])
    return results


def _result(prompt: Prompt, group: Sequence[Response], version: int) -> GenerationResult:
    return GenerationResult(
        prompt_id=prompt.prompt_id,
        prompt_ids=prompt.tokens,
        responses=[response.tokens for response in group],
        logprobs=[response.logprobs for response in group],
        finish_reasons=[response.finish_reason for response in group],
        rewards=[_reward(response) for response in group],
        model_step=version,
    )


def _reward(response: Response) -> float:
    return float(is_right(response.prompt, response.tokens))


class _Work(NamedTuple):
    """A group to roll, or to go on with."""

    group: list[Rollout]
    reservation: Reservation | None
    """None: it was begun before, and has kept its place."""


class Ahead:
    """Generates while the trainer trains, within the window that the buffer allows, and parks groups at new weights."""

    def __init__(self, buffer: Any, board: Any, seed: int, notes: Notes) -> None:
        self._buffer, self._board, self._seed, self._notes = buffer, board, seed, notes
        self._policy, self._version = Policy(), -1

    def produce(self) -> None:
        """Roll groups, until Closed is raised."""
        self._load_newest()
        while True:
            work = self._next()
            self._load_newest()
            self._roll(work)
            for each in work:
                self._put(each)

    def _next(self) -> list[_Work]:
        """Return what to roll: groups that were aborted, then as many new ones as may start; wait for at least one."""
        aborted = self._buffer.get(IN_FLIGHT, TASK, Status.ABORTED)
        work = [_Work(group, None) for group in aborted]
        while len(work) < IN_FLIGHT:
            try:
                reservation = self._buffer.reserve(1, TASK, timeout=0 if work else None)
            except WaitTimeout:
                break
            work.append(_Work(self._new_group(), reservation))
        return work

    def _new_group(self) -> list[Rollout]:
        prompt = make_prompt(self._seed, uuid4().hex, GROUP_SIZE)
        return [
            Rollout(group_id=prompt.prompt_id, rollout_id=place, prompt_ids=prompt.tokens, response_ids=[])
            for place in range(GROUP_SIZE)
        ]

    def _load_newest(self) -> None:
        if self._board.version() != self._version:
            self._version, weights = self._board.newest()
            load_weights(self._policy, weights)

    def _roll(self, work: list[_Work]) -> None:
        """Continue all rollouts until they end, or new weights are there."""
        began = time.monotonic()
        groups = [[(rollout, _response_of(rollout, self._seed)) for rollout in each.group] for each in work]
        tokens = generate(
            self._policy,
            [response for group in groups for _, response in group],
            should_stop=lambda: self._board.version() != self._version,
        )
        rewards: list[float] = []
        for group in groups:
            for rollout, response in group:
                _write(response, rollout)
            if all(rollout.status is Status.COMPLETED for rollout, _ in group):
                rewards += [_reward(response) for _, response in group]
        self._notes.generated(began, tokens, rewards)

    def _put(self, work: _Work) -> None:
        group = work.group
        if all(r.status is Status.COMPLETED for r in group) and judge(group) is not Verdict.KEPT:
            for rollout in group:
                rollout.status = Status.FILTERED  # counted, and not trained
        # Stamps the tokens that have no version yet: a group that was continued keeps its older versions.
        self._buffer.put(group, TASK, model_step=self._version, reservation=work.reservation)


def _response_of(rollout: Rollout, seed: int) -> Response:
    prompt = make_prompt(seed, rollout.group_id, GROUP_SIZE)
    tokens = [] if rollout.response_ids is None else rollout.response_ids.tolist()
    logprobs = [] if rollout.logprobs is None else rollout.logprobs.tolist()
    return Response(prompt.tokens, prompt.draws[rollout.rollout_id], tokens, logprobs)


def _write(response: Response, rollout: Rollout) -> None:
    rollout.response_ids, rollout.logprobs = response.tokens, response.logprobs
    rollout.finish_reason = response.finish_reason
    rollout.status = status_from_finish_reason(response.finish_reason)
    if rollout.status is Status.COMPLETED:
        rollout.reward = _reward(response)
