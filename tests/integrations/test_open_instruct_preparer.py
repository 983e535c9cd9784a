"""DataPreparer, in place of the data preparation actor: what ranks get, state, restart, the end."""

import json
import queue
import threading

import numpy as np
import pytest

from integrations.open_instruct_results import processed, their_group, their_result
from reroll import Closed, InvalidArgument, LoopFailed
from reroll.integrations.open_instruct import DataPreparer, ResultsQueue
from reroll.integrations.open_instruct.results import to_generation_result
from reroll.prepare import GenerationResult, PrepareConfig

TIMEOUT = 20.0


def config(**options):
    given = {
        "global_batch_size": 2,
        "pack_length": 16,
        "first_step": 0,
        "num_ranks": 2,
        "advantage": "centered",
    }
    return PrepareConfig(**given | options)


def source(numbers):
    results = queue.Queue()
    for number in numbers:
        results.put(processed(number))
    return results


def preparer(results, configured=None, **options):
    made = {"tensors": False, **options}
    return DataPreparer(configured or config(), results, **made)


def trained(prepared, step):
    return tokens_of(*(prepared.get_data(rank, step, TIMEOUT) for rank in (0, 1)))


def tokens_of(*parts):
    """Return the numbers of the results that the parts of a step were made from."""
    found = set()
    for part in parts:
        for tokens, masks in zip(part["batch"].query_responses, part["batch"].response_masks, strict=True):
            found |= set(tokens[masks].tolist())
    return found


def test_steps_for_each_rank():
    prepared = preparer(source(range(1, 5)))
    steps = [[prepared.get_data(rank, step, TIMEOUT) for rank in (0, 1)] for step in (0, 1)]
    assert [tokens_of(*parts) for parts in steps] == [{1, 2}, {3, 4}]
    for parts in steps:
        assert len({len(part["batch"]) for part in parts}) == 1  # no rank waits for another
        assert parts[0]["metrics"] == parts[1]["metrics"]
        assert parts[0]["metrics"]["train/rollouts"] == 4
    assert [part["data"].rank for part in steps[0]] == [0, 1]
    prepared.shutdown()
    with pytest.raises(Closed):
        prepared.get_data(0, 2, TIMEOUT)


def test_the_columns_of_a_micro_batch():
    prepared = DataPreparer(config(num_ranks=1), source([5, 6]), tensors=False)
    batch = prepared.get_data(0, 0, TIMEOUT)["batch"]
    (tokens,), (documents,), (positions,) = batch.query_responses, batch.attention_masks, batch.position_ids
    (trained,), (advantages,), (logprobs,) = batch.response_masks, batch.advantages, batch.vllm_logprobs
    assert tokens.shape == documents.shape == positions.shape == trained.shape == (1, 14)
    assert tokens.dtype == documents.dtype == positions.dtype == np.int64
    assert sorted(set(documents[0].tolist())) == [1, 2, 3, 4]
    for document in (1, 2, 3, 4):
        own = documents[0] == document
        assert positions[0, own].tolist() == list(range(own.sum()))
        assert tokens[0, own][:2].tolist() == [7, 8]
        assert trained[0, own].tolist() == [False, False, *[True] * (own.sum() - 2)]
        assert set(advantages[0, own].tolist()) == {
            0.5 if own.sum() == 3 else -0.5
        }  # the shorter one was right
        assert logprobs[0, own].tolist() == [0, 0, *[-0.5] * (own.sum() - 2)]
    assert len(batch[:0]) == 0
    assert batch[:1].query_responses[0] is tokens
    prepared.shutdown()


def test_tensors():
    torch = pytest.importorskip("torch")
    prepared = DataPreparer(config(num_ranks=1), source([1, 2]))
    batch = prepared.get_data(0, 0, TIMEOUT)["batch"]
    assert batch.query_responses[0].dtype == torch.int64
    assert batch.response_masks[0].dtype == torch.bool
    prepared.shutdown()


def test_what_results_carry_is_kept():
    prepared = preparer(source([1, 2]))
    prepared.get_data(0, 0, TIMEOUT)
    rollouts = [member for group in prepared.preparer.buffer.peek([1]) for member in group]
    assert [member.reward for member in rollouts] == [1.0, 0.0]
    assert rollouts[0].group_id == "0_1"
    known = {"index": 1, "ground_truth": [1], "dataset": "gsm8k", "raw_query": "what?"}
    assert rollouts[0].extra_fields == known | {"reward_metrics": {"objective/reward": 0.5}}
    prepared.shutdown()


def test_a_results_queue_is_a_source():
    results = ResultsQueue(filter_zero_std=True)
    for number, rewards in enumerate([(1, 1), (1, 0), (0, 0), (0, 1)], start=1):
        results.put(processed(number, rewards))
    prepared = preparer(results)
    assert tokens_of(*(prepared.get_data(rank, 0, TIMEOUT) for rank in (0, 1))) == {2, 4}
    prepared.shutdown()


def test_sources_of_other_shapes():
    mine = [
        GenerationResult(
            prompt_id=str(number),
            prompt_ids=[7],
            responses=[[number]],
            finish_reasons=["stop"],
            rewards=[1.0],
        )
        for number in (1, 2)
    ]
    ends = object()
    for results in (mine, iter([processed(1), processed(2), ends])):
        prepared = preparer(results, sentinel=ends)
        assert tokens_of(*(prepared.get_data(rank, 0, TIMEOUT) for rank in (0, 1))) == {1, 2}
        prepared.shutdown()
    with pytest.raises(InvalidArgument, match="a source is"):
        preparer(3)


def test_a_result_without_its_prompt_is_told():
    prepared = preparer([their_result(1)])
    with pytest.raises(LoopFailed, match="ProcessedResult"):
        prepared.get_data(0, 0, TIMEOUT)
    prepared.shutdown()


def test_ranks_may_begin_at_the_same_time():
    prepared, found = preparer(source(range(1, 3))), []
    ranks = [
        threading.Thread(target=lambda rank=rank: found.append(prepared.get_data(rank, 0, TIMEOUT)))
        for rank in (0, 1)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(TIMEOUT)
    assert tokens_of(*found) == {1, 2}
    prepared.shutdown()


@pytest.mark.parametrize("told", [None, 0])
def test_a_restart_goes_on_after_the_step_that_was_saved(tmp_path, told):
    first = preparer(source([1, 2]), save_to=tmp_path / "buffer")
    before = tokens_of(*(first.get_data(rank, 0, TIMEOUT) for rank in (0, 1)))
    first.preparer.put([to_generation_result(processed(number)) for number in range(3, 7)])
    state = json.loads(json.dumps(first.get_state() if told is None else first.get_state(told)))
    first.shutdown()

    second = preparer(None)
    second.set_state(state)
    after = [tokens_of(*(second.get_data(rank, step, TIMEOUT) for rank in (0, 1))) for step in (1, 2)]
    assert [before, *after] == [{1, 2}, {3, 4}, {5, 6}]
    assert second.preparer.state(save_to=tmp_path / "again")["step"] == 1
    with pytest.raises(InvalidArgument, match="before that"):
        second.set_state(state)
    second.shutdown()


def test_a_state_before_the_first_step(tmp_path):
    first = preparer(None, save_to=tmp_path)
    state = first.get_state()
    first.shutdown()
    second = preparer(source([1, 2]))
    second.set_state(state)
    assert tokens_of(*(second.get_data(rank, 0, TIMEOUT) for rank in (0, 1))) == {1, 2}
    second.shutdown()


def test_groups_in_memory_are_not_lost_silently():
    prepared = preparer(None)
    with pytest.raises(InvalidArgument, match="would be lost"):
        prepared.get_state()
    prepared.shutdown()


def test_every_state_has_a_buffer_of_its_own(tmp_path):
    """The trainer dies after get_state, before its checkpoint: it goes on from the state before."""
    first = preparer(None, config(replay_buffer={"capacity": 100}), save_to=tmp_path)
    first.preparer.put([to_generation_result(processed(number)) for number in range(1, 9)])
    assert trained(first, 0) == {1, 2}
    older = first.get_state()
    assert [trained(first, step) for step in (1, 2)] == [{3, 4}, {5, 6}]
    first.get_state()
    first.shutdown()

    second = preparer(None, save_to=tmp_path)
    second.set_state(json.loads(json.dumps(older)))
    assert [trained(second, step) for step in (1, 2)] == [{3, 4}, {5, 6}]
    second.shutdown()


def test_a_state_is_saved_where_the_checkpoint_is(tmp_path):
    first = preparer(source([1, 2]))
    trained(first, 0)
    state = first.get_state(save_to=tmp_path / "checkpoint_0")
    first.shutdown()
    (tmp_path / "checkpoint_0").rename(tmp_path / "moved")
    second = preparer(source([3, 4]))
    second.set_state(state, saved=tmp_path / "moved")
    assert trained(second, 1) == {3, 4}
    second.shutdown()


def test_what_is_committed_is_used_for_good(tmp_path):
    """Without it, what more than max_uncommitted_steps used is let go with a warning, which is an error here."""
    configured = config(replay_buffer={"store": tmp_path / "store", "max_uncommitted_steps": 2})
    first = preparer(source(range(1, 13)), configured)
    for step in range(5):
        trained(first, step)
        state = first.get_state()
        assert first.commit(step) == 2
    trained(first, 5)
    first.shutdown()
    second = preparer(None, configured)
    second.set_state(state)
    assert trained(second, 5) == {11, 12}
    second.shutdown()


@pytest.mark.parametrize("first_step", [0, 1])
def test_a_crash_before_the_first_state(tmp_path, first_step):
    """Also step 0 is taken back."""
    configured = config(first_step=first_step, replay_buffer={"store": tmp_path / "store"})
    first = preparer(source(range(1, 5)), configured)
    trained(first, first_step)
    trained(first, first_step + 1)  # the first step was done
    first.shutdown()
    for _ in range(2):
        second = preparer(None, configured)
        assert [trained(second, first_step + more) for more in (0, 1)] == [{1, 2}, {3, 4}]
        second.shutdown()


def test_shutdown_returns_the_result_in_hand():
    results = source(range(1, 13))
    prepared = preparer(results)
    trained(prepared, 0)
    while results.qsize() > 5:  # 6 fit, and one waits for room
        threading.Event().wait(0.002)
    left = prepared.shutdown()
    assert [one.prompt_id for one in left] == ["0_7"]
    assert results.qsize() == 5


def test_groups_of_their_main_branch_are_prepared():
    prepared = preparer([their_group(number) for number in range(1, 5)])
    assert [trained(prepared, step) for step in (0, 1)] == [{1, 2}, {3, 4}]
    prepared.shutdown()


def test_a_group_is_read_as_a_processed_result_is():
    group, result = (
        to_generation_result(their_group(3, model_step=4)),
        to_generation_result(processed(3, model_step=4)),
    )
    assert group == result
    assert group.prompt_ids == [7, 8]
    assert (group.ground_truth, group.dataset, group.raw_query) == ([3], "gsm8k", "what?")
    assert [list(runs) for runs in group.versions] == [[4], [4, 4]]


def test_each_response_of_a_group_may_have_a_version_of_its_own():
    group = to_generation_result(their_group(3, model_step=9, model_steps=[4, 6]))
    assert [list(runs) for runs in group.versions] == [[4], [6, 6]]
