"""What is said about the runs: medians, break-even, and no claim that the numbers do not show."""

import pytest

from demo.compare import break_evens, findings, headlines, summarise, token_price
from demo.run import Point, Run, closes, shared_seconds


def run(mode, generated, trained, seconds=1.0, *, seed=0, reward=0.9):
    point = Point(10, seconds, generated, trained, reward)
    return Run(
        mode=mode,
        seed=seed,
        reward_before=0.1,
        target=0.8,
        curve=[Point(1, 0.1, 10, 10, 0.1), point],
        generating=[(0.0, 0.3), (0.5, 0.8)],
        training=[(0.3, 0.5)],
        is_whole=True,
    )


def test_medians_and_ranges():
    runs = [run("on-policy", tokens, 100, seed=seed) for seed, tokens in enumerate((300, 100, 200))]
    (summary,) = summarise(runs)
    assert (summary.reached, summary.runs) == (3, 3)
    spread = summary.spreads["generated_tokens"]
    assert (spread.median, spread.low, spread.high) == (200, 100, 300)
    assert summary.row()[2] == "200\n(100 to 300)"


def test_the_target_is_reached_at_the_first_point_above_it():
    one = run("async", 100, 100)
    assert one.reached == one.curve[1]
    assert run("async", 100, 100, reward=0.79).reached is None


def test_the_price_from_which_replay_pays():
    summaries = summarise([run("on-policy", 1000, 800), run("replay-uniform", 500, 1800)])
    (found,) = break_evens(summaries)
    assert (found.saved_share, found.ratio) == (0.5, 2.0)
    price = found.ratio
    assert price * 1000 + 800 == price * 500 + 1800
    (told,) = findings([found], None)
    assert "50% fewer tokens" in told
    assert "more than 2.0 trained ones" in told


def test_replay_that_generated_more_is_said_to_have_done_so():
    (found,) = break_evens(summarise([run("on-policy", 1000, 800), run("replay-uniform", 1200, 1800)]))
    assert found.ratio is None
    assert "20% more tokens" in findings([found], None)[0]
    assert "did not pay" in findings([found], None)[0]


def test_runs_that_failed_are_not_compared():
    runs = [run("on-policy", 1000, 800), run("replay-uniform", 500, 900, reward=0.5)]
    assert break_evens(summarise(runs)) == []
    assert summarise(runs)[1].row()[1:3] == ("0 of 1", "-")


def test_a_run_that_was_interrupted_does_not_count():
    whole, cut = run("on-policy", 1000, 800), run("on-policy", 10, 8)
    cut.is_whole = False
    (summary,) = summarise([whole, cut])
    assert (summary.runs, summary.spreads["generated_tokens"].median) == (1, 1000)


def test_no_claim_about_priorities():
    runs = [run(mode, 100, 100) for mode in ("on-policy", "replay-uniform", "replay-prioritized")]
    told = findings(break_evens(summarise(runs)), 1.0)
    assert any("does not tell which is better" in sentence for sentence in told)


def test_the_price_of_a_token():
    one = run("on-policy", 300, 100)
    assert token_price([one]) == pytest.approx((0.6 / 300) / (0.2 / 100))
    assert token_price([run("async", 300, 100)]) is None


def test_shared_seconds():
    assert shared_seconds([(0, 1), (2, 4)], [(0.5, 2.5), (3, 3.5), (5, 6)]) == 1.5
    assert shared_seconds([(0, 1)], [(1, 2)]) == 0
    assert shared_seconds([], [(1, 2)]) == 0
    assert run("async", 1, 1).overlap == 0


def test_a_ledger_that_does_not_close_is_seen():
    def amount(groups, tokens):
        return {"groups": groups, "tokens": tokens}

    assert closes({"put": amount(3, 30), "resident": amount(1, 10), "consumed": amount(2, 20)})
    assert not closes({"put": amount(3, 30), "resident": amount(1, 10), "consumed": amount(1, 20)})
    assert not closes({"put": amount(3, 31), "resident": amount(1, 10), "consumed": amount(2, 20)})
    assert not closes({})


def test_the_lines_that_matter():
    runs = [run("on-policy", 1000, 800), run("replay-uniform", 400, 900), run("async", 900, 800)]
    runs[2].staleness = {0: 3, 2: 1}
    runs[0].ledger = {"put": {"groups": 3, "tokens": 30}, "consumed": {"groups": 3, "tokens": 30}}
    assert [line.split(":")[0] for line in headlines(runs)] == ["Replay", "Async", "Ledger"]
    assert "60% fewer generated tokens" in headlines(runs)[0]
    assert "at most 2 steps stale" in headlines(runs)[1]
    assert "closes in 1 of 3 runs; 3 groups put" in headlines(runs)[2]
    assert len(headlines(runs[:1])) == 1
