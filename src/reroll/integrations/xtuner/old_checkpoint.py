"""What xtuner saved, as a checkpoint of reroll. An old file is a pickle, and reading one runs what is in it."""

import pickle
import zipfile
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self

from reroll.config import AsyncReplayBufferConfig, SyncReplayBufferConfig
from reroll.errors import CorruptData, InvalidArgument, SavedNotFound
from reroll.integrations.xtuner.rollout_state import RolloutState
from reroll.integrations.xtuner.stored import StorageItem
from reroll.rollout import Status

_FILE: Final = "replay_buffer.pth"
_CONFIGS: Final = {
    "FIFOReplayPolicy": SyncReplayBufferConfig,
    "StalenessReplayPolicy": AsyncReplayBufferConfig,
}


def convert_checkpoint(
    old: str | PathLike[str], new: str | PathLike[str], *, allow_pickle: bool = False
) -> int:
    """Read the `replay_buffer.pth` in a directory, save its groups to another, and return how many there are.

    xtuner need not be installed; torch is needed only if the file holds tensors. Groups come in their old order, and get
    new uids. Fields that `RolloutState` does not have are found in `extra_fields`.

    Reading a pickle runs the code in it, so that this has to be allowed by name: only for files that nobody else can
    write. Raises InvalidArgument otherwise, SavedNotFound, CorruptData for another file.
    """
    path = Path(old) / _FILE
    if not path.is_file():
        raise SavedNotFound(f"there is no {_FILE} in {old}; name the directory that xtuner saved to")
    if allow_pickle is not True:
        raise InvalidArgument(
            f"{path} is a pickle, and reading one runs the code in it; if nobody else can have written it, say "
            "allow_pickle=True"
        )
    state = _read(path)
    try:
        config = _CONFIGS[state["policy"]]
        items = sorted(_items(state["storage_state"]), key=lambda item: item.timestamp_id)
        groups = [(item.task_name, [_rollout(member) for member in item.item]) for item in items]
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptData(f"{path} holds no buffer of xtuner ({error!r})") from error
    buffer = config(rejected_capacity=len(groups)).build_blocking()
    for task_name, group in groups:
        buffer.put(group, task_name)
    buffer.save(new)
    buffer.close()
    return len(groups)


class _Old:
    """An object of a class of xtuner: what it held, whatever the class."""

    held: dict[str, Any]

    def __new__(cls, value: Any = None) -> Self:
        made = super().__new__(cls)
        made.held = {} if value is None else {"value": value}  # of an enum
        return made

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.held = state.get("__dict__", state)  # of pydantic, of others


class _Unpickler(pickle.Unpickler):
    """Reads without xtuner: its status is ours, its other objects are what they held."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".", maxsplit=1)[0] != "xtuner":
            return super().find_class(module, name)
        return Status if name == "Status" else _Old


class _Pickle:
    """What torch needs to know of a module for pickles."""

    Unpickler = _Unpickler
    load = pickle.load


def _read(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
            if not any("/data/" in name for name in names):
                (body,) = (name for name in names if name.endswith("/data.pkl"))
                with file.open(body) as pickled:
                    return _Unpickler(pickled).load()
    except (zipfile.BadZipFile, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise CorruptData(f"{path} was not written by torch.save, or is damaged ({error})") from error
    return _read_with_torch(path)


def _read_with_torch(path: Path) -> Any:
    try:
        import torch  # noqa: PLC0415  (optional)
    except ImportError as error:
        raise ImportError(f"{path} holds tensors, and needs torch: pip install 'reroll[torch]'") from error
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=_Pickle)


def _items(state: dict[str, Any]) -> Iterator[StorageItem]:
    """Yield the items of a NaiveStorage, which are listed, or of a PandasStorage, which are rows of a DataFrame."""
    rows = state["df"].to_dict("records") if "df" in state else [item.held for item in state["items"]]
    for row in rows:
        yield StorageItem(**row)


def _rollout(old: _Old) -> RolloutState:
    held = {name: _plain(value) for name, value in old.held.items()}
    own = {name: held.pop(name) for name in RolloutState.model_fields if name in held}
    own["extra_fields"] = {**held, **(own.get("extra_fields") or {})}
    return RolloutState.model_construct(**own)


def _plain(value: Any) -> Any:
    """Return a value whose objects of xtuner, at any depth of lists and dicts, are dicts of what they held.

    One that held a single `value` is that: an enum, or what stood where a reference of Ray was.
    """
    if isinstance(value, _Old):
        return _plain(value.held["value"] if value.held.keys() == {"value"} else value.held)
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return value if value and isinstance(value[0], int | float) else [_plain(part) for part in value]
    return value
