"""The dashboard: `reroll dashboard`, and the page that `reroll serve --dashboard` has beside it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reroll.cli.showing import Decode, load_tokenizer
from reroll.cli.target import Key, Modules, ServerKey, Target, Timeout, looking
from reroll.errors import InvalidConfig
from reroll.waiting import on_signal

if TYPE_CHECKING:
    from reroll.server import Server

TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the token that viewers have to know; made if it is not there. Needed beyond this host."
    ),
]


def dashboard(
    target: Target,
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where the page is; 0: any that is free.")
    ] = 8787,
    host: Annotated[
        str, typer.Option(help="Where it listens; beyond this host it needs a token.")
    ] = "127.0.0.1",
    token: TokenFile = None,
    interval_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two looks, however many viewers there are.")
    ] = 2.0,
    tokenizer: Annotated[
        str | None, typer.Option(help="A tokenizer.json, or a directory or name that transformers loads.")
    ] = None,
    modules: Modules = None,
    key: Key = None,
    server_key: ServerKey = None,
    timeout: Timeout = 10.0,
) -> None:
    """Show a buffer in a browser, live: what is in it, how it flows, who waits, and every group. It only reads.

    Example: reroll dashboard ./buffer

    Example: reroll dashboard tcp://127.0.0.1:5555 --port 9000

    Example: reroll dashboard tcp://127.0.0.1:5555 --host 0.0.0.0 --token dashboard.token
    """
    decode = None if tokenizer is None else load_tokenizer(tokenizer)

    async def show(view: Any) -> None:
        stopping = on_signal()
        async with _page(view, host, port, token, interval_s=interval_s, decode=decode):
            await stopping.wait()

    looking(target, show, key=key, server_key=server_key, timeout=timeout, modules=modules)


@asynccontextmanager
async def page_of(server: "Server", at: str, token: Path | None) -> AsyncIterator[None]:
    """Show the buffer of a server in a browser, at `[HOST:]PORT`. Raises InvalidConfig."""
    from reroll.observe import open_view  # noqa: PLC0415  (only for those who look)

    host, _, port = at.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise InvalidConfig(f"--dashboard takes a port, or host:port, not {at!r}")
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
    try:
        from reroll.dashboard import Dashboard, read_token  # noqa: PLC0415  (with its extra)
    except ImportError as error:
        raise ImportError(f"the dashboard needs {error.name}: pip install 'reroll[dashboard]'") from error
    known = None if token is None else read_token(token)
    async with Dashboard(
        view, host=host, port=port, token=known, interval_s=interval_s, decode=decode
    ) as page:
        typer.echo(f"dashboard at {page.address}" + ("" if token is None else f", with the token in {token}"))
        yield
