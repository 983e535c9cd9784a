"""`reroll show`: one group, to be read."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from reroll.cli.ending import fail
from reroll.cli.target import AsJson, Key, Modules, ServerKey, Target, Timeout, looking, print_json

Decode = Callable[[Sequence[int]], str]


def show(
    target: Target,
    uid: Annotated[int, typer.Argument(help="Which group; `reroll inspect` lists them.")],
    *,
    tokenizer: Annotated[
        str | None, typer.Option(help="A tokenizer.json, or a directory or name that transformers loads.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of a prompt and of a response that are shown.")
    ] = 2000,
    as_json: AsJson = False,
    modules: Modules = None,
    key: Key = None,
    server_key: ServerKey = None,
    timeout: Timeout = 10.0,
) -> None:
    """Show one group: its prompt, and each response with reward and, in colours, the policy version of each token.

    Tokens that are masked out are dim. Without a tokenizer, tokens are shown as numbers.

    Example: reroll show ./buffer 17

    Example: reroll show tcp://127.0.0.1:5555 17 --tokenizer ./model/tokenizer.json
    """
    decode = None if tokenizer is None else load_tokenizer(tokenizer)

    async def look(view: Any) -> dict[str, Any]:
        group: dict[str, Any] = await view.group(uid, max_tokens=max_tokens)
        return group

    group = looking(target, look, key=key, server_key=server_key, timeout=timeout, modules=modules)
    if as_json:
        if decode is not None:
            for rollout in group["rollouts"]:
                rollout["decoded"] = decode(rollout["response_ids"])
        print_json(group)
        return
    from reroll.cli.group_text import show_group  # noqa: PLC0415  (rich takes a while to load)

    show_group(group, decode)


def load_tokenizer(name: str) -> Decode:
    """Return what makes text of token ids."""
    try:
        if Path(name).is_file():
            from tokenizers import Tokenizer  # noqa: PLC0415  (optional)

            read = Tokenizer.from_file(name)
            return lambda ids: str(read.decode(list(ids), skip_special_tokens=False))
        from transformers import AutoTokenizer  # noqa: PLC0415  (optional)

        loaded = AutoTokenizer.from_pretrained(name)
        return lambda ids: str(loaded.decode(list(ids)))
    except ImportError as error:
        fail(f"decoding needs {error.name}: pip install {error.name}")
    except Exception as error:  # noqa: BLE001  (what these raise is their own affair)
        fail(f"{name} is no tokenizer that can be loaded: {error}")
