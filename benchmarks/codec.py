"""Groups to bytes and back: the codec beside pickle and beside MessagePack of plain lists.

    python benchmarks/codec.py [--rounds 40]

The group has 8 members and about 256 KB. The checksum is shown apart: neither of the others has one. Pickle runs whatever
code its bytes ask for; MessagePack keeps neither arrays nor types. Groups of plain objects hold their tokens in lists.
"""

import argparse
import copy
import pickle
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

import reroll
from groups import MEMBERS, Listed, Shape
from measure import Case, Timing, interleave, microseconds, per_operation, print_table, times
from reroll import Rollout
from reroll.codec import decode, encode

SHAPE = Shape(512, 3300)
CODEC, PICKLE, LISTS, CHECKSUM = "reroll", "pickle, protocol 5", "MessagePack of lists", "CRC-32 alone"

reroll.register(Listed)


def rollouts(shape: Shape) -> list[Rollout]:
    """Return a group as it comes from an engine: a shared prompt, and each member's own response."""
    random = np.random.default_rng(0)
    prompt = random.integers(0, 150_000, shape.prompt, dtype=np.int32)
    return [
        Rollout(
            group_id=7,
            rollout_id=number,
            prompt_ids=prompt,
            response_ids=random.integers(0, 150_000, shape.response, dtype=np.int32),
            logprobs=random.standard_normal(shape.response, dtype=np.float32),
            response_mask=np.ones(shape.response, np.uint8),
            response_model_steps=[3] * shape.response,
            response="some text " * 30,
            reward=float(number % 2),
            status="completed",
            finish_reason="stop",
        )
        for number in range(MEMBERS)
    ]


def listed(group: list[Rollout]) -> list[Listed]:
    """Return the same group as plain objects with lists."""
    return [
        Listed(
            *(member.prompt_ids.tolist(), member.response_ids.tolist(), member.logprobs.tolist()),
            *(member.response_mask.tolist(), member.response_model_steps.tolist(), member.reward),
        )
        for member in group
    ]


def pairs(group: list[Any], plain: list[dict[str, Any]]) -> dict[str, tuple[Callable, Callable, Any]]:
    """Return how each contender writes and reads, and what it writes."""
    return {
        CODEC: (encode, decode, group),
        PICKLE: (lambda value: pickle.dumps(value, 5), pickle.loads, group),
        LISTS: (msgspec.msgpack.encode, msgspec.msgpack.decode, plain),
        CHECKSUM: (lambda _: zlib.crc32(blob), lambda _: zlib.crc32(blob), blob := encode(group)),
    }


def measure(
    contenders: dict[str, tuple[Callable, Callable, Any]], rounds: int
) -> dict[tuple[str, str], Timing]:
    cases: dict[tuple[str, str], Case] = {}
    for name, (write, read, value) in contenders.items():
        written = write(value)
        cases[name, "write"] = lambda write=write, value=value: per_operation(lambda: write(value), 5)
        cases[name, "read"] = lambda read=read, written=written: per_operation(lambda: read(written), 5)
    return interleave(cases, rounds)


def show(title: str, contenders: dict[str, tuple[Callable, Callable, Any]], rounds: int) -> None:
    taken = measure(contenders, rounds)
    rows = []
    for name, (write, _, value) in contenders.items():
        written = write(value)
        size = f"{len(written):,}" if isinstance(written, bytes) else "-"
        cells = [name, size]
        for way in ("write", "read"):
            own = taken[name, way].median
            cells += [microseconds(own), times(own / taken[CODEC, way].median)]
        rows.append(cells)
    print_table(title, ["", "bytes", "write us", "to reroll", "read us", "to reroll"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    group = rollouts(SHAPE)
    plain = [member.to_dict() for member in group]
    show(f"{SHAPE} tokens as Rollouts", pairs(group, plain), rounds)
    objects = listed(group)
    if decode(encode(objects)) != objects:
        raise AssertionError("something was lost")
    show(f"{SHAPE} tokens as plain objects with lists", pairs(objects, copy.deepcopy(plain)), rounds)


if __name__ == "__main__":
    main()
