"""Which puts were carried out, so that a producer may repeat one without storing it twice."""

from collections import OrderedDict
from collections.abc import Hashable, Mapping


class PutIds:
    """The newest ids, and the uid that each put returned."""

    def __init__(self, history: int) -> None:
        self._history = history
        self._uids: OrderedDict[Hashable, int | None] = OrderedDict()
        self.added: dict[Hashable, int | None] | None = None
        """What was added since somebody wrote it down, in that order; None: nobody does."""
        self.dropped: dict[Hashable, None] = {}
        """What was dropped since then; it may have been added once more after that."""

    def __contains__(self, put_id: Hashable) -> bool:
        return put_id in self._uids

    def __getitem__(self, put_id: Hashable) -> int | None:
        return self._uids[put_id]

    def add(self, put_id: Hashable, uid: int | None) -> None:
        self._uids[put_id] = uid
        if self.added is not None:
            self.added[put_id] = uid
        while len(self._uids) > self._history:
            oldest, _ = self._uids.popitem(last=False)
            if self.added is not None:
                self.added.pop(oldest, None)
                self.dropped[oldest] = None

    def items(self) -> Mapping[Hashable, int | None]:
        return self._uids

    def restore(self, put_ids: Mapping[Hashable, int | None]) -> None:
        """Become what was written down, in that order; of that, only what does not fit any more is news."""
        for put_id, uid in put_ids.items():
            self.add(put_id, uid)
        if self.added is not None:
            self.added = {}

    def written(self) -> None:
        """Learn that somebody writes down what was added and dropped, from now on if nobody did."""
        self.added, self.dropped = {}, {}
