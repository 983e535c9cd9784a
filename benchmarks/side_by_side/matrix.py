"""What is measured, of whom: the sections of the comparison, their settings, and their contenders. No code of anybody."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Contender(NamedTuple):
    """Somebody who is measured: a module of contenders/, run by the Python of an environment."""

    module: str
    name: str
    environment: str
    is_ours: bool = False


CONTENDERS = {
    contender.module: contender
    for contender in (
        Contender("reroll_numba", "reroll, compiled", "reroll", is_ours=True),
        Contender("reroll_numpy", "reroll, numpy", "reroll", is_ours=True),
        Contender("reroll_table", "reroll `Table`", "reroll", is_ours=True),
        Contender("reroll_buffer", "reroll", "reroll", is_ours=True),
        Contender("reroll_server", "reroll server", "reroll", is_ours=True),
        Contender("reroll_ray", "reroll on Ray", "reroll", is_ours=True),
        Contender("cpprb", "cpprb", "cpprb"),
        Contender("torchrl", "torchrl", "torchrl"),
        Contender("torchrl_sampler", "torchrl, sampler alone", "torchrl"),
        Contender("reverb", "Reverb", "reverb"),
        Contender("reverb_trajectory", "Reverb, newer writer", "reverb"),
        Contender("transfer_queue", "TransferQueue", "transfer_queue"),
        Contender("ray_queue", "Ray's queue", "reroll"),
        Contender("by_hand", "arrays by hand", "reroll"),
        Contender("lists", "lists by hand", "reroll"),
        Contender("records", "dict of records", "reroll"),
        Contender("frame", "pandas frame", "reroll"),
        Contender("weights", "keys and weights", "reroll"),
    )
}


class Metric(NamedTuple):
    """One figure of a contender, and whether more of it is better."""

    key: str
    title: str
    unit: str
    is_more_better: bool


class Setting(NamedTuple):
    """One size of the work."""

    title: str
    values: Mapping[str, Any]


class Section(NamedTuple):
    """One table: the same cell of every contender, at several settings."""

    id: str
    title: str
    about: str
    """What is done, in a sentence or two."""
    cell: str
    metrics: Sequence[Metric]
    contenders: Sequence[str]
    settings: Sequence[Setting]
    quick: Sequence[Setting]
    rounds: int
    budget_s: float
    """When a section has taken so long, no further round begins, unless there were fewer than three."""
    ours: Mapping[str, str] = {}
    """Who of us each peer is compared with; if nobody is named, the first contender."""
    quick_rounds: int = 3
    is_fresh: bool = False
    """Whether every round has processes of its own."""

    def counterpart(self, peer: str) -> str:
        return self.ours.get(peer, self.contenders[0])


def _sizes(name: str, values: Sequence[int], what: str) -> list[Setting]:
    return [Setting(f"{value:,} {what}".strip(), {name: value}) for value in values]


# Rollouts, tokens of a response, tokens of the prompt, sigma of the lengths, longest.
S, M, L = (8, 2000, 256), (16, 4000, 256, 1.0, 28_000), (32, 100_000, 1000)


def _steps(m_groups: int, l_groups: int) -> Setting:
    """Return the loads of a step: a shape, groups, producers and readers."""
    loads = {"S": (S, 32, 1, 1), "M": (M, m_groups, 4, 2), "L": (L, l_groups, 4, 2)}
    return Setting(f"32 groups of S, {m_groups} of M, {l_groups} of L", {"loads": loads})


SIZES = {400: "400 B", 4096: "4 KB", 40_960: "40 KB", 262_144: "256 KB"}
CLIENTS = (1, 4)
SECTIONS = (
    Section(
        "a",
        "A prioritized cycle",
        "Sample 256 rows by priority, with importance weights, and give these rows new priorities. Processor time of the "
        "calling thread, but for Reverb, which is another process.",
        "cycle",
        (Metric("us", "one cycle", "us", False),),
        (
            "reroll_numba",
            "reroll_numpy",
            "reroll_table",
            "cpprb",
            "torchrl_sampler",
            "torchrl",
            "reverb",
            "transfer_queue",
        ),
        _sizes("rows", (10**4, 10**5, 10**6), "rows"),
        _sizes("rows", (10**4,), "rows"),
        rounds=31,
        budget_s=150,
        ours={"torchrl": "reroll_table", "reverb": "reroll_table"},
    ),
    Section(
        "b",
        "Groups of varied length",
        "8 responses around 1,000 tokens (log-normal, sigma 1, at most 8,192) and a prompt of 128: put 64 groups into a full "
        "store, and sample 64 groups at random and pack them to one batch of eleven arrays.",
        "packed",
        (Metric("insert", "put", "groups/s", True), Metric("batch", "sample and pack 64", "batches/s", True)),
        ("reroll_buffer", "torchrl", "cpprb", "reverb", "by_hand", "transfer_queue"),
        _sizes("groups", (2000,), "groups"),
        _sizes("groups", (256,), "groups"),
        rounds=21,
        budget_s=90,
    ),
    Section(
        "c",
        "A training step, end to end",
        "Readers wait for their share of the step, producers put it; the time until the last reader has its groups. S: 8 "
        "responses of 2,000 tokens, one producer, one reader. M: 16 around 4,000 (log-normal, sigma 1, at most 28,000), L: 32 of "
        "100,000, both with 4 producers and 2 readers, all processes on one machine. A large run has 8 and 4, and 64 groups of "
        "L; here it is what 2 cores and 24 GB can hold.",
        "step",
        tuple(Metric(f"step {load}", f"a step of {load}", "s", False) for load in ("S", "M", "L")),
        ("reroll_server", "reroll_ray", "reverb", "transfer_queue", "ray_queue"),
        (_steps(512, 16),),
        (_steps(64, 4),),
        rounds=9,
        budget_s=300,
        ours={"transfer_queue": "reroll_ray", "ray_queue": "reroll_ray"},
    ),
    Section(
        "c-replay",
        "A store that is replayed by priority",
        "Workload R: groups of 8 x (256 + 4,096) tokens, which share their arrays so that they fit; sample 64 by priority, "
        "and give these new priorities.",
        "replay",
        (Metric("cycle", "sample 64 and update them", "cycles/s", True),),
        ("reroll_buffer", "torchrl", "cpprb", "reverb", "transfer_queue"),
        _sizes("groups", (50_000,), "groups"),
        _sizes("groups", (5_000,), "groups"),
        rounds=31,
        budget_s=90,
    ),
    Section(
        "d",
        "Designs that look at every group",
        "The rollout buffer of one starting point, whose calls ask every group, with the same objects at growing sizes: 8 x (256 + "
        "1,024) tokens as lists, at 100,000 groups 8 x (16 + 32), so that they fit. Processor time.",
        "scan",
        (
            Metric("count", "count", "us", False),
            Metric("take", "take 64", "us", False),
            Metric("refresh", "refresh, nothing expires", "us", False),
            Metric("put", "put, with versions", "us", False),
        ),
        ("reroll_buffer", "records", "frame"),
        _sizes("groups", (1000, 10_000, 100_000), "groups"),
        _sizes("groups", (1000, 10_000), "groups"),
        rounds=7,
        budget_s=240,
    ),
    Section(
        "d-tables",
        "Designs that weigh every item",
        "The table of the other starting point, which gathers all keys and weights for each sample and each eviction.",
        "weigh",
        (
            Metric("sample", "sample 64 by priority", "us", False),
            Metric("evict", "insert into a full table", "us", False),
        ),
        ("reroll_table", "weights"),
        _sizes("groups", (1000, 10_000, 100_000), "items"),
        _sizes("groups", (1000, 10_000), "items"),
        rounds=7,
        budget_s=60,
    ),
    Section(
        "e",
        "From other processes",
        "Each client puts groups, then each takes as many; server and clients are processes of their own on one machine.",
        "remote",
        tuple(
            Metric(
                f"{verb} {size} {number}",
                f"{verb}, {label}, {number} client{'s' * (number > 1)}",
                "groups/s",
                True,
            )
            for verb in ("put", "take")
            for size, label in SIZES.items()
            for number in CLIENTS
        ),
        ("reroll_server", "reroll_ray", "reverb", "reverb_trajectory", "transfer_queue", "ray_queue"),
        (Setting("", {"sizes": list(SIZES), "clients": CLIENTS}),),
        (Setting("", {"sizes": list(SIZES), "clients": CLIENTS}),),
        rounds=9,
        budget_s=360,
        ours={"transfer_queue": "reroll_ray", "ray_queue": "reroll_ray"},
    ),
    Section(
        "f",
        "Checkpoints",
        "Groups of 64 KB are saved and loaded again, on the same disk; stall: how long others are held up at most meanwhile.",
        "checkpoint",
        (
            Metric("save", "save", "MB/s", True),
            Metric("resume", "resume", "MB/s", True),
            Metric("stall", "longest stall", "ms", False),
        ),
        ("reroll_buffer", "reverb", "transfer_queue", "by_hand", "lists"),
        _sizes("groups", (2000,), "groups"),
        _sizes("groups", (200,), "groups"),
        rounds=5,
        budget_s=150,
        quick_rounds=1,
    ),
    Section(
        "g",
        "Memory",
        "What a process grows by when it keeps groups of varied length (those of b), all included. 9 bytes a token of a "
        "response and 4 of a prompt are the numbers themselves.",
        "memory",
        (Metric("group", "a group", "bytes", False), Metric("token", "a token", "bytes", False)),
        ("reroll_buffer", "by_hand", "lists", "torchrl", "cpprb", "reverb", "transfer_queue"),
        _sizes("groups", (2000,), "groups"),
        _sizes("groups", (500,), "groups"),
        rounds=3,
        budget_s=120,
        quick_rounds=1,
        is_fresh=True,
    ),
    Section(
        "i",
        "Crash",
        "Groups of 4 KB are put one by one; when the last put has returned, the process that owns them is killed with SIGKILL. "
        "Then it is started again, and what was acknowledged and is gone is counted.",
        "crash",
        (
            Metric("acknowledged", "acknowledged", "groups", True),
            Metric("lost", "of these lost", "groups", False),
        ),
        (
            *(
                "reroll_buffer",
                "reroll_server",
                "reroll_ray",
                "reverb",
                "transfer_queue",
                "ray_queue",
                "by_hand",
            ),
            *("torchrl", "cpprb"),
        ),
        _sizes("groups", (250,), "groups"),
        _sizes("groups", (250,), "groups"),
        rounds=3,
        budget_s=120,
        quick_rounds=1,
        is_fresh=True,
    ),
)
FOOTPRINT = Section(
    "h",
    "Import and environment",
    "Importing in a fresh process, and what the packages of an environment of its own take on disk.",
    "footprint",
    (Metric("import", "import", "s", False), Metric("disk", "packages", "MB", False)),
    ("core", "reroll", "cpprb", "torchrl", "reverb", "transfer_queue"),
    (Setting("", {}),),
    (Setting("", {}),),
    rounds=5,
    budget_s=60,
    quick_rounds=1,
)
