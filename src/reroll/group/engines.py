"""Responses of inference engines, read as the arguments of `RolloutGroup.pack`.

Three shapes are known: chat and text completions as vLLM and SGLang servers return them, SGLang's own `/generate`, and
vLLM's `RequestOutput`. Dicts and objects are read alike. Nothing here imports an engine.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from reroll.errors import InvalidArgument

_VERSION_NAMES: Final = ("weight_version", "weight_versions", "model_step", "policy_version")


def read_response(response: Any) -> dict[str, Any]:
    """Return the arguments of `pack` that a response holds. Raises InvalidArgument if it has no token ids."""
    members = [response] if _get(response, "output_ids") is not None else None
    if members is None and isinstance(response, Sequence) and not isinstance(response, str):
        members = list(response)  # of SGLang, one for each sample
    prompt = None
    for name in ("choices", "outputs"):
        if members is None and _get(response, name) is not None:
            members = list(_get(response, name))
            prompt = _get(response, "prompt_token_ids")
    if not members:
        raise InvalidArgument(
            f"response of type {type(response).__name__} has no choices and no outputs; pass what the engine returned"
        )
    if all(isinstance(_get(member, "index"), int) for member in members):
        members.sort(key=lambda member: _get(member, "index"))
    if prompt is None:
        prompt = _first(_get(member, "prompt_token_ids") for member in members)
    ids = [_token_ids(member, place) for place, member in enumerate(members)]
    logprobs = [_logprobs(member, own) for member, own in zip(members, ids, strict=True)]
    shared = _version(response)
    versions = [_versions(member, shared, len(own)) for member, own in zip(members, ids, strict=True)]
    texts, calls = [_text(member) for member in members], [_tool_calls(member) for member in members]
    fields = {"response": texts, "tool_calls": calls}
    return {
        "prompt_ids": None if prompt is None else list(prompt),
        "responses": ids,
        "logprobs": logprobs if any(each is not None for each in logprobs) else None,
        "finish_reasons": [_finish_reason(member) for member in members],
        "versions": versions if any(each is not None for each in versions) else None,
        "fields": {
            name: values for name, values in fields.items() if any(each is not None for each in values)
        },
    }


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _first(values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _token_ids(member: Any, place: int) -> list[int]:
    """Return the token ids of a member, as any engine names them."""
    found = _first(_get(member, name) for name in ("token_ids", "output_ids", "output_token_ids"))
    if found is not None:
        return list(found)
    scored = _get(_get(member, "meta_info"), "output_token_logprobs")
    if scored is not None:
        return [entry[1] for entry in scored]
    # With return_tokens_as_token_ids, the text of a token is "token_id:123".
    held = _get(member, "logprobs")
    texts = _get(held, "tokens")
    if texts is None and _get(held, "content") is not None:
        texts = [_get(entry, "token") for entry in _get(held, "content")]
    if texts is not None and all(isinstance(text, str) and text.startswith("token_id:") for text in texts):
        return [int(text.removeprefix("token_id:")) for text in texts]
    raise InvalidArgument(
        f"choice {place} has no token ids; ask vLLM with return_token_ids=True, SGLang with return_meta_info=True, "
        f"or use RolloutGroup.pack"
    )


def _logprobs(member: Any, ids: Sequence[int]) -> list[float] | None:
    """Return the log-probability of each token of a member, None if it has none."""
    scored = _get(_get(member, "meta_info"), "output_token_logprobs")
    if scored is not None:
        return [entry[0] for entry in scored]
    held = _get(member, "logprobs")
    if held is None:
        return None
    if _get(held, "content") is not None:
        return [_get(entry, "logprob") for entry in _get(held, "content")]
    if _get(held, "token_logprobs") is not None:
        return list(_get(held, "token_logprobs"))
    if isinstance(held, Sequence) and len(held) == len(ids):  # of vLLM: by token id, at each position
        found = [
            each if isinstance(each, float) else each[token] for each, token in zip(held, ids, strict=True)
        ]
        return [each if isinstance(each, float) else each.logprob for each in found]
    return None


def _finish_reason(member: Any) -> Any:
    found = _first((_get(member, "finish_reason"), _get(_get(member, "meta_info"), "finish_reason")))
    return (
        _get(found, "type") if isinstance(found, Mapping) else found
    )  # of SGLang: {"type": "stop", "matched": 2}


def _text(member: Any) -> Any:
    return _first((_get(member, "text"), _get(_get(member, "message"), "content")))


def _tool_calls(member: Any) -> Any:
    calls = _get(_get(member, "message"), "tool_calls")
    return [call if isinstance(call, dict) else call.model_dump() for call in calls] if calls else None


def _version(holder: Any) -> Any:
    """Return the version of the weights that a response or a member states, None if it states none."""
    for place in (_get(holder, "metadata"), _get(holder, "meta_info"), holder):
        found = _first(_get(place, name) for name in _VERSION_NAMES) if place is not None else None
        if found is not None:
            return found
    return None


def _versions(member: Any, shared: Any, tokens: int) -> list[int] | None:
    """Return the version of each token of a member; a version that is no number, such as "default", counts as none."""
    found = _first((_version(member), shared))
    if isinstance(found, str):
        found = int(found) if found.isdecimal() else None
    if found is None:
        return None
    return [found] * tokens if isinstance(found, int) else [int(each) for each in found]
