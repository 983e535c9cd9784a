"""Measure what looking costs: a server at work, with and without a dashboard that ten viewers have open.

    python benchmarks/dashboard.py             50,000 groups are there; blocks of 5 s in turn
    python benchmarks/dashboard.py --quick     fewer blocks
    python benchmarks/dashboard.py --check     a claim that is missed makes the exit code 1

One server in a process of its own, and one client that puts groups and takes them again as fast as it can. What counts is the
processor time of the server's process for each group, in units of what the client's thread takes for it: what others do on the
machine slows both alike. The dashboard is switched on and off inside that process, so that both sides are the same process, and
blocks take turns. It asks the buffer every 2 s, as it does unless told otherwise.
"""

import asyncio
import gc
import json
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from measure import Timing, microseconds, print_table
from reporting import Claim, arguments, conclude, print_title, versions
from reroll import ReplayBufferConfig, Rollout, Server, connect
from reroll.dashboard import Dashboard
from reroll.observe import open_view

T = TypeVar("T")
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
        gc.freeze()  # else its whole collections, some 100 ms each, fall into some blocks and not into others
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


class Process:
    """One of the others; it says something when it is ready."""

    def __init__(self, *role: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *role], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said = self.read()

    def ask(self, what: str) -> Any:
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self.read()

    def read(self) -> Any:
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


# --- those who look


def view(address: str) -> None:
    """Read what the page is sent, as so many browsers do, until it ends; then tell how many frames came.

    Say that it is ready when all have got a frame: coming is not looking.
    """
    where, frames = urlsplit(address), Counter[Any]()
    with selectors.DefaultSelector() as ready:
        for _ in range(VIEWERS):
            viewer = socket.create_connection((where.hostname, where.port))
            viewer.sendall(f"GET /events HTTP/1.1\r\nHost: {where.hostname}\r\n\r\n".encode())
            ready.register(viewer, selectors.EVENT_READ)
        while ready.get_map():
            for key, _ in ready.select():
                got = key.fileobj.recv(1 << 16)
                came = got.count(b"event: frame")
                is_last_to_come = bool(came) and key.fd not in frames and len(frames) == VIEWERS - 1
                frames.update([key.fd] * came)
                if is_last_to_come:
                    say(None)
                if not got:
                    ready.unregister(key.fileobj)
                    key.fileobj.close()
    say(frames.total() - VIEWERS)


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


class Taken(NamedTuple):
    """What one block took of processors, in seconds."""

    server: float
    client: float
    groups: int
    wall: float

    @property
    def share(self) -> float:
        """The server's time in units of the client's: both do the same for a group, whatever slows them."""
        return self.server / self.client


class Block:
    """Some seconds with or without viewers."""

    def __init__(self, server: Process, for_s: float) -> None:
        self._server = server
        self._for_s = for_s
        self.frames = 0

    def taken(self, *, is_watched: bool) -> Taken:
        """Return what it takes to put groups and take them again."""

        def run() -> tuple[float, int, float]:
            cpu, wall = time.thread_time(), time.monotonic()
            groups = asyncio.run(work(self._server.said, self._for_s))
            return time.thread_time() - cpu, groups, time.monotonic() - wall

        server, rest = self._cpu(is_watched, run)
        return Taken(server, *rest)

    def idle_cpu(self) -> float:
        """Return the processor time of a second in which ten look, and nobody else wants anything."""
        return self._cpu(True, lambda: time.sleep(self._for_s))[0] / self._for_s

    def _cpu(self, is_watched: bool, run: Callable[[], T]) -> tuple[float, T]:
        page = self._server.ask("on") if is_watched else None
        viewers = None if page is None else Process("view", page)
        before = self._server.ask("cpu")
        done = run()
        taken = self._server.ask("cpu") - before
        if viewers is not None:
            self._server.ask("off")
            self.frames += viewers.read()
            viewers.end()
        return taken, done


def main() -> int:
    options = arguments("Measure what looking costs.", "dashboard.json").parse_args()
    start = time.perf_counter()
    print_title("reroll dashboard benchmark")
    with ExitStack() as stack:
        server = Process("host")
        stack.callback(server.end)
        block = Block(server, 5.0)
        block.taken(is_watched=False)  # does not count
        found: dict[bool, list[Taken]] = {False: [], True: []}
        for number in range(6 if options.quick else 24):
            for is_watched in (False, True) if number % 2 else (True, False):
                found[is_watched].append(block.taken(is_watched=is_watched))
        frames = block.frames / VIEWERS / len(found[True])
        idle = block.idle_cpu()
    plain, watched = found[False], found[True]
    shares = {side: Timing.of([taken.share for taken in blocks]) for side, blocks in found.items()}
    ratio = shares[True].median / shares[False].median
    # Looking goes by the clock, and work as far as it gets a processor: a server that has one for itself loses this share.
    lost = statistics.median(
        (taken.share - shares[False].median) * taken.client / taken.wall for taken in watched
    )
    rows = [
        (
            name,
            microseconds(statistics.median(taken.server / taken.groups for taken in blocks)),
            f"{share.median:.3f}",
            f"{share.spread:.1%}",
        )
        for name, blocks, share in (
            ("nobody looks", plain, shares[False]),
            (f"{VIEWERS} viewers", watched, shares[True]),
        )
    ]
    busy = statistics.median(taken.server / taken.wall for taken in plain)
    print_table(
        f"Processor time of the server for a group that is put and taken, {RESIDENT:,} groups there",
        ("", "us", "of the client's", "spread"),
        rows,
        [
            f"Each viewer got {frames:.1f} frames in a block of 5 s. The server had {busy:.0%} of a processor; where it has little,",
            "the ratio is larger, since looking goes by the clock.",
        ],
    )
    claims = [
        Claim(
            "a group costs less than 2 % more while ten look",
            f"{ratio - 1:.1%}",
            ratio < 1.02 if busy > 0.5 else None,
        ),
        Claim(
            "ten viewers take less than 2 % of a processor from a server at work", f"{lost:.1%}", lost < 0.02
        ),
        Claim("ten viewers of an idle server take less than 2 % of a processor", f"{idle:.1%}", idle < 0.02),
    ]
    report = {
        "versions": versions(),
        "resident": RESIDENT,
        "viewers": VIEWERS,
        "plain": [taken._asdict() for taken in plain],
        "watched": [taken._asdict() for taken in watched],
        "ratio": ratio,
        "lost_cpu_s_per_s": lost,
        "idle_cpu_s_per_s": idle,
    }
    return conclude(claims, report, time.perf_counter() - start, options)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["host"]:
            asyncio.run(host())
        case ["view", page]:
            view(page)
        case _:
            sys.exit(main())
