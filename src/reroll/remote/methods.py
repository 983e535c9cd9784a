"""The verbs of a buffer as remote methods: one table of names and signatures, and arguments as plain values by name."""

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import wraps
from os import PathLike, fspath
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from reroll.buffer.buffer import ReplayBuffer
from reroll.engine.limits import LIMITERS
from reroll.engine.options import known_options
from reroll.engine.selectors.specs import SELECTORS
from reroll.errors import InvalidArgument, QueryError, shown
from reroll.query import And, Compare, Not, OneOf, Or, Query
from reroll.query.parse import MAX_DEPTH

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Method = Callable[..., Coroutine[Any, Any, Any]]

METHODS: Final[Mapping[str, Method]] = {
    name: method
    for name, method in inspect.getmembers(ReplayBuffer, inspect.iscoroutinefunction)
    if not name.startswith("_") and name != "close"  # a client closes its connection, not the buffer
}
"""Every coroutine of ReplayBuffer that a client may call, by name."""
SIGNATURES: Final = {
    **{name: inspect.signature(method) for name, method in METHODS.items()},
    "lease": inspect.signature(ReplayBuffer.lease),
}
_REQUIRED: Final = {
    name: {each.name for each in signature.parameters.values() if each.default is each.empty} - {"self"}
    for name, signature in SIGNATURES.items()
}
_POSITIONAL: Final = {
    name: [each.name for each in signature.parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD][1:]
    for name, signature in SIGNATURES.items()
}
_CONVERTED: Final = frozenset({"where", "which", "rate_limiter", "sampler"})
"""Arguments that are converted whatever type they have."""
_UNCHANGED: Final = frozenset({"items", "groups"})
"""Arguments that are never converted: rollouts have their own wire form."""
_PLAIN_TYPES: Final = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict})


def bind_arguments(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given arguments of a call by name, as plain values. Raises TypeError as the method itself would."""
    order, known = _POSITIONAL[name], SIGNATURES[name].parameters
    given: dict[str, Any] = {**dict(zip(order, args, strict=False)), **kwargs}
    # `Signature.bind` costs more than the rest of a call, so only wrong calls and `patch(**fields)` use it.
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
        given.update(given.pop("fields", {}))
    return {
        argument: value
        if (type(value) in _PLAIN_TYPES and argument not in _CONVERTED) or argument in _UNCHANGED
        else to_plain(argument, value)
        for argument, value in given.items()
    }


def to_plain(name: str, value: Any) -> Any:
    """Return an argument as a value that can be encoded. Raises InvalidArgument, QueryError."""
    if name in ("where", "which") and isinstance(value, Mapping | And | Or | Not | OneOf | Compare):
        return _plain_query(value)
    if name in ("rate_limiter", "sampler") and not isinstance(value, str | dict):
        options = known_options(value, LIMITERS if name == "rate_limiter" else SELECTORS)
        if options is None:
            raise InvalidArgument(
                f"{name} has a class of your own: {shown(value)}; configure it in the process that hosts the buffer"
            )
        return options
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Mapping):
        return value if type(value) is dict else dict(value)
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | list | tuple | set | frozenset):
        return value
    if hasattr(value, "dtype"):  # an array has its own encoding
        return value
    try:
        return list(value)
    except Exception as error:  # noqa: BLE001  (iterating a user's object may raise anything)
        raise InvalidArgument(f"{name} must be a list, not {shown(value)} ({type(error).__name__})") from None


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


def _plain_query(where: Any, depth: int = 0) -> Any:
    """Return a query as nested dicts, also where it contains parsed queries."""
    if depth > 4 * MAX_DEPTH:  # a node of a query has several levels
        raise QueryError(f"where: nested more than {MAX_DEPTH} deep; flatten the $and, $or and $not")
    if isinstance(where, And | Or | Not | OneOf | Compare):
        return query_as_dict(where)
    if isinstance(where, Mapping):
        return {name: _plain_query(value, depth + 1) for name, value in where.items()}
    if type(where) in (list, tuple):
        return type(where)(_plain_query(part, depth + 1) for part in where)
    return where


def remote_method(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method that sends its arguments with `self._call(name, arguments)`; its signature is that of `method`."""
    name = method.__name__

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await self._call(name, bind_arguments(name, args, kwargs))
        return result

    return call


def bound_like(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[[Callable[[Any, dict[str, Any]], R]], Callable[Concatenate[Any, P], R]]:
    """Give a function of `self` and bound arguments the signature and the docstring of `method`; a decorator."""
    name = method.__name__

    def decorate(own: Callable[[Any, dict[str, Any]], R]) -> Callable[Concatenate[Any, P], R]:
        @wraps(method)
        def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return own(self, bind_arguments(name, args, kwargs))

        @wraps(method)
        async def call_async(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            return await cast("Any", own)(self, bind_arguments(name, args, kwargs))

        return cast(
            "Callable[Concatenate[Any, P], R]", call_async if inspect.iscoroutinefunction(own) else call
        )

    return decorate
