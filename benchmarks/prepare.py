"""Measure preparation: sampled groups to a packed batch beside one memcpy, and the parts of ranks beside pickle of lists.

    python benchmarks/prepare.py             about a minute, about 3 GB of memory
    python benchmarks/prepare.py --quick     an eighth of workload M, fewer rounds
    python benchmarks/prepare.py --check     a claim that is missed makes the exit code 1

Where torchrl is installed for this interpreter, its ListStorage samples the same groups, as tensors, and collates them to the
same arrays: once as one writes it with torch, once, as rollouts, with reroll's own code.
"""

import importlib.util
import pickle
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from groups import TASK, drive
from measure import Case, Timing, interleave, microseconds, per_operation, print_table
from reporting import Claim, arguments, conclude, print_title, seconds, versions
from reroll import ReplayBuffer, ReplayBufferConfig, Rollout
from reroll.prepare import Memory, PackedBatch, pack, sequences_of, split
from reroll.prepare.packing import best_fit

BATCH, STEP = 64, 4
SAMPLE, TABLE, PACK, ARRAYS, WHOLE = "sample(64)", "sequences_of", "pack", "arrays", "all of it"
MEMCPY = "memcpy of the batch"
TORCHRL, TORCHRL_OURS = "torchrl ListStorage, torch collation", "torchrl ListStorage, collation of reroll"
M_SAMPLE, M_TABLE, M_SPLIT, M_WHOLE = (
    "sample",
    "sequences_of",
    "split to 4 ranks",
    "sample + sequences_of + split",
)
M_FRESH = "the same, memory not used again"
M_ARRAYS = "arrays of every micro-batch, one by one"
PICKLE = "pickle of lists"
PICKLED_SHARE = 16
"""Lists of one group in so many are pickled, since all of them take gigabytes; their time is multiplied."""
RANKS = 4


class Workload(NamedTuple):
    """Groups of responses whose lengths are log-normal."""

    groups: int
    members: int
    mean_tokens: int
    pack_length: int

    def __str__(self) -> str:
        return f"{self.groups} groups x {self.members} x about {self.mean_tokens:,} tokens"


FLAT = Workload(BATCH, 8, 1000, 8192)
M = Workload(512, 16, 4000, 32_768)


def make_groups(workload: Workload) -> list[list[Rollout]]:
    """Return groups that share nothing but the prompt of each."""
    random = np.random.default_rng(0)
    prompt_tokens = workload.mean_tokens // 8
    mean = workload.mean_tokens - prompt_tokens
    lengths = random.lognormal(np.log(mean) - 0.125, 0.5, (workload.groups, workload.members)).astype(int) + 1
    lengths = np.minimum(lengths, workload.pack_length - prompt_tokens)
    return [_group(random, prompt_tokens, row.tolist()) for row in lengths]


def _group(random: np.random.Generator, prompt_tokens: int, lengths: Sequence[int]) -> list[Rollout]:
    prompt = random.integers(300, 150_000, prompt_tokens, dtype=np.int32)
    return [
        Rollout(
            prompt_ids=prompt,
            response_ids=random.integers(300, 150_000, length, dtype=np.int32),
            logprobs=-random.random(length, dtype=np.float32),
            response_mask=np.ones(length, np.uint8),
            reward=float(place % 2),
            status="completed",
            finish_reason="stop",
        )
        for place, length in enumerate(lengths)
    ]


def filled(groups: Sequence[list[Rollout]]) -> ReplayBuffer:
    """Return a buffer whose groups can be drawn again and again."""
    buffer = ReplayBufferConfig(sampler="uniform", max_times_sampled=None, seed=0).build()
    for group in groups:
        drive(buffer.put(group, TASK, model_step=STEP - 1))
    return buffer


def output_bytes(packed: PackedBatch) -> int:
    """Return the bytes of all arrays."""
    return sum(array.nbytes for array in packed.arrays().values())


def collate(groups: Any) -> dict[str, Any]:
    """Return all arrays of the batch, those that are written out when they are asked for among them."""
    return pack(sequences_of(groups, train_step=STEP), FLAT.pack_length).arrays()


def flat_cases() -> tuple[dict[str, Case], int, str]:
    """Return what is measured of one packed batch, its bytes, and what is to be said of the peer."""
    groups = make_groups(FLAT._replace(groups=4 * BATCH))
    buffer = filled(groups)

    def draw() -> Any:
        return drive(buffer.sample(BATCH, TASK, train_step=STEP))

    drawn = draw()
    table = sequences_of(drawn, train_step=STEP)
    packed = pack(table, FLAT.pack_length)
    size = output_bytes(packed)
    source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
    operations: dict[str, Callable[[], object]] = {
        SAMPLE: draw,
        TABLE: lambda: sequences_of(drawn, train_step=STEP),
        PACK: lambda: pack(table, FLAT.pack_length),
        ARRAYS: packed.arrays,
        WHOLE: lambda: collate(draw()),
        MEMCPY: lambda: np.copyto(target, source),
    }
    peers = torchrl_cases(groups)
    operations |= peers
    note = "" if peers else "torchrl is not installed for this interpreter"
    return {name: _case(operation) for name, operation in operations.items()}, size, note


def _case(operation: Callable[[], object]) -> Case:
    return lambda: per_operation(operation)


def torchrl_cases(groups: Sequence[list[Rollout]]) -> dict[str, Callable[[], object]]:
    """Return how torchrl samples and collates the same groups; nothing where it is not installed."""
    if importlib.util.find_spec("torchrl") is None:
        return {}
    import torch  # noqa: PLC0415
    from torchrl.data import ListStorage  # noqa: PLC0415
    from torchrl.data import ReplayBuffer as PeerBuffer  # noqa: PLC0415

    torch.set_num_threads(
        1
    )  # threads that wait for each other on a busy machine would make it three times slower

    def sampling(items: list[Any], collate: Callable[[Any], Any]) -> Callable[[], object]:
        peer = PeerBuffer(storage=ListStorage(len(items)), collate_fn=collate, batch_size=BATCH)
        peer.extend(items)
        return peer.sample

    def tensors(member: Rollout) -> dict[str, Any]:
        names = ("prompt_ids", "response_ids", "logprobs", "response_mask")
        found = {name: torch.from_numpy(getattr(member, name)) for name in names}
        return found | {"reward": member.reward, "version": STEP - 1}

    as_tensors = [[tensors(member) for member in group] for group in groups]
    cases = {
        TORCHRL: sampling(as_tensors, lambda groups: torch_collate(torch, groups)),
        TORCHRL_OURS: sampling(list(groups), collate),
    }
    ours, theirs = collate(groups[:BATCH]), torch_collate(torch, as_tensors[:BATCH])
    if not all(np.array_equal(ours[name], theirs[name].numpy()) for name in theirs):
        raise RuntimeError("the collations differ")
    return cases


def torch_collate(torch: Any, groups: Any) -> dict[str, Any]:
    """Return the arrays of a packed batch as one writes it with torch: a `cat` or `repeat_interleave` for each."""
    rewards = [torch.tensor([member["reward"] for member in group], dtype=torch.float64) for group in groups]
    centered = [scores - scores.mean() for scores in rewards]
    advantage = torch.cat([scores / (scores.std(correction=0) + 1e-8) for scores in centered]).float()
    number = torch.arange(len(groups)).repeat_interleave(torch.tensor([len(group) for group in groups]))
    members = [member for group in groups for member in group]
    sizes = [len(member["prompt_ids"]) + len(member["response_ids"]) for member in members]
    rows = best_fit(sizes, range(len(sizes)), FLAT.pack_length)
    order = [place for row in rows for place in row]
    index = torch.tensor(order)
    members = [members[place] for place in order]
    heads = [len(member["prompt_ids"]) for member in members]
    tails = torch.tensor([len(member["response_ids"]) for member in members])
    lengths = torch.tensor(heads) + tails
    bounds = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    zeros = torch.zeros(max(heads))
    is_response = torch.tensor([False, True]).repeat(len(members))
    halves = torch.stack((torch.tensor(heads), tails), 1).ravel()
    versions = torch.tensor([[-1, member["version"]] for member in members], dtype=torch.int32).ravel()

    def joined(name: str, dtype: Any) -> Any:
        padding = zeros.to(dtype)
        return torch.cat(
            [part for m, head in zip(members, heads, strict=True) for part in (padding[:head], m[name])]
        )

    return {
        "input_ids": torch.cat([part for m in members for part in (m["prompt_ids"], m["response_ids"])]),
        "logprobs": joined("logprobs", torch.float32),
        "response_mask": joined("response_mask", torch.uint8).bool(),
        "cu_seqlens": bounds.int(),
        "cu_rows": torch.tensor([0, *(len(row) for row in rows)]).cumsum(0).int(),
        "sequence": index,
        "group": number[index],
        "position_ids": (torch.arange(int(bounds[-1])) - bounds[:-1].repeat_interleave(lengths)).int(),
        "document_ids": torch.arange(len(members), dtype=torch.int32).repeat_interleave(lengths),
        "advantages": advantage[index].repeat_interleave(lengths),
        "weights": torch.ones(int(bounds[-1])),
        "versions": versions.repeat_interleave(halves),
        "logprob_mask": is_response.repeat_interleave(halves),
    }


def m_cases(workload: Workload) -> dict[str, Case]:
    """Return what is measured of a large batch for several ranks."""
    groups = make_groups(workload)
    buffer = filled(groups)

    def draw() -> Any:
        return drive(buffer.sample(workload.groups, TASK, train_step=STEP))

    drawn = draw()
    table = sequences_of(drawn, train_step=STEP)

    memory = Memory()

    def whole(memory: Memory | None = memory) -> Any:
        table = sequences_of(draw(), train_step=STEP)
        return split(table, RANKS, pack_length=workload.pack_length, memory=memory)

    def write_out(parts: Any) -> None:
        for part in parts:
            for micro_batch in part:
                micro_batch.arrays()

    parts = whole()

    lists = [[member.to_dict() for member in group] for group in groups[::PICKLED_SHARE]]
    share = len(groups) / len(lists)
    return {
        M_SAMPLE: _case(draw),
        M_TABLE: _case(lambda: sequences_of(drawn, train_step=STEP)),
        M_SPLIT: _case(lambda: split(table, RANKS, pack_length=workload.pack_length, memory=memory)),
        M_WHOLE: _case(whole),
        M_FRESH: _case(lambda: whole(None)),
        M_ARRAYS: _case(lambda: write_out(parts)),
        PICKLE: lambda: share * per_operation(lambda: pickle.dumps(lists, pickle.HIGHEST_PROTOCOL)),
    }


def claims_of(flat: dict[str, Timing], large: dict[str, Timing]) -> list[Claim]:
    speed = flat[MEMCPY].median / flat[WHOLE].median
    claims = [
        Claim("packed batch: at least 10 % of the speed of a memcpy", f"{speed:.0%}", speed >= 0.10),
        Claim("packed batch: the aim, 25 % of the speed of a memcpy", f"{speed:.0%}", speed >= 0.25),
    ]
    peer = flat.get(TORCHRL)
    text = "packed batch: ahead of torchrl's ListStorage, which collates to the same arrays"
    if peer is None:
        claims.append(Claim(text, "not installed", None))
    else:
        ratio, with_ours = (flat[name].median / flat[WHOLE].median for name in (TORCHRL, TORCHRL_OURS))
        claims.append(Claim(text, f"{ratio:.2f}x, {with_ours:.2f}x with our collation in it", ratio > 1))
    share = large[M_WHOLE].median / large[PICKLE].median
    written = share + large[M_ARRAYS].median / large[PICKLE].median
    text = "M: sample + prepare + split in under 10 % of a pickle of the same as lists"
    claims.append(Claim(text, f"{share:.1%}, {written:.1%} with all arrays written out", share < 0.10))
    return claims


def main() -> int:
    options = arguments("Measure preparation.", "prepare.json").parse_args()
    start = perf_counter()
    print_title("reroll prepare benchmark")
    cases, size, note = flat_cases()
    flat = interleave(cases, 31 if options.quick else 101)
    cases.clear()
    _print(f"A packed batch of {FLAT}, {size / 1e6:.1f} MB", flat, MEMCPY, [note] if note else [])
    workload = M._replace(groups=M.groups // 8) if options.quick else M
    large = interleave(m_cases(workload), 11)
    notes = [f"Of the lists, one group in {PICKLED_SHARE} is pickled, and its time multiplied."]
    _print(f"Workload M: {workload}, {RANKS} ranks", large, PICKLE, notes)
    report = {
        "versions": versions(),
        "flat": {name: seconds(timing) for name, timing in flat.items()},
        "flat_bytes": size,
        "large": {name: seconds(timing) for name, timing in large.items()},
        "large_workload": workload._asdict(),
    }
    return conclude(claims_of(flat, large), report, perf_counter() - start, options)


def _print(title: str, timed: dict[str, Timing], measure: str, notes: Sequence[str]) -> None:
    rows = [
        (
            name,
            microseconds(timing.median),
            f"{timing.spread:.0%}",
            f"{timing.median / timed[measure].median:.1%}",
        )
        for name, timing in timed.items()
    ]
    print_table(title, ("", "median us", "spread", f"of {measure}"), rows, notes)


if __name__ == "__main__":
    sys.exit(main())
