"""What a command looks at, and how looking goes wrong: one line, and exit code 2."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from reroll.cli.ending import fail
from reroll.errors import RerollError

T = TypeVar("T")

Target = Annotated[
    str,
    typer.Argument(
        metavar="PATH|URL",
        help="Directory of a saved or durable buffer, tcp://host:port or ipc://path of a server, or ray:name.",
    ),
]
Where = Annotated[str | None, typer.Option(help='Which groups, as JSON: \'{"reward_std": {"$gt": 0.2}}\'.')]
Key = Annotated[Path | None, typer.Option(help="Your key pair, where the server asks for one.")]
ServerKey = Annotated[str | None, typer.Option(help="The server's public key, or its file.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds that a server may take to answer.")]
Modules = Annotated[
    list[str] | None, typer.Option("--import", help="Module that registers your classes; may be given again.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the command with one line where something cannot be looked at."""
    try:
        yield
    except (RerollError, OSError, ImportError) as error:
        # A KeyError shows its message as a key, in quotes.
        fail(str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error))


def looking(
    target: str,
    look: Callable[[Any], Awaitable[T]],
    *,
    key: Path | None = None,
    server_key: str | None = None,
    timeout: float = 10.0,
    modules: Sequence[str] | None = None,
) -> T:
    """Return what a look at a target gives; modules are imported before."""
    from reroll.observe import open_view  # noqa: PLC0415  (what it needs takes a while to load)

    async def run() -> T:
        async with await open_view(target, key=key, server_key=server_key, timeout=timeout) as view:
            return await look(view)

    with one_line_errors():
        for module in modules or ():
            if "" not in sys.path:
                sys.path.insert(0, "")  # as for `python -m`
            import_module(module)
        return asyncio.run(run())


def query_of(where: str | None) -> dict[str, Any] | None:
    """Return the query of `--where`."""
    if where is None:
        return None
    try:
        found = json.loads(where)
    except ValueError as error:
        fail(f'--where is no JSON ({error}); write it like \'{{"status": "completed"}}\'')
    if not isinstance(found, dict):
        fail(f"--where must be a JSON object, not {where}")
    return found


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))
