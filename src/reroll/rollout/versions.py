"""Policy versions of response tokens: stored as runs, counted, and stamped.

Few versions generate a response, one after another, so (version, number of tokens) is far smaller than a list.
`tally_versions(rollout, model_step)` returns the counts as they would be after stamping; `stamp` then writes the versions
and does not fail for a rollout that was checked.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, compress, pairwise, repeat
from typing import Any, ClassVar, Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.rollout.adapters import RolloutLike, read_integer, read_length

_CHUNK: Final = 256


class VersionRuns(Sequence[int]):
    """An immutable sequence of versions, one per token, stored as (version, length) runs. It reads like a list."""

    __slots__ = ("_ends", "_values")
    # Equal to lists, which cannot be hashed either.
    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        values: list[int] = []
        lengths: list[int] = []
        for given, tokens in runs:
            value, length = read_integer("response_model_steps", given), read_integer("a run", tokens)
            if length < 0:
                raise InvalidArgument(f"a run has {length} tokens; give a length of at least 0")
            if length and values and values[-1] == value:
                lengths[-1] += length
            elif length:
                values.append(value)
                lengths.append(length)
        self._values = tuple(values)
        self._ends = tuple(accumulate(lengths))

    @classmethod
    def of(cls, versions: npt.ArrayLike | None, field: str = "response_model_steps") -> "VersionRuns":
        """Return the runs of a list, array or tensor of integers. Raises InvalidArgument."""
        if isinstance(versions, cls):
            return versions
        if versions is None:
            return NO_VERSIONS
        # One version generates most responses, and counting is far cheaper than converting.
        if (
            isinstance(versions, list)
            and versions
            and type(versions[0]) is int
            and abs(versions[0]) < 1 << 62
        ):
            count = versions.count(versions[0])
            if count == len(versions):
                return cls(((versions[0], count),))
        array = version_array(versions, field)
        if not len(array):
            return NO_VERSIONS
        starts = [0, *(np.flatnonzero(np.diff(array)) + 1).tolist(), len(array)]
        values = array[starts[:-1]].tolist()
        return cls((value, end - start) for value, (start, end) in zip(values, pairwise(starts), strict=True))

    @property
    def parts(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The version of each run, and the end of each run."""
        return self._values, self._ends

    @classmethod
    def from_parts(cls, values: Sequence[int], ends: Sequence[int]) -> "VersionRuns":
        """Return the versions with these `parts`, which are checked. Raises InvalidArgument."""
        if values == [] == ends:  # not stamped yet
            return NO_VERSIONS
        if len(values) == len(ends) == 1:  # the usual case
            is_valid = type(values[0]) is int and type(ends[0]) is int and ends[0] > 0
        else:
            is_valid = (
                {*map(type, values), *map(type, ends)} <= {int}
                and len(values) == len(ends)
                and all(start < end for start, end in pairwise((0, *ends)))
            )
        if not is_valid:
            raise InvalidArgument(
                "runs must have an integer version and an integer end each, and the ends must grow from 1 on"
            )
        return cls._of_parts(tuple(values), tuple(ends))

    def extended(self, version: int, count: int) -> "VersionRuns":
        """Return these versions followed by `count` tokens of `version`."""
        values, ends = self._values, self._ends
        if count < 1:
            return VersionRuns(chain(self.runs(), ((version, count),)))
        if not ends:
            return self.one(version, count)
        if values[-1] == version:
            return self._of_parts(values, (*ends[:-1], ends[-1] + count))
        return self._of_parts((*values, version), (*ends, ends[-1] + count))

    @staticmethod
    @lru_cache(4096)
    def one(version: int, count: int) -> "VersionRuns":
        """Return `count` tokens of one version, at least one: the same object for the same numbers, mostly."""
        return VersionRuns._of_parts((version,), (count,))

    @classmethod
    def _of_parts(cls, values: tuple[int, ...], ends: tuple[int, ...]) -> "VersionRuns":
        made = cls.__new__(cls)
        made._values, made._ends = values, ends  # noqa: SLF001
        return made

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield (version, number of tokens) in token order."""
        start = 0
        for value, end in zip(self._values, self._ends, strict=True):
            yield value, end - start
            start = end

    def counts(self) -> dict[int, int]:
        """Return the number of tokens of each version."""
        if len(self._values) == 1:
            return {self._values[0]: self._ends[0]}
        counts: dict[int, int] = {}
        for value, length in self.runs():
            counts[value] = counts.get(value, 0) + length
        return counts

    @property
    def oldest(self) -> int | None:
        """The smallest version, None without tokens."""
        return min(self._values, default=None)

    @property
    def newest(self) -> int | None:
        """The largest version, None without tokens."""
        return max(self._values, default=None)

    @property
    def nbytes(self) -> int:
        """Bytes of the runs: 8 for each number."""
        return 16 * len(self._values)

    def tolist(self) -> list[int]:
        """Return a plain list, one version per token."""
        return list(self)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(repeat(value, length) for value, length in self.runs())

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> "VersionRuns": ...
    def __getitem__(self, index: int | slice) -> "int | VersionRuns":
        if isinstance(index, slice):
            return VersionRuns.of(self.tolist()[index])
        # A range applies the rules for negative and invalid indexes.
        return self._values[bisect_right(self._ends, range(len(self))[index])]

    def __add__(self, other: npt.ArrayLike) -> "VersionRuns":
        return VersionRuns(chain(self.runs(), VersionRuns.of(other).runs()))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, VersionRuns):
            return self._values == other._values and self._ends == other._ends
        if isinstance(other, (list, tuple, np.ndarray)):
            return len(self) == len(other) and all(
                mine == theirs for mine, theirs in zip(self, other, strict=True)
            )
        return NotImplemented

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        lengths = [length for _, length in self.runs()]
        return np.repeat(np.array(self._values, dtype=dtype or np.int64), lengths)

    def __repr__(self) -> str:
        return f"VersionRuns({list(self.runs())})"


NO_VERSIONS: Final = VersionRuns()


def version_array(versions: npt.ArrayLike, field: str = "response_model_steps") -> npt.NDArray[Any]:
    """Return versions as a one-dimensional array of integers. Raises InvalidArgument."""
    try:
        array = np.asarray(versions)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(
            f"{field} cannot be read as integers ({error}); give one integer per token"
        ) from error
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InvalidArgument(
            f"{field} must be one integer per token, not {array.dtype} of shape {array.shape};"
            f" omit tokens that have no version yet"
        )
    return array if array.size else np.empty(0, np.int64)


class VersionTally(NamedTuple):
    """Versions of a rollout's tokens, counted."""

    counts: dict[int, int]
    """Number of tokens of each version."""
    newest_trainable: int | None
    """Newest version of a trainable token; None if the rollout is exempt from token expiry."""

    @property
    def oldest(self) -> int | None:
        """The smallest version, None without versions."""
        return min(self.counts, default=None)

    @property
    def newest(self) -> int | None:
        """The largest version, None without versions."""
        return max(self.counts, default=None)


def tally_versions(rollout: RolloutLike, model_step: int | None = None) -> VersionTally:
    """Count the versions of a rollout, as they would be after stamping with `model_step`.

    Staleness, expiry and metrics need no other pass over the tokens. O(runs) for a Rollout, O(tokens) for lists.

    Raises:
        InvalidArgument: The versions are not integers.

    """
    held = rollout.response_model_steps
    counts = count_versions(held)
    # A rollout that is prepared for training as a whole sequence is exempt from token expiry.
    exempt = any(getattr(rollout, field, None) is not None for field in ("input_ids", "labels"))
    mask: Any = getattr(rollout, "response_mask", None)
    if mask is not None and len(mask) == 0:
        mask = None
    trainable = None if exempt or not counts else _newest_trainable(held, counts, mask)
    missing = 0 if model_step is None else count_unstamped(rollout)
    if model_step is not None and missing:
        counts[model_step] = counts.get(model_step, 0) + missing
        if not exempt and (mask is None or _any(mask[-missing:])):
            trainable = model_step if trainable is None else max(trainable, model_step)
    return VersionTally(counts, trainable)


def count_unstamped(rollout: RolloutLike) -> int:
    """Return the number of response tokens, all at the end, that have no version."""
    tokens = read_length("response_ids", rollout.response_ids) or 0
    versions = read_length("response_model_steps", rollout.response_model_steps) or 0
    return max(0, tokens - versions)


def count_versions(versions: Any) -> dict[int, int]:
    """Return the number of tokens of each version. Raises InvalidArgument."""
    if type(versions) is VersionRuns:
        return versions.counts()
    if versions is None or len(versions) == 0:
        return {}
    if not isinstance(versions, (list, tuple)):
        values, counts = np.unique(version_array(versions), return_counts=True)
        whole = [read_integer("response_model_steps", value) for value in values.tolist()]
        return dict(zip(whole, counts.tolist(), strict=True))
    try:
        found = _count_list(versions)
    except TypeError as error:
        raise InvalidArgument(f"response_model_steps must be one integer per token ({error})") from error
    return {read_integer("response_model_steps", version): count for version, count in found.items()}


def stamp(rollout: RolloutLike, model_step: int) -> None:
    """Assign `model_step` to the response tokens without a version. O(1) for a Rollout, O(tokens) for lists.

    The object gets a new list (or array, or tuple, as it had), since other objects may share the old one.
    """
    extend = getattr(type(rollout), "extend_versions", None)
    if extend is not None:  # a Rollout
        extend(rollout, model_step)
        return
    versions, tokens = rollout.response_model_steps, rollout.response_ids
    in_lists = type(versions) is type(tokens) is list  # the usual case
    missing = len(tokens) - len(versions) if in_lists else count_unstamped(rollout)
    if missing > 0:
        rollout.response_model_steps = _extended(versions, model_step, missing)


def _extended(versions: Any, model_step: int, count: int) -> Any:
    if type(versions) is list:  # the usual case
        return [*versions, *repeat(model_step, count)] if versions else [model_step] * count
    if isinstance(versions, VersionRuns):
        return versions.extended(model_step, count)
    if isinstance(versions, np.ndarray):
        return np.append(versions, np.full(count, model_step, dtype=versions.dtype))
    if isinstance(versions, tuple):
        return (*versions, *[model_step] * count)
    held = [] if versions is None else versions.tolist() if hasattr(versions, "tolist") else list(versions)
    return held + [model_step] * count


def _count_list(versions: list[int] | tuple[int, ...]) -> dict[int, int]:
    """Count in chunks: nearly every chunk has one version, and `count` compares by identity first.

    About 1 ns a token, 10 if equal versions are separate objects; a Counter of the whole list takes 40.
    """
    first, last = versions[0], versions[-1]
    if type(first) is type(last) is int:  # usually one version, or two, one after the other
        found = {version: versions.count(version) for version in {first, last}}
        if sum(found.values()) == len(versions):
            return found
    counts: dict[int, int] = {}
    for start in range(0, len(versions), _CHUNK):
        chunk = versions[start : start + _CHUNK]
        same = chunk.count(chunk[0])
        parts = {chunk[0]: same} if same == len(chunk) else Counter(chunk)
        for version, count in parts.items():
            counts[version] = counts.get(version, 0) + count
    return counts


def _newest_trainable(held: Any, counts: dict[int, int], mask: Any) -> int | None:
    """Return the newest version of the tokens that the mask keeps, None if it keeps none."""
    newest = max(counts)
    if mask is None:
        return newest
    kept = mask if len(mask) == len(held) else mask[: len(held)]
    if len(counts) == 1:
        return newest if _any(kept) else None
    if isinstance(held, (list, tuple)):
        flags = kept if isinstance(kept, (list, tuple)) else kept.tolist()
        # The end of a response is the newest part, and usually kept.
        if newest in compress(held[-_CHUNK:], flags[-_CHUNK:]):
            return newest
        return max(compress(held, flags), default=None)
    trainable = np.asarray(held)[np.asarray(kept) != 0]
    return int(trainable.max()) if len(trainable) else None


def _any(mask: Any) -> bool:
    if isinstance(mask, np.ndarray):
        return bool(mask[-1] or mask.any())  # the end of a response is usually kept
    return any(mask) if isinstance(mask, (list, tuple)) else bool(mask.any())
