"""open_view: a View of whatever holds a buffer."""

import asyncio
from os import PathLike, fspath
from typing import Any

from reroll import BlockingReplayBuffer, ReplayBuffer
from reroll.errors import InvalidArgument, Unreachable, WaitTimeout
from reroll.observe.files import FileSource
from reroll.observe.view import View


async def open_view(
    target: "str | PathLike[str] | ReplayBuffer | Any",
    *,
    key: str | PathLike[str] | None = None,
    server_key: str | PathLike[str] | None = None,
    timeout: float = 10.0,
) -> View:
    """Return a view of a buffer.

    Args:
        target: the path of what was saved or of a durable store, also one in use; `tcp://host:port` or `ipc://path` of a
            server; `ray:name` of a buffer on Ray, or `ray:namespace/name`; or a ReplayBuffer of this process.
        key: your key pair, where the server asks for one.
        server_key: the public key of that server.
        timeout: seconds that a server or an actor may take to answer.

    Raises SavedNotFound, CorruptData, UnsupportedFormat, Unreachable, Closed, InvalidArgument.

    """
    if isinstance(target, BlockingReplayBuffer):
        raise InvalidArgument(
            "a blocking buffer is looked at by its own verbs; give a ReplayBuffer, or serve it"
        )
    if not isinstance(target, str | PathLike):
        return View(target, title="this process", kind="process")
    name = fspath(target)
    if (key is None) != (server_key is None) or (key is not None and not _is_address(name)):
        raise InvalidArgument("key and server_key go together, and with the address of a server")
    if _is_address(name):
        return await _open_server(name, key, server_key, timeout)
    if name.startswith("ray:"):
        return await asyncio.to_thread(_open_ray, name.removeprefix("ray:").removeprefix("//"), timeout)
    if "://" in name:
        raise InvalidArgument(
            f"{name!r} is no address of a buffer; there are tcp://host:port, ipc://path, ray:name, and paths of files"
        )
    source = await asyncio.to_thread(FileSource, name)
    return View(source, title=str(source.path), kind="file", close=source.close)


def _is_address(name: str) -> bool:
    return name.startswith(("tcp://", "ipc://"))


async def _open_server(
    address: str, key: str | PathLike[str] | None, server_key: str | PathLike[str] | None, timeout: float
) -> View:
    from reroll.server import connect  # noqa: PLC0415  (with its extra)

    client = connect(address, key=key, server_key=server_key, deadline_s=timeout, patience_s=timeout)
    try:
        await client.health()
    except WaitTimeout as error:
        await client.close()
        raise Unreachable(
            f"{address} does not answer within {timeout} s; is a server there, and does it know your key?"
        ) from error
    except BaseException:
        await client.close()
        raise
    return View(client, title=address, kind="server", close=client.close)


def _open_ray(name: str, timeout: float) -> View:
    from reroll.ray import RayReplayBuffer  # noqa: PLC0415  (with its extra)

    _join_cluster()
    namespace, _, own = name.rpartition("/")
    handle = RayReplayBuffer.connect(own, namespace=namespace or None, timeout=timeout)
    return View(handle, title=f"ray:{name}", kind="ray")


def _join_cluster() -> None:
    import ray  # noqa: PLC0415

    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError as error:
            raise InvalidArgument(
                "there is no Ray cluster here; start the command on one of its nodes"
            ) from error
