"""Reverb by its newer writer."""

from collections.abc import Sequence
from typing import Any

from contenders import reverb
from contenders.reverb import serve, version

__all__ = ["CANNOT", "Client", "serve", "version"]
CANNOT: dict[str, str] = {}


class Client(reverb.Client):
    """The same server and the same `client.sample`; packed arrays go in by a `TrajectoryWriter`, an item for each group, which is flushed at the end."""

    def put(self, prepared: Sequence[list[Any]], priorities: Sequence[float] | None = None) -> None:
        with self.client.trajectory_writer(num_keep_alive_refs=1) as writer:
            for place, step in enumerate(prepared):
                writer.append(step)
                priority = 1.0 if priorities is None else priorities[place]
                writer.create_item("t", priority, [column[-1:] for column in writer.history])
            writer.flush()
