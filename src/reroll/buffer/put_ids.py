"""Which puts were carried out, so that a producer may repeat one without storing it twice."""

from collections import OrderedDict
from collections.abc import Hashable, Mapping


class PutIds:
    """The newest ids, and the uid that each put returned."""

    def __init__(self, history: int) -> None:
        self._history = history
        self._uids: OrderedDict[Hashable, int | None] = OrderedDict()
        self.changed: dict[Hashable, int | None] | None = None
        """What was added or dropped since somebody wrote it down; None: nobody does."""

    def __contains__(self, put_id: Hashable) -> bool:
        return put_id in self._uids

    def __getitem__(self, put_id: Hashable) -> int | None:
        return self._uids[put_id]

    def add(self, put_id: Hashable, uid: int | None) -> None:
        self._uids[put_id] = uid
        self._note(put_id, uid)
        while len(self._uids) > self._history:
            self._note(*self._uids.popitem(last=False))

    def items(self) -> Mapping[Hashable, int | None]:
        return self._uids

    def restore(self, put_ids: Mapping[Hashable, int | None]) -> None:
        """Become what was written down, in that order."""
        for put_id, uid in put_ids.items():
            self.add(put_id, uid)

    def _note(self, put_id: Hashable, uid: int | None) -> None:
        if self.changed is not None:
            self.changed[put_id] = uid
