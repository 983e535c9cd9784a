"""Stats, rows and rollouts as plain values: what JSON can hold, by name."""

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import groupby, zip_longest
from math import isfinite
from typing import Any

from reroll.rollout import DictRollout, read_status
from reroll.rollout.adapters import count_tokens, read_score, read_seq_staleness
from reroll.telemetry.stats import Distribution, ResponseStats


def plain(value: Any) -> Any:
    """Return dataclasses and named tuples as dicts, enums as their values, keys as text, NaN and infinity as None."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if is_dataclass(value):
        found = {one.name: plain(getattr(value, one.name)) for one in fields(value)}
        if isinstance(value, Distribution | ResponseStats):  # with their properties
            kind = type(value)
            names = [name for name in dir(kind) if isinstance(getattr(kind, name), property)]
            found |= {name: plain(getattr(value, name)) for name in names}
        return found
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(plain(key)): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return list(map(plain, value))
    return str(value)


def plain_rollout(rollout: Any, *, max_tokens: int | None = None) -> dict[str, Any]:
    """Return one rollout by field name, with at most `max_tokens` of its tokens.

    `versions` and `mask` are runs over the response: pairs of a value and a number of tokens; empty where unknown.
    """
    source = DictRollout(rollout) if isinstance(rollout, dict) else rollout

    def read(name: str) -> Any:
        return getattr(source, name, None)

    prompt, response = _ids(read("prompt_ids")), _ids(read("response_ids"))
    return {
        "rollout_id": plain(read("rollout_id")),
        "status": read_status(read("status")).value,
        "staleness": read_seq_staleness(source),
        "score": plain(read_score(read("reward"))),
        "reward": _user_value(read("reward")),
        "finish_reason": plain(read("finish_reason")),
        "error_msg": plain(read("error_msg")),
        "message": _text(read("message")),
        "response": _text(read("response")),
        "num_tokens": count_tokens(source),
        "num_prompt_tokens": len(prompt),
        "num_response_tokens": len(response),
        "prompt_ids": prompt[:max_tokens],
        "response_ids": response[:max_tokens],
        "versions": _runs(_ids(read("response_model_steps"))[:max_tokens]),
        "mask": _runs(_ids(read("response_mask"))[:max_tokens]),
        "extra_fields": _user_value(read("extra_fields")),
    }


def token_runs(rollout: dict[str, Any]) -> Iterator[tuple[int | None, bool, list[int]]]:
    """Yield the response of a plain rollout as (version, is_trained, token ids), one for each run of equal version and mask."""
    ids: list[int] = rollout["response_ids"]
    versions = [version for version, count in rollout["versions"] for _ in range(count)]
    mask = [bool(kept) for kept, count in rollout["mask"] for _ in range(count)]
    mask += [True] * (len(ids) - len(mask))  # without a mask every token is trained
    tokens = list(zip_longest(ids, versions[: len(ids)], mask[: len(ids)]))
    for (version, is_trained), run in groupby(tokens, key=lambda token: token[1:]):
        yield version, is_trained, [token for token, *_ in run]


def _runs(values: list[int]) -> list[tuple[int, int]]:
    return [(value, len(list(same))) for value, same in groupby(values)]


def _ids(values: Any) -> list[int]:
    if values is None:
        return []
    found: list[int] = values.tolist() if hasattr(values, "tolist") else list(values)
    return found


def _text(value: Any) -> str | None:
    """Return text as it is, and anything else, such as the messages of a chat, as JSON."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(_user_value(value), ensure_ascii=False)


def _user_value(value: Any) -> Any:
    """Return a user's value as far as JSON can hold it; anything else, such as an image, as its type and shape."""
    if value is None or isinstance(value, bool | int | float | str):
        return plain(value)
    if isinstance(value, dict):
        return {str(key): _user_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_user_value, value))
    shape = getattr(value, "shape", None)
    return f"<{type(value).__name__}{'' if shape is None else f' of shape {tuple(shape)}'}>"
