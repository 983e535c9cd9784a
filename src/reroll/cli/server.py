"""`reroll serve`, `reroll ping` and `reroll keygen`."""

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from reroll.cli.dashboard import TokenFile, page_of
from reroll.cli.options import Key, ServerKey, config_error, fail
from reroll.config import ReplayBufferConfig, read_config
from reroll.errors import InvalidArgument, RerollError, WaitTimeout
from reroll.waiting import on_signal


def serve(
    *,
    bind: Annotated[
        str, typer.Option(help="Address: tcp://127.0.0.1:5555, tcp://*:5555 or ipc:///tmp/buffer.sock.")
    ],
    config: Annotated[
        Path | None, typer.Option(help="Configuration of the buffer: .yaml, .toml or .json.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Directory of the durable store: no crash loses a group.")
    ] = None,
    prepare: Annotated[
        Path | None, typer.Option(help="Configuration of the preparation of batches for trainer ranks.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The server's key pair, made by `reroll keygen`.")] = None,
    allow: Annotated[Path | None, typer.Option(help="Public keys of allowed clients, one per line.")] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Directory in which clients may save and resume.")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="INDEX/COUNT", help="Part of the buffer: 0/2 is the first of two shards."),
    ] = None,
    max_clients: Annotated[int, typer.Option(min=1, help="Largest number of connected clients.")] = 1024,
    max_message_bytes: Annotated[int, typer.Option(min=1, help="Largest part of a message, in bytes.")] = 1
    << 30,
    max_pending_calls: Annotated[int, typer.Option(min=1, help="Unanswered calls of one client.")] = 4096,
    max_pending_bytes: Annotated[
        int, typer.Option(min=1, help="Bytes of the pending calls and answers of one client.")
    ] = 1 << 30,
    client_ttl_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds of silence after which a client counts as dead.")
    ] = 10.0,
    dashboard: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve a dashboard at http://127.0.0.1:PORT."),
    ] = None,
    dashboard_token: TokenFile = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log JSON, one object per line.")] = False,
) -> None:
    """Serve a buffer to other processes, until SIGTERM.

    Example: reroll serve --config buffer.yaml --bind tcp://127.0.0.1:5555 --store ./buffer --dashboard 8787
    """
    try:
        from reroll.remote.malloc import keep_freed_memory  # noqa: PLC0415
        from reroll.server import Limits, Server  # noqa: PLC0415
        from reroll.server.logs import log_to_stderr  # noqa: PLC0415
    except ImportError as error:
        fail(str(error))
    limits = Limits(
        max_clients=max_clients,
        max_message_bytes=max_message_bytes,
        max_pending_calls=max_pending_calls,
        max_pending_bytes=max_pending_bytes,
        client_ttl_s=client_ttl_s,
    )

    async def run() -> None:
        buffer, preparing = _configs(config, store, prepare)
        server = Server(
            buffer, bind, key=key, allow=allow, limits=limits, checkpoints=checkpoints, shard=shard
        )
        if preparing is not None:
            from reroll.prepare.service import serve_preparer  # noqa: PLC0415  (slow to import)

            serve_preparer(server, preparing)
        log_to_stderr(as_json=log_json)
        keep_freed_memory()
        page = nullcontext() if dashboard is None else page_of(server, dashboard, dashboard_token)
        stopping = on_signal()
        async with server, page:
            typer.echo(f"ready at {server.address}")
            await stopping.wait()

    try:
        asyncio.run(run())
    except ValidationError as error:
        fail(config_error(error))
    except (RerollError, ValueError, OSError, ImportError) as error:
        fail(str(error))


def ping(
    address: Annotated[str, typer.Argument(help="tcp://host:port or ipc://path")],
    key: Key = None,
    server_key: ServerKey = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 5.0,
) -> None:
    """Print the health of a server as JSON; exit code 0 if it is ready, else 1.

    Example: reroll ping tcp://127.0.0.1:5555
    """
    try:
        from reroll.server import connect  # noqa: PLC0415
    except ImportError as error:
        fail(str(error))

    async def ask() -> dict[str, Any]:
        async with connect(
            address, key=key, server_key=server_key, deadline_s=timeout, patience_s=timeout
        ) as client:
            return await client.health()

    try:
        health = asyncio.run(ask())
    except InvalidArgument as error:
        fail(str(error))
    except WaitTimeout:
        problem = f"{address} does not answer within {timeout:g} s"
        typer.echo(f"reroll: {problem}; check that a server is there and knows your key", err=True)
        raise typer.Exit(1) from None
    except RerollError as error:
        typer.echo(f"reroll: {address} does not answer: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(json.dumps(health))


def keygen(
    name: Annotated[str, typer.Argument(help="Owner of the keys: server, trainer, engine-1.")],
    directory: Annotated[Path, typer.Option(help="Directory of the two files.")] = Path(),
) -> None:
    """Make a key pair: NAME.secret for its owner, NAME.public for the other side.

    Example: reroll keygen trainer && cat trainer.public >> allowed.keys
    """
    try:
        from reroll.server import keygen as make  # noqa: PLC0415
    except ImportError as error:
        fail(str(error))
    try:
        secret, public = make(name, directory)
    except (InvalidArgument, OSError) as error:
        fail(str(error))
    typer.echo(
        f"{secret}: keep it with its owner\n{public}: give it to the other side, and add it to its list of allowed keys"
    )


def _configs(config: Path | None, store: Path | None, prepare: Path | None) -> tuple[ReplayBufferConfig, Any]:
    """Return the configurations of the buffer and of the preparation; `store` overrides that of the file."""
    options = {} if store is None else {"store": str(store)}
    preparing = None
    if prepare is not None:
        from reroll.prepare import PrepareConfig  # noqa: PLC0415

        own = {"replay_buffer": options} if options and config is None else None
        preparing = read_config(PrepareConfig, prepare, own)
    if config is not None:
        return read_config(ReplayBufferConfig, config, options), preparing
    if preparing is not None:
        return preparing.buffer_config(), preparing
    return ReplayBufferConfig(sampler="fifo", store=store), None
