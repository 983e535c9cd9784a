"""The routes: a page, what it shows, and `/metrics`. All of them only read."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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

from reroll.dashboard.access import COOKIE, LARGEST_BODY, PAGE, Guard, is_same, too_large
from reroll.dashboard.frames import Frames, as_json
from reroll.errors import InvalidArgument, RerollError, UnknownUid
from reroll.observe import Poll
from reroll.observe.group import token_runs
from reroll.telemetry.metrics import CONTENT_TYPE, prometheus_text

_CHARTS: Final = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
_LARGEST_PAGE: Final = 500
_MOST_VIEWERS: Final = 128
"""Pages that are kept up to date at a time."""
_BODY_S: Final = 10.0
"""A token has to arrive within this time."""
_LARGEST_NUMBER: Final = (1 << 63) - 1
# Scripts come from here only, and none are inline. The chart library writes styles into its elements.
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

Handler = Callable[[Request], Awaitable[Response]]
Decode = Callable[[Sequence[int]], str]


def make_app(poll: Poll, token: str | None, decode: Decode | None) -> Starlette:
    """Return the app that shows what a poll looks at.

    Args:
        poll: what is asked for all viewers together.
        token: who does not know it sees nothing; None: whoever comes from this host may look.
        decode: makes text of token ids; None: they are shown as numbers.

    """
    view, frames = poll.view, Frames(poll)

    async def events(_request: Request) -> Response:
        if frames.num_viewers >= _MOST_VIEWERS:
            return _json({"error": f"{_MOST_VIEWERS} pages are open, which is the limit; close some"}, 503)
        return StreamingResponse(frames.events(), media_type="text/event-stream")

    @_told
    async def groups(request: Request) -> Any:
        asked = request.query_params
        page = await view.rows(
            _where(asked),
            order_by=asked.get("order_by") or None,
            limit=min(_number(asked, "limit", 50), _LARGEST_PAGE),
            offset=_number(asked, "offset", 0),
        )
        return page._asdict()

    @_told
    async def group(request: Request) -> Any:
        most = _number(request.query_params, "tokens", 2000)
        uid = _whole_number("uid", request.path_params["uid"])
        found = await view.group(uid, max_tokens=most)
        for rollout in found["rollouts"]:
            _tell_tokens(rollout, decode)
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
            return _json({"error": "the token did not arrive"}, 408)
        if not is_same(given, token):
            return _json({"error": "that is not the token"}, 401)
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
        middleware=[Middleware(_Careful), Middleware(Guard, token=token)],
    )


def _told(handler: Callable[[Request], Awaitable[Any]]) -> Handler:
    """Answer with JSON; what goes wrong is an answer, too. A decorator."""

    @wraps(handler)
    async def answer(request: Request) -> Response:
        try:
            return _json(await handler(request))
        except UnknownUid as error:
            return _json({"error": f"{error.args[0]}; it may have left meanwhile"}, 404)
        except (InvalidArgument, ValueError, OverflowError) as error:
            return _json({"error": str(error)}, 400)
        except RecursionError:
            return _json({"error": "the filter is nested too deep; flatten it"}, 400)
        except (RerollError, OSError) as error:
            return _json({"error": str(error)}, 503)

    return answer


def _tell_tokens(rollout: dict[str, Any], decode: Decode | None) -> None:
    """Give a rollout its tokens in runs of one version and one mask, in place of three lists; as text where it can be."""
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


def _where(asked: QueryParams) -> dict[str, Any]:
    """Return the query of a request: what it says, of the task that it names."""
    text, task = asked.get("where", "").strip(), asked.get("task", "")
    try:
        where = msgspec.json.decode(text) if text else {}
    except msgspec.DecodeError as error:
        raise InvalidArgument(f'the filter is no JSON ({error}); write {{"field": {{"$gt": 1}}}}') from None
    return {"$and": [where, {"task_name": task}]} if task else where


def _number(asked: QueryParams, name: str, default: int) -> int:
    return _whole_number(name, asked.get(name, str(default)))


def _whole_number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidArgument(f"{name} must be a whole number of at least 0, not {text[:40]!r}")
    if len(text) > len(str(_LARGEST_NUMBER)) or int(text) > _LARGEST_NUMBER:
        raise InvalidArgument(f"{name} must be below 2**63, not {text[:40]}...")
    return int(text)


async def _short_body(request: Request) -> bytes:
    """Return the body of a request. Raises InvalidArgument as soon as it is longer than any token."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            raise InvalidArgument(f"the body has more than {LARGEST_BODY} bytes; send the token alone")
    return body


def _json(value: Any, status: int = 200) -> Response:
    return Response(as_json(value), status, media_type="application/json")


def _file(path: Path, cache: str = "no-cache") -> Handler:
    async def answer(_request: Request) -> Response:
        return FileResponse(path, headers={"cache-control": cache})

    return answer


class _Careful:
    """Says with every answer what a browser may do with it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def careful(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, careful)
