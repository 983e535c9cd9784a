"""Measure what looking costs: a server at work, with and without a dashboard that ten viewers have open.

    python benchmarks/dashboard.py             50,000 groups are there; blocks of 5 s in turn
    python benchmarks/dashboard.py --quick     fewer blocks
    python benchmarks/dashboard.py --check     a claim that is missed makes the exit code 1

One server in a process of its own, and one client that puts groups and takes them again as fast as it can. What counts is the
processor time of the server's process for each group: what others do on the machine is not in it. The dashboard is switched on
and off inside that process, so that both sides are the same process, and blocks take turns. It asks the buffer every 2 s, as it
does unless told otherwise.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from measure import Timing, microseconds, print_table
from reporting import Claim, arguments, conclude, print_title, seconds, versions
from reroll import ReplayBufferConfig, Rollout, Server, connect
from reroll.dashboard import Dashboard
from reroll.observe import open_view

RESIDENT, VIEWERS, AT_ONCE = 50_000, 10, 64


def group() -> list[Rollout]:
    return [
        Rollout(prompt_ids=[1] * 8, response_ids=[2] * 32, response_model_steps=[0] * 32, status="completed")
        for _ in range(4)
    ]


# --- the server


async def host() -> None:
    """Serve, and do what each line of the input says: switch the dashboard, or tell the processor time so far."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with Server(ReplayBufferConfig(sampler="fifo"), "tcp://127.0.0.1:0") as server:
        for _ in range(RESIDENT):
            await server.buffer.put(group(), "math")
        page: Dashboard | None = None
        say(server.address)
        while line := (await lines.readline()).decode().strip():
            if line == "on":
                page = await Dashboard(await open_view(server.buffer)).start()
                say(page.address)
            elif line == "off" and page is not None:
                await page.stop()
                say(None)
            else:
                say(time.process_time())


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


class Host:
    """The process of the server."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "host"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = self._read()

    def ask(self, what: str) -> Any:
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._read()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> Any:
        return json.loads(self._process.stdout.readline())


# --- those who look


class Viewer:
    """Reads what the page is sent, as a browser does."""

    def __init__(self, address: str) -> None:
        where = urlsplit(address)
        self._connection = HTTPConnection(where.hostname, where.port)
        self._connection.request("GET", "/events")
        self._events = self._connection.getresponse()
        self.frames = 0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while line := self._events.readline():  # until the dashboard is switched off
            self.frames += line == b"event: frame\n"

    def end(self) -> None:
        self._thread.join()
        self._connection.close()


# --- the work


async def work(address: str, for_s: float) -> int:
    """Put groups and take them again, as fast as it goes; return how many."""
    done, end = 0, time.monotonic() + for_s
    async with connect(address) as client:
        while time.monotonic() < end:
            await asyncio.gather(*(client.put(group(), "math", model_step=0) for _ in range(AT_ONCE)))
            await client.take_batch({"math": AT_ONCE})
            done += AT_ONCE
    return done


class Block:
    """Some seconds with or without viewers."""

    def __init__(self, server: Host, for_s: float) -> None:
        self._server = server
        self._for_s = for_s
        self.frames = 0

    def cpu_per_group(self, *, is_watched: bool) -> float:
        """Return the server's processor time for a group, in seconds."""
        return self._cpu(is_watched, lambda: asyncio.run(work(self._server.address, self._for_s)))

    def idle_cpu(self) -> float:
        """Return the processor time of a second in which ten look, and nobody else wants anything."""

        def rest() -> float:
            time.sleep(self._for_s)
            return self._for_s

        return self._cpu(True, rest)

    def _cpu(self, is_watched: bool, run: Any) -> float:
        page = self._server.ask("on") if is_watched else None
        viewers = [] if page is None else [Viewer(page) for _ in range(VIEWERS)]
        before = self._server.ask("cpu")
        done = run()
        taken = self._server.ask("cpu") - before
        if viewers:
            self._server.ask("off")
        for viewer in viewers:
            viewer.end()
            self.frames += viewer.frames
        return taken / done


def main() -> int:
    options = arguments("Measure what looking costs.", "dashboard.json").parse_args()
    start = time.perf_counter()
    print_title("reroll dashboard benchmark")
    with ExitStack() as stack:
        server = Host()
        stack.callback(server.end)
        block = Block(server, 5.0)
        block.cpu_per_group(is_watched=False)  # does not count
        found: dict[bool, list[float]] = {False: [], True: []}
        for number in range(4 if options.quick else 16):
            for is_watched in (False, True) if number % 2 else (True, False):
                found[is_watched].append(block.cpu_per_group(is_watched=is_watched))
        frames = block.frames / VIEWERS / len(found[True])
        idle = block.idle_cpu()
    plain, watched = Timing.of(found[False]), Timing.of(found[True])
    cost = Timing.of([b / a - 1 for a, b in zip(found[False], found[True], strict=True)])
    print_table(
        f"Processor time of the server for a group that is put and taken, {RESIDENT:,} groups there",
        ("", "us", "spread"),
        [
            ("nobody looks", microseconds(plain.median), f"{plain.spread:.0%}"),
            (f"{VIEWERS} viewers", microseconds(watched.median), f"{watched.spread:.0%}"),
        ],
        [f"Each viewer got {frames:.1f} frames in a block of 5 s."],
    )
    claims = [
        Claim("ten viewers cost less than 2 % of the throughput", f"{cost.median:.1%}", cost.median < 0.02),
        Claim("ten viewers alone take less than 2 % of a processor", f"{idle:.1%}", idle < 0.02),
    ]
    report = {
        "versions": versions(),
        "resident": RESIDENT,
        "viewers": VIEWERS,
        "plain": seconds(plain),
        "watched": seconds(watched),
        "cost": cost._asdict(),
        "idle_cpu_s_per_s": idle,
    }
    return conclude(claims, report, time.perf_counter() - start, options)


if __name__ == "__main__":
    if sys.argv[1:] == ["host"]:
        asyncio.run(host())
    else:
        sys.exit(main())
