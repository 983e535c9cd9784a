"""config check: what a configuration does; what waits for ever is an error, what wastes is named."""

import json

import pytest

from server.program import run

RATIO = "{type: sample_to_insert_ratio, samples_per_insert: 2.0, min_size: 1, error_buffer: 8.0}"


@pytest.fixture
def check(tmp_path):
    def checked(text, *options, ending=".yaml"):
        file = tmp_path / f"buffer{ending}"
        file.write_text(text)
        return run("config", "check", str(file), *options)

    return checked


def test_a_configuration_is_explained(check, tmp_path):
    found = check(
        f"""
        capacity: 64
        sampler: stalest
        store: {tmp_path}/never-made
        rate_limiter: {{type: staleness_window, max_staleness: 2, batch: 8}}
        tasks:
          code: {{capacity: 8, on_failed: drop_member, min_group_size: 4, max_attempts: 3}}
        """
    )
    assert found.exit_code == 0, found.stderr
    other, code = found.stdout.split("Task 'code':")
    assert "Holds 64 COMPLETED groups; when it is full, a put waits." in other
    assert "the stalest group first" in other
    assert "at most 24 groups under way" in other
    assert "never-made before a call returns" in other
    assert "Holds 8 COMPLETED groups" in code
    assert "as long as 4 of a group stay" in code
    assert "FAILED" in code
    assert "Nothing in it waits for ever." in found.stdout
    assert "Waste" not in found.stdout
    assert not (tmp_path / "never-made").exists(), "it only looks"


def test_as_json(check):
    told = json.loads(check('{"sampler": "fifo", "max_bytes": 1000}', "--json", ending=".json").stdout)
    assert told["kind"] == "buffer"
    assert "A group is trained once." in told["tasks"][""]
    assert told["waste"] == []


@pytest.mark.parametrize(
    ("text", "waste"),
    [
        ("sampler: fifo", "nothing limits producers"),
        ("{capacity: 8, sampler: fifo, remover: fifo}", "evicted before they are trained"),
        ("{capacity: 8, sampler: prioritized, remover: fifo, max_times_sampled: 2}", "priority_signal"),
        ("{sampler: fifo, remover: fifo}", "never evicts anything"),
        ("{capacity: 8, max_times_sampled: null}", "nothing ever leaves"),
    ],
)
def test_waste_is_named(check, text, waste):
    found = check(text)
    assert found.exit_code == 0, found.stderr
    assert any(line.startswith("Waste: ") and waste in line for line in found.stdout.splitlines())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{sampler: fifo, max_times_sampled: null}", "the same items forever"),
        (
            f"{{capacity: 8, max_times_sampled: 4, rate_limiter: {RATIO}}}",
            "deadlock: once 8 items are stored",
        ),
        ("{capacity: 8, tasks: {code: {min_size: 9}}}", "lower min_size"),
        ("capacity: 0", "capacity: Input should be greater than or equal to 1"),
        ("{capacty: 8}", "capacty: there is no such option; did you mean capacity?"),
        ("{tasks: {code: {colour: 8}}}", "tasks.code.colour: there is no such option"),
        ("{min_size: 1, rate_limiter: unlimited}", "give min_size or rate_limiter, not both"),
        ("{a: [", "is not valid YAML"),
        ("[1, 2]", "buffer.yaml must hold options and values, not [1, 2]"),
        ("{num_ranks: 8}", "num_ranks: there is no such option here; it is one of a preparation"),
        (
            "{global_batch_size: 8, pack_length: 9, capacity: 8}",
            "capacity: there is no such option here; it is one of a whole buffer, in a preparation replay_buffer.capacity",
        ),
        (
            "{tasks: {code: {store: here}}}",
            "tasks.code.store: there is no such option here; it is one of a whole",
        ),
    ],
)
def test_what_can_never_work_is_one_line(check, text, said):
    found = check(text)
    assert found.exit_code == 2, found.stdout
    (line,) = found.stderr.splitlines()
    assert said in line


def test_a_preparation_is_explained(check):
    found = check("{global_batch_size: 16, pack_length: 4096, num_ranks: 2, async_steps: 1}")
    assert found.exit_code == 0, found.stderr
    assert "A step is 16 groups for 2 ranks" in found.stdout
    assert "Holds 48 COMPLETED groups" in found.stdout
    assert "Task 'train' of its buffer:" in found.stdout
    assert "other task" not in found.stdout
    assert "Waste" not in found.stdout


def test_a_preparation_tells_of_groups_filters_and_advantages(check):
    text = (
        "{global_batch_size: 16, pack_length: 4096, group_size: 8, min_group_size: 4, filter_zero_std: true}"
    )
    found = check(text)
    assert found.stdout.splitlines()[0].endswith("buffer.yaml: a preparation")
    assert "A result has 8 responses, or at least 4." in found.stdout
    assert "Groups whose rewards do not differ are filtered." in found.stdout
    assert "A step waits until 16 groups have passed." in found.stdout
    assert "Advantages: grpo." in found.stdout
    told = json.loads(check(text, "--json").stdout)
    assert (told["kind"], len(told["preparation"])) == ("preparation", 5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.yaml", "nowhere.yaml"),
        ("buffer.ini", "ending"),
        ("buffer.toml", "buffer.toml is not valid TOML"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, name, said):
    if name != "nowhere.yaml":
        (tmp_path / name).write_text("capacity =")
    found = run("config", "check", str(tmp_path / name))
    assert found.exit_code == 2
    (line,) = found.stderr.splitlines()
    assert said in line
