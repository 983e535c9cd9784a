"""Arguments that commands share, opening a buffer by them, and output: errors in one line, JSON, safe text."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar
from unicodedata import category

import typer

from reroll.errors import RerollError

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")

Target = Annotated[
    str,
    typer.Argument(
        metavar="PATH|URL",
        help="Directory of a saved or durable buffer, tcp://host:port or ipc://path of a server, or ray:name.",
    ),
]
Where = Annotated[
    str | None, typer.Option(help='Select groups, by a JSON query: \'{"reward_std": {"$gt": 0.2}}\'.')
]
Key = Annotated[Path | None, typer.Option(help="Your key pair, if the server requires keys.")]
ServerKey = Annotated[str | None, typer.Option(help="The server's public key, or its file.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a server's answer.")]
Modules = Annotated[
    list[str] | None, typer.Option("--import", help="Module that registers your classes; repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Tokenizer = Annotated[
    str | None, typer.Option(help="A tokenizer.json, or a directory or name that transformers loads.")
]
Decode = Callable[[Sequence[int]], str]


def fail(message: str) -> NoReturn:
    """Print an error in one line, and exit with code 2."""
    typer.echo(f"reroll: {' '.join(message.split())}", err=True)
    raise typer.Exit(2)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn the errors of reroll and of files into `fail`."""
    try:
        yield
    except (RerollError, OSError, ImportError) as error:
        # str() of a KeyError puts its message in quotes.
        fail(str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error))


def with_view(
    target: str,
    read: Callable[[Any], Awaitable[T]],
    *,
    key: Path | None = None,
    server_key: str | None = None,
    timeout: float = 10.0,
    modules: Sequence[str] | None = None,
) -> T:
    """Import modules, open a view of the target, and return the result of `read`."""
    from reroll.observe import open_view  # noqa: PLC0415  (slow to import)

    async def run() -> T:
        async with await open_view(target, key=key, server_key=server_key, timeout=timeout) as view:
            return await read(view)

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


def load_tokenizer(name: str | None) -> Decode | None:
    """Return the function that turns token ids into text, None without a name."""
    if name is None:
        return None
    try:
        if Path(name).is_file():
            from tokenizers import Tokenizer as FromFile  # noqa: PLC0415  (optional)

            read = FromFile.from_file(name)
            return lambda ids: str(read.decode(list(ids), skip_special_tokens=False))
        from transformers import AutoTokenizer  # noqa: PLC0415  (optional)

        loaded = AutoTokenizer.from_pretrained(name)
        return lambda ids: str(loaded.decode(list(ids)))
    except ImportError as error:
        fail(f"decoding needs {error.name}: pip install {error.name}")
    except Exception as error:  # noqa: BLE001  (these libraries raise anything)
        fail(f"cannot load the tokenizer {name}: {error}")


def config_error(error: "ValidationError") -> str:
    """Return the problems of a configuration by key."""
    problems = []
    for one in error.errors():
        place = ".".join(map(str, one["loc"]))
        message = one["msg"].removeprefix("Value error, ")
        if one["type"] == "extra_forbidden":
            message = f"there is no such option{_hint(str(one['loc'][-1]))}"
        problems.append(f"{place}: {message}" if place else message)
    return "; ".join(problems)


def _hint(name: str) -> str:
    from reroll.config import ReplayBufferConfig  # noqa: PLC0415  (slow to import)
    from reroll.prepare import PrepareConfig  # noqa: PLC0415

    if name in PrepareConfig.model_fields:
        return " here; it is one of a preparation (serve --prepare)"
    if name in ReplayBufferConfig.model_fields:
        return f" here; it is one of a whole buffer, in a preparation replay_buffer.{name}"
    known = [*ReplayBufferConfig.model_fields, *PrepareConfig.model_fields]
    found = get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def visible(text: str) -> str:
    """Escape control characters, but for line ends and tabs, so that a user's text cannot steer the terminal."""
    return "".join(
        char if char in "\n\t" or category(char) not in ("Cc", "Cf", "Cs") else ascii(char)[1:-1]
        for char in text
    )


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr, if it is a terminal; yield a function of the done number and the total."""
    from rich.console import Console  # noqa: PLC0415  (slow to import)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)
