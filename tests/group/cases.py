"""Rollouts of any shape, and what it means that two are the same to the last bit."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from codec.exactness import exact
from reroll import Rollout, Status
from reroll.rollout import VersionRuns

texts = st.text(max_size=8) | st.sampled_from(["stop", "length", "STOP", "\ud800"])
integers = st.integers(-(2**62) + 1, 2**62 - 1)
atoms = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(max_size=4)
plain = st.recursive(
    atoms,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
anything = st.one_of(
    plain,
    st.tuples(atoms, atoms),
    st.sampled_from([np.arange(3), np.float32(0.5), 2**80, {1: 2}, {3, 4}, np.zeros((2, 0))]),
)
rewards = st.one_of(
    st.none(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-5, 5),
    st.sampled_from([2**60, True, {"score": 1.5, "format": 0}, {"score": None}, np.float32(0.25)]),
)
DTYPES = (
    "u1",
    "<i2",
    ">i4",
    "<f2",
    "<f4",
    "<f8",
    "?",
    "<c8",
    "<M8[s]",
    "S3",
    "<U2",
    [("a", "<i4"), ("b", "u1")],
)
shapes = st.sampled_from([(), (2,), (2, 3), (0,)])


@st.composite
def columns_of(draw: st.DrawFn, name: str, sizes: list[tuple[int, int]]) -> list[Any]:
    """Return one array per member over its response or over all, or None."""
    dtype, tail = np.dtype(draw(st.sampled_from(DTYPES))), draw(shapes)
    chosen = draw(st.lists(st.sampled_from([0, 0, 1, None]), min_size=len(sizes), max_size=len(sizes)))
    found: list[Any] = []
    for place, (which, pair) in enumerate(zip(chosen, sizes, strict=True)):
        if which is None:
            found.append(None)
            continue
        shape = (pair[which], *tail)
        seed = np.arange(np.prod(shape, dtype=int) * dtype.itemsize, dtype=np.uint8) + place
        found.append(
            np.frombuffer((seed % 2 if dtype.kind == "b" else seed % 100).tobytes(), dtype).reshape(shape)
        )
    return found


FEW = st.integers(1, 5)


@st.composite
def groups(draw: st.DrawFn, members: st.SearchStrategy[int] = FEW, fields: bool = True) -> list[Rollout]:
    """Return a group as lists of Rollouts: shared and own prompts, empty and missing values, mixed versions, partial masks."""
    count = draw(members)
    kind = draw(st.sampled_from(["usual", "usual", "mixed"]))
    prompt = draw(st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=5))
    one_version, share = draw(st.none() | st.integers(0, 9)), draw(st.booleans())
    has = {name: draw(st.booleans()) for name in ("logprobs", "mask", "tokens", "partial")}
    made = []
    for place in range(count):
        own = prompt if share else draw(st.none() | st.lists(st.integers(-9, 9), max_size=3))
        ids = draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6))
        size = len(ids)
        given = has if kind == "usual" else {name: draw(st.booleans()) for name in has}
        if kind == "usual":
            versions = [] if one_version is None else [one_version] * size
        else:
            versions = draw(st.lists(integers, min_size=size, max_size=size) | st.just([]))
            versions = sorted(versions)[: draw(st.integers(0, size)) if given["partial"] else size]
        mask = (
            [1] * size
            if not given["partial"]
            else draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
        )
        whole = [*(own or []), *ids]
        response = None if kind == "mixed" and place == 1 and not versions else ids
        made.append(
            Rollout(
                prompt_ids=own,
                response_ids=response,
                logprobs=[-place - number / 7 for number in range(size)]
                if given["logprobs"] and response is not None
                else None,
                response_mask=mask if given["mask"] and response is not None else None,
                response_model_steps=VersionRuns.of(versions),
                tokens=whole if given["tokens"] and response is not None else None,
                seq_staleness=draw(st.sampled_from([0, 0, 0, -1, 7])),
                reward=draw(rewards),
                status=draw(st.sampled_from([Status.COMPLETED, Status.COMPLETED, *Status])),
                finish_reason=draw(st.sampled_from([None, "stop", "stop", "length", "odd"])),
                group_uid=draw(st.sampled_from([None, None, 7, 7, 8, "x"])),
                group_id=draw(st.sampled_from(["g", "g", "g", 3, None, ("t", 1)])),
            )
        )
        made[-1].checkout = draw(st.sampled_from([None, None, "b.7.1"]))
    if not fields:
        return made
    for name in draw(st.lists(st.sampled_from(OTHERS), unique=True, max_size=4)):
        shared = draw(st.none() | anything)
        for rollout in made:
            setattr(rollout, name, shared if share else draw(anything))
    if draw(st.booleans()):
        for rollout in made:
            rollout.num_tokens = draw(st.none() | st.integers(0, 2**39))
            rollout.input_ids = draw(st.none() | st.lists(st.integers(0, 9), max_size=4))
            rollout.labels = draw(st.none() | st.lists(st.integers(0, 9), max_size=4))
            if draw(st.booleans()):
                rollout.tokens = draw(st.none() | st.lists(st.integers(0, 9), max_size=4))
            if rollout.input_ids is not None and draw(st.booleans()):
                rollout.logprobs = [-0.5] * len(rollout.input_ids)
    if draw(st.booleans()):
        sizes = [
            (len(r.response_ids), len(r.response_ids) + (0 if r.prompt_ids is None else len(r.prompt_ids)))
            if r.response_ids is not None
            else (0, 0)
            for r in made
        ]
        for name in draw(
            st.lists(st.sampled_from(["a", "ref_logprobs", "routed_experts"]), unique=True, max_size=3)
        ):
            for rollout, part in zip(made, draw(columns_of(name, sizes)), strict=True):
                if part is not None:
                    rollout.columns = {**(rollout.columns or {}), name: part}
    return made


OTHERS = (
    "rollout_id",
    "session_id",
    "message",
    "response",
    "error_msg",
    "mm_info",
    "tool_calls",
    "extra_fields",
    "routed_experts",
)


def alike(a: Rollout, b: Rollout) -> bool:
    """Tell whether two rollouts hold the same, in type and content; a number of numpy as reward may be a plain one."""
    mine, theirs = list(a.state()), list(b.state())
    at = 17
    assert a.reward is mine[at]
    if isinstance(mine[at], np.floating) or isinstance(theirs[at], np.floating):
        mine[at], theirs[at] = float(mine[at]), float(theirs[at])
    for state in (mine, theirs):  # columns have no order
        state[-1] = None if state[-1] is None else dict(sorted(state[-1].items()))
    return exact(mine, theirs)
