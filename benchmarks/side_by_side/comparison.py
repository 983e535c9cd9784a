"""The results of a section as rows and columns, and how many times reroll is ahead of each peer."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from environments import ENVIRONMENTS
from matrix import CONTENDERS, FOOTPRINT, Metric, Section

BUSY = 1.5
"""A load before the run, in processes, above which others were at work."""
FOOTPRINT_NAMES = {"core": "reroll", "reroll": "reroll[all]"}


class Row(NamedTuple):
    """One line of a table."""

    setting: str
    metric: Metric
    title: str


class Table:
    """What a section found."""

    def __init__(self, section: Section, report: dict[str, Any]) -> None:
        self.section = section
        self.is_quick: bool = report["is_quick"]
        self._report = report
        self._cells = {(cell["setting"], cell["metric"], cell["contender"]): cell for cell in report["cells"]}
        settings = list(dict.fromkeys(setting for setting, _, _ in self._cells))
        self.contenders = [name for name in section.contenders if any(key[2] == name for key in self._cells)]
        self.rows = [
            Row(setting, metric, f"{setting}: {metric.title}, {metric.unit}".removeprefix(": "))
            for setting in settings
            for metric in section.metrics
        ]

    @property
    def is_busy(self) -> bool:
        """Whether others were at work when it began."""
        return bool(self._report["machine"]["load_before"] > BUSY)

    @property
    def machine(self) -> str:
        machine = self._report["machine"]
        how = "A quick run" if self.is_quick else "A whole run"
        return f"{how} on {machine['cpus']} cores, Python {machine['python']}, load {machine['load_before']} before it."

    @property
    def names(self) -> list[str]:
        return [self.name(contender) for contender in self.contenders]

    def name(self, contender: str) -> str:
        if self.section is FOOTPRINT:
            return FOOTPRINT_NAMES.get(contender, ENVIRONMENTS[contender].name)
        return CONTENDERS[contender].name

    def is_ours(self, contender: str) -> bool:
        return contender in FOOTPRINT_NAMES if self.section is FOOTPRINT else CONTENDERS[contender].is_ours

    def median(self, row: Row, contender: str) -> float | None:
        value = self._cells.get((row.setting, row.metric.key, contender), {}).get("median")
        return None if value is None else float(value)

    def ratio(self, row: Row, peer: str) -> float | None:
        """Return how many times reroll is ahead of a peer; None where one of both has no figure, or both have nothing."""
        ours, theirs = self.median(row, self.section.counterpart(peer)), self.median(row, peer)
        if self.is_ours(peer) or ours is None or theirs is None or ours == theirs == 0:
            return None
        better, worse = (ours, theirs) if row.metric.is_more_better else (theirs, ours)
        return float("inf") if worse == 0 else better / worse

    def cell(self, row: Row, contender: str) -> str:
        """Return the figure of a contender with its spread and ratio, or why there is none, in a word."""
        found = self._cells.get((row.setting, row.metric.key, contender))
        if found is None:
            return ""
        if "median" not in found:
            return "cannot" if "cannot" in found else "failed"
        median = found["median"]
        spread = (found["high"] - found["low"]) / 2 / median if median else 0.0
        ratio = self.ratio(row, contender)
        words = f"{number(median)} ±{spread:.0%}" if spread else number(median)
        return words if ratio is None else f"{words}; {number(ratio)}x"

    def ahead(self) -> dict[str, list[float | None]]:
        """Return the ratios of each peer, row by row, of those that have any."""
        peers = {peer: [self.ratio(row, peer) for row in self.rows] for peer in self.contenders}
        return {self.name(peer): found for peer, found in peers.items() if any(found)}

    def behind(self) -> Iterator[tuple[Row, str, float]]:
        """Yield where a peer is ahead."""
        for row in self.rows:
            for peer in self.contenders:
                ratio = self.ratio(row, peer)
                if ratio is not None and ratio < 1:
                    yield row, peer, ratio

    def told(self) -> Iterator[tuple[str, str]]:
        """Yield what is to be said of each contender: its version, how it was measured, what it cannot, why it failed."""
        for contender in self.contenders:
            about = self._report["contenders"].get(contender, {})
            version = f" ({about['version']})" if about.get("version") else ""
            words = [about["how"]] if "how" in about else []
            for kind in ("cannot", "failed"):
                whys = [
                    (cell["setting"], cell[kind])
                    for cell in self._report["cells"]
                    if cell["contender"] == contender and kind in cell
                ]
                for setting, why in dict.fromkeys(whys):
                    where = f" ({setting})" if setting and kind == "failed" else ""
                    words.append(f"{kind.capitalize()}{where}: {why}.")
            yield self.name(contender), f"{version}: {' '.join(dict.fromkeys(words))}"


def number(value: float) -> str:
    """Return three digits that count, without exponents."""
    if value == float("inf"):
        return "∞"
    size = abs(value)
    decimals = 0 if size >= 100 or value == int(value) else 1 if size >= 10 else 2 if size >= 0.1 else 4
    return f"{value:,.{decimals}f}"
