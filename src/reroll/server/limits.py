"""What a server allows each client, and all of them together."""

from dataclasses import dataclass, fields

from reroll.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on clients. What is above them is refused, and hurts nobody else.

    Attributes:
        max_clients: how many may be connected.
        max_message_bytes: how large one part of a message may be; who sends more is disconnected.
        max_pending_calls: calls of one client that have no answer yet.
        max_pending_bytes: bytes of one client's calls that have no answer yet, and of answers that it has not received.
        client_ttl_s: a client that is silent for so long is gone: its waits end, its leases and reservations come back.

    """

    max_clients: int = 1024
    max_message_bytes: int = 1 << 30
    max_pending_calls: int = 4096
    max_pending_bytes: int = 1 << 30
    client_ttl_s: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise InvalidConfig(f"{field.name} must be above 0, not {getattr(self, field.name)}")
