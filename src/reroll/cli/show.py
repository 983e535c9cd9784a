"""`reroll show`: one group, with its tokens by version and mask."""

from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from reroll.cli.options import (
    AsJson,
    Decode,
    Key,
    Modules,
    ServerKey,
    Target,
    Timeout,
    Tokenizer,
    load_tokenizer,
    print_json,
    visible,
    with_view,
)

_COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")
_FIELDS: Final = (
    *("task_name", "group_id", "status", "staleness", "version", "times_sampled"),
    *("attempts", "priority", "reward_mean", "reward_std"),
)


def show(
    target: Target,
    uid: Annotated[int, typer.Argument(help="The group's uid; `reroll inspect` lists them.")],
    *,
    tokenizer: Tokenizer = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of a prompt and of a response to show.")
    ] = 2000,
    as_json: AsJson = False,
    modules: Modules = None,
    key: Key = None,
    server_key: ServerKey = None,
    timeout: Timeout = 10.0,
) -> None:
    """Show one group: its prompt, and each response with its reward; a colour marks the policy version of each token.

    Masked tokens are dim. Without a tokenizer, tokens are shown as numbers.

    Example: reroll show ./buffer 17

    Example: reroll show tcp://127.0.0.1:5555 17 --tokenizer ./model/tokenizer.json
    """
    decode = load_tokenizer(tokenizer)

    async def read(view: Any) -> dict[str, Any]:
        found: dict[str, Any] = await view.group(uid, max_tokens=max_tokens)
        return found

    group = with_view(target, read, key=key, server_key=server_key, timeout=timeout, modules=modules)
    if not as_json:
        _print(group, decode)
        return
    if decode is not None:
        for rollout in group["rollouts"]:
            rollout["decoded"] = decode(rollout["response_ids"])
    print_json(group)


def _print(group: dict[str, Any], decode: Decode | None) -> None:
    from reroll.observe.plain import token_runs  # noqa: PLC0415  (slow to import)

    console = Console()
    console.print(Text(f"Group {group['uid']}", "bold"), _about(group["row"] or {}))
    rollouts = group["rollouts"]
    console.print(Rule("Prompt", align="left"))
    console.print(_prompt(rollouts[0], decode))
    versions = sorted({version for rollout in rollouts for version, _ in rollout["versions"]})
    colours = {version: _COLOURS[place % len(_COLOURS)] for place, version in enumerate(versions)}
    if colours:
        legend = Text("versions: ")
        for version, colour in colours.items():
            legend.append(f" {version} ", f"{colour} reverse")
        has_masked = any(not is_trained for rollout in rollouts for _, is_trained, _ in token_runs(rollout))
        console.print(legend, Text("dim: masked out" if has_masked else "", "dim"))
    for place, rollout in enumerate(rollouts):
        console.print(Rule(_headline(place, rollout), align="left"))
        if rollout["error_msg"]:
            console.print(Text(visible(str(rollout["error_msg"])), "red"))
        if decode is None and rollout["response"]:
            console.print(Text(visible(rollout["response"])))
        console.print(_response(rollout, decode, colours))


def _about(row: dict[str, Any]) -> Text:
    facts = []
    for name in _FIELDS:
        value = row.get(name)
        if value is not None:
            facts.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    facts += [f"{name}={value}" for name, value in row.get("tags", {}).items()]
    return Text(visible(", ".join(facts)))


def _prompt(rollout: dict[str, Any], decode: Decode | None) -> Text:
    if rollout["message"] is not None:
        return Text(visible(rollout["message"]))
    ids = rollout["prompt_ids"]
    return Text(
        (visible(decode(ids)) if decode else _numbers(ids)) + _cut(len(ids), rollout["num_prompt_tokens"])
    )


def _headline(place: int, rollout: dict[str, Any]) -> Text:
    reward = "no reward" if rollout["score"] is None else f"reward {rollout['score']:g}"
    reason = f", {rollout['finish_reason']}" if rollout["finish_reason"] else ""
    facts = f"{rollout['status']}, {rollout['num_response_tokens']} tokens, staleness {rollout['staleness']}"
    return Text(visible(f"Response {place}: {reward}, {facts}{reason}"))


def _response(rollout: dict[str, Any], decode: Decode | None, colours: dict[int, str]) -> Text:
    from reroll.observe.plain import token_runs  # noqa: PLC0415  (slow to import)

    text = Text()
    for version, is_trained, ids in token_runs(rollout):
        colour = "" if version is None else colours[version]
        shown = visible(decode(ids)) if decode else f"{_numbers(ids)} "
        text.append(shown, f"{colour} {'' if is_trained else 'dim'}".strip())
    versions = ", ".join(f"version {version}: {count}" for version, count in rollout["versions"])
    text.append(_cut(len(rollout["response_ids"]), rollout["num_response_tokens"]))
    text.append(f"\n[{versions}]" if versions else "", "italic")
    return text


def _numbers(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def _cut(shown: int, total: int) -> str:
    return f" ... and {total - shown} tokens more" if total > shown else ""
