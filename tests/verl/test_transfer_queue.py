"""TransferQueue's own calls give the same with our backend as with its own, and what they put outlives all processes."""

import pytest
import ray
import torch
import transfer_queue as tq
from cases import all_rows, plain_batch, run_case
from drivers import run_driver
from omegaconf import OmegaConf
from tensordict import TensorDict

from reroll.errors import InvalidConfig
from reroll.integrations.transfer_queue import backend

SEEDS = range(300)
PARTITIONS = [f"case{seed}" for seed in SEEDS]


def rows_of(*numbers):
    return TensorDict({"x": torch.tensor([[float(n)] for n in numbers])}, batch_size=len(numbers))


def run_cases(directory):
    """Make random calls, save and load a checkpoint, and return all outcomes."""
    cases = {seed: run_case(seed) for seed in SEEDS}
    end = all_rows(PARTITIONS)
    tq.save_checkpoint(directory / "checkpoint", metadata={"step": 3})
    for partition in PARTITIONS[::3]:
        tq.kv_clear(keys=[*(tq.kv_list(partition) or {}).get(partition, {}), "none"], partition_id=partition)
    tq.kv_put(key="later", partition_id="case1", fields={"f": torch.ones(2)})
    changed = all_rows(PARTITIONS)
    tq.load_checkpoint(directory / "checkpoint")
    return cases, end, changed, all_rows(PARTITIONS)


def test_random_calls_give_what_the_default_backend_gives(queue, tmp_path):
    queue(units=2)
    cases, end, changed, loaded = run_cases(tmp_path / "default")
    assert len(end) > 600
    assert changed != loaded == end
    got = [outcome for case in cases.values() for outcome in case if isinstance(outcome, dict)]
    assert sum(outcome.keys() <= {"f0", "f1", "f2", "f9"} for outcome in got if outcome) > 100
    tq.close()

    queue(tmp_path / "store", units=2)
    ours = run_cases(tmp_path / "reroll")
    for seed in SEEDS:
        assert ours[0][seed] == cases[seed], seed
    assert ours[1:] == (end, changed, loaded)
    tq.close()

    queue(tmp_path / "store", units=2)  # processes of their own again, and another controller
    assert all_rows(PARTITIONS) == end
    assert tq.kv_list(PARTITIONS[0]).keys() <= {PARTITIONS[0]}
    tq.kv_put(key="new", partition_id="case0", fields={"f": torch.ones(2)})  # numbers are given out once
    assert {key: row for key, row in all_rows(PARTITIONS).items() if key != ("case0", "new")} == end


def test_rows_without_keys_and_other_processes(queue, tmp_path):
    queue(tmp_path)
    client = tq.get_client()
    meta = client.put(rows_of(1, 2), partition_id="low")
    assert client.get_data(meta)["x"].unbind()[1].tolist() == [2.0]

    @ray.remote
    def elsewhere():
        """A process that knows nothing of reroll until TransferQueue tells it."""
        import transfer_queue  # noqa: PLC0415

        transfer_queue.init()
        transfer_queue.kv_put(
            key="there", partition_id="train", fields={"x": torch.tensor([7.0])}, tag={"a": 1}
        )
        return plain_batch(transfer_queue.kv_batch_get(keys="there", partition_id="train"))

    got = ray.get(elsewhere.remote())
    assert got == plain_batch(tq.kv_batch_get(keys="there", partition_id="train"))
    tq.close()

    queue(tmp_path)
    assert tq.kv_list("train") == {"train": {"there": {"a": 1}}}
    assert tq.get_client().get_partition_list() == ["low", "train"]
    with pytest.raises(RuntimeError, match=r"NotStorable|not registered"):
        tq.kv_put(key="bad", partition_id="train", tag={"a": InvalidConfig})
    tq.get_client().clear_partition("low")


def test_the_number_of_units_is_that_of_the_rows(tmp_path):
    (tmp_path / "unit-0").mkdir()
    with pytest.raises(
        InvalidConfig, match="rows of 1 storage units, and num_data_storage_units is 2; set it to 1"
    ):
        backend.start_units(
            OmegaConf.create({"backend": {"Reroll": {"path": str(tmp_path), "num_data_storage_units": 2}}})
        )


@pytest.mark.timeout(1500)
def test_kills_lose_nothing_that_was_acknowledged(cluster, tmp_path):
    """Four drivers, each of which kills both storage units twice and then itself; a fifth looks at what is there."""
    for life, kills in enumerate((2, 2, 2, 2, 0)):
        code, output = run_driver("crashing.py", cluster, tmp_path, life, kills)
        assert code == (-9 if kills else 0), output
    log = (tmp_path / "log").read_text().splitlines()
    assert sum(line.startswith("kill") for line in log) == 20
    assert sum(line.startswith("checked") for line in log) == 5
    assert sum(line.startswith("done") for line in log) > 100
