"""One client process of the server benchmark: it runs a round for each line of its input, and prints the seconds.

    python server_traffic.py KIND ADDRESS SHAPE BATCH [KEYS]

KIND: `echo` sends bytes to an echo and waits for them; `reroll` puts as many groups and takes them again. SHAPE: rollouts x
tokens of a group. BATCH: groups under way at once.
"""

import asyncio
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

ROUNDS_OF = {"8x4096": 8, "1x16": 200}
"""Batches of one round, by shape."""


def arrays_of(shape: str) -> tuple[int, dict[str, Any]]:
    members, tokens = map(int, shape.split("x"))
    return members, {
        "prompt_ids": np.arange(16, dtype=np.int32),
        "response_ids": np.arange(tokens, dtype=np.int32),
        "logprobs": np.zeros(tokens, np.float32),
    }


def rollouts_of(shape: str) -> list[Any]:
    from reroll import Rollout  # noqa: PLC0415  (the echo needs no more than its blob)

    members, arrays = arrays_of(shape)
    return [Rollout(**arrays, reward=float(place), status="completed") for place in range(members)]


def blob_of(shape: str) -> bytes:
    from reroll.codec import encode  # noqa: PLC0415

    return encode(rollouts_of(shape))


def each_line() -> Any:
    print("ready", flush=True)
    return iter(sys.stdin.readline, "")


def echo(address: str, shape: str, batch: int) -> None:
    import zmq  # noqa: PLC0415

    blob, rounds = blob_of(shape), ROUNDS_OF[shape]
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(address)
    for _ in each_line():
        start = perf_counter()
        for _ in range(rounds):
            socket.send_multipart([blob] * batch, copy=False)
            socket.recv_multipart(copy=False)
        print(perf_counter() - start, flush=True)


async def reroll(address: str, shape: str, batch: int, keys: str | None) -> None:
    from reroll import connect  # noqa: PLC0415

    group, rounds = rollouts_of(shape), ROUNDS_OF[shape]
    options = (
        {}
        if keys is None
        else {"key": Path(keys) / "client.secret", "server_key": Path(keys) / "server.public"}
    )
    async with connect(address, **options) as client:
        await client.health()
        for _ in each_line():
            start = perf_counter()
            for _ in range(rounds):
                await asyncio.gather(*(client.put(group, "t", model_step=0) for _ in range(batch)))
                await client.take_batch({"t": batch}, wait=True)
            print(perf_counter() - start, flush=True)


if __name__ == "__main__":
    kind, where, form, size, *rest = sys.argv[1:]
    if kind == "echo":
        echo(where, form, int(size))
    else:
        asyncio.run(reroll(where, form, int(size), rest[0] if rest else None))
