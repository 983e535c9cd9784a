"""Measure a server beside a bare ZeroMQ echo of the same bytes. Beside other libraries: make bench-peers.

    python benchmarks/server.py             256 KB groups in batches of 16, 1 and 4 clients; small groups one by one
    python benchmarks/server.py --quick     fewer rounds
    python benchmarks/server.py --check     a claim that is missed makes the exit code 1

Every contender has its server and its clients in processes of their own, and they take turns. A round puts groups and takes
them again; the echo sends the same bytes there and back, from as many clients, with as many groups under way, by blocking
sockets (ROUTER and DEALER). It uses pyzmq as it comes, which gives bytes; the lean echo takes the frames where they lie and
sends these again, so that nobody has touched them: the least that ZeroMQ can do. Large groups are compared by bytes, small
ones by calls: a put and a take are two calls. Times are on the wall.

"At best" is what could be reached if nothing were encoded, checked or acknowledged: the time of the lean echo, and that of the
same puts and takes by a buffer in the client's own process.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from measure import Timing, print_table, times
from reporting import Claim, arguments, conclude, print_title, seconds, versions
from server_traffic import ROUNDS_OF, blob_of

HERE = Path(__file__).parent
ECHO = """
import sys, zmq
socket = zmq.Context().socket(zmq.ROUTER)
port = socket.bind_to_random_port("tcp://127.0.0.1")
print(f"ready at tcp://127.0.0.1:{port}", flush=True)
copies = sys.argv[1] == "echo"
while True:
    socket.send_multipart(socket.recv_multipart(copy=copies), copy=copies)
"""
SERVE = "from reroll.cli import main; main()"
LARGE, SMALL = "8x4096", "1x16"
NAMES = {
    "echo": "echo",
    "lean echo": "lean echo",
    "here": "in process",
    "reroll": "reroll",
    "reroll, CURVE": "reroll, CURVE",
}
SERVERLESS = "here"
ECHOES = ("echo", "lean echo")


class Case(NamedTuple):
    """One contender at one load."""

    kind: str
    shape: str
    batch: int
    clients: int

    @property
    def load(self) -> str:
        what = "256 KB groups" if self.shape == LARGE else "small groups"
        return f"{what}, {self.batch} at once, {self.clients} client{'s' if self.clients > 1 else ''}"

    @property
    def bytes(self) -> int:
        """Bytes of a round in one direction, of all clients."""
        return self.clients * ROUNDS_OF[self.shape] * self.batch * len(blob_of(self.shape))

    @property
    def groups(self) -> int:
        return self.clients * ROUNDS_OF[self.shape] * self.batch

    @property
    def trips(self) -> int:
        """How often the echo's round goes for one of the others: large bytes go there and back, a small group is two calls."""
        return 1 if self.shape == LARGE or self.kind in ECHOES else 2


class Process:
    """A server or a client, which says a line when it is ready."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.said = self.read()

    def read(self) -> str:
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def cpu_s(self) -> float:
        """Return the processor time that it has had, with all its threads."""
        return cpu_s(self.process.pid)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Rounds(NamedTuple):
    """What the rounds of a case took, in seconds."""

    wall: list[float]
    server: list[float]
    """Of processors."""
    clients: list[float]
    """The same, of all clients together."""


def measure(cases: list[Case], rounds: int) -> dict[Case, Rounds]:
    """Let all contenders take turns; return what their rounds took."""
    found = {case: Rounds([], [], []) for case in cases}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as keys:

        def started(*command: str) -> Process:
            process = Process(*command)
            stack.callback(process.end)
            return process

        servers = {
            kind: started(sys.executable, "-c", *_server(kind, keys))
            for kind in _kinds(cases)
            if kind != SERVERLESS
        }
        address = {kind: server.said.removeprefix("ready at ") for kind, server in servers.items()}
        clients: dict[Case, list[Process]] = {}
        for case in cases:
            kind = "reroll" if case.kind == "reroll, CURVE" else case.kind
            extra = [keys] if case.kind == "reroll, CURVE" else []
            command = (
                str(HERE / "server_traffic.py"),
                kind,
                address.get(case.kind, "-"),
                case.shape,
                str(case.batch),
                *extra,
            )
            clients[case] = [started(sys.executable, *command) for _ in range(case.clients)]
        for number in range(rounds + 1):
            for case in reversed(cases) if number % 2 else cases:
                server = servers.get(case.kind)
                of_server = server.cpu_s() if server else 0.0
                of_clients = sum(client.cpu_s() for client in clients[case])
                for client in clients[case]:
                    client.go()
                took = max(float(client.read()) for client in clients[case])
                if number:
                    found[case].wall.append(took)
                    found[case].server.append((server.cpu_s() if server else 0.0) - of_server)
                    found[case].clients.append(sum(client.cpu_s() for client in clients[case]) - of_clients)
    return found


def _kinds(cases: list[Case]) -> list[str]:
    return list(dict.fromkeys(case.kind for case in cases))


def _server(kind: str, keys: str) -> list[str]:
    if kind in ECHOES:
        return [ECHO, kind]
    options = ["serve", "--bind", "tcp://127.0.0.1:0"]
    if kind == "reroll, CURVE":
        for name in ("server", "client"):
            subprocess.run(
                [sys.executable, "-c", SERVE, "keygen", name, "--directory", keys],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        options += ["--key", f"{keys}/server.secret", "--allow", f"{keys}/client.public"]
    return [SERVE, *options]


def idle_cpu(waiting: int, for_s: float) -> float:
    """Return how much processor time a server takes, in seconds a second, while so many calls wait."""
    server = Process(sys.executable, "-c", SERVE, "serve", "--bind", "tcp://127.0.0.1:0")

    async def wait() -> float:
        from reroll import connect  # noqa: PLC0415

        async with connect(server.said.removeprefix("ready at ")) as client:
            calls = [asyncio.ensure_future(client.take_batch({"t": 1}, wait=True)) for _ in range(waiting)]
            await client.health()
            before, start = server.cpu_s(), perf_counter()
            await asyncio.sleep(for_s)
            taken = (server.cpu_s() - before) / (perf_counter() - start)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            return taken

    try:
        return asyncio.run(wait())
    finally:
        server.end()


def cpu_s(pid: int) -> float:
    """Return the processor time of a process, to the microsecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def main() -> int:
    options = arguments("Measure a server and its clients.", "server.json").parse_args()
    start = perf_counter()
    print_title("reroll server benchmark")
    kinds = [*ECHOES, "here", "reroll", "reroll, CURVE"]
    cases = [Case(kind, LARGE, 16, clients) for clients in (1, 4) for kind in kinds]
    cases += [Case(kind, SMALL, 1, 1) for kind in kinds[:4]]
    rounds = measure(cases, 5 if options.quick else 15)
    timings = {case: Timing.of(taken.wall) for case, taken in rounds.items()}
    rows = []
    for case, timing in timings.items():
        rate = (
            f"{case.bytes / timing.median / 1e6:,.0f} MB/s"
            if case.shape == LARGE
            else f"{case.trips * case.groups / timing.median:,.0f} calls/s"
        )
        shares = [times(_of_echo(timings, case, echo)) for echo in ECHOES]
        best = times(_at_best(timings, case))
        cpu = [
            f"{1e6 * statistics.median(taken) / case.groups:,.0f}"
            for taken in (rounds[case].server, rounds[case].clients)
        ]
        rows.append((f"{case.load}: {NAMES[case.kind]}", rate, f"{timing.spread:.0%}", *shares, best, *cpu))
    print_table(
        "Put and taken again",
        (
            "",
            "each way",
            "spread",
            "reroll / echo",
            "reroll / lean echo",
            "of that at best",
            "server us",
            "client us",
        ),
        rows,
        [
            "Groups are looked at and encoded by the client, checked and kept by the server, decoded and acknowledged by the client.",
            "Microseconds are processor time for a group, there and back, of all threads.",
        ],
    )
    cpu = idle_cpu(1000, 3.0 if options.quick else 10.0)
    claims = _claims(timings, cpu)
    report = {
        "versions": versions(),
        "rounds": [
            case._asdict()
            | seconds(timing)
            | {
                "bytes": case.bytes,
                "groups": case.groups,
                "server_cpu_s": statistics.median(rounds[case].server),
                "clients_cpu_s": statistics.median(rounds[case].clients),
            }
            for case, timing in timings.items()
        ],
        "idle_cpu_s_per_s": cpu,
    }
    return conclude(claims, report, perf_counter() - start, options)


def _of_echo(timings: dict[Case, Timing], case: Case, echo: str = "echo") -> float:
    """Return the speed as a share of an echo's."""
    return case.trips * timings[case._replace(kind=echo)].median / timings[case].median


def _at_best(timings: dict[Case, Timing], case: Case) -> float | None:
    if not case.kind.startswith("reroll"):
        return None
    echo = case.trips * timings[case._replace(kind="lean echo")].median
    return echo / (echo + timings[case._replace(kind="here")].median)


def _claims(timings: dict[Case, Timing], cpu: float) -> list[Claim]:
    def ratio(case: Case, kind: str) -> float | None:
        other = timings.get(case._replace(kind=kind))
        return None if other is None else other.median / timings[case].median

    claims: list[Any] = []
    for clients in (1, 4):
        case = Case("reroll", LARGE, 16, clients)
        share = _of_echo(timings, case)
        claims.append(Claim(f"{case.load}: at least 60 % of a bare echo", times(share), share >= 0.6))
        factor = ratio(case._replace(kind="reroll, CURVE"), "reroll")
        claims.append(Claim(f"{case.load}: what CURVE leaves of the speed", times(factor), None))
    case = Case("reroll", SMALL, 1, 1)
    share = _of_echo(timings, case)
    claims.append(Claim(f"{case.load}: at least 50 % of a bare echo", times(share), share >= 0.5))
    claims.append(
        Claim("1,000 waiting calls take no processor time: less than 2 % of one", f"{cpu:.1%}", cpu < 0.02)
    )
    return claims


if __name__ == "__main__":
    sys.exit(main())
