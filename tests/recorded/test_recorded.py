"""Recorded calls: the same calls give the same results, order, random draws and ledger as when they were recorded.

A change that is meant to change results records them anew, and its commit says why: `python -m recorded.record` in `tests/`.
"""

import json
from pathlib import Path

import pytest

from recorded.calls import BLOCK, CONFIGS, digests

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())


async def compare(name, directory, blocks):
    found = await digests(name, directory, blocks * BLOCK)
    for block, (now, then) in enumerate(zip(found, RECORDED[name][:blocks], strict=True)):
        assert now == then, f"calls {block * BLOCK} to {(block + 1) * BLOCK} of {name!r} gave other results"


@pytest.mark.parametrize("name", CONFIGS)
async def test_the_first_calls_give_the_recorded_results(name, tmp_path):
    await compare(name, tmp_path, blocks=6)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CONFIGS)
async def test_all_calls_give_the_recorded_results(name, tmp_path):
    await compare(name, tmp_path, blocks=len(RECORDED[name]))
