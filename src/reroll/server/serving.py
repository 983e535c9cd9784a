"""What a server does for a call: the verb of the buffer, with groups as bytes on both sides.

Whatever consumes is lent first and acknowledged by the client when it has the groups: so a client or a server that dies in
between loses nothing and doubles nothing. Where groups are used several times there is no lease that takes them, and so
`get` and `take_batch` consume at once.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from reroll._version import __version__
from reroll.buffer.arguments import checked_count, checked_flag, checked_sizes, checked_step
from reroll.buffer.handing import batch_sizes
from reroll.buffer.packed import Shown
from reroll.buffer.reservations import Reservation
from reroll.buffer.shell import has_stale, open_in
from reroll.config import ReplayBufferConfig
from reroll.errors import InvalidArgument
from reroll.remote.groups import as_bytes, given, received
from reroll.remote.values import to_bytes
from reroll.remote.verbs import SIGNATURES
from reroll.rollout import Status
from reroll.sample import Sample, SampleInfo
from reroll.server.session import Session
from reroll.server.wire import Answer, Info, Lent
from reroll.store import Blob


class Outcome(NamedTuple):
    """What a call returns: a value, or groups."""

    value: Any
    groups: Sequence[Shown | list[Any]] = ()
    lent: Lent | None = None


class Service(Protocol):
    """What a server may serve beside its buffer."""

    @property
    def verbs(self) -> Collection[str]:
        """Names of the coroutines that clients may call, with arguments by name."""

    async def stop(self) -> None:
        """Stop, before the buffer is closed."""


class Serving:
    """The verbs of one buffer, and of services beside it, for many sessions."""

    def __init__(
        self,
        config: ReplayBufferConfig,
        buffer: Any,
        services: Mapping[str, Service],
        checkpoints: Path | None,
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        self._config = config
        self._buffer = buffer
        self._services = services
        self._checkpoints = checkpoints
        self._facts = facts
        self._started = time.monotonic()

    def is_of_buffer(self, verb: str) -> bool:
        """Return whether a verb waits, if at all, as the buffer does: for a future, whatever task it is in."""
        return verb in OWN_VERBS or verb in SIGNATURES

    def check(self, verb: str) -> None:
        """Raise InvalidArgument for a verb that there is not."""
        service, _, name = verb.partition(".")
        found = self._services.get(service)
        if not self.is_of_buffer(verb) and (found is None or name not in found.verbs):
            raise InvalidArgument(f"this server has no verb {verb!r}; is it started with what serves it?")

    async def carry_out(
        self, session: Session, number: int, verb: str, arguments: dict[str, Any], blobs: Sequence[Blob]
    ) -> tuple[Answer, list[Blob]]:
        """Carry a call out; return the answer, and its groups."""
        if verb in OWN_VERBS:
            with as_bytes() if verb in _GIVING else nullcontext():
                outcome = await getattr(self, f"_do_{verb}")(session, number, arguments, blobs)
        elif verb in SIGNATURES:
            outcome = Outcome(await getattr(self._buffer, verb)(**arguments))
        else:
            service, _, name = verb.partition(".")
            outcome = Outcome(await getattr(self._services[service], name)(**arguments))
        value = outcome.value
        if not outcome.groups and outcome.lent is None:
            if value is None or (type(value) is int and abs(value) < 1 << 62):
                return Answer(number, False, whole=value), []
            if isinstance(value, list) and len(value) > _ENCODED_HERE:
                return Answer(number, False, await asyncio.to_thread(to_bytes, value)), []
            return Answer(number, False, to_bytes(value)), []
        crossing = [given(group) for group in outcome.groups]
        blobs = [blob for _, blob in crossing]
        done = [done for done, _ in crossing]
        return Answer(number, False, lent=outcome.lent, done=done, blobs=len(blobs)), blobs

    async def give_back(self, session: Session) -> None:
        """Let all that a client held come back: it is gone."""
        for lease in session.leases.values():
            await self._buffer.end_lease(lease)
        for reservation in session.reservations.values():
            await self._buffer.release(reservation)

    def forget_ended(self, session: Session) -> None:
        """Forget what a client does not hold any more: reservations whose groups were put, and what ended by time."""
        leases, reservations = open_in(self._buffer)
        session.leases = {call: lease for call, lease in session.leases.items() if lease in leases}
        session.reservations = {
            call: held for call, held in session.reservations.items() if held.id in reservations
        }

    async def cancelled(self, session: Session, number: int) -> None:
        """Give back the lease or the reservation that a call got whose caller is gone."""
        lease, reservation = session.leases.pop(number, None), session.reservations.pop(number, None)
        if lease is not None:
            await self._buffer.nack_lease(lease)
        if reservation is not None:
            await self._buffer.release(reservation)

    # --- verbs that are more than the buffer's own

    async def _do_put(
        self, _session: Session, _number: int, arguments: dict[str, Any], blobs: Sequence[Blob]
    ) -> Outcome:
        if blobs:
            known = arguments.pop("known", b"")
            arguments["items"] = received(known, blobs[0], arguments.get("model_step"))
        return Outcome(await self._buffer.put(**arguments))

    async def _do_lend(
        self, session: Session, number: int, arguments: dict[str, Any], _blobs: Sequence[Blob]
    ) -> Outcome:
        batch = await self._buffer.lease(**arguments)
        return self._lent(session, number, batch.id, batch.samples)

    async def _do_take_batch(
        self, session: Session, number: int, arguments: dict[str, Any], _blobs: Sequence[Blob]
    ) -> Outcome:
        sizes = checked_sizes(arguments.get("task_batch_sizes"))
        if all(map(self._leaves_when_lent, sizes)) or not self._is_completed(arguments):
            batch = await self._buffer.lease(**arguments)
            return self._lent(session, number, batch.id, batch.samples)
        groups, _ = await self._buffer.take_batch(**arguments)
        infos: dict[str, list[Info | None]] = {task: [None] * len(some) for task, some in groups.items()}
        return Outcome(None, [group for some in groups.values() for group in some], Lent(None, False, infos))

    async def _do_sample(
        self, session: Session, number: int, arguments: dict[str, Any], _blobs: Sequence[Blob]
    ) -> Outcome:
        if checked_flag("replace", arguments.get("replace", False)):
            samples = await self._buffer.sample(**arguments)
            infos: dict[str, list[Info | None]] = {}
            for _, info in samples:  # task by task
                infos.setdefault(info.task_name, []).append(_on_its_way(info))
            return Outcome(None, [group for group, _ in samples], Lent(None, False, infos))
        arguments.pop("replace", None)
        allow_short = checked_flag("allow_short", arguments.pop("allow_short", False))
        sizes = batch_sizes(self._buffer, arguments.pop("n", None), arguments.pop("task_name", None))
        batch = await self._buffer.lease(sizes, wait=not allow_short, **arguments)
        return self._lent(session, number, batch.id, batch.samples)

    async def _do_peek(
        self, _session: Session, _number: int, arguments: dict[str, Any], _blobs: Sequence[Blob]
    ) -> Outcome:
        return Outcome(None, await self._buffer.peek(**arguments))

    async def _do_ack_lease(
        self, session: Session, _number: int, arguments: dict[str, Any], _blobs: Sequence[Blob]
    ) -> Outcome:
        lease = checked_count("lease", arguments.get("lease"))
        step = checked_step("train_step", arguments.get("train_step"))
        session.lease_ended(lease)
        return Outcome(await self._buffer.ack_lease(lease, train_step=step))

    async def _do_nack_lease(
        self, session: Session, _number: int, arguments: dict[str, Any], _blobs: Sequence[Blob]
    ) -> Outcome:
        lease = checked_count("lease", arguments.get("lease"))
        session.lease_ended(lease)
        return Outcome(await self._buffer.nack_lease(lease))

    async def _do_has_stale(
        self, _session: Session, _number: int, arguments: dict[str, Any], _blobs: Sequence[Blob]
    ) -> Outcome:
        return Outcome(int(has_stale(self._buffer, checked_count("lease", arguments.get("lease")))))

    async def _do_reserve(
        self, session: Session, number: int, arguments: dict[str, Any], _blobs: Sequence[Blob]
    ) -> Outcome:
        reservation: Reservation = await self._buffer.reserve(**arguments)
        session.reservations[number] = reservation
        return Outcome(reservation)

    async def _do_release(
        self, session: Session, _number: int, arguments: dict[str, Any], _blobs: Sequence[Blob]
    ) -> Outcome:
        released = await self._buffer.release(**arguments)
        session.reservation_ended(arguments["reservation"])
        return Outcome(released)

    async def _do_save(
        self, _session: Session, _number: int, arguments: dict[str, Any], _blobs: Sequence[Blob]
    ) -> Outcome:
        arguments["path"] = self._checkpoint(arguments.get("path"))
        return Outcome(await self._buffer.save(**arguments))

    async def _do_resume(
        self, _session: Session, _number: int, arguments: dict[str, Any], _blobs: Sequence[Blob]
    ) -> Outcome:
        arguments["path"] = self._checkpoint(arguments.get("path"))
        return Outcome(await self._buffer.resume(**arguments))

    async def _do_to_arrow(
        self, _session: Session, _number: int, arguments: dict[str, Any], _blobs: Sequence[Blob]
    ) -> Outcome:
        table = await self._buffer.to_arrow(**arguments)
        import pyarrow as pa  # noqa: PLC0415  (the buffer has it)

        def written() -> bytes:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            found: bytes = sink.getvalue().to_pybytes()
            return found

        return Outcome(await asyncio.to_thread(written))

    async def _do_health(
        self, _session: Session, _number: int, _arguments: dict[str, Any], _blobs: Sequence[Blob]
    ) -> Outcome:
        return Outcome(
            {
                "version": __version__,
                "groups": len(self._buffer),
                "uptime_s": time.monotonic() - self._started,
                "is_durable": self._config.store is not None,
                "services": sorted(self._services),
                **self._facts(),
            }
        )

    # ---

    def _lent(
        self, session: Session, number: int, lease: int, samples: Mapping[str, Sequence[Sample]]
    ) -> Outcome:
        session.leases[number] = lease
        infos: dict[str, list[Info | None]] = {
            task: [_on_its_way(info) for _, info in drawn] for task, drawn in samples.items()
        }
        bounded = [task for task in infos if self._config.for_task(task).max_staleness is not None]
        lent = Lent(lease, self._config.store is not None, infos, bounded)
        return Outcome(None, [group for drawn in samples.values() for group, _ in drawn], lent)

    def _leaves_when_lent(self, task: str) -> bool:
        return self._config.for_task(task).max_times_sampled == 1

    @staticmethod
    def _is_completed(arguments: Mapping[str, Any]) -> bool:
        return Status.of(arguments.get("group_status", Status.COMPLETED)) is Status.COMPLETED

    def _checkpoint(self, path: Any) -> Path:
        """Return where a client may save: inside of the directory that the server was given for that."""
        if self._checkpoints is None:
            raise InvalidArgument(
                "this server was given no directory for checkpoints; start it with --checkpoints DIR, or keep the buffer in "
                "a store"
            )
        inside = Path(str(path))
        if inside.is_absolute() or ".." in inside.parts or "\0" in str(path):
            raise InvalidArgument(
                f"path must be a name inside of the server's directory for checkpoints, not {path!r}"
            )
        return self._checkpoints / inside


_ENCODED_HERE: Final = 1000
"""Longer lists, such as the rows of a query, are encoded in another thread while other calls go on."""
_GIVING: Final = frozenset({"take_batch", "lend", "sample", "peek"})
"""Verbs that give groups, which may stay bytes."""
OWN_VERBS: Final = frozenset(name.removeprefix("_do_") for name in vars(Serving) if name.startswith("_do_"))


def _on_its_way(info: SampleInfo) -> Info:
    return Info(*info[:-1])  # the infos are sent by task
