"""One run: a mode and a seed, from the warm-up to the target."""

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from reroll import Closed
from reroll.demo.board import Board
from reroll.demo.engine import Response, generate
from reroll.demo.grpo import Trained, new_optimizer, train
from reroll.demo.letters import is_right, make_prompt
from reroll.demo.measuring import Measured, Meter
from reroll.demo.modes import Mode
from reroll.demo.policy import Policy, weights_of
from reroll.demo.producing import Notes, produce
from reroll.prepare import Preparer

TARGET = 0.8
MAX_STEPS = 400
_HELD_OUT = 256

OnStep = Callable[[Meter, Any], None]


def run(mode: Mode, seed: int, warm: Policy, measured: Measured, on_step: OnStep) -> None:
    """Train a copy of a policy until the target is reached; what is measured is there also if this is interrupted."""
    policy, meter = copy.deepcopy(warm), Meter(measured)
    with training(mode, seed, policy, meter, MAX_STEPS) as (preparer, steps):
        try:
            for trained in steps:
                meter.trained(*trained)
                on_step(meter, preparer.buffer)
                if meter.is_there:
                    break
        finally:
            meter.look(preparer.buffer)
    measured.reward_after = held_out_reward(policy, seed)
    measured.is_whole = True


@contextmanager
def training(
    mode: Mode, seed: int, policy: Policy, notes: Notes, last_step: int
) -> Iterator[tuple[Preparer, Iterator[Trained]]]:
    """Give the preparer, and the steps, each of which is trained when it is asked for; the producer has its own thread."""
    board = Board()
    board.publish(0, weights_of(policy))
    preparer = Preparer(mode.config(seed)).start()
    with producing(preparer, board, mode, seed, notes):
        yield preparer, train(policy, new_optimizer(policy), preparer, board, range(1, last_step + 1))


@contextmanager
def producing(preparer: Preparer, board: Board, mode: Mode, seed: int, notes: Notes) -> Iterator[None]:
    """Produce in a thread of its own. An error there ends the wait of the trainer, and is raised here.

    At the end both are closed.
    """
    errors: list[Exception] = []

    def work() -> None:
        try:
            produce(preparer, board, mode, seed, notes)
        except Closed:
            pass  # the end
        except Exception as error:  # noqa: BLE001  (raised where the thread was started)
            errors.append(error)
            preparer.shutdown()

    thread = threading.Thread(target=work, name="producer", daemon=True)
    thread.start()
    try:
        yield
    except Closed:
        if not errors:
            raise
    finally:
        board.close()
        preparer.shutdown()
        thread.join()
    if errors:
        raise errors[0]


def held_out_reward(policy: Policy, seed: int) -> float:
    """Return the share of prompts, none of which is trained on, that a policy solves with one response each."""
    prompts = [make_prompt(seed, f"held-out-{number}", 1) for number in range(_HELD_OUT)]
    responses = [Response(prompt.tokens, prompt.draws[0]) for prompt in prompts]
    generate(policy, responses)
    return sum(is_right(response.prompt, response.tokens) for response in responses) / _HELD_OUT
