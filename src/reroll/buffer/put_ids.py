"""Which puts were carried out, so that a producer may repeat one without storing it twice."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping


class PutIds:
    """The newest put ids, and the uid that each put returned. Each has a number, in the order of the puts."""

    def __init__(self, history: int) -> None:
        self._history = history
        self._uids: OrderedDict[Hashable, tuple[int, int | None]] = (
            OrderedDict()
        )  # number and uid, the oldest first
        self._last = 0
        self.added: dict[int, tuple[Hashable, int | None]] = {}
        """Put id and uid by number, of puts since the last commit."""
        self.dropped: list[int] = []
        """Numbers of committed put ids that were dropped since the last commit."""

    def __len__(self) -> int:
        return len(self._uids)

    def __contains__(self, put_id: Hashable) -> bool:
        return put_id in self._uids

    def __getitem__(self, put_id: Hashable) -> int | None:
        return self._uids[put_id][1]

    def add(self, put_id: Hashable, uid: int | None) -> None:
        """Remember a put; drop the oldest beyond the history."""
        self._drop(put_id)
        self._last += 1
        self._uids[put_id] = self._last, uid
        self.added[self._last] = put_id, uid
        while len(self._uids) > self._history:
            self._drop(next(iter(self._uids)))

    def _drop(self, put_id: Hashable) -> None:
        if (known := self._uids.pop(put_id, None)) is not None and self.added.pop(known[0], None) is None:
            self.dropped.append(known[0])

    def items(self) -> Iterator[tuple[int, Hashable, int | None]]:
        """Yield number, put id and uid of each put, the oldest first."""
        return ((number, put_id, uid) for put_id, (number, uid) in self._uids.items())

    def restore(self, put_ids: Mapping[Hashable, tuple[int, int | None]]) -> None:
        """Load committed put ids, with their numbers; those beyond the history are dropped."""
        self._uids = OrderedDict(put_ids)
        self._last = max((number for number, _ in put_ids.values()), default=0)
        self.added, self.dropped = {}, []
        while len(self._uids) > self._history:
            self._drop(next(iter(self._uids)))

    def committed(self) -> None:
        """Forget what was added and dropped: it is in a commit."""
        self.added, self.dropped = {}, []
