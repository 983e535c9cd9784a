"""The backend `Reroll` of TransferQueue: how it starts, and what a client sends beside the data.

TransferQueue's controller keeps keys and tags in memory only. So every put and every change of tags also sends them to the
storage units, which write them with the rows; when TransferQueue starts, the controller gets them back.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import ray
import zmq
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from transfer_queue.client import AsyncTransferQueueClient
from transfer_queue.controller import DataPartitionStatus
from transfer_queue.metadata import BatchMeta
from transfer_queue.storage.bootstrap import StorageBootstrapProvider
from transfer_queue.storage.managers.base import StorageManagerFactory
from transfer_queue.storage.managers.simple_storage_manager import (
    AsyncSimpleStorageManager,
    StorageUnitTimeout,
)
from transfer_queue.utils.common import get_node_round_robin_scheduling_strategies
from transfer_queue.utils.zmq_utils import ZMQMessage, ZMQRequestType, process_zmq_server_info

from reroll.errors import InvalidConfig
from reroll.integrations.transfer_queue.rows import Info
from reroll.integrations.transfer_queue.unit import INFOS, StorageUnit

BACKEND: Final = "Reroll"
"""The value of `backend.storage_backend`."""
_DEFAULT_PATH: Final = "transfer_queue_store"
_CLOSE_S: Final = 15
_started: list[Any] = []
"""The units that this process has started."""
_infos: ContextVar[Mapping[int, Info]] = ContextVar("infos of the rows being put")
_saved: ContextVar[BatchMeta | None] = ContextVar("metadata whose tags are on disk", default=None)


@StorageManagerFactory.register(BACKEND)
class RerollStorageManager(AsyncSimpleStorageManager):
    """The client's side: TransferQueue's own protocol, with keys and tags beside each row."""

    async def put_data(
        self, data: TensorDict, metadata: BatchMeta, data_parser: Callable[[Any], Any] | None = None
    ) -> None:
        """Store rows with their keys and tags; when this returns they are on disk."""
        _infos.set(await self._look_up(metadata))
        await super().put_data(data, metadata, data_parser=data_parser)
        _saved.set(metadata)

    async def save_tags(self, metadata: BatchMeta) -> None:
        """Store the tags of rows, unless the put before has stored them."""
        if _saved.get() is metadata or not metadata.size:
            _saved.set(None)
            return
        _infos.set(await self._look_up(metadata))
        for unit, group in self._group_by_hash(metadata.global_indexes).items():
            put = partial(
                self._put_to_single_storage_unit, group.global_indexes, {}, target_storage_unit=unit
            )
            await self._request_with_retry("put", unit, f"tags={len(group.global_indexes)}", put)

    async def clear_data(self, metadata: BatchMeta) -> None:
        """Delete rows. Unlike TransferQueue's own backend, raises if a unit fails: else its rows would return."""
        for unit, group in self._group_by_hash(metadata.global_indexes).items():
            clear = partial(self._clear_at, group.global_indexes, unit)
            await self._request_with_retry("clear", unit, f"samples={len(group.global_indexes)}", clear)

    async def _clear_at(self, global_indexes: list[int], unit: str) -> None:
        try:
            await self._clear_single_storage_unit(global_indexes, target_storage_unit=unit)
        except zmq.error.Again as error:
            raise StorageUnitTimeout(f"storage unit {unit} did not answer a clear") from error

    async def _put_to_single_storage_unit(
        self, global_indexes: list[int], storage_data: dict[str, Any], *args: Any, **options: Any
    ) -> Any:
        infos = _infos.get()
        fields = {**storage_data, INFOS: [(index, list(infos[index])) for index in global_indexes]}
        return await super()._put_to_single_storage_unit(global_indexes, fields, *args, **options)

    async def _look_up(self, metadata: BatchMeta) -> dict[int, Info]:
        """Return what the controller knows of rows; it has the keys, the metadata has the tags."""
        rows = list(zip(metadata.global_indexes, metadata.partition_ids, metadata.custom_meta, strict=True))
        keys: dict[int, str | None] = {}
        for partition_id in {partition_id for _, partition_id, _ in rows}:
            indexes = [index for index, found, _ in rows if found == partition_id]
            request = ZMQMessage.create(
                request_type=ZMQRequestType.KV_RETRIEVE_KEYS,
                sender_id=self.storage_manager_id,
                receiver_id=self.controller_info.id,
                body={"global_indexes": indexes, "partition_id": partition_id},
            )
            async with self.notify_pool.alease(self.controller_info) as socket:
                await socket.send_multipart(request.serialize())
                answer = ZMQMessage.deserialize(await socket.recv_multipart(copy=False))
            keys.update(zip(indexes, answer.body["keys"], strict=True))
        return {index: Info(partition_id, keys[index], tags) for index, partition_id, tags in rows}

    def close(self) -> None:
        """Close the connections, and the units that this process has started."""
        super().close()
        stop_units()


def _with_tags_on_disk(set_tags: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(set_tags)
    async def wrapped(self: Any, metadata: BatchMeta, *args: Any, **options: Any) -> None:
        await set_tags(self, metadata, *args, **options)
        if isinstance(manager := getattr(self, "storage_manager", None), RerollStorageManager):
            await manager.save_tags(metadata)

    return wrapped


# A change of tags reaches the controller only, past any backend.
AsyncTransferQueueClient.async_set_custom_meta = _with_tags_on_disk(
    AsyncTransferQueueClient.async_set_custom_meta
)


# --- start and end


@StorageBootstrapProvider.register_provider(BACKEND)
def start_units(conf: DictConfig) -> dict[str, Any]:
    """Start the storage units, and tell the controller which rows they hold.

    `backend.Reroll` takes `path` (a directory), `sync` ("os" or "disk"), and all options of `backend.SimpleStorage`, whose values
    are the defaults.
    """
    stop_units()
    options = {
        **_section(conf, "SimpleStorage"),
        "path": _DEFAULT_PATH,
        "sync": "os",
        **_section(conf, BACKEND),
        "ssd_offload": None,
        "zmq_info": None,
        "run": uuid4().hex,
    }
    directories = _directories(Path(options["path"]).absolute(), int(options["num_data_storage_units"]))
    strategies = get_node_round_robin_scheduling_strategies(
        len(directories), required_node_resource=options.get("required_node_resource")
    )
    actor = ray.remote(num_cpus=1, max_restarts=-1)(StorageUnit)
    units: dict[str, Any] = {}
    for directory, strategy in zip(directories, strategies, strict=True):
        name = f"Reroll{directory.name}"
        handle = actor.options(name=name, namespace="transfer_queue", scheduling_strategy=strategy)
        units[name] = handle.remote(options, str(directory))
    _started.extend(units.values())
    with open_dict(conf):
        conf.backend[BACKEND] = {**options, "zmq_info": process_zmq_server_info(units)}
    rows = [row for found in ray.get([unit.inventory.remote() for unit in units.values()]) for row in found]
    controller = ray.get_actor("TransferQueueController", namespace="transfer_queue")
    ray.get(controller.__ray_call__.remote(restore_metadata, rows))
    return units


def stop_units() -> None:
    """Close the units that this process has started, and free their directories. Idempotent."""
    units, _started[:] = list(_started), []
    if not units or not ray.is_initialized():
        return
    ray.wait([unit.shutdown.remote() for unit in units], num_returns=len(units), timeout=_CLOSE_S)
    for unit in units:
        ray.kill(unit)


def _section(conf: DictConfig, name: str) -> dict[str, Any]:
    found = conf.backend.get(name)
    return {} if found is None else dict(OmegaConf.to_container(found, resolve=True))


def _directories(path: Path, units: int) -> list[Path]:
    """Return the directory of each unit. Raises InvalidConfig if the rows there belong to another number of units."""
    wanted = [path / f"unit-{number}" for number in range(units)]
    found = sorted(path.glob("unit-*"))
    if found and len(found) != units:
        raise InvalidConfig(
            f"{path} holds the rows of {len(found)} storage units, and num_data_storage_units is {units}; set it to "
            f"{len(found)}, or name another path"
        )
    return wanted


def restore_metadata(controller: Any, rows: list[tuple[int, Info, dict[str, Any]]]) -> None:
    """Give an empty controller the keys, tags and fields of rows. Runs in the controller's process."""
    if not rows:
        return
    indexes, partitions = controller.index_manager, controller.partitions
    for index, info, _ in rows:
        partition = partitions.setdefault(info.partition_id, DataPartitionStatus(info.partition_id))
        partition.global_indexes.add(index)
        partition.custom_meta[index] = info.tags
        if info.key is not None:
            partition.keys_mapping[info.key] = index
            partition.revert_keys_mapping[index] = info.key
        indexes.partition_to_indexes[info.partition_id].add(index)
    taken = {index for index, *_ in rows}
    indexes.allocated_indexes.update(taken)
    indexes.global_index_counter = max(taken) + 1
    indexes.reusable_indexes = sorted(set(range(max(taken))) - taken)
    columns: dict[tuple[str, str], dict[int, Any]] = {}
    for index, info, schema in sorted(rows):
        partitions[info.partition_id].ensure_samples_capacity(index + 1)
        for name, form in schema.items():
            columns.setdefault((info.partition_id, name), {})[index] = form
    for (partition_id, name), forms in columns.items():
        schema = {name: _field_schema(forms)}
        partitions[partition_id].update_production_status(list(forms), [name], schema)


def _field_schema(forms: dict[int, tuple[Any, tuple[int, ...]] | None]) -> dict[str, Any]:
    tensors = {index: form for index, form in forms.items() if form is not None}
    if len(tensors) < len(forms):
        return {"dtype": None, "shape": None, "is_nested": False, "is_non_tensor": True}
    shapes = {index: shape for index, (_, shape) in tensors.items()}
    is_nested = len(set(shapes.values())) > 1
    first = next(iter(forms))
    schema = {
        "dtype": tensors[first][0],
        "shape": shapes[first],
        "is_nested": is_nested,
        "is_non_tensor": False,
    }
    return {**schema, "per_sample_shapes": shapes} if is_nested else schema
