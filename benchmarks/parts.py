"""What a group costs on its way through a server, part by part, without the sockets between them.

    python benchmarks/parts.py [--rounds 40]

Processor time of each part for one group, all of them warm: in a real server, where threads take turns and the bytes were
written by another processor, the same parts take about twice as long. The limits are what nobody can save: to copy the bytes, and to look at each once.
"""

import argparse
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np

from groups import drive
from measure import Case, interleave, microseconds, per_operation, print_table
from reroll import ReplayBufferConfig, Rollout
from reroll.codec import encode
from reroll.codec.frame import checksum_of
from reroll.remote.groups import as_bytes, decode_delivery, decode_put, encode_delivery, encode_put
from reroll.rollout import summarize

MEMBERS, BATCH, TASK = 8, 16, "t"
TOKENS = {"400 B": 4, "4 KB": 55, "40 KB": 568, "256 KB": 3_640}
"""Of each response, so that a group has about so many bytes: 9 for each token."""


def rollouts(tokens: int) -> list[Rollout]:
    return [
        Rollout(
            prompt_ids=np.arange(4, dtype=np.int32) + place,
            response_ids=np.arange(tokens, dtype=np.int32) + place,
            logprobs=np.full(tokens, -0.1 * place, np.float32),
            response_mask=np.ones(tokens, np.uint8),
            reward=float(place % 2),
            status="completed",
        )
        for place in range(MEMBERS)
    ]


def parts(tokens: int) -> dict[str, Case]:
    """Return what is to be measured, by name."""
    group = rollouts(tokens)
    known, blob = encode_put(group, 0)
    source, target = memoryview(blob), bytearray(blob)

    def copy() -> None:
        target[:] = source

    simple: dict[str, Callable[[], object]] = {
        "client: look at the rollouts, and sum up": lambda: summarize(group, model_step=0),
        "client: encode, with the checksum": lambda: encode(group, root="rollouts"),
        "server: check the bytes and what is told of them": lambda: decode_put(known, blob, 0),
        "limit: one copy": copy,
        "limit: the checksum": lambda: checksum_of(blob),
    }
    cases = {name: _each(operation) for name, operation in simple.items()}
    served = _served(known, blob)
    here = _here(group)
    return cases | {
        "server: put": lambda: next(served)[0],
        "server: lend, a batch of 16": lambda: next(served)[1],
        "server: acknowledge, a batch of 16": lambda: next(served)[2],
        "client: decode, and bring up to date": lambda: next(served)[3],
        "in process: put": lambda: next(here)[0],
        "in process: take, a batch of 16": lambda: next(here)[1],
    }


def _each(operation: Callable[[], object]) -> Case:
    return lambda: per_operation(operation, BATCH)


def _served(known: bytes, blob: bytes) -> Iterator[list[float]]:
    """Yield the seconds of a group, of each thing that happens to it on a server and after it."""
    buffer, numbers = ReplayBufferConfig().build(), count()
    packed: list[Any] = []
    batches: list[Any] = []
    crossing: list[Any] = []

    def put() -> None:
        drive(buffer.put(packed.pop(), TASK, model_step=0, put_id=f"client-{next(numbers)}"))

    def lend() -> None:
        with as_bytes():
            batches.append(drive(_lease(buffer)))

    def acknowledge() -> None:
        drive(buffer.ack_lease(batches.pop().id))

    def take() -> None:
        decode_delivery(*crossing.pop())

    while True:
        packed += [decode_put(known, blob, 0) for _ in range(BATCH)]
        put_s, lend_s = per_operation(put, BATCH), per_operation(lend)
        crossing += [encode_delivery(sample.group) for sample in batches[0].samples[TASK]]
        yield [put_s, lend_s / BATCH, per_operation(acknowledge) / BATCH, per_operation(take, BATCH)]


async def _lease(buffer: Any) -> Any:
    return await buffer.lease({TASK: BATCH})


def _here(group: list[Rollout]) -> Iterator[list[float]]:
    buffer = ReplayBufferConfig().build()
    while True:
        put_s = per_operation(lambda: drive(buffer.put(group, TASK, model_step=0)), BATCH)
        take_s = per_operation(lambda: drive(buffer.take_batch({TASK: BATCH})))
        yield [put_s, take_s / BATCH]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the parts of a put and a take on a server.")
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    found = {size: interleave(parts(tokens), rounds) for size, tokens in TOKENS.items()}
    names = list(found["400 B"])
    print_table(
        f"A group of {MEMBERS} rollouts: microseconds of a processor",
        ("", *found),
        [
            (name, *(microseconds(timings[name].median) for timings in found.values()))
            for name in sorted(names)
        ],
    )


if __name__ == "__main__":
    main()
