"""One group in plain values, for people: prompts, responses, rewards, and who made which token."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from reroll.observe.plain import plain
from reroll.rollout import DictRollout, read_status
from reroll.rollout.adapters import count_tokens, read_score, read_seq_staleness

Run = tuple[Any, int]
"""A value, and how many tokens in a row have it."""


def plain_rollout(rollout: Any, *, max_tokens: int | None = None) -> dict[str, Any]:
    """Return one rollout by name; of its tokens the first ones, if there are more than `max_tokens`.

    `versions` and `mask` are runs over the response: pairs of a value and a number of tokens; empty where nothing is known.
    """
    seen = DictRollout(rollout) if isinstance(rollout, dict) else rollout

    def read(name: str) -> Any:
        return getattr(seen, name, None)

    prompt, response = _ids(read("prompt_ids")), _ids(read("response_ids"))
    return {
        "rollout_id": plain(read("rollout_id")),
        "status": read_status(read("status")).value,
        "staleness": read_seq_staleness(seen),
        "score": plain(read_score(read("reward"))),
        "reward": _told(read("reward")),
        "finish_reason": plain(read("finish_reason")),
        "error_msg": plain(read("error_msg")),
        "message": _text(read("message")),
        "response": _text(read("response")),
        "num_tokens": count_tokens(seen),
        "num_prompt_tokens": len(prompt),
        "num_response_tokens": len(response),
        "prompt_ids": prompt[:max_tokens],
        "response_ids": response[:max_tokens],
        "versions": runs(_ids(read("response_model_steps"))[:max_tokens]),
        "mask": runs(_ids(read("response_mask"))[:max_tokens]),
        "extra_fields": _told(read("extra_fields")),
    }


def runs(values: Sequence[Any]) -> list[Run]:
    """Return values as runs of the same one."""
    return [(value, len(list(same))) for value, same in groupby(values)]


def token_runs(rollout: dict[str, Any]) -> Iterator[tuple[int | None, bool, list[int]]]:
    """Yield the response as runs of tokens of one version, and masked alike: the version, whether it is trained, the ids."""
    ids: list[int] = rollout["response_ids"]
    versions = [version for version, count in rollout["versions"] for _ in range(count)]
    mask = [kept for kept, count in rollout["mask"] for _ in range(count)]
    start = 0
    for place in range(1, len(ids) + 1):
        kind = _kind_at(versions, mask, start)
        if place == len(ids) or _kind_at(versions, mask, place) != kind:
            yield (*kind, ids[start:place])
            start = place


def _ids(values: Any) -> list[int]:
    if values is None:
        return []
    found: list[int] = values.tolist() if hasattr(values, "tolist") else list(values)
    return found


def _text(value: Any) -> str | None:
    """Return text as it is, and messages of a chat or whatever else as JSON."""
    return value if value is None or isinstance(value, str) else json.dumps(_told(value), ensure_ascii=False)


def _told(value: Any) -> Any:
    """Return a user's value as far as JSON can hold it; the rest, such as an image, as its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return plain(value)
    if isinstance(value, dict):
        return {str(key): _told(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_told, value))
    shape = getattr(value, "shape", None)
    return f"<{type(value).__name__}{'' if shape is None else f' of shape {tuple(shape)}'}>"


def _kind_at(versions: list[int], mask: list[int], place: int) -> tuple[int | None, bool]:
    return versions[place] if place < len(versions) else None, place >= len(mask) or bool(mask[place])
