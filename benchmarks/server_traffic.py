"""One client process of the server benchmark: it runs a round for each line of its input, and prints the seconds.

    python server_traffic.py KIND ADDRESS SHAPE BATCH [KEYS]

KIND: `echo` sends bytes to an echo and waits for them, `lean echo` without copies; `reroll` puts as many groups and takes
them again; `here` does the same with a buffer in this process. SHAPE: rollouts x tokens of a group. BATCH: groups under way
at once. The echo's socket blocks, those of reroll are in an event loop.
"""

import asyncio
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

ROUNDS_OF = {"8x4096": 8, "1x16": 200}
"""Batches of one round, by shape."""


def arrays_of(shape: str) -> list[dict[str, Any]]:
    """Return the arrays of each rollout: its own, for those that are shared are written once."""
    members, tokens = map(int, shape.split("x"))
    return [
        {
            "prompt_ids": np.arange(16, dtype=np.int32) + place,
            "response_ids": np.arange(tokens, dtype=np.int32) + place,
            "logprobs": np.full(tokens, -0.1 * place, np.float32),
        }
        for place in range(members)
    ]


def rollouts_of(shape: str) -> list[Any]:
    from reroll import Rollout  # noqa: PLC0415  (the echo needs no more than its blob)

    return [
        Rollout(**arrays, reward=float(place), status="completed")
        for place, arrays in enumerate(arrays_of(shape))
    ]


def blob_of(shape: str) -> bytes:
    from reroll.codec import encode  # noqa: PLC0415

    return encode(rollouts_of(shape))


def each_line() -> Any:
    print("ready", flush=True)
    return iter(sys.stdin.readline, "")


def echo(address: str, shape: str, batch: int, *, copies: bool) -> None:
    import zmq  # noqa: PLC0415

    blob, rounds = blob_of(shape), ROUNDS_OF[shape]
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(address)
    for _ in each_line():
        start = perf_counter()
        for _ in range(rounds):
            socket.send_multipart([blob] * batch, copy=copies)
            socket.recv_multipart(copy=copies)
        print(perf_counter() - start, flush=True)


async def traffic(client: Any, shape: str, batch: int) -> None:
    group, rounds = rollouts_of(shape), ROUNDS_OF[shape]
    for _ in each_line():
        start = perf_counter()
        for _ in range(rounds):
            await asyncio.gather(*(client.put(group, "t", model_step=0) for _ in range(batch)))
            await client.take_batch({"t": batch}, wait=True)
        print(perf_counter() - start, flush=True)


async def here(shape: str, batch: int) -> None:
    from reroll import AsyncReplayBufferConfig  # noqa: PLC0415

    await traffic(AsyncReplayBufferConfig().build(), shape, batch)


async def reroll(address: str, shape: str, batch: int, keys: str | None) -> None:
    from reroll import connect  # noqa: PLC0415
    from reroll.server import keep_freed_memory  # noqa: PLC0415

    keep_freed_memory()  # as docs/server.md advises
    options = (
        {}
        if keys is None
        else {"key": Path(keys) / "client.secret", "server_key": Path(keys) / "server.public"}
    )
    async with connect(address, **options) as client:
        await client.health()
        await traffic(client, shape, batch)


if __name__ == "__main__":
    kind, where, form, size, *rest = sys.argv[1:]
    if kind.endswith("echo"):
        echo(where, form, int(size), copies=kind == "echo")
    elif kind == "here":
        asyncio.run(here(form, int(size)))
    else:
        asyncio.run(reroll(where, form, int(size), rest[0] if rest else None))
