"""A server, two engines and a trainer in processes of their own; the server is killed in mid-run, and started again.

Engines put groups, the trainer leases batches and acknowledges them. Both go on by themselves when the server is back on its
store: every group is trained once.

    python examples/server_processes.py
"""

import asyncio
import signal
import subprocess
import sys
import tempfile

from reroll import LeaseExpired, Rollout, Status, connect, connect_blocking

ENGINES, GROUPS, BATCH = 2, 48, 8


async def engine(address: str, number: int) -> None:
    """Stand in for an inference server."""
    async with connect(address, heartbeat_s=0.1) as buffer:
        for index in range(GROUPS):
            rollouts = [
                Rollout(
                    group_id=f"engine {number}, prompt {index}",
                    prompt_ids=[1, 2, 3],
                    response_ids=[number, index, place],
                    reward=float(place % 2),
                    status=Status.COMPLETED,
                )
                for place in range(4)
            ]
            await buffer.put(rollouts, "math", model_step=0)


def trainer(address: str) -> None:
    """Stand in for a trainer: it prints what it trained."""
    left = ENGINES * GROUPS
    with connect_blocking(address, heartbeat_s=0.1) as buffer:
        while left:
            batch = buffer.lease({"math": min(BATCH, left)}, wait=True, timeout=60).take()
            lost: tuple[int, ...] = ()
            try:
                batch.ack()  # the optimizer step is done
            except LeaseExpired as error:
                lost = error.uids  # handed out again after the server was killed
            for group, info in batch.samples["math"]:
                if info.uid not in lost:
                    left -= 1
                    print(group[0].group_id, flush=True)


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)


def serve(address: str, store: str) -> tuple["subprocess.Popen[str]", str]:
    """Start a server; return it and where it is."""
    command = "from reroll.cli import main; main()"  # what `reroll` runs
    server = subprocess.Popen(
        [sys.executable, "-c", command, "serve", "--bind", address, "--store", store],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return server, server.stdout.readline().removeprefix("ready at ").strip()


def main() -> None:
    with tempfile.TemporaryDirectory() as store:
        server, address = serve("tcp://127.0.0.1:0", store)
        clients = [start(__file__, "engine", address, str(number)) for number in range(ENGINES)]
        training = start(__file__, "trainer", address)
        trained = [training.stdout.readline() for _ in range(2 * BATCH)]
        server.send_signal(signal.SIGKILL)
        server.wait()
        print("the server was killed")
        server.stdout.close()
        server, _ = serve(address, store)
        print("and started again on its store; nobody else was told")
        trained += training.stdout.readlines()
        for process in (*clients, training):
            assert process.wait() == 0
            process.stdout.close()
        server.terminate()
        assert server.wait() == 0
        server.stdout.close()
    print(f"{len(trained)} groups trained, {len(set(trained))} different ones, of {ENGINES * GROUPS}")
    assert len(trained) == len(set(trained)) == ENGINES * GROUPS, "a group was lost or doubled"


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "engine":
        asyncio.run(engine(sys.argv[2], int(sys.argv[3])))
    elif len(sys.argv) > 1 and sys.argv[1] == "trainer":
        trainer(sys.argv[2])
    else:
        main()
