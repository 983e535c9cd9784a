"""Export of groups or their rollouts to a file for other tools: Parquet, JSON lines or CSV. Never all in memory at once."""

import csv
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from reroll.buffer.arguments import Where
from reroll.buffer.arrow import Chunk, check_installed, chunks
from reroll.errors import InvalidArgument
from reroll.observe.view import View

_PART_GROUPS: Final = 256
_PART_TOKENS: Final = 1_000_000
"""Groups and tokens that are read and written at once; a larger group is a part by itself."""
_TEXT: Final = ("group_id", "rollout_id", "session_id", "finish_reason", "error_msg", "response")
"""Fields of free type that are text in every part, so that all parts have one schema."""

Progress = Callable[[int, int], None]
"""Receives the number of written groups and the total."""


class _Writer(Protocol):
    def write(self, table: Any) -> None: ...
    def close(self) -> None: ...


async def export(
    view: View,
    out: str | Path,
    *,
    where: Where | None = None,
    payloads: bool = True,
    overwrite: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> int:
    """Write the resident groups that match a query to a .parquet, .jsonl or .csv file.

    The file appears when it is complete. Memory holds one part of at most 256 groups or 1,000,000 tokens at a time.

    Args:
        view: the buffer.
        out: the file; its suffix selects the format. In CSV, lists and dicts are JSON.
        where: the query; None exports all groups.
        payloads: whether there is a row for each rollout, with its tokens; else a row for each group.
        overwrite: whether an existing file is replaced.
        progress: receives the number of written groups and the total.

    Returns:
        The number of exported groups.

    Raises:
        InvalidArgument: the suffix is unknown, or the file exists.
        QueryError: the query is invalid.
        ImportError: pyarrow is not installed (extra `arrow`).

    """
    out = Path(out)
    writer = _WRITERS.get(out.suffix)
    if writer is None:
        raise InvalidArgument(f"{out.name} has an unknown suffix; use one of {', '.join(_WRITERS)}")
    if out.exists() and not overwrite:
        raise InvalidArgument(f"{out} exists; remove it, choose another name, or overwrite it (--force)")
    if not out.parent.is_dir():
        raise InvalidArgument(f"{out.parent} is no directory; create it first")
    check_installed()
    query = {} if where is None else where
    rows = await view.to_arrow(query)
    total = int(rows.num_rows)
    progress(0, total)
    partial = out.with_name(f"{out.name}.part")
    try:
        with closing(writer(partial)) as file:
            if not payloads:
                file.write(_uniform(rows))
            elif not total:
                file.write(_uniform(await view.to_arrow(query, payloads=True)))  # the columns alone
            else:
                done = 0
                for part in _parts(rows):
                    within = {"$and": [query, {"uid": {"$between": [part.uids[0], part.uids[-1]]}}]}
                    file.write(_uniform(await view.to_arrow(within, payloads=True)))
                    done += len(part.uids)
                    progress(done, total)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    progress(total, total)
    return total


def _parts(rows: Any) -> Iterator[Chunk]:
    uids, tokens = rows["uid"].to_numpy(), rows["num_tokens"].to_numpy()
    return chunks(uids, tokens, _PART_GROUPS, _PART_TOKENS)


def _uniform(table: Any) -> Any:
    """Cast a table to the types that every part has, whatever values are in it."""
    pa = check_installed()

    def kind(field: Any) -> Any:
        if field.name in _TEXT:
            return pa.large_string()
        return field.type.value_type if pa.types.is_dictionary(field.type) else field.type

    return table.cast(pa.schema([(field.name, kind(field)) for field in table.schema]))


def _rows(table: Any) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=64):
        yield from batch.to_pylist()


class _Parquet:
    def __init__(self, path: Path) -> None:
        import pyarrow.parquet  # noqa: PLC0415  (optional)

        self._path = path
        self._parquet = pyarrow.parquet
        self._file: Any = None

    def write(self, table: Any) -> None:
        if self._file is None:
            self._file = self._parquet.ParquetWriter(self._path, table.schema, compression="zstd")
        self._file.write_table(table)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _JsonLines:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._encode = msgspec.json.Encoder().encode  # NaN is null

    def write(self, table: Any) -> None:
        self._file.writelines(self._encode(row) + b"\n" for row in _rows(table))

    def close(self) -> None:
        self._file.close()


class _Csv:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._csv: csv.DictWriter[str] | None = None

    def write(self, table: Any) -> None:
        if self._csv is None:
            self._csv = csv.DictWriter(self._file, table.schema.names)
            self._csv.writeheader()
        for row in _rows(table):
            self._csv.writerow(
                {
                    name: msgspec.json.encode(value).decode() if isinstance(value, list | dict) else value
                    for name, value in row.items()
                }
            )

    def close(self) -> None:
        self._file.close()


_WRITERS: Final[dict[str, Callable[[Path], _Writer]]] = {
    ".parquet": _Parquet,
    ".jsonl": _JsonLines,
    ".csv": _Csv,
}
