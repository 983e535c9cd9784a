"""`make demo ARGS=--quick`, all modes: the model learns, the books close, and each mode does what its name says."""

import pytest

from demo.modes import BATCH, FRESH, GROUP_SIZE, MAX_STALENESS, MODES
from demo.run import WINDOW, closes

pytestmark = pytest.mark.timeout(400)  # the whole demo is in a fixture, and machines are slow


@pytest.fixture(params=MODES)
def run(request, quick):
    return next(run for run in quick[0].runs if run.mode == request.param)


def of(quick, mode):
    return next(run for run in quick[0].runs if run.mode == mode)


def test_the_model_learns(run):
    assert run.is_whole
    assert run.reward_before < 0.2
    assert run.reward_after > 0.6
    assert run.reached is not None
    assert run.reached.generated_tokens >= WINDOW


def test_the_ledger_closes(run):
    assert closes(run.ledger)
    batch = MODES[run.mode].batch
    assert sum(run.uses.values()) == batch * len(run.curve)
    assert run.ledger["put"]["groups"] > 0
    assert run.ledger["lost"]["groups"] == run.ledger["deleted"]["groups"] == 0


@pytest.mark.parametrize("mode", ["on-policy", "on-policy-small"])
def test_on_policy_groups_are_trained_once_and_fresh(quick, mode):
    run = of(quick, mode)
    assert set(run.staleness) == {0}
    assert set(run.uses) == {1}
    assert run.ledger["consumed"]["groups"] == MODES[mode].batch * len(run.curve)
    assert run.overlap == 0
    assert run.mixed_responses == 0


def test_the_producer_worked_while_the_trainer_did(quick):
    run = of(quick, "async")
    assert run.overlap > 0.2
    began, ended = run.training[len(run.training) // 2]
    assert began < ended
    assert any(
        start < stop_of for (start, _), (_, stop_of) in zip(run.generating, run.training, strict=False)
    )


def test_staleness_stays_within_the_window(quick):
    run = of(quick, "async")
    assert max(run.staleness) <= MAX_STALENESS
    assert max(run.staleness) >= 1  # it was ahead indeed
    assert set(run.uses) == {1}


def test_aborted_groups_were_continued_by_newer_weights(quick):
    run = of(quick, "async")
    assert run.puts["aborted"] > 0
    assert run.mixed_responses > 0


@pytest.mark.parametrize("mode", ["replay-uniform", "replay-prioritized"])
def test_replay_uses_groups_again_within_its_limits(quick, mode):
    run = of(quick, mode)
    assert 2 <= max(run.uses) <= 8
    assert max(run.staleness) <= 8
    steps = len(run.curve)
    assert run.uses[1] == BATCH + FRESH * (steps - 1)  # the first step is all new
    assert 0 <= run.puts["completed"] - run.uses[1] <= FRESH  # the next step's may be there already


@pytest.mark.parametrize("mode", ["replay-uniform", "replay-prioritized"])
def test_replay_generates_less(quick, mode):
    assert of(quick, mode).reached.generated_tokens < of(quick, "on-policy").reached.generated_tokens


def test_tokens_are_counted(quick):
    run = of(quick, "on-policy")
    responses = (run.puts["completed"] + run.puts["filtered"]) * GROUP_SIZE
    generated = run.curve[-1].generated_tokens
    assert 2 * responses < generated < 9 * responses
    assert generated > run.curve[-1].trained_tokens
