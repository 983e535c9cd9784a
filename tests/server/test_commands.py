"""`reroll serve`, `ping` and `keygen`, from the command line."""

import json
import os
from pathlib import Path

import pytest

from reroll import InvalidArgument, ReplayBufferConfig, Status, connect, connect_blocking
from reroll.testing.buffer.builders import group, names
from server.program import Program, run


def test_a_server_with_keys_is_pinged(tmp_path):
    for name in ("server", "trainer", "stranger"):
        assert run("keygen", name, "--directory", str(tmp_path)).exit_code == 0
    (tmp_path / "buffer.yaml").write_text("sampler: lifo\ncapacity: 3\n")
    log = tmp_path / "log"
    options = (
        *("--config", str(tmp_path / "buffer.yaml"), "--log-json"),
        *("--key", str(tmp_path / "server.secret"), "--allow", str(tmp_path / "trainer.public")),
    )
    with Program(*options, bind="tcp://0.0.0.0:0", log=log) as server:
        address = server.address.replace("0.0.0.0", "127.0.0.1")  # noqa: S104  (it has keys)
        server_key = ("--server-key", str(tmp_path / "server.public"), "--timeout")
        done = run("ping", address, "--key", str(tmp_path / "trainer.secret"), *server_key, "60")
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["groups"] == 0
        while "its key is not on the list" not in log.read_text():  # it may take longer than this one waits
            denied = run("ping", address, "--key", str(tmp_path / "stranger.secret"), *server_key, "0.5")
            assert denied.exit_code == 1
            assert "does not answer" in denied.stderr
        keys = {"key": tmp_path / "trainer.secret", "server_key": tmp_path / "server.public"}
        with connect_blocking(address, **keys) as client:
            for name in "abc":
                client.put(group(name), "t")
            assert names(client.get(3, "t", Status.COMPLETED)) == ["c", "b", "a"], "as the file says"
        assert server.stop() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    messages = [line["message"] for line in lines]
    assert messages[0] == "serving"
    assert messages[-1] == "stopped"
    assert {"admitted", "client connected", "client gone", "denied"} <= set(messages)
    # One that left before it was judged is denied for that.
    assert "its key is not on the list" in [line["reason"] for line in lines if line["message"] == "denied"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("serve", "--bind", "tcp://*:5555"), "keygen"),
        (("serve", "--bind", "tcp://127.0.0.1:0", "--config", "nowhere.yaml"), "nowhere.yaml"),
        (("serve", "--bind", "nonsense"), "nonsense"),
        (("ping", "tcp://127.0.0.1:9", "--key", "nowhere"), "server_key"),
        (("ping", "127.0.0.1:9"), "tcp://host:port"),
        (("ping", "tcp://127.0.0.1"), "tcp://host:port"),
        (("inspect", "tcp://127.0.0.1"), "tcp://host:port"),
        (("keygen", "x", "--directory", "/dev/null/x"), "dev/null"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, said):
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("reroll: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_key_of_the_configuration_is_named_as_by_config_check(tmp_path):
    (tmp_path / "buffer.yaml").write_text("capacty: 4\n")
    done = run("serve", "--bind", "tcp://127.0.0.1:0", "--config", str(tmp_path / "buffer.yaml"))
    assert (done.exit_code, done.stderr) == (
        2,
        "reroll: capacty: there is no such option; did you mean capacity?\n",
    )


def test_what_python_warns_of_is_a_line_of_the_log(tmp_path):
    log = tmp_path / "log"
    with Program("--log-json", "--store", str(tmp_path / "store"), log=log) as server:
        with connect_blocking(server.address) as client:
            for step in (3, 2):  # as a trainer does that went back, and did not say so
                client.put(group(step), "t")
                client.take_batch({"t": 1}, wait=True, timeout=60, train_step=step)
        assert server.stop() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (warned,) = [line for line in lines if line.get("kind") == "UncommittedWarning"]
    assert warned["level"] == "warning"
    assert "train_step 2 is older than step 3" in warned["message"]


def test_nobody_there():
    done = run("ping", "tcp://127.0.0.1:9", "--timeout", "0.3")
    assert done.exit_code == 1
    assert "does not answer" in done.stderr


async def test_clients_save_only_where_the_server_says(host, tmp_path: Path):
    config = ReplayBufferConfig(sampler="fifo")
    async with connect(host.start(config, "tcp://127.0.0.1:0")) as client:
        with pytest.raises(InvalidArgument, match="--checkpoints"):
            await client.save("step-1")
    async with connect(host.start(config, "tcp://127.0.0.1:0", checkpoints=str(tmp_path))) as client:
        await client.put(group("a"), "t")
        await client.save(Path("step-1"))
        for path in ("/etc", "../x", "a/../../x", "x\0y"):
            with pytest.raises(InvalidArgument, match="inside"):
                await client.save(path)
    assert os.listdir(tmp_path) == ["step-1"]  # noqa: PTH208
    async with connect(host.start(config, "tcp://127.0.0.1:0", checkpoints=str(tmp_path))) as client:
        await client.resume("step-1")
        assert names(await client.get(1, "t", Status.COMPLETED)) == ["a"]


FILES = {
    "yaml": ("--config", "c.yaml", "sampler: fifo\nsync: disk\n"),
    "json": ("--config", "c.json", '{"sampler": "fifo", "sync": "disk"}'),
    "prepare": (
        *("--prepare", "p.yaml"),
        "global_batch_size: 2\npack_length: 64\nreplay_buffer:\n  sync: disk\n",
    ),
}


@pytest.mark.parametrize(("option", "name", "text"), FILES.values(), ids=FILES)
def test_the_store_of_the_command_line_and_the_options_of_the_file_are_one_configuration(
    tmp_path, option, name, text
):
    (tmp_path / name).write_text(text)
    with Program(option, str(tmp_path / name), "--store", str(tmp_path / "store")) as server:
        with connect_blocking(server.address) as client:
            assert client.health()["is_durable"]
        assert server.stop() == 0
