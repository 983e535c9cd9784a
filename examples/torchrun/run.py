"""A trainer with two ranks, a server that prepares their batches, and an engine; a rank and the server are killed in mid-run.

The ranks are processes of torchrun on gloo, without Ray. After each `kill -9`, every prompt is in the trained weights once.

    python examples/torchrun/run.py
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from reroll import RerollError, connect_blocking
from reroll.prepare import GenerationResult
from reroll.prepare.service import RemotePreparer

PROMPTS, BATCH, RESPONSES, RANKS = 40, 4, 2, 2
STEPS = PROMPTS // BATCH
HERE = Path(__file__).parent
CONFIG = {
    "global_batch_size": BATCH,
    "pack_length": 64,
    "num_ranks": RANKS,
    "group_size": RESPONSES,
    "unique_prompt_ids": True,  # an engine may repeat a result
}


def serve(directory: Path, address: str) -> tuple["subprocess.Popen[str]", str]:
    """Start a server on its store; return it and its address."""
    command = [sys.executable, "-m", "reroll", "serve", "--prepare", str(directory / "prepare.json")]
    server = subprocess.Popen(
        [*command, "--bind", address, "--store", str(directory / "buffer")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    return server, server.stdout.readline().removeprefix("ready at ").strip()


def generate(address: str) -> None:
    """Push a result for each prompt, again after an error: stands in for an engine."""
    for number in range(1, PROMPTS + 1):
        result = GenerationResult(
            prompt_id=number,
            prompt_ids=[0, 0],
            responses=[[number] * (2 + place) for place in range(RESPONSES)],
            finish_reasons=["stop"] * RESPONSES,
            rewards=[float(place) for place in range(RESPONSES)],
            model_step=0,
        )
        is_stored = False
        while not is_stored:
            try:
                with connect_blocking(address) as client:
                    RemotePreparer(client).put(result, timeout=60)
                is_stored = True
            except RerollError as error:
                print(f"the engine repeats prompt {number}: {type(error).__name__}")


def start_ranks(address: str, directory: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    arguments = [
        "--max-restarts",
        "5",
        "--monitor-interval",
        "0.2",
        str(HERE / "train.py"),
        address,
        str(directory),
        str(STEPS),
    ]
    return subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def lines_of(ranks: "subprocess.Popen[str]") -> Iterator[tuple[int, int]]:
    """Yield the step and the process of each line that rank 0 prints."""
    assert ranks.stdout is not None
    for line in ranks.stdout:
        print(line, end="")
        words = line.split()
        if words[:2] == ["trained", "step"]:
            yield int(words[2]), int(words[-1])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "prepare.json").write_text(json.dumps(CONFIG))
        server, address = serve(directory, "tcp://127.0.0.1:0")
        engine = threading.Thread(target=generate, args=(address,))
        engine.start()
        ranks = start_ranks(address, directory)
        kills = [2, 5]  # steps after which a rank, then the server, is killed
        for step, process in lines_of(ranks):
            if kills and step >= kills[0]:
                kills.pop(0)
                if len(kills) == 1:
                    os.kill(process, signal.SIGKILL)
                    print("killed rank 0; torchrun starts both ranks again")
                else:
                    server.kill()
                    server.wait()
                    server, _ = serve(directory, address)
                    print("killed the server and started it again on its store")
        assert ranks.wait() == 0
        engine.join()
        server.terminate()
        assert server.wait() == 0
        checkpoint = json.loads((directory / "checkpoint.json").read_text())
    trained = checkpoint["trained"]
    print(f"{len(trained)} prompts trained, {len(set(trained))} different ones, of {PROMPTS}")
    assert sorted(trained) == list(range(1, PROMPTS + 1)), "a prompt was lost or trained twice"
    total = (
        -checkpoint["weights"] / 1e-4
    )  # each step subtracts the mean of its tokens, which are prompt numbers
    print(f"the weights are those of {STEPS} steps: {total:.6g}")
    assert abs(total - sum(trained) / BATCH) < 1e-6


if __name__ == "__main__":
    main()
