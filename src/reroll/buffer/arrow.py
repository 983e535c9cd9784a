"""Rows and rollouts as Arrow tables, column by column: no loop over tokens, and over rows only where values are objects.

pyarrow and pandas are extras: they are imported when a table is requested.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from reroll.engine.engine import Engine
from reroll.engine.query import RowSource
from reroll.engine.rows import PLACES, IntArray
from reroll.errors import missing_extra
from reroll.query import FIELDS, Kind
from reroll.rollout import read_status
from reroll.rollout.adapters import count_tokens, read_score, read_seq_staleness
from reroll.rollout.arrays import as_floats, as_ids, as_mask
from reroll.rollout.versions import version_array

_CHUNK_TOKENS: Final = 100_000
_CHUNK_GROUPS: Final = 32
"""What is gathered from rollouts at once; small, so that others get their turn."""


def check_installed() -> Any:
    """Return pyarrow. Raises ImportError that names the extra."""
    try:
        import pyarrow as pa  # noqa: PLC0415  (optional)
    except ImportError as error:
        raise missing_extra("to_arrow", "pyarrow", "arrow") from error
    return pa


def check_pandas() -> Any:
    """Return pandas. Raises ImportError."""
    try:
        import pandas as pd  # noqa: PLC0415  (optional)
    except ImportError as error:
        raise ImportError("to_pandas needs pandas: pip install 'reroll[arrow]' pandas") from error
    return pd


# --- groups


class Rows:
    """A table of rows: the fields of the query language, tags and place. It is gathered in parts, and built elsewhere.

    Columns of numbers are copied at once; values that are Python objects are gathered part by part.
    """

    def __init__(self, engine: Engine, slots: IntArray) -> None:
        self._engine = engine
        source = RowSource(engine, slots)
        self._numbers = {name: source.numbers(name) for name, kind in FIELDS.items() if kind is Kind.NUMBER}
        self._named = {
            name: source.categories(name)
            for name, kind in FIELDS.items()
            if kind not in (Kind.NUMBER, Kind.SCALAR)
        }
        self._named["place"] = engine.columns.place[slots], PLACES
        self._objects: dict[str, list[Any]] = {n: [] for n, kind in FIELDS.items() if kind is Kind.SCALAR}
        self._tags: list[Any] = []
        self._left: list[npt.NDArray[np.bool_]] = []

    def gather(self, slots: IntArray, here: npt.NDArray[np.bool_] | None = None) -> None:
        """Take the objects of the next slots; rows that are not `here` are left out."""
        source, tags = RowSource(self._engine, slots), self._engine.columns.tags
        for name, values in self._objects.items():
            values.extend(source.objects(name))
        self._tags += [tags.get(slot) for slot in slots.tolist()]
        self._left.append(np.ones(len(slots), np.bool_) if here is None else here)

    def table(self) -> Any:
        """Return the table. Touches nothing of the buffer."""
        pa = check_installed()
        table: dict[str, Any] = {}
        for field, kind in FIELDS.items():
            if kind is Kind.NUMBER:
                table[field] = _numbers(*self._numbers[field])
            elif kind is Kind.SCALAR:
                table[field] = _loose(self._objects[field])
            else:
                table[field] = _named(*self._named[field])
        tags = [json.dumps(found) if found else None for found in self._tags]
        table["tags"] = pa.array(tags, pa.string())
        table["place"] = _named(*self._named["place"])
        left = np.concatenate(self._left)
        made = pa.table(table)
        return made if left.all() else made.filter(pa.array(left))


def _numbers(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None) -> Any:
    if missing is None and values.dtype.kind == "f":
        missing = np.isnan(values)
    return check_installed().array(values, mask=missing)


def _named(codes: npt.NDArray[Any], names: Sequence[str]) -> Any:
    pa = check_installed()
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(names, pa.string()))


def _loose(values: Sequence[Any]) -> Any:
    """Return a column of what users choose freely, such as ids: whole numbers, or else text."""
    pa = check_installed()
    kinds = {type(value) for value in values if value is not None}
    if kinds and all(kind is int or issubclass(kind, np.integer) for kind in kinds):
        try:
            return pa.array(values, pa.int64())
        except OverflowError:
            pass
    return _texts([None if value is None else str(value) for value in values])


def _texts(values: Sequence[str | None]) -> Any:
    pa = check_installed()
    try:
        return pa.array(values, pa.large_string())
    except UnicodeEncodeError:  # half of a character that was cut, as generated text may have
        clean = [None if v is None else v.encode("utf-8", "replace").decode() for v in values]
        return pa.array(clean, pa.large_string())


# --- rollouts


class Chunk(NamedTuple):
    """Some groups of a table, from a row on."""

    start: int
    uids: list[int]


def chunks(
    uids: IntArray, num_tokens: IntArray, max_groups: int | None = None, max_tokens: int | None = None
) -> Iterator[Chunk]:
    """Yield parts with a bounded number of groups and, unless a group alone has more, of tokens."""
    max_groups, max_tokens = max_groups or _CHUNK_GROUPS, max_tokens or _CHUNK_TOKENS
    start, tokens = 0, 0
    for place, more in enumerate(num_tokens.tolist()):
        if place > start and (tokens + more > max_tokens or place - start == max_groups):
            yield Chunk(start, uids[start:place].tolist())
            start, tokens = place, 0
        tokens += more
    if start < len(uids):
        yield Chunk(start, uids[start:].tolist())


def _versions(field: str, value: Any) -> npt.NDArray[Any] | None:
    return None if value is None else version_array(value, field).astype(np.int64, copy=False)


_TOKENS: Final[Mapping[str, tuple[Callable[[str, Any], Any], type[np.generic]]]] = {
    "prompt_ids": (as_ids, np.int32),
    "response_ids": (as_ids, np.int32),
    "logprobs": (as_floats, np.float32),
    "response_mask": (as_mask, np.uint8),
    "response_model_steps": (_versions, np.int64),
    "input_ids": (as_ids, np.int32),
    "labels": (as_ids, np.int32),
}
"""How each is read, and what it holds."""
_LOOSE: Final = ("rollout_id", "session_id", "finish_reason", "error_msg", "response")
_JSON: Final = ("message", "tool_calls")
_OWN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "rollout_status": lambda rollout: read_status(rollout.status).value,
    "rollout_num_tokens": count_tokens,
    "seq_staleness": read_seq_staleness,
    "reward": lambda rollout: read_score(getattr(rollout, "reward", None)),
}


class Rollouts:
    """A table of rollouts that is made in parts: what is gathered from objects is built into arrays elsewhere."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self._of_row: list[int] = []
        self._member: list[int] = []
        self._plain: dict[str, list[Any]] = {name: [] for name in (*_OWN, *_LOOSE, *_JSON)}
        self._gathered: dict[str, list[Any]] = {}
        self._built: dict[str, list[Any]] = {name: [] for name in _TOKENS}

    def gather(self, start: int, groups: Sequence[Sequence[Any] | None]) -> None:
        """Take what is needed from the rollouts of groups, from a row on; None for a group that is left out."""
        rollouts = [rollout for group in groups if group is not None for rollout in group]
        for row, group in enumerate(groups, start):
            self._of_row += [row] * len(group or ())
            self._member += range(len(group or ()))
        for name, read in _OWN.items():
            self._plain[name] += map(read, rollouts)
        for name in _LOOSE:
            self._plain[name] += [getattr(rollout, name, None) for rollout in rollouts]
        for name in _JSON:
            self._plain[name] += [_json(getattr(rollout, name, None)) for rollout in rollouts]
        for name, (read_tokens, _) in _TOKENS.items():
            self._gathered[name] = [read_tokens(name, getattr(rollout, name, None)) for rollout in rollouts]

    def build(self) -> None:
        """Let what was gathered last become arrays of Arrow."""
        for name, (_, dtype) in _TOKENS.items():
            self._built[name].append(_lists(self._gathered.pop(name), dtype))

    def table(self) -> Any:
        """Return the table: for each rollout the columns of its group, then its own."""
        pa = check_installed()
        table = self._rows.take(pa.array(self._of_row, pa.int64()))
        table = table.append_column("member", pa.array(self._member, pa.int32()))
        for name, values in self._plain.items():
            table = table.append_column(name, _plain(name, values))
        for name, (_, dtype) in _TOKENS.items():
            kind = pa.large_list(pa.from_numpy_dtype(dtype))
            table = table.append_column(name, pa.chunked_array(self._built[name], kind))
        return table


def _plain(name: str, values: Sequence[Any]) -> Any:
    pa = check_installed()
    if name == "rollout_status":
        return pa.array(values, pa.string()).dictionary_encode()
    if name in _JSON:
        return _texts(values)
    if name in _LOOSE:
        return _loose(values)
    return pa.array(values, pa.float64() if name == "reward" else pa.int64())


def _json(value: Any) -> str | None:
    """Return a value as JSON; what has no form there, such as an image, as what `repr` says."""
    if value is None:
        return None
    try:
        return json.dumps(value, default=repr, ensure_ascii=False)
    except (TypeError, ValueError):  # keys that are no text, or a value that holds itself
        return json.dumps(repr(value), ensure_ascii=False)


def _lists(arrays: Sequence[npt.NDArray[Any] | None], dtype: type[np.generic]) -> Any:
    """Return a column of lists; one copy of all tokens."""
    pa = check_installed()
    lengths = [0 if array is None else len(array) for array in arrays]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    values = np.concatenate([np.empty(0, dtype), *(array for array in arrays if array is not None)])
    missing = pa.array([array is None for array in arrays], pa.bool_())
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values), mask=missing)


# --- pandas


def frame_of(table: Any) -> Any:
    """Return a table as a DataFrame. Versions stay whole numbers where some are missing."""
    pa, pd = check_installed(), check_pandas()
    frame = table.to_pandas()
    whole = table["version"].to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return frame.assign(version=whole)
