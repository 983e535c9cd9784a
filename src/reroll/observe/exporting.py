"""Groups, or their rollouts, to a file for other tools: Parquet, or JSON one object a line. Never all in memory at once."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any, Final, Protocol

import msgspec

from reroll.buffer.arguments import Where
from reroll.buffer.arrow import Chunk, check_installed, chunks
from reroll.errors import InvalidArgument
from reroll.observe.view import View

_PART_GROUPS: Final = 256
_PART_TOKENS: Final = 1_000_000
"""What is read and written at once, at most; a group that is larger is a part by itself."""
_TEXT: Final = ("group_id", "rollout_id", "session_id", "finish_reason", "error_msg", "response")
"""What users choose freely is text in every part, so that all parts fit together."""

Progress = Callable[[int, int], None]
"""Is told how many groups are written, and of how many."""


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
    """Write the resident groups that satisfy a query to a .parquet or .jsonl file; return how many groups there were.

    With `payloads` there is a row for each rollout, with its tokens, else one for each group. The file appears when it is
    whole. Raises InvalidArgument for another ending, or a file that is there already; QueryError, ImportError.
    """
    out = Path(out)
    writer = _WRITERS.get(out.suffix)
    if writer is None:
        raise InvalidArgument(f"{out.name}: the ending must be one of {', '.join(_WRITERS)}")
    if out.exists() and not overwrite:
        raise InvalidArgument(f"{out} exists; remove it, choose another name, or overwrite it (--force)")
    if not out.parent.is_dir():
        raise InvalidArgument(f"{out.parent} is no directory; make it first")
    check_installed()
    asked = {} if where is None else where
    rows = await view.to_arrow(asked)
    total = rows.num_rows
    progress(0, total)
    half = out.with_name(f"{out.name}.part")
    try:
        with closing(writer(half)) as file:
            if not payloads:
                file.write(_uniform(rows))
            else:
                done = 0
                for part in _parts(rows):
                    within = {"$and": [asked, {"uid": {"$between": [part.uids[0], part.uids[-1]]}}]}
                    file.write(_uniform(await view.to_arrow(within, payloads=True)))
                    done += len(part.uids)
                    progress(done, total)
                if not total:
                    file.write(_uniform(await view.to_arrow(asked, payloads=True)))
        half.replace(out)
    finally:
        half.unlink(missing_ok=True)
    progress(total, total)
    return int(total)


def _parts(rows: Any) -> Iterator[Chunk]:
    uids, tokens = rows["uid"].to_numpy(), rows["num_tokens"].to_numpy()
    return chunks(uids, tokens, _PART_GROUPS, _PART_TOKENS)


def _uniform(table: Any) -> Any:
    """Return a table with the types that every part has, whatever values are in it."""
    pa = check_installed()

    def kind(field: Any) -> Any:
        if field.name in _TEXT:
            return pa.large_string()
        return field.type.value_type if pa.types.is_dictionary(field.type) else field.type

    return table.cast(pa.schema([(field.name, kind(field)) for field in table.schema]))


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
        self._file: IO[bytes] = path.open("wb")
        self._encode = msgspec.json.Encoder().encode  # what is no number is null, as JSON has none

    def write(self, table: Any) -> None:
        for batch in table.to_batches(max_chunksize=64):
            self._file.writelines(self._encode(row) + b"\n" for row in batch.to_pylist())

    def close(self) -> None:
        self._file.close()


_WRITERS: Final[dict[str, Callable[[Path], _Writer]]] = {".parquet": _Parquet, ".jsonl": _JsonLines}
