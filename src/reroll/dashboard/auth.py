"""Access to the dashboard: from this host, or with the token. Tokens are compared in constant time and never logged."""

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
_MIN_LENGTH: Final = 16
"""Shorter tokens can be guessed."""
MAX_BODY_BYTES: Final = 4096
"""Largest body of a request: clients send nothing but a token."""
_PUBLIC: Final = frozenset({"/enter", "/enter.js", "/page.css", "/icon.svg"})
"""Paths that need no token: those of the page that asks for it."""


class Guard:
    """Middleware that refuses requests without access."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the app, or refuse it."""
        refusal = None if scope["type"] != "http" else self._refusal(scope["path"], Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> Response | None:
        if _body_bytes(headers) > MAX_BODY_BYTES:
            return too_large(f"the body has more than {MAX_BODY_BYTES} bytes; the dashboard only reads")
        if _is_foreign(headers):
            return JSONResponse({"error": "the request comes from a page of another site"}, 403)
        if self._token is None:
            if _is_loopback(_host_name(headers.get("host", ""))):
                return None
            # DNS rebinding: the name of another site may resolve to this host.
            return JSONResponse({"error": "the host name is not local; use localhost or 127.0.0.1"}, 403)
        if path in _PUBLIC or self._is_known(headers):
            return None
        if path == "/":
            return FileResponse(PAGE / "enter.html", 401)
        return JSONResponse(
            {"error": "a token is required; enter it on the page /, or send Authorization: Bearer"}, 401
        )

    def _is_known(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        return (kind.lower() == "bearer" and is_same(given, self._token)) or is_same(
            _cookie(headers), self._token
        )


def too_large(error: str) -> Response:
    """Return the answer to a body that is too large to read; it closes the connection."""
    return JSONResponse({"error": error}, 413, headers={"connection": "close"})


def _body_bytes(headers: Headers) -> int:
    """Return the length of the body that the headers announce, 0 if they announce none."""
    length = headers.get("content-length", "0")
    return int(length) if length.isdecimal() and len(length) < 20 else 1 << 64


def _is_foreign(headers: Headers) -> bool:
    """Return whether a browser sent the request for a page of another site."""
    site = headers.get("sec-fetch-site")
    if site is not None:  # set by the browser, and right behind a proxy that changes Host
        return site in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate"
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()


def is_same(given: str, token: str | None) -> bool:
    """Compare tokens in constant time."""
    return token is not None and compare_digest(given.encode(), token.encode())


def check_may_listen(host: str, token: str | None) -> None:
    """Raise InvalidConfig if other hosts could connect without a token."""
    if token is None and not _is_loopback(host):
        raise InvalidConfig(
            f"cannot listen on {host} without a token; pass a token file, or listen on 127.0.0.1 and use ssh -L"
        )


def read_token(path: str | PathLike[str]) -> str:
    """Return the token in a file; create a missing file, readable by its owner only.

    Args:
        path: of the file.

    Raises:
        InvalidConfig: the file holds no valid token.

    """
    path = Path(path)
    if not path.exists():
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(secrets.token_urlsafe(24) + "\n")
    token = path.read_text().strip()
    if len(token) < _MIN_LENGTH or not token.isascii() or any(letter.isspace() for letter in token):
        raise InvalidConfig(
            f"{path} has no valid token: it must be one word of at least {_MIN_LENGTH} ASCII characters; remove the file to get a "
            "new one"
        )
    return token


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _host_name(header: str) -> str:
    """Return the name in a Host header without the port."""
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]


def _is_loopback(name: str) -> bool:
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
