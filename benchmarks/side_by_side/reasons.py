"""Why reroll is behind a peer, where it is: shown only in cells whose measured ratio is below 1."""

UNKNOWN = "Not looked into yet."
REASONS: dict[tuple[str, str, str], str] = {}
"""By section, by how the key of the metric begins, and by peer."""


def reason(section: str, metric: str, peer: str) -> str:
    """Return why reroll is behind in a cell."""
    for (of_section, begins, of_peer), why in REASONS.items():
        if (of_section, of_peer) == (section, peer) and metric.startswith(begins):
            return why
    return UNKNOWN
