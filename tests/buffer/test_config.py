"""Configurations: from code, dict, YAML, TOML and JSON; what differs by task; what is refused."""

import pydantic
import pytest
import yaml
from hypothesis import given

from buffer.configs import buffer_configs
from reroll import (
    AsyncReplayBufferConfig,
    Fifo,
    InvalidConfig,
    Lifo,
    MinSize,
    Prioritized,
    Queue,
    ReplayBufferConfig,
    SampleToInsertRatio,
    Stalest,
    Status,
    SyncReplayBufferConfig,
    TaskConfig,
    Uniform,
)
from reroll.testing.buffer.builders import group, names

MIXED = ReplayBufferConfig(
    capacity=50,
    sampler=Prioritized(alpha=0.6, half_life=4.0),
    remover=Fifo(),
    max_times_sampled=3,
    rate_limiter=SampleToInsertRatio(1.5, 10, (5.0, 40.0)),
    expire="member",
    on_failed="drop_member",
    min_group_size=2,
    max_attempts=4,
    rejected_capacity=7,
    max_bytes=10_000,
    out_ttl_s=60.0,
    seed=3,
    tasks={"code": TaskConfig(sampler=Lifo(), rate_limiter=Queue(8)), "math": TaskConfig(min_size=5)},
)
YAML = """
capacity: 50
sampler: {type: prioritized, alpha: 0.6, half_life: 4.0}
remover: fifo
max_times_sampled: 3
rate_limiter: {type: sample_to_insert_ratio, samples_per_insert: 1.5, min_size: 10, error_buffer: [5.0, 40.0]}
expire: member
on_failed: drop_member
min_group_size: 2
max_attempts: 4
rejected_capacity: 7
max_bytes: 10000
out_ttl_s: 60
seed: 3
tasks:
  code: {sampler: lifo, rate_limiter: {type: queue, size: 8}}
  math: {min_size: 5}
"""
TOML = """
capacity = 50
sampler = {type = "prioritized", alpha = 0.6, half_life = 4.0}
remover = "fifo"
max_times_sampled = 3
expire = "member"
on_failed = "drop_member"
min_group_size = 2
max_attempts = 4
rejected_capacity = 7
max_bytes = 10000
out_ttl_s = 60
seed = 3
[rate_limiter]
type = "sample_to_insert_ratio"
samples_per_insert = 1.5
min_size = 10
error_buffer = [5.0, 40.0]
[tasks.code]
sampler = "lifo"
rate_limiter = {type = "queue", size = 8}
[tasks.math]
min_size = 5
"""


@pytest.mark.parametrize("ending", ["yaml", "yml", "toml", "json"])
def test_a_file_says_what_code_says(tmp_path, ending):
    texts = {"yaml": YAML, "yml": YAML, "toml": TOML, "json": MIXED.model_dump_json()}
    path = tmp_path / f"buffer.{ending}"
    path.write_text(texts[ending])
    assert ReplayBufferConfig.from_file(path) == MIXED
    assert ReplayBufferConfig.from_file(str(path)).for_task("code") == MIXED.for_task("code")


@given(config=buffer_configs())
def test_round_trips(config):
    assert ReplayBufferConfig.model_validate(config.model_dump()) == config
    assert ReplayBufferConfig.model_validate_json(config.model_dump_json()) == config
    assert (
        ReplayBufferConfig.model_validate(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))))
        == config
    )
    for task in ("a", "b", "c"):
        again = ReplayBufferConfig.model_validate_json(config.model_dump_json())
        assert again.for_task(task) == config.for_task(task)


def test_an_empty_file_is_the_default(tmp_path):
    for ending in ("yaml", "toml"):
        (tmp_path / f"empty.{ending}").write_text("")
        assert ReplayBufferConfig.from_file(tmp_path / f"empty.{ending}") == ReplayBufferConfig()


def test_other_files_are_refused(tmp_path):
    (tmp_path / "buffer.ini").write_text("")
    with pytest.raises(InvalidConfig, match="ending"):
        ReplayBufferConfig.from_file(tmp_path / "buffer.ini")
    (tmp_path / "list.yaml").write_text("- capacity")
    with pytest.raises(ValueError):
        ReplayBufferConfig.from_file(tmp_path / "list.yaml")


WRONG = {
    "unknown key": {"capcity": 3},
    "unknown key of a task": {"tasks": {"t": {"capcity": 3}}},
    "key of the buffer in a task": {"tasks": {"t": {"max_bytes": 3}}},
    "unknown sampler": {"sampler": "best"},
    "unknown option of a sampler": {"sampler": {"type": "fifo", "size": 1}},
    "unknown limiter": {"rate_limiter": {"type": "speed"}},
    "unknown option of a limiter": {"rate_limiter": {"type": "queue", "size": 3, "speed": 1}},
    "missing option of a limiter": {"rate_limiter": {"type": "queue"}},
    "no room": {"capacity": 0},
    "negative room": {"capacity": -1},
    "text": {"capacity": "3"},
    "half": {"capacity": 1.5},
    "boolean": {"capacity": True},
    "no use": {"max_times_sampled": 0},
    "min_size": {"min_size": 0},
    "two limiters": {"min_size": 2, "rate_limiter": MinSize(3)},
    "expire": {"expire": "token"},
    "on_failed": {"on_failed": "ignore"},
    "attempts": {"max_attempts": 0},
    "ttl": {"out_ttl_s": 0},
    "endless ttl": {"out_ttl_s": float("inf")},
    "rejected": {"rejected_capacity": -1},
    "bytes": {"max_bytes": 0},
}


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused(options):
    with pytest.raises(ValueError):
        ReplayBufferConfig(**options)
    with pytest.raises(ValueError):
        ReplayBufferConfig.model_validate(options)


def test_an_unknown_key_is_named():
    with pytest.raises(pydantic.ValidationError, match="capcity"):
        ReplayBufferConfig(tasks={"t": {"capcity": 3}})


STUCK = {
    "min_size above capacity": {"capacity": 2, "min_size": 3},
    "the same items forever": {"sampler": "fifo", "max_times_sampled": None},
    "in a task": {"tasks": {"t": {"capacity": 2, "min_size": 3}}},
    "by inheritance": {"capacity": 2, "tasks": {"t": {"min_size": 3}}},
    "ratio without room": {
        "capacity": 1,
        "rate_limiter": SampleToInsertRatio(1.0, 1, (1.0, 3.0)),
    },
}


@pytest.mark.parametrize("options", STUCK.values(), ids=STUCK)
@pytest.mark.parametrize("build", ["build", "build_blocking"])
def test_what_can_never_proceed_is_refused_when_it_is_built(options, build):
    config = ReplayBufferConfig(**options)
    with pytest.raises(InvalidConfig):
        getattr(config, build)()


def test_what_differs_by_task():
    config = ReplayBufferConfig(
        capacity=9,
        sampler="lifo",
        min_size=2,
        tasks={
            "own": {"capacity": 3},
            "limited": TaskConfig(rate_limiter=Queue(4)),
            "free": {"capacity": None, "sampler": "uniform"},
        },
    )
    assert (config.for_task("own").capacity, config.for_task("own").sampler) == (3, Lifo())
    assert config.for_task("own").limiter(1) == MinSize(2)
    assert config.for_task("limited").limiter(1) == Queue(4)
    assert (config.for_task("free").capacity, config.for_task("free").sampler) == (None, Uniform())
    assert config.for_task("other").capacity == 9


def test_the_presets():
    assert ReplayBufferConfig().sampler == Uniform()
    assert SyncReplayBufferConfig().sampler == Fifo()
    assert AsyncReplayBufferConfig().sampler == Stalest()
    for preset in (SyncReplayBufferConfig, AsyncReplayBufferConfig):
        config = preset(capacity=5, tasks={"t": {"capacity": 7}}, seed=1)
        assert (config.capacity, config.max_times_sampled, config.remover) == (5, 1, None)
        assert config.for_task("t").sampler == preset().sampler
        assert preset.model_validate_json(config.model_dump_json()) == config


async def test_the_asynchronous_preset_gives_the_stalest_first():
    buffer = AsyncReplayBufferConfig().build()
    for name, staleness in zip("abcd", (3, 8, 3, 3), strict=True):
        await buffer.put(group(name, seq_staleness=staleness), "t")
    assert names(await buffer.get(4, "t", Status.COMPLETED)) == ["b", "a", "c", "d"]


async def test_the_same_seed_gives_the_same_samples():
    async def drawn(seed):
        buffer = ReplayBufferConfig(seed=seed).build()
        for name in range(30):
            await buffer.put(group(name), "t")
        return names(await buffer.get(30, "t", Status.COMPLETED))

    assert await drawn(5) == await drawn(5) != await drawn(6)
    assert sorted(await drawn(5)) == list(range(30))


def test_a_configuration_does_not_change():
    config = ReplayBufferConfig()
    with pytest.raises(ValueError):
        config.capacity = 3
