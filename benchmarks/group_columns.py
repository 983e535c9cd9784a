"""Groups as columns beside groups as lists of Rollouts: making, reading and writing them.

    python benchmarks/group_columns.py [--rounds 40]

A group has 8 members of 256 + 1024 tokens. "before" is the same work with Rollout objects and the codec of this version, in the
same run. Both ends are bytes: a group of columns writes its head and checksums only when they are asked for.
"""

import argparse
from typing import Any

import numpy as np

from groups import LONG, MEMBERS
from measure import interleave, microseconds, per_operation, print_table, times
from reroll import Rollout, RolloutGroup
from reroll.codec import decode, encode
from reroll.rollout import summarize


def engine_output() -> dict[str, Any]:
    """Return what an engine gives for one prompt, as arrays."""
    random = np.random.default_rng(0)
    sizes = [LONG.response] * MEMBERS
    return {
        "prompt_ids": random.integers(0, 150_000, LONG.prompt, dtype=np.int32),
        "responses": [random.integers(0, 150_000, size, dtype=np.int32) for size in sizes],
        "logprobs": [random.standard_normal(size, dtype=np.float32) for size in sizes],
        "rewards": [float(place % 2) for place in range(MEMBERS)],
        "finish_reasons": ["stop"] * MEMBERS,
        "model_step": 3,
    }


def rollouts_of(output: dict[str, Any]) -> list[Rollout]:
    """Return the same as Rollouts, as a producer made them before."""
    return [
        Rollout(
            prompt_ids=output["prompt_ids"],
            response_ids=ids,
            logprobs=logprobs,
            reward=reward,
            finish_reason="stop",
            status="completed",
        )
        for ids, logprobs, reward in zip(
            output["responses"], output["logprobs"], output["rewards"], strict=True
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    output = engine_output()
    lists = {
        **output,
        "prompt_ids": output["prompt_ids"].tolist(),
        "responses": [ids.tolist() for ids in output["responses"]],
        "logprobs": [values.tolist() for values in output["logprobs"]],
    }
    rollouts, group = rollouts_of(output), RolloutGroup.pack(**output)
    blob, (head, body, _) = encode(rollouts), group.frames()

    def before(members: list[Rollout]) -> None:
        summarize(members, model_step=3)
        encode(members)

    def columns(made: RolloutGroup) -> None:
        made.summary()
        made.frames()

    pairs = {
        "8 Rollouts to bytes, checked and summed up": (
            lambda: before(rollouts),
            lambda: columns(RolloutGroup.of(rollouts, model_step=3)),
        ),
        "engine arrays to bytes": (
            lambda: before(rollouts_of(output)),
            lambda: columns(RolloutGroup.pack(**output)),
        ),
        "engine lists to bytes": (
            lambda: before(rollouts_of(lists)),
            lambda: columns(RolloutGroup.pack(**lists)),
        ),
        "open from bytes": (lambda: decode(blob), lambda: RolloutGroup.open(head, body)),
        "open, and make all rollouts": (lambda: decode(blob), lambda: list(RolloutGroup.open(head, body))),
        "summary of a group that was opened": (
            lambda: summarize(decode(blob)),
            lambda: RolloutGroup.open(head, body).summary(),
        ),
    }
    cases = {
        (name, way): (lambda operation=operation: per_operation(operation, 10))
        for name, both in pairs.items()
        for way, operation in zip(("before", "columns"), both, strict=True)
    }
    taken = interleave(cases, rounds)
    rows = [
        [
            name,
            *(microseconds(taken[name, way].median) for way in ("before", "columns")),
            times(taken[name, "before"].median / taken[name, "columns"].median),
        ]
        for name in pairs
    ]
    tokens = MEMBERS * (LONG.prompt + LONG.response)
    sizes = [f"{size / tokens:.2f}" for size in (len(blob), group.nbytes)]
    rows.append(["bytes a token", *sizes, times(len(blob) / group.nbytes)])
    print_table(f"{LONG} tokens", ["", "before us", "columns us", "faster"], rows)


if __name__ == "__main__":
    main()
