"""`reroll dashboard`, and the page of `reroll serve --dashboard`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reroll.cli.options import (
    Decode,
    Key,
    Modules,
    ServerKey,
    Target,
    Timeout,
    Tokenizer,
    load_tokenizer,
    with_view,
)
from reroll.errors import InvalidConfig
from reroll.waiting import on_signal

if TYPE_CHECKING:
    from reroll.server import Server

TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the token that viewers need; created if missing. Required beyond this host."
    ),
]


def dashboard(
    target: Target,
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page; 0 selects a free one.")
    ] = 8787,
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond this host a token is required.")
    ] = "127.0.0.1",
    token: TokenFile = None,
    interval_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two requests, for all viewers together.")
    ] = 2.0,
    tokenizer: Tokenizer = None,
    modules: Modules = None,
    key: Key = None,
    server_key: ServerKey = None,
    timeout: Timeout = 10.0,
) -> None:
    """Show a buffer in a browser, live: its contents, rates, waiting calls, and every group. It only reads.

    Example: reroll dashboard ./buffer

    Example: reroll dashboard tcp://127.0.0.1:5555 --port 9000

    Example: reroll dashboard tcp://127.0.0.1:5555 --host 0.0.0.0 --token dashboard.token
    """
    decode = load_tokenizer(tokenizer)

    async def serve(view: Any) -> None:
        stopping = on_signal()
        async with _page(view, host, port, token, interval_s=interval_s, decode=decode):
            await stopping.wait()

    with_view(target, serve, key=key, server_key=server_key, timeout=timeout, modules=modules)


@asynccontextmanager
async def page_of(server: "Server", at: str, token: Path | None) -> AsyncIterator[None]:
    """Show the buffer of a server in a browser, at `[HOST:]PORT`. Raises InvalidConfig."""
    from reroll.observe import open_view  # noqa: PLC0415  (slow to import)

    host, _, port = at.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise InvalidConfig(f"--dashboard must be a port or host:port, not {at!r}")
    view = await open_view(server.buffer)
    view.title = server.address
    async with _page(view, host.strip("[]") or "127.0.0.1", int(port), token):
        yield


@asynccontextmanager
async def _page(
    view: Any,
    host: str,
    port: int,
    token: Path | None,
    *,
    interval_s: float = 2.0,
    decode: Decode | None = None,
) -> AsyncIterator[None]:
    from reroll.dashboard import Dashboard, read_token  # noqa: PLC0415  (needs its extra)

    secret = None if token is None else read_token(token)
    async with Dashboard(
        view, host=host, port=port, token=secret, interval_s=interval_s, decode=decode
    ) as page:
        typer.echo(f"dashboard at {page.address}" + ("" if token is None else f", with the token in {token}"))
        yield
