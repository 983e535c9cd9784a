"""What the dashboard answers to any program: only what may be seen, to whom may see it, and nothing changes by it."""

import asyncio
import json
import select
import socket
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from urllib.parse import quote, urlsplit

import pytest

from dashboard.hosting import TOKEN, hosting
from reroll import ReplayBufferConfig
from reroll.dashboard import Dashboard, read_token
from reroll.errors import InvalidConfig
from reroll.observe import View, open_view
from reroll.testing.buffer.builders import group, picture


@pytest.fixture(scope="module")
def hosted():
    with hosting() as found:
        found.put([group(f"g{n}", members=2, versions=n, reward=n / 10) for n in range(8)])
        found.put([group("other", tokens=5)], "code")
        yield found


@pytest.fixture(scope="module")
def guarded():
    with hosting(token=TOKEN) as found:
        yield found


# --- what is asked for


def test_groups_come_by_page_in_order(hosted):
    found = hosted.ask("/groups?order_by=-reward_mean&limit=3&offset=1&task=math").json
    assert [row["group_id"] for row in found["rows"]] == ["g6", "g5", "g4"]
    assert (found["total"], found["offset"]) == (8, 1)


def test_a_filter_narrows_the_groups(hosted):
    where = quote(json.dumps({"reward_mean": {"$gte": 0.5}}))
    assert hosted.ask(f"/groups?where={where}").json["total"] == 3
    assert hosted.ask(f"/groups?where={where}&task=code").json["total"] == 0
    assert hosted.ask("/groups?task=code").json["total"] == 1


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/groups?where=" + quote('{"rewrad": 1}'), 400, "rewrad"),
        ("/groups?where=nonsense", 400, "no JSON"),
        ("/groups?where=[]", 400, "dict"),
        ("/groups?order_by=colour", 400, "order_by must be one of"),
        ("/groups?limit=many", 400, "limit must be a whole number"),
        ("/groups?offset=-1", 400, "offset must be a whole number"),
        ("/groups/4711", 404, "4711"),
        ("/groups/" + "9" * 5000, 400, "uid must be below"),
        ("/groups/x", 400, "uid must be a whole number"),
        ("/groups?offset=" + "9" * 30, 400, "offset must be below"),
        ("/groups?where=" + quote('{"$not":' * 3000 + "{}" + "}" * 3000), 400, "deep"),
        (
            "/groups?where=" + quote(json.dumps({"$or": [{"uid": n} for n in range(500)]})),
            400,
            "256 conditions",
        ),
    ],
)
def test_what_is_asked_wrongly_is_told_in_one_line(hosted, path, status, words):
    found = hosted.ask(path)
    assert (found.status, list(found.json)) == (status, ["error"])
    assert words in found.json["error"]
    assert "\n" not in found.json["error"]


def test_a_group_is_told_in_runs_of_versions_and_masks():
    with hosting() as hosted:
        items = group("g", versions=[1, 1, 2, 2, 2], tokens=5, response_mask=[1, 1, 1, 0, 1], message="why?")
        (uid,) = hosted.put([items])
        (rollout,) = hosted.ask(f"/groups/{uid}").json["rollouts"]
        assert [(run["version"], run["is_trained"], run["text"]) for run in rollout["runs"]] == [
            (1, True, "0 1 "),
            (2, True, "2 "),
            (2, False, "3 "),
            (2, True, "4 "),
        ]
        assert rollout["message"] == "why?"
        (cut,) = hosted.ask(f"/groups/{uid}?tokens=3").json["rollouts"]
        assert sum(run["num_tokens"] for run in cut["runs"]) == 3
        assert cut["num_response_tokens"] == 5


def test_tokens_are_text_with_a_tokenizer():
    with hosting(decode=lambda ids: "".join(chr(97 + one) for one in ids)) as hosted:
        (uid,) = hosted.put([group(tokens=3, versions=1)])
        (rollout,) = hosted.ask(f"/groups/{uid}").json["rollouts"]
        assert (rollout["message"], rollout["runs"][0]["text"]) == ("bcd", "abc")


def frame_with(event, puts):
    """Wait for a frame that knows of so many puts; those before it are of a moment before."""
    frames = (told for name, told in iter(event, None) if name == "frame")
    return next(frame for frame in frames if frame["point"]["tasks"].get("math", {}).get("puts") == puts)


def test_metrics_are_there_for_prometheus(hosted):
    with hosted.watching() as event:
        frame_with(event, 8)
    found = hosted.ask("/metrics")
    assert found.headers["content-type"].startswith("text/plain")
    assert b'task="math"' in found.body


# --- viewers


def test_viewers_get_the_past_and_then_what_comes(hosted):
    with hosted.watching() as event:
        name, points = event()
        assert name == "history"
        assert points == sorted(points, key=lambda point: point["at"])
        frame = frame_with(event, 8)
        assert frame["stats"]["tasks"]["math"]["statuses"]["completed"] == 8
        assert frame["ledger"]["math"]["put"][0] == 8


class Counting(View):
    """A view that knows how often it was asked."""

    asked = 0

    async def stats(self):
        self.asked += 1
        return await super().stats()


def test_any_number_of_viewers_costs_one_question():
    views = []

    async def counting(buffer):
        views.append(Counting(buffer, title="it", kind="process"))
        return views[0]

    with hosting(view_of=counting, interval_s=3600) as hosted, ExitStack() as stack:
        events = [stack.enter_context(hosted.watching()) for _ in range(10)]
        frames = [next(told for name, told in iter(event, None) if name == "frame") for event in events]
        assert len({frame["point"]["at"] for frame in frames}) == 1
        assert views[0].asked == 1


def test_a_buffer_that_does_not_answer_is_a_problem_not_an_end(hosted):
    with hosting() as lost, lost.watching() as event:
        lost.do(lost.buffer.close())
        told = next(told for name, told in iter(event, None) if name == "problem")
        assert "closed" in told
        assert lost.ask("/metrics").status == 503
        assert lost.ask("/groups").status == 503


# --- looking changes nothing


def test_looking_at_everything_changes_nothing(hosted):
    before = hosted.do(picture(hosted.buffer)), _without_time(hosted)
    with hosted.watching() as event:
        event(), event()
    for row in hosted.ask("/groups").json["rows"]:
        hosted.ask(f"/groups/{row['uid']}")
    hosted.ask("/metrics")
    assert (hosted.do(picture(hosted.buffer)), _without_time(hosted)) == before


def _without_time(hosted):
    stats = hosted.do(hosted.buffer.stats())
    plain = replace(stats.total.produced, seconds=None)
    return replace(stats.total, produced=plain, trained=stats.total.trained.rollouts)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", ["/", "/groups", "/groups/1", "/events", "/metrics"])
def test_nothing_can_be_written(hosted, path, method):
    assert hosted.ask(path, method).status == 405


# --- who may look


@pytest.mark.parametrize("path", ["/", "/main.js", "/plotly.js", "/groups", "/nowhere", "/metrics"])
def test_a_browser_is_told_to_be_careful(hosted, path):
    headers = hosted.ask(path).headers
    assert "script-src 'self';" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


def test_other_sites_whose_name_points_here_get_nothing(hosted):
    for name in ("evil.example", "127.0.0.1.evil.example:80", "[fe80::1]", ""):
        assert hosted.ask("/groups", Host=name).status == 403
    for name in ("localhost:1", "127.0.0.1", "[::1]:80"):
        assert hosted.ask("/groups", Host=name).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
    ],
)
def test_pages_of_other_sites_get_nothing(hosted, guarded, headers):
    for path in ("/groups", "/metrics", "/events"):
        assert hosted.ask(path, **headers).status == 403
    assert guarded.ask("/enter", "POST", TOKEN.encode(), **headers).status == 403


def test_the_page_itself_may_ask(hosted):
    own = hosted.address.rstrip("/")
    assert hosted.ask("/groups", Origin=own).status == 200
    assert hosted.ask("/groups", Sec_Fetch_Site="same-origin").status == 200
    assert hosted.ask("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status == 200


@contextmanager
def opened(hosted, count=1):
    """Open connections that say nothing."""
    where = urlsplit(hosted.address)
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection((where.hostname, where.port), timeout=60))
            for _ in range(count)
        ]


@pytest.mark.parametrize("headers", ["Content-Length: 629145600", "Transfer-Encoding: chunked"])
def test_a_large_body_is_not_read(guarded, headers):
    with opened(guarded) as (peer,):
        peer.sendall(f"POST /enter HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n\r\n".encode())
        sent, part = 0, b"x" * 65536
        try:
            while sent < 600 << 20 and not select.select([peer], [], [], 0)[0]:
                peer.sendall(b"10000\r\n" + part + b"\r\n" if "chunked" in headers else part)
                sent += len(part)
        except (ConnectionError, TimeoutError):
            pass
        else:
            assert b" 413 " in peer.recv(100)
        assert sent < 64 << 20, "what fits into sockets"


def test_idle_connections_do_not_keep_others_out(guarded):
    with opened(guarded, 300) as peers:
        assert guarded.ask("/metrics", Authorization=f"Bearer {TOKEN}").status == 200
        peers[0].settimeout(60)
        assert peers[0].recv(1) == b"", "the oldest one was closed"


def test_a_silent_connection_is_closed(monkeypatch):
    monkeypatch.setattr("reroll.dashboard.service._IDLE_S", 0.2)
    with hosting() as hosted, opened(hosted, 2) as (silent, slow):
        slow.send(b"GET / HTTP/1.1\r\n")
        assert silent.recv(1) == b""
        assert slow.recv(1) == b""


def test_viewers_are_limited(monkeypatch):
    monkeypatch.setattr("reroll.dashboard.app._MAX_VIEWERS", 1)
    with hosting() as hosted, hosted.watching() as event:
        assert event()[0] == "history"
        assert hosted.ask("/events").status == 503
        assert hosted.ask("/metrics").status == 200


def test_a_wall_clock_that_is_set_back_does_not_freeze_the_metrics(monkeypatch):
    with hosting(interval_s=0.05) as hosted:
        hosted.ask("/metrics")
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() - 3600)
        hosted.put([group("new")], "fresh")
        ends = time.monotonic() + 60
        while b'task="fresh"' not in hosted.ask("/metrics").body:
            assert time.monotonic() < ends


@pytest.mark.parametrize("path", ["/groups", "/events", "/metrics", "/main.js", "/plotly.js", "/"])
def test_without_the_token_nothing_is_seen(guarded, path):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Cookie": "a=b; ;="}):
        found = guarded.ask(path, **headers)
        assert found.status == 401
        assert b"Occupancy" not in found.body


def test_with_the_token_everything_is_seen(guarded):
    assert guarded.ask("/metrics", Authorization=f"Bearer {TOKEN}").status == 200
    assert guarded.ask("/enter", "POST", b"wrong").status == 401
    entered = guarded.ask("/enter", "POST", TOKEN.encode())
    cookie = entered.headers["set-cookie"]
    assert entered.status == 204
    assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
    found = guarded.ask("/", Cookie=cookie.partition(";")[0], Host="elsewhere.example")
    assert (found.status, b"Occupancy" in found.body) == (200, True)


def test_the_token_is_in_no_log(guarded, caplog):
    caplog.set_level(0)
    guarded.ask("/enter", "POST", TOKEN.encode())
    guarded.ask("/metrics", Authorization=f"Bearer {TOKEN}")
    assert TOKEN not in caplog.text


async def test_beyond_this_host_a_token_is_needed():
    async with ReplayBufferConfig(sampler="fifo").build() as buffer:
        view = await open_view(buffer)
        with pytest.raises(InvalidConfig, match="token"):
            Dashboard(view, host="0.0.0.0")  # noqa: S104
        async with Dashboard(view, host="0.0.0.0", token=TOKEN) as dashboard:  # noqa: S104
            assert dashboard.address.startswith("http://0.0.0.0:")


async def test_a_port_that_is_taken_is_told():
    async with ReplayBufferConfig(sampler="fifo").build() as buffer:
        view = await open_view(buffer)
        async with Dashboard(view) as first:
            port = int(first.address.rstrip("/").rpartition(":")[2])
            with pytest.raises(InvalidConfig, match=f"cannot listen on 127.0.0.1:{port}"):
                await Dashboard(view, port=port).start()


def test_a_token_file_is_made_for_its_owner_alone(tmp_path):
    path = tmp_path / "token"
    token = read_token(path)
    assert len(token) >= 24
    assert read_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "short", "two words of enough length", "ünïcödé-ünïcödé-ünïcödé"])
def test_a_token_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(InvalidConfig, match="token"):
        read_token(path)


async def test_it_stops_while_somebody_looks():
    async with ReplayBufferConfig(sampler="fifo").build() as buffer:
        dashboard = await Dashboard(await open_view(buffer)).start()
        host, port = dashboard.address.removeprefix("http://").rstrip("/").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        await reader.readuntil(b"event: frame")
        await dashboard.stop()
        await reader.read()  # to its end
        writer.close()
        await writer.wait_closed()
        assert await buffer.count("math", "completed") == 0
