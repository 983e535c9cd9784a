"""inspect, show and export: on a saved buffer, on a durable one, and on the process of a server."""

import json
import subprocess

import pytest

from cli.looked_at import fill_server, save
from reroll import ReplayBufferConfig, Rollout
from server.program import COMMAND, Program, run

TARGETS = ["saved", "store", "server"]


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("looked_at")
    save(folder)
    with Program(bind=f"ipc://{folder}/socket") as server:
        fill_server(server.address)
        yield {"saved": str(folder / "saved"), "store": str(folder / "store"), "server": server.address}


@pytest.fixture(params=TARGETS)
def target(request, targets):
    return targets[request.param]


def done(*arguments):
    """Run a command that succeeds, and return what it prints."""
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def wrong(*arguments):
    """Run a command that is wrong, and return its one line."""
    result = run(*arguments)
    assert result.exit_code == 2, result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("reroll: ")
    return line


# --- inspect


def test_inspect_shows_tasks_ledger_and_rows(target):
    shown = done("inspect", target)
    words = shown.split()
    for name in ("math", "code", "completed", "failed", "staleness", "11", "groups,", "resident", "trained"):
        assert name in words, name
    assert "Rows 1 to 10 of 11" in shown
    assert "n=11" in shown


def test_inspect_filters_orders_and_limits(target):
    where = '{"task_name": "math", "status": "completed"}'
    shown = done(
        "inspect", target, "--where", where, "--order-by=-num_tokens", "--limit", "2", "--offset", "1"
    )
    assert "Rows 2 to 3 of 6" in shown
    assert [word for word in shown.split() if word.startswith("n=")] == ["n=10", "n=8"]


def test_inspect_as_json(target):
    told = json.loads(done("inspect", target, "--json", "--where", '{"tags.n": 6}'))
    assert (told["matching"], told["rows"][0]["tags"]) == (1, {"n": 6})
    assert told["stats"]["tasks"]["math"]["statuses"]["failed"] == 1
    assert told["ledger"]["math"]["put"]["groups"] == 9
    assert told["stats"]["total"]["produced"]["lengths"]["mean"] > 0
    assert told["stats"]["warnings"] == []


def test_limits_are_of_running_buffers(targets):
    assert "Limits" in done("inspect", targets["server"])
    assert "Limits" not in done("inspect", targets["saved"]), "a file knows no configuration"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--where", '{"reward": 1}'), "where.reward: unknown field"),
        (("--where", '{"uid": {"$above": 1}}'), 'where.uid["$above"]'),
        (("--where", "{uid: 1}"), "--where is no JSON"),
        (("--where", "[]"), "--where must be a JSON object"),
        (("--order-by", "length"), "order_by must be one of uid"),
    ],
)
def test_a_wrong_question_is_one_line(target, options, said):
    assert said in wrong("inspect", target, *options)


# --- show


def uid_of(target, n):
    (row,) = json.loads(done("inspect", target, "--json", "--where", f'{{"tags.n": {n}}}'))["rows"]
    return str(row["uid"])


def test_show_tells_prompt_rewards_and_versions(target):
    shown = done("show", target, uid_of(target, 6))
    for text in ("reward 0", "reward 1", "completed, 8 tokens", "the answer", "10 11 12 13 14 15 16 17"):
        assert text in shown
    assert "version 0: 4, version 1: 4" in shown
    assert "reward_mean 0.5, reward_std 0.5" in shown
    assert "dim: masked out" in shown
    assert "<script>alert(1)</script> [red]x[/red] \\x1b[31mred" in shown, (
        "as text, and nothing steers the terminal"
    )
    assert "\x1b" not in shown


def test_ids_of_groups_are_shown_and_no_legend_of_what_is_not_there(tmp_path):
    with ReplayBufferConfig(store=tmp_path / "store").build_blocking() as buffer:
        rollout = Rollout(group_id="prompt-7", response_ids=[1, 2], reward=1 / 3, status="completed")
        uid = buffer.put([rollout], "math", model_step=4)
    assert "prompt-7" in done("inspect", str(tmp_path / "store"))
    shown = done("show", str(tmp_path / "store"), str(uid))
    assert "group_id prompt-7, status completed" in shown
    assert "version 4, " in shown
    assert "reward_mean 0.3333," in shown
    assert "masked" not in shown


def test_show_as_json_and_cut(target):
    told = json.loads(done("show", target, uid_of(target, 6), "--json", "--max-tokens", "3"))
    assert [rollout["score"] for rollout in told["rollouts"]] == [0.0, 1.0]
    assert told["rollouts"][0]["versions"] == [[0, 3]]
    assert "and 5 tokens more" in done("show", target, uid_of(target, 6), "--max-tokens", "3")


def test_show_decodes_with_a_tokenizer(targets, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{number}": number for number in range(64)}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))  # noqa: S106  (no password)
    model.save(str(tmp_path / "tokenizer.json"))
    options = ("--tokenizer", str(tmp_path / "tokenizer.json"))
    shown = done("show", targets["saved"], uid_of(targets["saved"], 6), *options)
    assert "w10 w11 w12 w13" in shown
    told = json.loads(done("show", targets["saved"], uid_of(targets["saved"], 6), "--json", *options))
    assert told["rollouts"][0]["decoded"].startswith("w10 w11")
    assert "cannot load the tokenizer" in wrong("show", targets["saved"], "1", "--tokenizer", __file__)


def test_show_what_is_not_there(target):
    assert "no group has uid 999" in wrong("show", target, "999")
    assert "No module named 'nowhere_at_all'" in wrong("show", target, "1", "--import", "nowhere_at_all")


# --- export


def test_export_writes_rollouts(target, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "rollouts.parquet"
    assert "11 groups" in done("export", target, str(out))
    table = parquet.read_table(out)
    assert table.num_rows == 22
    first = table.slice(0, 1).to_pylist()[0]
    assert first["response_ids"] == [10, 11]
    assert (first["task_name"], first["response"], first["response_model_steps"]) == (
        "code",
        "the answer",
        [0, 1],
    )
    assert [path.name for path in tmp_path.iterdir()] == ["rollouts.parquet"]


def test_export_writes_groups_that_match_as_json(target, tmp_path):
    out = tmp_path / "groups.jsonl"
    where = '{"task_name": "code", "tags.n": {"$gt": 0}}'
    told = json.loads(done("export", target, str(out), "--where", where, "--rows-only", "--json"))
    assert told == {"path": str(out), "groups": 3}
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [json.loads(row["tags"])["n"] for row in rows] == [3, 6, 9]
    assert "response_ids" not in rows[0]


def test_export_of_nothing_is_an_empty_table(targets, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "none.parquet"
    done("export", targets["saved"], str(out), "--where", '{"uid": 0}')
    table = parquet.read_table(out)
    assert (table.num_rows, "response_ids" in table.column_names) == (0, True)


def test_export_is_careful(target, tmp_path):
    out = tmp_path / "rollouts.jsonl"
    out.write_text("mine")
    assert "--force" in wrong("export", target, str(out))
    assert out.read_text() == "mine"
    assert "11 groups" in done("export", target, str(out), "--force")
    assert len(out.read_text().splitlines()) == 22
    assert ".parquet, .jsonl, .csv" in wrong("export", target, str(tmp_path / "rollouts.xml"))
    assert "is no directory" in wrong("export", target, str(tmp_path / "no" / "rollouts.jsonl"))
    assert "unknown field" in wrong("export", target, str(tmp_path / "x.jsonl"), "--where", '{"x": 1}')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rollouts.jsonl"], "nothing is left in half"


# --- all of them


@pytest.mark.parametrize("command", [("inspect",), ("show", "1"), ("export", "out.jsonl"), ("verify",)])
@pytest.mark.parametrize(
    ("where", "said"),
    [("nowhere", "nowhere"), ("tcp://127.0.0.1:9", "does not answer"), ("http://x", "is not an address")],
)
def test_a_wrong_place_is_one_line(command, where, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, *rest = command
    if name == "verify":
        said = "name the directory of its store" if where.startswith("tcp:") else "nothing was saved there"
        assert said in wrong(name, where)
    else:
        assert said in wrong(name, where, *rest, "--timeout", "0.2")
    assert list(tmp_path.iterdir()) == []


def test_a_process_of_its_own_prints_no_traceback(tmp_path):
    found = subprocess.run(
        [*COMMAND, "inspect", "nowhere"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert found.returncode == 2
    assert found.stderr.startswith("reroll: ")
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [["inspect"], ["show"], ["export"], ["verify"], ["config", "check"]])
def test_help_has_an_example(command):
    shown = done(*command, "--help")
    assert f"Example: reroll {' '.join(command)}" in " ".join(shown.split())
    assert "--json" in shown


def test_nothing_was_changed_by_all_this(targets):
    for target in targets.values():
        told = json.loads(done("inspect", target, "--json"))
        assert told["matching"] == 11
        assert told["stats"]["total"]["trained"]["groups"] == 2
