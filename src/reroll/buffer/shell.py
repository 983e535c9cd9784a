"""What all verbs of a buffer share: it is open, time passes, and they wait. The only place that waits."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping

from reroll.buffer.groups import Groups
from reroll.buffer.leases import Leases
from reroll.buffer.reservations import Reservations
from reroll.engine.task import STATUS_CODE, Task
from reroll.errors import Closed
from reroll.waiting import Waits


class Shell:
    """The state of a buffer, and how its verbs wait."""

    def __init__(self, groups: Groups, waits: Waits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._groups = groups
        self._engine = groups.engine
        self._waits = waits
        self._clock = clock
        self._closed = False
        self._put_ids: OrderedDict[Hashable, int | None] = OrderedDict()
        self._leases = Leases(groups)
        self._reservations = Reservations()
        waits.next_event = self._next_event
        groups.flow.started = clock()

    def __len__(self) -> int:
        """Return how many groups are resident, whatever their status."""
        if not self._closed:
            self._pass_time()
        return len(self._groups)

    async def close(self) -> None:
        """Close the buffer: leases come back, and every waiting or later call raises Closed."""
        self._leases.give_back_all()
        self._closed = True
        self._waits.wake()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the buffer was closed")
        self._pass_time()

    def _pass_time(self) -> None:
        """Let happen what happens by itself: leases, reservations and groups that are out come to their end."""
        now = self._clock()
        ended = self._groups.forget_overdue(now)
        ended |= self._leases.end_overdue(now)
        ended |= self._reservations.end_overdue(now)
        if ended:
            self._waits.wake()

    def _changed(self) -> None:
        """Wake whoever may go on, and let sleepers know if something ends by itself sooner than they think."""
        self._waits.wake()
        if self._next_event() is not None:
            self._waits.look_again()

    def _end_of(self, ttl_s: float | None) -> float | None:
        """Return when, by the buffer's clock, a time to live that starts now is over."""
        return None if ttl_s is None or ttl_s == math.inf else self._clock() + ttl_s

    def _next_event(self) -> float | None:
        ends = (
            self._leases.next_deadline(),
            self._reservations.next_deadline(),
            self._groups.out.next_deadline(),
        )
        return min((end for end in ends if end is not None), default=None)

    async def _until(
        self,
        what: str,
        queues: Mapping[Hashable, Task],
        possible: Callable[[], bool],
        deadline: float | None,
        wanted: Callable[[], str] = str,
        *,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """Wait in these queues, each of a task, until it is possible; count how long that took.

        `prepare` is done when it is possible, and may make it impossible again: then the wait goes on.
        """
        started, waited = self._clock(), False
        while True:
            waited |= await self._wait(queues, possible, deadline, lambda: what + wanted())
            if prepare is None:
                break
            prepare()
            if possible():
                break
            self._waits.wake()  # whatever went has made room
        for task in queues.values() if waited else ():
            self._groups.flow.waited(what, task.name, self._clock() - started)

    async def _wait(
        self,
        queues: Iterable[Hashable],
        possible: Callable[[], bool],
        deadline: float | None,
        what: Callable[[], str],
    ) -> bool:
        waited = await self._waits.until(
            queues,
            lambda: self._closed or self._is_possible(possible),
            deadline,
            lambda: self._timed_out(what),
        )
        self._check_open()
        return waited

    def _is_possible(self, possible: Callable[[], bool]) -> bool:
        if self._next_event() is not None:
            self._pass_time()
        return possible()

    def _timed_out(self, what: Callable[[], str]) -> str:
        tasks = {
            name: {
                status.value: len(task.pools[code])
                for status, code in STATUS_CODE.items()
                if len(task.pools[code])
            }
            for name, task in self._engine.tasks.items()
        }
        return f"{what()} timed out; nothing was changed. The buffer holds {tasks}"
