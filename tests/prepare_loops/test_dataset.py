"""The data set of torch over get_data; without torch it says what to install."""

import pickle
import sys

import pytest

from prepare_loops.results import config, result
from reroll import InvalidArgument
from reroll.prepare import BlockingPreparer


def test_without_torch_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.utils.data", None)
    monkeypatch.delitem(sys.modules, "reroll.prepare.dataset", raising=False)
    import reroll.prepare  # noqa: PLC0415

    with pytest.raises(ImportError, match=r"reroll\[torch\]"):
        _ = reroll.prepare.PreparedDataset
    with pytest.raises(AttributeError):
        _ = reroll.prepare.NothingLikeThat


def test_steps_of_a_rank():
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader  # noqa: PLC0415

    from reroll.prepare import PreparedDataset  # noqa: PLC0415

    with BlockingPreparer(config(2), [result(n) for n in range(1, 9)]) as preparer:
        dataset = PreparedDataset(preparer.get_data, 0, last_step=2, timeout=20)
        loader = DataLoader(dataset, batch_size=None)
        assert [data.step for data in loader] == [1, 2]
        assert dataset.next_step == 3
        rest = PreparedDataset(preparer.get_data, 0, first_step=3, timeout=20)
        steps = list(DataLoader(rest, batch_size=None))
        assert [data.step for data in steps] == [3, 4]  # then the source has ended
        micro_batch = steps[0].batch.micro_batches[0]
        tensors = micro_batch.to_torch()
        assert tensors["input_ids"].dtype == torch.int32
        assert tensors["input_ids"].data_ptr() == micro_batch.input_ids.ctypes.data  # no copy


def test_a_preparer_is_not_sent_to_another_process():
    with BlockingPreparer(config(1)) as preparer, pytest.raises(InvalidArgument, match="num_workers=0"):
        pickle.dumps(preparer.get_data)


def test_what_a_step_is_made_of_can_be_sent():
    with BlockingPreparer(config(1), [result(1)]) as preparer:
        data = preparer.get_data(0, 1, 20)
    again = pickle.loads(pickle.dumps(data))  # noqa: S301  (our own bytes)
    assert again.metrics == data.metrics
    assert [micro.input_ids.tolist() for micro in again] == [micro.input_ids.tolist() for micro in data]


def test_more_than_one_worker_is_refused(monkeypatch):
    pytest.importorskip("torch")
    from reroll.prepare import PreparedDataset, dataset  # noqa: PLC0415

    class Worker:
        num_workers = 2

    monkeypatch.setattr(dataset, "get_worker_info", Worker)
    with pytest.raises(InvalidArgument, match="2 workers would each train every step"):
        next(iter(PreparedDataset(lambda *_: None, 0)))
