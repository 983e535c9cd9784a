"""Public objects are shown in one short line, and as a table in notebooks."""

import re

import pytest

import reroll
from reroll import GroupBatch, ReplayBufferConfig, Rollout, RolloutGroup
from reroll.display import MAX_ROWS, html_table
from reroll.prepare import BlockingPreparer, GenerationResult, PrepareConfig


def group(number=1, size=4, tokens=500):
    return [
        Rollout(
            group_id=f"<prompt {number}>",
            prompt_ids=[1] * 20,
            response_ids=[number] * tokens,
            logprobs=[-0.5] * tokens,
            reward=float(place),
            status="completed",
        )
        for place in range(size)
    ]


@pytest.fixture
def buffer():
    with ReplayBufferConfig(max_times_sampled=2).build_blocking() as made:
        for number in range(1, 31):
            made.put(group(number), "<math>", model_step=1)
        yield made


def step_data():
    results = [
        GenerationResult(
            prompt_id=number,
            prompt_ids=[1, 2],
            responses=[[3] * 50, [4] * 60],
            logprobs=[[-0.5] * 50, [-0.5] * 60],
            finish_reasons=["stop", "stop"],
            rewards=[1.0, 0.0],
        )
        for number in range(2)
    ]
    preparer = BlockingPreparer(PrepareConfig(global_batch_size=2, pack_length=256), iter(results))
    preparer.start()
    try:
        return preparer.get_data(0, 1, 20)
    finally:
        preparer.shutdown()


def objects(buffer):
    batch = buffer.lease({"<math>": 2}).take()
    yield buffer
    yield batch
    yield RolloutGroup.of(batch.groups["<math>"][0])
    yield GroupBatch.of(buffer.sample(8, "<math>"))
    yield buffer.stats()
    yield buffer.ledger()
    yield step_data()


def test_each_is_one_short_line_and_a_table(buffer):
    for shown in objects(buffer):
        line = repr(shown)
        assert "\n" not in line
        assert len(line) < 200, line
        page = shown._repr_html_()
        assert 100 < len(page) < 5_000
        assert page.count("<table>") == page.count("</table>") == 1
        assert "<math>" not in page, "names are escaped"
        assert "<prompt" not in page


async def test_an_asyncio_buffer_and_its_batch():
    async with ReplayBufferConfig().build() as made:
        await made.put(group(), "math")
        async with made.lease({"math": 1}) as batch:
            assert "<td>math</td>" in batch._repr_html_()
        assert re.search(r"<td>math</td><td>1</td>", made._repr_html_())


def test_a_buffer_in_a_file(tmp_path, buffer):
    buffer.save(tmp_path)
    with reroll.open_readonly(tmp_path) as saved:
        assert "<td>30</td>" in saved._repr_html_()


def test_a_ledger_is_a_dict_and_names_its_buckets(buffer):
    buffer.get(3, "<math>", "completed")
    ledger = buffer.ledger()
    assert repr(ledger) == "<Ledger <math>: 30 put = 27 resident + 3 consumed>"
    assert ledger == dict(ledger)
    assert repr(ReplayBufferConfig().build_blocking().ledger()) == "<Ledger without tasks>"


def test_long_tables_are_cut():
    page = html_table("title", ["a"], ([number] for number in range(1000)), 1000)
    assert page.count("<td>") == MAX_ROWS
    assert f"and {1000 - MAX_ROWS} more" in page


def test_values_in_tables():
    page = html_table("", ["a"], [[None], [True], [1_000], [0.123456], ["<b>"]], 5)
    assert re.findall(r"<td>(.*?)</td>", page) == ["", "True", "1,000", "0.1235", "&lt;b&gt;"]
