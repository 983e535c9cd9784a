"""What xtuner saved is read only if that is allowed by name; then its groups are there, in their old order.

The files are made as torch makes them: a zip with a pickle. Where torch is installed, by torch itself, with tensors.
"""

import dataclasses
import enum
import pickle
import sys
import types
import zipfile
from itertools import accumulate
from pathlib import Path

import numpy as np
import pydantic
import pytest

from reroll import CorruptData, InvalidArgument, SavedNotFound
from reroll.integrations.xtuner import (
    AsyncReplayBufferConfig,
    RolloutState,
    Status,
    SyncReplayBufferConfig,
    convert_checkpoint,
)


class TheirStatus(enum.Enum):
    COMPLETED = "completed"
    ABORTED = "aborted"
    FAILED = "failed"


class SampleParams(pydantic.BaseModel):
    temperature: float = 1.0
    stops: list[str] = []


class TheirState(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    rollout_id: int
    uid: int
    message: list[dict]
    response_ids: list[int]
    response_model_steps: list[int]
    seq_staleness: int
    reward: dict | None
    status: TheirStatus
    mm_info: dict | None
    sample_params: SampleParams
    data_source: str
    extra_fields: dict


@dataclasses.dataclass
class TheirItem:
    item: list
    uid: int
    timestamp_id: int
    task_name: str
    status: TheirStatus
    staleness: int


@dataclasses.dataclass
class TheirReference:
    value: object


PLACES = {
    TheirReference: "xtuner.v1.rl.replay_buffer.SerializedRayObjectRef",
    TheirStatus: "xtuner.v1.data_proto.rl_data.Status",
    SampleParams: "xtuner.v1.data_proto.rl_data.SampleParams",
    TheirState: "xtuner.v1.data_proto.rl_data.RolloutState",
    TheirItem: "xtuner.v1.rl.replay_buffer.StorageItem",
}


for _cls, _place in PLACES.items():  # they say that they are of xtuner
    _cls.__module__, _, _cls.__qualname__ = _place.rpartition(".")


@pytest.fixture
def xtuner(monkeypatch):
    """Let there be an xtuner with these classes while something is pickled; call it to have that gone again."""
    for cls in PLACES:
        for package in accumulate(cls.__module__.split("."), "{}.{}".format):
            if package not in sys.modules:
                monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
        setattr(sys.modules[cls.__module__], cls.__qualname__, cls)
    return monkeypatch.undo


def their_group(number, status=TheirStatus.COMPLETED, staleness=0, pixels=None):
    return [
        TheirState(
            rollout_id=number,
            uid=number,
            message=[{"role": "user", "content": "hello"}],
            response_ids=[10 * number, 10 * number + 1],
            response_model_steps=[1, 1],
            seq_staleness=staleness,
            reward={"score": 0.5},
            status=status,
            mm_info=None if pixels is None else {"pixel_values": pixels},
            sample_params=SampleParams(temperature=0.5),
            data_source="a",
            extra_fields={"outer": [{"inner": 1}]},
        )
    ]


def old_state(groups, policy="FIFOReplayPolicy", storage="NaiveStorage"):
    """Return what is pickled; later groups first, for their timestamps tell the order."""
    items = [
        TheirItem(group, 40 - place, 40 - place, "math", group[0].status, group[0].seq_staleness)
        for place, group in enumerate(groups)
    ]
    state = {"items": items, "next_uid": 41, "next_timestamp_id": 41}
    if storage == "PandasStorage":
        pandas = pytest.importorskip("pandas")
        state = {
            "df": pandas.DataFrame([vars(item) for item in items]),
            "next_uid": 41,
            "next_timestamp_id": 41,
        }
    return {"policy": policy, "storage": storage, "storage_state": state}


def write(directory: Path, state) -> Path:
    with zipfile.ZipFile(directory / "replay_buffer.pth", "w") as file:
        file.writestr("replay_buffer/data.pkl", pickle.dumps(state, protocol=2))
        file.writestr("replay_buffer/version", "3\n")
    return directory


@pytest.mark.parametrize("storage", ["NaiveStorage", "PandasStorage"])
async def test_groups_come_in_their_old_order(xtuner, tmp_path, storage):
    pixels = np.arange(3)
    groups = [their_group(3, staleness=1), their_group(2, TheirStatus.FAILED), their_group(1, pixels=pixels)]
    write(tmp_path, old_state(groups, storage=storage))
    xtuner()
    assert convert_checkpoint(tmp_path, tmp_path / "new", allow_pickle=True) == 3
    buffer = SyncReplayBufferConfig().build()
    await buffer.resume(tmp_path / "new")
    (one,), (three,) = await buffer.get(5, "math", Status.COMPLETED)
    assert type(one) is RolloutState
    assert (one.rollout_id, three.rollout_id, three.seq_staleness) == (1, 3, 1)
    assert (one.response_ids, one.response_model_steps, one.reward) == ([10, 11], [1, 1], {"score": 0.5})
    assert one.mm_info["pixel_values"].tolist() == [0, 1, 2]
    assert one.message == [{"role": "user", "content": "hello"}]
    params = {"temperature": 0.5, "stops": []}
    assert one.extra_fields == {
        "outer": [{"inner": 1}],
        "uid": 1,
        "sample_params": params,
        "data_source": "a",
    }
    assert await buffer.count("math", Status.FAILED) == 1


async def test_the_policy_is_kept(xtuner, tmp_path):
    groups = [their_group(2, staleness=5), their_group(1, staleness=1)]
    write(tmp_path, old_state(groups, policy="StalenessReplayPolicy"))
    xtuner()
    convert_checkpoint(tmp_path, tmp_path, allow_pickle=True)
    buffer = AsyncReplayBufferConfig().build()
    await buffer.resume(tmp_path)
    assert [group[0].rollout_id for group in await buffer.get(2, "math", "completed")] == [2, 1]


async def test_what_was_saved_for_a_reference_of_ray_is_there(xtuner, tmp_path):
    """References of a cluster that has ended are of no use: xtuner saves what they referred to, with a mark around it."""
    write(tmp_path, old_state([their_group(1, pixels=TheirReference(np.arange(3)))]))
    xtuner()
    convert_checkpoint(tmp_path, tmp_path / "new", allow_pickle=True)
    buffer = SyncReplayBufferConfig().build()
    await buffer.resume(tmp_path / "new")
    ((one,),) = await buffer.get(1, "math", Status.COMPLETED)
    assert one.mm_info["pixel_values"].tolist() == [0, 1, 2]


class Trap:
    """Tells, when it is unpickled, that code was run."""

    def __reduce__(self):
        return (Path.touch, (Path("ran"),))


def test_nothing_is_run_unless_that_is_allowed_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, Trap())
    for allowed in ({}, {"allow_pickle": False}, {"allow_pickle": 1}):
        with pytest.raises(InvalidArgument, match="allow_pickle=True"):
            convert_checkpoint(tmp_path, tmp_path / "new", **allowed)
    assert not Path("ran").exists()
    with pytest.raises(CorruptData):
        convert_checkpoint(tmp_path, tmp_path / "new", allow_pickle=True)
    assert Path("ran").exists()  # so the trap is one
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "state", [{}, [], {"policy": "Mine", "storage_state": {}}, {"policy": "FIFOReplayPolicy"}]
)
def test_another_pickle_is_refused(tmp_path, state):
    write(tmp_path, state)
    with pytest.raises(CorruptData, match="holds no buffer of xtuner"):
        convert_checkpoint(tmp_path, tmp_path / "new", allow_pickle=True)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x05\x06" + bytes(18)])
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "replay_buffer.pth").write_bytes(content)
    with pytest.raises(CorruptData, match="was not written by torch"):
        convert_checkpoint(tmp_path, tmp_path / "new", allow_pickle=True)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(SavedNotFound, match=r"replay_buffer\.pth"):
        convert_checkpoint(tmp_path, tmp_path / "new", allow_pickle=True)


def test_without_torch_tensors_name_the_extra(tmp_path, monkeypatch):
    write(tmp_path, {})
    with zipfile.ZipFile(tmp_path / "replay_buffer.pth", "a") as file:
        file.writestr("replay_buffer/data/0", bytes(8))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"reroll\[torch\]"):
        convert_checkpoint(tmp_path, tmp_path / "new", allow_pickle=True)


async def test_a_file_that_torch_wrote(xtuner, tmp_path):
    torch = pytest.importorskip("torch")
    groups = [their_group(2), their_group(1, pixels=torch.arange(3))]
    torch.save(old_state(groups), tmp_path / "replay_buffer.pth")
    torch.save(old_state(groups[:1]), tmp_path / "plain.pth")
    xtuner()
    convert_checkpoint(tmp_path, tmp_path / "new", allow_pickle=True)
    buffer = SyncReplayBufferConfig().build()
    await buffer.resume(tmp_path / "new")
    (one,), (two,) = await buffer.get(2, "math", "completed")
    assert torch.equal(one.mm_info["pixel_values"], torch.arange(3))
    assert two.rollout_id == 2
    (tmp_path / "plain.pth").replace(tmp_path / "replay_buffer.pth")  # without tensors, torch is not asked
    assert convert_checkpoint(tmp_path, tmp_path / "plain", allow_pickle=True) == 1
