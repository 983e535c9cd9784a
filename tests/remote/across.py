"""A buffer behind a boundary that carries bytes only, in one process: what every transport does, and nothing more."""

from typing import Any

from reroll import ReplayBuffer, Sample
from reroll.remote.groups import decode_group, encode_group
from reroll.remote.methods import METHODS, bind_arguments, remote_method
from reroll.remote.values import error_to_bytes, to_bytes, to_error, to_value


class Across:
    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer

    def __len__(self) -> int:
        return len(self.buffer)

    async def close(self) -> None:
        await self.buffer.close()

    def lease(self, *args: Any, **kwargs: Any) -> Any:
        return self.buffer.lease(*args, **kwargs)  # what a transport makes of it is its own affair

    async def put(self, *args: Any, **kwargs: Any) -> Any:
        arguments = bind_arguments("put", args, kwargs)
        items = arguments.pop("items")
        if isinstance(items, list) and items:
            items = decode_group(*encode_group(items))
        return await self._call("put", arguments, items=items)

    async def put_many(self, *args: Any, **kwargs: Any) -> Any:
        arguments = bind_arguments("put_many", args, kwargs)
        groups = arguments.pop("groups")
        if isinstance(groups, list):
            groups = [_crossing(items) if isinstance(items, list) and items else items for items in groups]
        return await self._call("put_many", arguments, groups=groups)

    async def take_batch(self, *args: Any, **kwargs: Any) -> Any:
        groups, counts = await self._call("take_batch", bind_arguments("take_batch", args, kwargs))
        return {task: list(map(_crossing, some)) for task, some in groups.items()}, counts

    async def get(self, *args: Any, **kwargs: Any) -> Any:
        return list(map(_crossing, await self._call("get", bind_arguments("get", args, kwargs))))

    async def peek(self, *args: Any, **kwargs: Any) -> Any:
        return list(map(_crossing, await self._call("peek", bind_arguments("peek", args, kwargs))))

    async def sample(self, *args: Any, **kwargs: Any) -> Any:
        drawn = await self._call("sample", bind_arguments("sample", args, kwargs))
        return [Sample(_crossing(group), info) for group, info in drawn]

    async def _call(self, name: str, arguments: dict[str, Any], **as_they_are: Any) -> Any:
        arguments = to_value(to_bytes(arguments)) | as_they_are
        try:
            value = await getattr(self.buffer, name)(**arguments)
        except Exception as error:  # noqa: BLE001  (whatever it is crosses)
            raise to_error(error_to_bytes(error)) from None
        return value if name in ("take_batch", "get", "peek", "sample") else to_value(to_bytes(value))


def _crossing(group: Any) -> Any:
    return decode_group(*encode_group(group))


for _name, _method in METHODS.items():  # all verbs that the class does not have itself
    if _name not in vars(Across):
        setattr(Across, _name, remote_method(_method))
