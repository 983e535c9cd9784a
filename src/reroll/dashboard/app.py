"""The routes of the dashboard: the page, its event stream, groups, and `/metrics`. All of them only read."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Final

import msgspec
import plotly
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reroll.dashboard.auth import COOKIE, MAX_BODY_BYTES, PAGE, Guard, is_same, too_large
from reroll.errors import InvalidArgument, RerollError, UnknownUid
from reroll.observe import Moment, Poll
from reroll.observe.plain import token_runs
from reroll.telemetry.metrics import CONTENT_TYPE, prometheus_text

_CHARTS: Final = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
_MAX_ROWS: Final = 500
_MAX_VIEWERS: Final = 128
"""Open event streams."""
_BODY_S: Final = 10.0
"""Seconds within which a token must arrive."""
_MAX_NUMBER: Final = (1 << 63) - 1
# Scripts come from this host only, and none are inline. The chart library sets inline styles.
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

_encode: Final = msgspec.json.Encoder(enc_hook=str).encode

Handler = Callable[[Request], Awaitable[Response]]
Decode = Callable[[Sequence[int]], str]


def make_app(poll: Poll, token: str | None, decode: Decode | None) -> Starlette:
    """Return the app of a dashboard.

    Args:
        poll: the source of stats and ledger, shared by all viewers.
        token: the token that viewers need; None allows requests from this host only.
        decode: turns token ids into text; None shows them as numbers.

    """
    view, stream = poll.view, EventStream(poll)

    async def events(_request: Request) -> Response:
        if stream.num_viewers >= _MAX_VIEWERS:
            return _json({"error": f"too many pages are open: {_MAX_VIEWERS}; close some"}, 503)
        return StreamingResponse(stream.events(), media_type="text/event-stream")

    @_as_json
    async def groups(request: Request) -> Any:
        given = request.query_params
        page = await view.rows(
            _where(given),
            order_by=given.get("order_by") or None,
            limit=min(_number(given, "limit", 50), _MAX_ROWS),
            offset=_number(given, "offset", 0),
        )
        return page._asdict()

    @_as_json
    async def group(request: Request) -> Any:
        most = _number(request.query_params, "tokens", 2000)
        uid = _whole_number("uid", request.path_params["uid"])
        found = await view.group(uid, max_tokens=most)
        for rollout in found["rollouts"]:
            _add_runs(rollout, decode)
        return found

    async def metrics(_request: Request) -> Response:
        moment = await poll.now()
        if moment.stats is None:
            return _json({"error": moment.error}, 503)
        return Response(prometheus_text(moment.stats, moment.ledger), media_type=CONTENT_TYPE)

    async def enter(request: Request) -> Response:
        try:
            async with asyncio.timeout(_BODY_S):
                given = (await _short_body(request)).decode(errors="replace")
        except InvalidArgument as error:
            return too_large(str(error))
        except TimeoutError:
            return _json({"error": "the token did not arrive in time"}, 408)
        if not is_same(given, token):
            return _json({"error": "the token is wrong"}, 401)
        answer = Response(status_code=204)
        answer.set_cookie(COOKIE, given, httponly=True, samesite="strict", max_age=30 * 24 * 3600)
        return answer

    return Starlette(
        routes=[
            Route("/events", events),
            Route("/groups", groups),
            Route("/groups/{uid}", group),
            Route("/metrics", metrics),
            Route("/enter", enter, methods=["POST"]),
            Route("/plotly.js", _file(_CHARTS, "public, max-age=86400")),
            Route("/", _file(PAGE / "index.html")),
            *(Route(f"/{path.name}", _file(path)) for path in PAGE.iterdir() if path.suffix != ".html"),
        ],
        middleware=[Middleware(_SecurityHeaders), Middleware(Guard, token=token)],
    )


def _as_json(handler: Callable[[Request], Awaitable[Any]]) -> Handler:
    """Decorate a handler: its result, or its error, becomes a JSON answer."""

    @wraps(handler)
    async def answer(request: Request) -> Response:
        try:
            return _json(await handler(request))
        except UnknownUid as error:
            return _json({"error": f"{error.args[0]}; it may have left the buffer meanwhile"}, 404)
        except (InvalidArgument, ValueError, OverflowError) as error:
            return _json({"error": str(error)}, 400)
        except RecursionError:
            return _json({"error": "the filter is nested too deep; flatten it"}, 400)
        except (RerollError, OSError) as error:
            return _json({"error": str(error)}, 503)

    return answer


def _add_runs(rollout: dict[str, Any], decode: Decode | None) -> None:
    """Replace the tokens, versions and mask of a rollout by runs of equal version and mask, as text."""
    rollout["runs"] = [
        {
            "version": version,
            "is_trained": is_trained,
            "num_tokens": len(ids),
            "text": decode(ids) if decode else " ".join(map(str, ids)) + " ",
        }
        for version, is_trained, ids in token_runs(rollout)
    ]
    if rollout["message"] is None:
        ids = rollout["prompt_ids"]
        rollout["message"] = decode(ids) if decode else " ".join(map(str, ids))
    for name in ("prompt_ids", "response_ids", "versions", "mask"):
        del rollout[name]


def _where(given: QueryParams) -> dict[str, Any]:
    """Return the query of a request, restricted to its task."""
    text, task = given.get("where", "").strip(), given.get("task", "")
    try:
        where = msgspec.json.decode(text) if text else {}
    except msgspec.DecodeError as error:
        raise InvalidArgument(f'the filter is no JSON ({error}); write {{"field": {{"$gt": 1}}}}') from None
    return {"$and": [where, {"task_name": task}]} if task else where


def _number(given: QueryParams, name: str, default: int) -> int:
    return _whole_number(name, given.get(name, str(default)))


def _whole_number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidArgument(f"{name} must be a whole number of at least 0, not {text[:40]!r}")
    if len(text) > len(str(_MAX_NUMBER)) or int(text) > _MAX_NUMBER:
        raise InvalidArgument(f"{name} must be below 2**63, not {text[:40]}...")
    return int(text)


async def _short_body(request: Request) -> bytes:
    """Return the body of a request. Raises InvalidArgument as soon as it is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise InvalidArgument(f"the body has more than {MAX_BODY_BYTES} bytes; send the token alone")
    return body


def _json(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type="application/json")


def _file(path: Path, cache: str = "no-cache") -> Handler:
    async def answer(_request: Request) -> Response:
        return FileResponse(path, headers={"cache-control": cache})

    return answer


class _SecurityHeaders:
    """Middleware that adds security and cache headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


class EventStream:
    """The moments of a poll as server-sent events, each encoded once for all viewers."""

    def __init__(self, poll: Poll) -> None:
        self._poll = poll
        self.num_viewers = 0
        """Open streams."""
        self._encoded: tuple[Moment | None, bytes] = None, b""

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events of one viewer: the history, then one frame for each moment."""
        self.num_viewers += 1
        try:
            points = [_point(moment) for moment in self._poll.history if moment.stats is not None]
            yield _event("history", points)
            async for moment in self._poll.moments():
                if self._encoded[0] is not moment:
                    self._encoded = moment, self._encode(moment)
                yield self._encoded[1]
        finally:
            self.num_viewers -= 1

    def _encode(self, moment: Moment) -> bytes:
        view = self._poll.view
        if moment.stats is None:
            return _event("problem", moment.error)
        frame = {
            "source": view.title,
            "kind": view.kind,
            "point": _point(moment),
            "stats": moment.stats,
            "ledger": moment.ledger,
        }
        return _event("frame", frame)


def _point(moment: Moment) -> dict[str, Any]:
    """Return the values of the charts over time, for a moment with stats."""
    stats, ledger = moment.stats, moment.ledger
    assert stats is not None  # noqa: S101  (checked by the caller)
    return {
        "at": moment.at,
        "num_bytes": stats.num_bytes,
        "memory_bytes": stats.memory_bytes,
        "disk_bytes": None if stats.disk is None else stats.disk.file_bytes + stats.disk.log_bytes,
        "tasks": {
            name: {
                "statuses": {status: count for status, count in task.statuses.items() if count},
                "puts": task.num_puts,
                "used": task.trained.groups,
                "consumed": ledger[name]["consumed"].groups + ledger[name]["uncommitted"].groups,
            }
            for name, task in stats.tasks.items()
            if name in ledger
        },
    }


def _event(name: str, value: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(value))
