"""The producer: it loads the weights that serve, generates, checks, and puts groups, until the buffer is closed.

It produces in turn with the trainer, or ahead of it. The buffer may be in this process or on a server.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from demo.engine import Response, generate
from demo.modes import GROUP_SIZE, TASK, Mode
from demo.policy import Policy, load
from demo.sorting_task import is_right, make_prompt
from reroll import Reservation, Rollout, Status, WaitTimeout, status_from_finish_reason
from reroll.prepare import GenerationResult, Verdict, judge

IN_FLIGHT = 8
"""Groups that a producer ahead of the trainer generates at once."""

OnGenerated = Callable[[float, int, Sequence[float]], None]
"""Receives the moment at which generation began, the new tokens, and the rewards of complete groups."""


class _Work(NamedTuple):
    """A group to begin (with its reservation) or to continue (without)."""

    group: list[Rollout]
    reservation: Reservation | None


class Producer:
    """Generates groups for a buffer, and for the preparer over it."""

    def __init__(
        self, preparer: Any, buffer: Any, weights: Path, seed: int, on_generated: OnGenerated | None = None
    ) -> None:
        self._preparer, self._buffer, self._weights, self._seed = preparer, buffer, weights, seed
        self._on_generated = on_generated or (lambda *_: None)
        self._policy, self._version = Policy(), -1

    def produce(self, mode: Mode) -> None:
        """Produce for a mode until the buffer or the preparer raises Closed."""
        if mode.is_ahead:
            self._produce_ahead()
        else:
            self._produce_in_turn(mode)

    def _load(self, version: int) -> None:
        """Wait until this version or a later one serves, and load what serves."""
        serving = self._buffer.wait_version(version)
        if serving != self._version:
            self._version = serving
            load(self._weights, serving, self._policy)

    # --- in turn with the trainer

    def _produce_in_turn(self, mode: Mode) -> None:
        """Generate the groups of the next step, then wait for the weights that it makes.

        The step's number determines its prompts. So a producer that repeats a step after a crash makes the same results
        with the same ids, and the buffer stores them once.
        """
        while True:
            self._load(self._version + 1)
            step, asked = self._version + 1, itertools.count()
            missing = mode.fresh if step > 1 else mode.batch  # the first step has no groups to replay
            while missing:
                ids = [f"{step}-{next(asked)}" for _ in range(missing)]
                missing -= self._preparer.put(self._generate(ids))  # some are filtered

    def _generate(self, ids: Sequence[str]) -> list[GenerationResult]:
        began = time.monotonic()
        prompts = [make_prompt(self._seed, prompt_id, GROUP_SIZE) for prompt_id in ids]
        groups = [[Response(prompt.tokens, draws) for draws in prompt.draws] for prompt in prompts]
        tokens = generate(self._policy, [response for group in groups for response in group])
        results = [
            GenerationResult(
                prompt_id=prompt.prompt_id,
                prompt_ids=prompt.tokens,
                responses=[response.tokens for response in group],
                logprobs=[response.logprobs for response in group],
                finish_reasons=[response.finish_reason for response in group],
                rewards=[_reward(response) for response in group],
                model_step=self._version,
            )
            for prompt, group in zip(prompts, groups, strict=True)
        ]
        self._on_generated(began, tokens, [_reward(response) for group in groups for response in group])
        return results

    # --- ahead of the trainer

    def _produce_ahead(self) -> None:
        """Generate as far ahead as the buffer allows; new weights abort all responses, and continue them."""
        while True:
            work = self._next()
            self._load(0)
            self._roll([each.group for each in work])
            for group, reservation in work:
                if all(r.status is Status.COMPLETED for r in group) and judge(group) is not Verdict.KEPT:
                    for rollout in group:
                        rollout.status = Status.FILTERED  # counted, and not trained
                # Stamps only tokens without a version, so a continued group keeps its older versions.
                self._buffer.put(group, TASK, model_step=self._version, reservation=reservation)

    def _next(self) -> list[_Work]:
        """Return aborted groups, then as many new ones as the buffer allows; wait for at least one."""
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

    def _roll(self, groups: list[list[Rollout]]) -> None:
        """Continue all rollouts until they end or new weights serve."""
        began = time.monotonic()
        rows = [[(rollout, self._response(rollout)) for rollout in group] for group in groups]
        tokens = generate(
            self._policy,
            [response for row in rows for _, response in row],
            should_stop=lambda: self._buffer.version() != self._version,
        )
        rewards: list[float] = []
        for row in rows:
            for rollout, response in row:
                rollout.response_ids, rollout.logprobs = response.tokens, response.logprobs
                rollout.finish_reason = response.finish_reason
                rollout.status = status_from_finish_reason(response.finish_reason)
                if rollout.status is Status.COMPLETED:
                    rollout.reward = _reward(response)
            if all(rollout.status is Status.COMPLETED for rollout, _ in row):
                rewards += [_reward(response) for _, response in row]
        self._on_generated(began, tokens, rewards)

    def _response(self, rollout: Rollout) -> Response:
        prompt = make_prompt(self._seed, rollout.group_id, GROUP_SIZE)
        tokens = [] if rollout.response_ids is None else rollout.response_ids.tolist()
        logprobs = [] if rollout.logprobs is None else rollout.logprobs.tolist()
        return Response(prompt.tokens, prompt.draws[rollout.rollout_id], tokens, logprobs)


def _reward(response: Response) -> float:
    return float(is_right(response.prompt, response.tokens))
