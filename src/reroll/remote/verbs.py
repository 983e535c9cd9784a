"""Which verbs a buffer has, and their arguments by name, as plain values that can be written as bytes.

`verbs_of` gives a class every verb of ReplayBuffer, with its signature and its words: each asks `_call(name, arguments)`.
Verbs that the class has itself stay as they are.
"""

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import wraps
from os import PathLike, fspath
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from reroll.buffer.replay_buffer import ReplayBuffer
from reroll.engine.limiters import known_options
from reroll.engine.selectors.specs import known_spec_options
from reroll.errors import InvalidArgument, QueryError, shown
from reroll.query import And, Compare, Not, OneOf, Or, Query
from reroll.query.parse import MAX_DEPTH

C = TypeVar("C", bound=type)
P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Verb = Callable[..., Coroutine[Any, Any, Any]]

VERBS: Final[Mapping[str, Verb]] = {
    name: verb
    for name, verb in inspect.getmembers(ReplayBuffer, inspect.iscoroutinefunction)
    if not name.startswith("_") and name != "close"  # which ends a connection, not what is behind it
}
SIGNATURES: Final = {name: inspect.signature(verb) for name, verb in VERBS.items()}
_REQUIRED: Final = {
    name: {each.name for each in signature.parameters.values() if each.default is each.empty} - {"self"}
    for name, signature in SIGNATURES.items()
}
_IN_ORDER: Final = {
    name: [each.name for each in signature.parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD][1:]
    for name, signature in SIGNATURES.items()
}
_NEED_A_LOOK: Final = frozenset({"where", "which", "rate_limiter", "sampler"})
_AS_THEY_ARE: Final = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict})
"""Types that the values of other arguments have mostly, and keep."""


def bound(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, those that were given. Raises TypeError as the verb itself would."""
    order, known = _IN_ORDER[name], SIGNATURES[name].parameters
    given: dict[str, Any] = {**dict(zip(order, args, strict=False)), **kwargs}
    # `bind` takes longer than all the rest of a call here; so only for calls that are wrong, or name what they like.
    if not (
        len(args) <= len(order)
        and len(given) == len(args) + len(kwargs)
        and given.keys() >= _REQUIRED[name]
        and known.keys() >= kwargs.keys()
        and "self" not in kwargs
    ):
        try:
            given = SIGNATURES[name].bind(None, *args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{name}(): {error}") from None
        del given["self"]
        given.update(given.pop("fields", {}))  # patch names what it likes
    return {
        argument: value
        if type(value) in _AS_THEY_ARE and argument not in _NEED_A_LOOK
        else plain(argument, value)
        for argument, value in given.items()
    }


def plain(name: str, value: Any) -> Any:
    """Return an argument as a value that can be written as bytes, if it is known how."""
    if name in ("where", "which") and isinstance(value, Mapping | And | Or | Not | OneOf | Compare):
        return _without_nodes(value)
    if name in ("rate_limiter", "sampler") and not isinstance(value, str | dict):
        options = known_options(value) if name == "rate_limiter" else known_spec_options(value)
        if options is None:
            raise InvalidArgument(
                f"{name}: {shown(value)} is of a class of your own, which is not known where the buffer is; configure it there"
            )
        return options
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Iterable) and not isinstance(
        value, str | bytes | Mapping | list | tuple | set | frozenset
    ):
        return value if hasattr(value, "dtype") else _listed(name, value)
    if isinstance(value, Mapping) and type(value) is not dict:
        return dict(value)
    return value


def query_as_dict(query: Query) -> dict[str, Any]:
    """Return a parsed query as the dict that `parse_query` reads."""
    match query:
        case And(parts):
            return {"$and": [query_as_dict(part) for part in parts]}
        case Or(parts):
            return {"$or": [query_as_dict(part) for part in parts]}
        case Not(part):
            return {"$not": query_as_dict(part)}
        case OneOf(field, values):
            return {field: {"$in": [value for _, value in values]}}
        case Compare(field, order, (_, operand)):
            return {field: {order: operand}}


def _without_nodes(where: Any, depth: int = 0) -> Any:
    """Return a query that is written as a dict, with parsed queries inside of it written so, too."""
    if depth > 4 * MAX_DEPTH:  # as deep as any query that is accepted: a node has several levels
        raise QueryError(f"where: nested more than {MAX_DEPTH} deep; flatten the $and, $or and $not")
    if isinstance(where, And | Or | Not | OneOf | Compare):
        return query_as_dict(where)
    if isinstance(where, Mapping):
        return {name: _without_nodes(value, depth + 1) for name, value in where.items()}
    if type(where) in (list, tuple):
        return type(where)(_without_nodes(part, depth + 1) for part in where)
    return where


def _listed(name: str, value: Iterable[Any]) -> list[Any]:
    try:
        return list(value)
    except Exception as error:  # noqa: BLE001  (whatever iterating it raises)
        raise InvalidArgument(f"{name} must be a list, not {shown(value)} ({type(error).__name__})") from None


def verbs_of(cls: C) -> C:
    """Give a class all verbs that it does not have itself; a decorator."""
    for name, verb in VERBS.items():
        if name not in vars(cls):
            setattr(cls, name, asking(verb))
    return cls


def same_words(verb: Callable[..., Any]) -> Callable[[F], F]:
    """Let a verb be told as that of the buffer: its name, signature and words; a decorator."""

    def told(own: F) -> F:
        own.__doc__ = verb.__doc__
        own.__signature__ = inspect.signature(verb)  # type: ignore[attr-defined]
        return own

    return told


def asking(
    verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a verb that has another carried out, by `_call(name, arguments)`."""
    name = verb.__name__

    @wraps(verb)
    async def ask(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        value: T = await self._call(name, bound(name, args, kwargs))
        return value

    return ask
