"""Who may look: this host, or whoever has the token. Tokens are compared in constant time, and never written to a log."""

import secrets
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from os import PathLike
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from reroll.errors import InvalidConfig

PAGE: Final = Path(__file__).with_name("page")
COOKIE: Final = "reroll-dashboard"
_LEAST: Final = 16
"""Shorter tokens could be guessed."""
LARGEST_BODY: Final = 4096
"""Bytes of a request besides its headers: a token is all that is ever sent."""
_OPEN: Final = frozenset({"/enter", "/enter.js", "/page.css", "/icon.svg"})
"""What is needed to show a token."""


class Guard:
    """Lets through what may pass; a part of the app, around all routes."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer in place of the app whoever may not look."""
        refusal = None if scope["type"] != "http" else self._refusal(scope["path"], Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> Response | None:
        if _body_bytes(headers) > LARGEST_BODY:
            return too_large(f"the body has more than {LARGEST_BODY} bytes; the dashboard only reads")
        if _is_foreign(headers):
            return JSONResponse({"error": "the request comes from a page of another site"}, 403)
        if self._token is None:
            if _is_loopback(_host_name(headers.get("host", ""))):
                return None
            # Another site may have its name point here, and would then be allowed to read what it gets.
            return JSONResponse({"error": "ask by the name localhost or 127.0.0.1"}, 403)
        if path in _OPEN or self._is_known(headers):
            return None
        if path == "/":
            return FileResponse(PAGE / "enter.html", 401)
        return JSONResponse({"error": "give the token: in the page /, or as Authorization: Bearer"}, 401)

    def _is_known(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        return (kind.lower() == "bearer" and is_same(given, self._token)) or is_same(
            _cookie(headers), self._token
        )


def too_large(error: str) -> Response:
    """Return the answer to a body that is not read: the connection ends with it."""
    return JSONResponse({"error": error}, 413, headers={"connection": "close"})


def _body_bytes(headers: Headers) -> int:
    """Return how long the body of a request is, as its headers say; 0 where they say nothing."""
    length = headers.get("content-length", "0")
    return int(length) if length.isdecimal() and len(length) < 20 else 1 << 64


def _is_foreign(headers: Headers) -> bool:
    """Return whether a browser sends a request for a page of another site."""
    site = headers.get("sec-fetch-site")
    if site is not None:  # of the browser itself; it may be behind a proxy that changes Host
        return site in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate"
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()


def is_same(given: str, token: str | None) -> bool:
    """Return whether a token is the right one, in a time that does not tell how much of it is right."""
    return token is not None and compare_digest(given.encode(), token.encode())


def check_may_listen(host: str, token: str | None) -> None:
    """Raise InvalidConfig where others could look without a token."""
    if token is None and not _is_loopback(host):
        raise InvalidConfig(
            f"{host} can be reached by others: give a token file, or listen on 127.0.0.1 and come through ssh -L"
        )


def read_token(path: str | PathLike[str]) -> str:
    """Return the token in a file; where there is no file, make one that only its owner can read. Raises InvalidConfig."""
    path = Path(path)
    if not path.exists():
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(secrets.token_urlsafe(24) + "\n")
    token = path.read_text().strip()
    if len(token) < _LEAST or not token.isascii() or any(letter.isspace() for letter in token):
        raise InvalidConfig(
            f"{path}: a token is one word of {_LEAST} ASCII letters and digits or more; remove the file to get a new one"
        )
    return token


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _host_name(header: str) -> str:
    """Return the name in a Host header, without its port."""
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]


def _is_loopback(name: str) -> bool:
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
