"""Whether what is put could be saved: looked at once for each class, so that a later `save` is no surprise."""

import warnings
from collections.abc import Sequence
from typing import Any

from reroll.buffer.references import Held, References, nothing_is_stored
from reroll.codec import find_unstorable
from reroll.errors import UnstorableWarning


class Storable:
    """Warns of the first group with a class that could not be saved. For buffers that hold groups in memory only."""

    def __init__(self, *, allow_pickle: bool) -> None:
        self._allow_pickle = allow_pickle
        self._seen: set[type] = set()

    def look(self, items: Sequence[Any]) -> None:
        """Look at classes that were not seen before. O(rollouts), a microsecond for eight, else one look at the group.

        Users keep objects of their own in `extra_fields` and `mm_info`; what is deeper inside is seen with the first group
        of its class only.
        """
        seen, first = self._seen, items[0]
        extra, info = getattr(first, "extra_fields", None), getattr(first, "mm_info", None)
        if (
            not seen.issuperset(map(type, items))
            or (extra is not None and not seen.issuperset(_kinds(extra)))
            or (info is not None and not seen.issuperset(_kinds(info)))
        ):
            self._look_closely(items)
            seen.update(map(type, items), _kinds(extra), _kinds(info))

    def _look_closely(self, items: Sequence[Any]) -> None:
        found = find_unstorable(
            list(items),
            root="rollouts",
            allow_pickle=self._allow_pickle,
            refs=Held(References(nothing_is_stored)),
        )
        if found is not None and found.cls not in self._seen:
            warnings.warn(
                f"this group could not be saved: {found.path}: {found.reason}",
                UnstorableWarning,
                stacklevel=4,
            )
            self._seen.add(found.cls)


def _kinds(value: Any) -> Any:
    return map(type, value.values()) if type(value) is dict else (type(value),)
