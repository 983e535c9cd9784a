"""Intervals of `metrics()`: what passed since the previous call of the same reader."""

from collections import OrderedDict
from copy import deepcopy
from dataclasses import replace
from typing import Final, NamedTuple

from reroll.buffer.arguments import checked_text
from reroll.buffer.flow import TaskFlow
from reroll.buffer.groups import Groups
from reroll.buffer.report import LOSSES, Part, Report
from reroll.engine.ledger import PUT, Amount
from reroll.errors import InvalidArgument, shown

MAX_NAMED: Final = 64
"""Named readers that a buffer remembers; the one that was silent for the longest time is forgotten for a new one."""
MAX_CONNECTIONS: Final = 1024
"""Unnamed readers of connections that a buffer remembers."""
_LONGEST: Final = 200
_OF_CONNECTION: Final = "\0"


class Mark(NamedTuple):
    """Counters at a moment, by task: an interval begins here."""

    flows: dict[str, TaskFlow]
    amounts: dict[str, dict[str, Amount]]
    seconds: float
    """Since the buffer was made or resumed."""


class Readers:
    """Where the interval of each reader begins."""

    def __init__(self, start: Mark | None = None) -> None:
        self._start = start or Mark({}, {}, 0.0)
        self._named: OrderedDict[str, Mark] = OrderedDict()
        self._connections: OrderedDict[str, Mark] = OrderedDict()
        self._unnamed: Mark | None = None

    def interval(self, report: Report, reader: str | None) -> Report:
        """Return a report whose counters are those since the reader's previous one, and begin its next interval."""
        if report.seconds is None:  # of a file, in which no time passes
            return report
        mark = Mark(
            {name: deepcopy(part.flow) for name, part in report.parts.items()},
            {name: part.amounts for name, part in report.parts.items()},
            report.seconds,
        )
        if reader is None:
            before, self._unnamed = self._unnamed, mark
        else:
            is_connection = reader.startswith(_OF_CONNECTION)
            known = self._connections if is_connection else self._named
            before = known.pop(reader, None)
            known[reader] = mark
            if len(known) > (MAX_CONNECTIONS if is_connection else MAX_NAMED):
                known.popitem(last=False)
        return _since(report, before or self._start)


def start_of(groups: Groups) -> Mark:
    """Return the counters of a buffer that is made or resumed now."""
    amounts = {name: task.ledger.amounts() for name, task in groups.engine.tasks.items()}
    return Mark(deepcopy(groups.flow.tasks), amounts, 0.0)


def checked_reader(reader: object) -> str | None:
    """Return the name of a reader. Raises InvalidArgument."""
    if reader is None:
        return None
    if not isinstance(reader, str) or not 0 < len(reader) <= _LONGEST:
        raise InvalidArgument(
            f"reader must be None or a name of 1 to {_LONGEST} characters, not {shown(reader)}"
        )
    return checked_text("reader", reader)


def connection_reader(connection: str) -> str:
    """Return the reader that belongs to a connection."""
    return _OF_CONNECTION + connection


def _since(report: Report, mark: Mark) -> Report:
    parts = {name: _part_since(name, part, mark) for name, part in report.parts.items()}
    seconds = max(0.0, (report.seconds or 0.0) - mark.seconds)
    return replace(
        report,
        parts={name: replace(part, seconds=seconds) for name, part in parts.items()},
        seconds=seconds,
    )


def _part_since(name: str, part: Part, mark: Mark) -> Part:
    before = mark.amounts.get(name, {})
    counted = {bucket: part.amounts[bucket].minus(before.get(bucket, Amount())) for bucket in (PUT, *LOSSES)}
    flow = part.flow.since(mark.flows[name]) if name in mark.flows else part.flow
    return replace(part, flow=flow, amounts={**part.amounts, **counted}, earlier=None)
