"""Conversion of xtuner's checkpoints, which are pickles, to checkpoints of reroll."""

import pickle
import zipfile
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self

from reroll.config import AsyncReplayBufferConfig, SyncReplayBufferConfig
from reroll.errors import CorruptData, InvalidArgument, SavedNotFound, missing_extra
from reroll.integrations.xtuner.rollouts import RolloutState
from reroll.rollout import Status

_FILE: Final = "replay_buffer.pth"
_CONFIGS: Final = {
    "FIFOReplayPolicy": SyncReplayBufferConfig,
    "StalenessReplayPolicy": AsyncReplayBufferConfig,
}


def convert_checkpoint(
    old: str | PathLike[str], new: str | PathLike[str], *, allow_pickle: bool = False
) -> int:
    """Convert the `replay_buffer.pth` of xtuner in a directory to a checkpoint of reroll.

    Groups keep their order and get new uids. Fields that `RolloutState` does not have are in `extra_fields`. xtuner need not
    be installed; torch is needed only if the file holds tensors.

    Args:
        old: the directory that xtuner saved to.
        new: the directory of the new checkpoint, for `resume`.
        allow_pickle: must be True, because reading a pickle runs the code in it: only for files that you trust.

    Returns:
        The number of groups.

    Raises:
        InvalidArgument: `allow_pickle` is not True.
        SavedNotFound: the directory has no such file.
        CorruptData: the file is damaged, or holds something else.
        ImportError: the file holds tensors, and torch is not installed.

    """
    path = Path(old) / _FILE
    if not path.is_file():
        raise SavedNotFound(f"there is no {_FILE} in {old}; name the directory that xtuner saved to")
    if allow_pickle is not True:
        raise InvalidArgument(
            f"{path} is a pickle, and reading one runs the code in it; if you trust the file, pass allow_pickle=True"
        )
    state = _read(path)
    try:
        config = _CONFIGS[state["policy"]]
        stored = state["storage_state"]  # of a PandasStorage, or of a NaiveStorage
        rows = stored["df"].to_dict("records") if "df" in stored else [item.held for item in stored["items"]]
        rows.sort(key=lambda row: row["timestamp_id"])
        groups = [(row["task_name"], [_rollout(member) for member in row["item"]]) for row in rows]
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptData(f"{path} holds no buffer of xtuner: {error!r}") from error
    buffer = config(rejected_capacity=len(groups)).build_blocking()
    for task_name, group in groups:
        buffer.put(group, task_name)
    buffer.save(new)
    buffer.close()
    return len(groups)


class _Foreign:
    """The attributes of an object of any class of xtuner."""

    held: dict[str, Any]

    def __new__(cls, value: Any = None) -> Self:
        made = super().__new__(cls)
        made.held = {} if value is None else {"value": value}  # member of an enum
        return made

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.held = state.get("__dict__", state)  # pydantic nests it


class _Unpickler(pickle.Unpickler):
    """Reads classes of xtuner as `_Foreign`, and its Status as ours."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".", maxsplit=1)[0] != "xtuner":
            return super().find_class(module, name)
        return Status if name == "Status" else _Foreign


class _PickleModule:
    """The interface that torch.load needs of a pickle module."""

    Unpickler = _Unpickler
    load = pickle.load


def _read(path: Path) -> Any:
    """Return the saved state; torch reads it only if the file has a tensor."""
    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
            if not any("/data/" in name for name in names):
                (body,) = (name for name in names if name.endswith("/data.pkl"))
                with file.open(body) as pickled:
                    return _Unpickler(pickled).load()
    except (zipfile.BadZipFile, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise CorruptData(f"{path} was not written by torch.save, or is damaged: {error}") from error
    try:
        import torch  # noqa: PLC0415  (optional)
    except ImportError as error:
        raise missing_extra(f"{path} holds tensors, and", "torch", "torch") from error
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=_PickleModule)


def _rollout(old: _Foreign) -> RolloutState:
    held = {name: _plain(value) for name, value in old.held.items()}
    own = {name: held.pop(name) for name in RolloutState.model_fields if name in held}
    own["extra_fields"] = {**held, **(own.get("extra_fields") or {})}
    return RolloutState.model_construct(**own)


def _plain(value: Any) -> Any:
    """Return a value with the objects of xtuner in it, at any depth, as dicts; members of enums as their value."""
    if isinstance(value, _Foreign):
        return _plain(value.held["value"] if value.held.keys() == {"value"} else value.held)
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return value if value and isinstance(value[0], int | float) else [_plain(part) for part in value]
    return value
