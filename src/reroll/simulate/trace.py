"""What a real run did: lengths, and times where they are known, of a trace file, an export or a reroll store.

A trace is a JSON Lines file. A line of a response: `{"kind": "response", "tokens": 812, "seconds": 9.1, "running": 24}`
(`running`: responses of that engine at the same time, on average). A line of a training step: `{"kind": "step", "tokens":
412000, "seconds": 28.4, "wait_s": 3.0}` (`seconds` without the wait). Exports and stores have the lengths of responses.
"""

import csv
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

from reroll.buffer.read_only import open_readonly
from reroll.errors import InvalidConfig, RerollError

_PART: Final = 64
"""Groups of a store that are read at once."""


class Trace(NamedTuple):
    """What a real run did."""

    responses: list[tuple[int, float, float]]
    """Tokens, seconds and running responses; seconds are 0 where they are unknown."""
    steps: list[tuple[int, float]]
    """Tokens and seconds."""

    def lengths(self, most: int) -> list[int]:
        """Return the lengths of responses, or of evenly spaced ones if there are more than `most`."""
        found = [tokens for tokens, _, _ in self.responses if tokens > 0]
        return found[:: max(1, -(-len(found) // most))]


def read_trace(path: str | PathLike[str]) -> Trace:
    """Read a trace, an export (.parquet, .jsonl, .csv), a store or a checkpoint.

    Raises:
        InvalidConfig: it cannot be read, or has no lengths; the message names file and line.

    """
    path = Path(path)
    try:
        if path.is_dir() or path.suffix == ".sqlite":
            return Trace([(tokens, 0.0, 0.0) for tokens in _stored(path)], [])
        if path.suffix == ".parquet":
            return _read_rows(path, _parquet(path))
        with path.open(encoding="utf-8", newline="") as file:
            return _read_rows(path, csv.DictReader(file) if path.suffix == ".csv" else _json(path, file))
    except (OSError, UnicodeDecodeError, RerollError, csv.Error) as error:
        raise (
            error if isinstance(error, InvalidConfig) else InvalidConfig(f"{path} cannot be read: {error}")
        ) from None


def _json(path: Path, lines: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line) if line.strip() else {}
        except ValueError as error:
            raise InvalidConfig(f"{path}:{number} is not a line of JSON: {error}") from None


def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow.parquet  # noqa: PLC0415  (optional)

    file = pyarrow.parquet.ParquetFile(path)
    wanted = {"response_ids", "num_rollouts", "num_tokens", "kind", "tokens", "seconds", "running"}
    for batch in file.iter_batches(
        batch_size=_PART, columns=[name for name in file.schema_arrow.names if name in wanted]
    ):
        yield from batch.to_pylist()


def _read_rows(path: Path, rows: Iterable[Any]) -> Trace:
    """Read rows of a trace or of an export; the first one says which."""
    found, has_whole_groups = Trace([], []), False
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        try:
            if "kind" in row:
                _add(found, row)
            elif row.get("response_ids") is not None:
                ids = row["response_ids"]
                found.responses.append((len(json.loads(ids) if isinstance(ids, str) else ids), 0.0, 0.0))
            else:
                has_whole_groups = True
                members = int(row["num_rollouts"])
                found.responses.extend([(int(row["num_tokens"]) // members, 0.0, 0.0)] * members)
        except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise InvalidConfig(
                f"{path}:{number} is not a line of a trace or an export ({type(error).__name__}: {error}); write kind, tokens, "
                "seconds, and running for a response, or export with `reroll export`"
            ) from None
    if has_whole_groups:
        warnings.warn(
            f"{path} has no tokens of responses: each counts as a part of its group's tokens, and the longest is too short; "
            "export without --rows-only",
            UserWarning,
            stacklevel=3,
        )
    return found


def _add(found: Trace, row: Mapping[str, Any]) -> None:
    kind, tokens, seconds = row["kind"], int(row["tokens"]), float(row["seconds"])
    if kind not in ("response", "step") or tokens < 0 or not (0 < seconds < math.inf):
        raise ValueError("kind is response or step, seconds are above 0")
    if kind == "response":
        found.responses.append((tokens, seconds, float(row["running"])))
    else:
        found.steps.append((tokens, seconds))


def _stored(path: Path) -> Iterator[int]:
    """Yield the lengths of the responses that a store or a checkpoint holds."""
    with open_readonly(path) as buffer:
        uids = [row.uid for row in buffer.query({"status": "completed"})]
        for first in range(0, len(uids), _PART):
            for group in buffer.peek(uids[first : first + _PART]):
                for rollout in group:
                    if rollout.response_ids is not None:
                        yield len(rollout.response_ids)
