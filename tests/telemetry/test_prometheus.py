"""The text that Prometheus reads: every family, closed histograms, labels that cannot break a line."""

import re
from pathlib import Path

import pytest

from observe.groups import CONFIG, fill, group
from reroll.telemetry.metrics import METRICS, prometheus_text

LINE = re.compile(r'^([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (-?[0-9.e+-]+)$')
DOCS = Path(__file__).parents[2] / "docs" / "observe.md"


def read(text):
    """Return the values by name and labels, as Prometheus would read them."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = LINE.fullmatch(line).groups()
        pairs = re.findall(r'([a-z]+)="((?:[^"\\]|\\.)*)"', labels or "")
        found[name, tuple(sorted(pairs))] = float(value)
    return found


def series(found, name, **labels):
    return found[name, tuple(sorted(labels.items()))]


@pytest.fixture
async def rendered():
    async with CONFIG.build() as buffer:
        await fill(buffer)
        stats, ledger = await buffer.stats(), await buffer.ledger()
    return stats, ledger, prometheus_text(stats, ledger)


async def test_numbers_are_those_of_the_stats(rendered):
    stats, ledger, text = rendered
    found = read(text)
    assert series(found, "reroll_groups", task="math", status="failed") == 1
    assert series(found, "reroll_puts_total", task="code", status="completed") == 4
    assert series(found, "reroll_put_tokens_total", task="math") == stats.tasks["math"].put.tokens
    assert series(found, "reroll_trained_groups_total", task="math") == 2
    assert series(found, "reroll_ledger_groups", task="math", bucket="consumed") == 2
    assert series(found, "reroll_capacity_groups", task="math") == 100
    assert series(found, "reroll_inserts_left", task="math") == 94
    assert series(found, "reroll_memory_bytes") == stats.num_bytes
    buckets = {
        dict(labels)["bucket"]: value
        for (name, labels), value in found.items()
        if name == "reroll_ledger_tokens" and ("task", "math") in labels
    }
    assert buckets.pop("put") == sum(buckets.values()) == ledger["math"]["put"].tokens


async def test_histograms_are_cumulative_and_whole(rendered):
    stats, _, text = rendered
    found = read(text)
    for histogram in [metric for metric in METRICS if metric.kind == "histogram"]:
        name = histogram.family
        for task, told in stats.tasks.items():
            distribution = histogram.read(told)
            bounds = [*map(str, histogram.bounds), "+Inf"]
            counts = [series(found, f"{name}_bucket", task=task, le=bound) for bound in bounds]
            assert counts == sorted(counts)
            assert counts[-1] == series(found, f"{name}_count", task=task) == distribution.count
            assert series(found, f"{name}_sum", task=task) == distribution.total
    # groups of 2 rollouts each, with 2, 5, 8 and 11 response tokens: none above 15, and no power of two below 7 is split
    assert series(found, "reroll_produced_response_tokens_bucket", task="code", le="15") == 8
    assert series(found, "reroll_trained_staleness_bucket", task="math", le="0") == 0
    assert series(found, "reroll_trained_staleness_bucket", task="math", le="1") == 2


async def test_task_names_are_escaped():
    async with CONFIG.build() as buffer:
        await buffer.put(group(2), 'a"b\\c\nd')
        found = read(prometheus_text(await buffer.stats(), await buffer.ledger()))
    assert series(found, "reroll_groups", task=r"a\"b\\c\nd", status="completed") == 1


async def test_an_empty_buffer_and_warnings():
    async with CONFIG.build() as buffer:
        found = read(prometheus_text(await buffer.stats(), await buffer.ledger()))
        assert ("reroll_leases", ()) in found
        for _ in range(20):
            await buffer.put(group(2, status="failed"), "t")
        found = read(prometheus_text(await buffer.stats(), await buffer.ledger()))
        assert series(found, "reroll_warning", task="t", kind="failing") == 1


async def test_every_family_is_told_and_documented(rendered):
    _, _, text = rendered
    documented = DOCS.read_text()
    for name, kind in [(metric.family, metric.kind) for metric in METRICS if metric.family is not None]:
        assert text.count(f"# TYPE {name} {kind}\n") == 1
        assert text.count(f"# HELP {name} ") == 1
        assert f"`{name}`" in documented
