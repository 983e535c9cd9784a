"""Groups, or their rollouts, to a file for other tools: Parquet, or JSON one object a line. Never all in memory at once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Protocol, Self

import msgspec

from reroll.buffer.arguments import Where
from reroll.buffer.arrow import check_installed
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
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


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
        raise InvalidArgument(f"{out} exists; remove it, choose another name, or let it be overwritten")
    if not out.parent.is_dir():
        raise InvalidArgument(f"{out.parent} is no directory; make it first")
    check_installed()
    asked = {} if where is None else where
    rows = await view.to_arrow(asked)
    total = rows.num_rows
    progress(0, total)
    half = out.with_name(f"{out.name}.part")
    try:
        with writer(half) as file:
            if not payloads:
                file.write(_uniform(rows))
            else:
                done = 0
                for first, last, count in _parts(rows):
                    within = {"$and": [asked, {"uid": {"$between": [first, last]}}]}
                    file.write(_uniform(await view.to_arrow(within, payloads=True)))
                    done += count
                    progress(done, total)
                if not total:
                    file.write(_uniform(await view.to_arrow(asked, payloads=True)))
        half.replace(out)
    finally:
        half.unlink(missing_ok=True)
    progress(total, total)
    return int(total)


def _parts(rows: Any) -> Iterator[tuple[int, int, int]]:
    """Yield the first and the last uid of each part, and how many groups it has."""
    uids, tokens = rows["uid"].to_pylist(), rows["num_tokens"].to_pylist()
    start, held = 0, 0
    for place, more in enumerate(tokens):
        if place > start and (held + more > _PART_TOKENS or place - start == _PART_GROUPS):
            yield uids[start], uids[place - 1], place - start
            start, held = place, 0
        held += more
    if uids:
        yield uids[start], uids[-1], len(uids) - start


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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


class _JsonLines:
    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("wb")
        self._encode = msgspec.json.Encoder().encode  # what is no number is null, as JSON has none

    def write(self, table: Any) -> None:
        for batch in table.to_batches(max_chunksize=64):
            self._file.writelines(self._encode(row) + b"\n" for row in batch.to_pylist())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


_WRITERS: Final[dict[str, Callable[[Path], _Writer]]] = {".parquet": _Parquet, ".jsonl": _JsonLines}
