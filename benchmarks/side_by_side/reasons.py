"""Why reroll is behind a peer, where it is: shown only in cells whose measured ratio is below 1."""

UNKNOWN = "Not looked into yet."
A_PUT = (
    "A put looks at every field of every rollout, decides before it changes anything, files the group by order and by age, and "
    "counts groups and tokens: a hundred microseconds or so, once for a group that took seconds to generate. The others keep "
    "what they are given."
)
ROLLOUT_BY_ROLLOUT = (
    "Each rollout is checked, encoded and decoded in Python by the clients, and the server is one thread of Python; Reverb gets a "
    "group as six arrays, which it does not inspect, and has threads of C++."
)
ONE_BY_ONE = (
    "Small groups are Python's: each is checked, encoded, stored under an id that makes repeating safe, and acknowledged by "
    "itself, by the client and by the server. Reverb does that in C++."
)
REFERENCES = (
    "Ray's queue moves references: groups stay in the shared memory where their producer has put them, they are not inspected, and "
    "they are gone with their producer's node. reroll copies, checks and counts them."
)
ONE_TENSOR = (
    "TransferQueue gets all rows of a client as one tensor for each column, made beforehand, and stores them by one call; reroll "
    "gets groups one by one, as they come from engines."
)
SAMPLED = (
    "A sample of reroll writes the staleness of each group, counts its use and keeps the books, and the packed batch is sorted "
    "into rows; with neither, copying the tokens is the same work."
)
REPLAYED = (
    "A sample of reroll draws distinct groups, writes the staleness of each, counts its use, keeps the books, and comes with a "
    "report for each group; torchrl draws with replacement, and gives the objects and an array of indexes."
)
FEW = "With so few items a pass over all of them is quick; an insert of reroll costs the same however many there are."
OBJECTS = "The table gives 256 reports with keys and payloads, as objects of Python, under a lock and with books; the other gives arrays."
CHECKED = (
    "A saved buffer is one SQLite file with a checksum for each group and each rollout encoded by itself, written beside puts and "
    "takes that change the books, and it never runs code when it is loaded; pickle copies a few large arrays to a file, beside a "
    "list that is appended to."
)
EACH_ROLLOUT = (
    "Eight rollouts are eight objects with their own arrays, which can be handed out and reset by themselves; the other keeps a "
    "group as six arrays."
)
REASONS = {
    ("a", "us", "torchrl"): OBJECTS,
    ("a", "us", "reverb"): OBJECTS,
    ("b", "insert", "torchrl"): A_PUT,
    ("b", "insert", "cpprb"): A_PUT,
    ("b", "insert", "by_hand"): A_PUT,
    ("b", "insert", "reverb"): A_PUT,
    ("b", "batch", "torchrl"): SAMPLED,
    ("b", "batch", "by_hand"): SAMPLED,
    ("c", "", "reverb"): ROLLOUT_BY_ROLLOUT,
    ("c", "", "ray_queue"): REFERENCES,
    ("c", "", "transfer_queue"): ONE_TENSOR,
    ("c-replay", "cycle", "torchrl"): REPLAYED,
    ("d", "put", "records"): A_PUT,
    ("d", "put", "frame"): A_PUT,
    ("d-tables", "", "weights"): FEW,
    ("e", "put 262144", "reverb"): ROLLOUT_BY_ROLLOUT,
    ("e", "take 262144", "reverb"): ROLLOUT_BY_ROLLOUT,
    ("e", "", "reverb"): ONE_BY_ONE,
    ("e", "put 262144", "reverb_trajectory"): ROLLOUT_BY_ROLLOUT,
    ("e", "take 262144", "reverb_trajectory"): ROLLOUT_BY_ROLLOUT,
    ("e", "", "reverb_trajectory"): ONE_BY_ONE,
    ("e", "", "transfer_queue"): ONE_TENSOR,
    ("e", "", "ray_queue"): REFERENCES,
    ("f", "", "by_hand"): CHECKED,
    ("g", "", "by_hand"): EACH_ROLLOUT,
    ("g", "", "torchrl"): EACH_ROLLOUT,
    ("g", "", "transfer_queue"): EACH_ROLLOUT,
    (
        "g",
        "",
        "reverb",
    ): f"{EACH_ROLLOUT} Reverb compresses them besides, and masks of ones take next to nothing.",
    (
        "h",
        "",
        "cpprb",
    ): "cpprb imports numpy; reroll imports numpy, msgspec and pydantic, which checks configurations.",
}
"""By section, by how the key of the metric begins, and by peer."""


def reason(section: str, metric: str, peer: str) -> str:
    """Return why reroll is behind in a cell."""
    for (of_section, begins, of_peer), why in REASONS.items():
        if (of_section, of_peer) == (section, peer) and metric.startswith(begins):
            return why
    return UNKNOWN
