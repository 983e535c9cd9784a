"""What `reroll show` prints."""

from typing import Any, Final

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from reroll.cli.showing import Decode
from reroll.cli.visible import visible
from reroll.observe.group import token_runs

_COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")


def show_group(group: dict[str, Any], decode: Decode | None) -> None:
    """Print a group."""
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
    names = (
        "task_name",
        "group_id",
        "status",
        "staleness",
        "version",
        "times_sampled",
        "attempts",
        "priority",
        "reward_mean",
        "reward_std",
    )
    told = [f"{name} {_short(row[name])}" for name in names if row.get(name) is not None]
    return Text(
        visible(", ".join([*told, *(f"{name}={value}" for name, value in row.get("tags", {}).items())]))
    )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
    told = f"{rollout['status']}, {rollout['num_response_tokens']} tokens, staleness {rollout['staleness']}"
    return Text(visible(f"Response {place}: {reward}, {told}{reason}"))


def _response(rollout: dict[str, Any], decode: Decode | None, colours: dict[int, str]) -> Text:
    text = Text()
    for version, is_trained, ids in token_runs(rollout):
        colour = "" if version is None else colours[version]
        shown = visible(decode(ids)) if decode else f"{_numbers(ids)} "
        text.append(shown, f"{colour} {'' if is_trained else 'dim'}".strip())
    told = ", ".join(f"version {version}: {count}" for version, count in rollout["versions"])
    text.append(_cut(len(rollout["response_ids"]), rollout["num_response_tokens"]))
    text.append(f"\n[{told}]" if told else "", "italic")
    return text


def _numbers(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def _cut(shown: int, total: int) -> str:
    return f" ... and {total - shown} tokens more" if total > shown else ""
