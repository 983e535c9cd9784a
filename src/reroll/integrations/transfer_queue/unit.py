"""A storage unit of TransferQueue that acknowledges a put when its rows are on disk.

It serves from memory, as TransferQueue's own unit does, and speaks its protocol. When the process of a unit is killed, Ray starts
it again; it reads its rows, and listens at its old address, so that clients send their requests again there.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
from transfer_queue.storage.simple_storage import SimpleStorageUnit, StorageUnitData
from transfer_queue.utils.zmq_utils import ZMQMessage, ZMQRequestType, ZMQServerInfo, format_zmq_address

from reroll.integrations.transfer_queue.rows import Info, Rows
from reroll.store.lock import LOCK_NAME

INFOS: Final = "_reroll_infos"
"""The entry of a put's fields that holds what the controller knows of the rows."""
_PORT: Final = "put_get_socket"
_PORTS: Final = "ports"
_TAKE_OVER_S: Final = 30.0
"""How long the process that had the files and the port before may take to end."""
_SimpleUnit: Any = SimpleStorageUnit.__ray_metadata__.modified_class


class UnitInfo(ZMQServerInfo):
    """The address of a unit. A process that receives it imports this package, which registers the backend there."""


class DurableData(StorageUnitData):
    """The rows of a unit in memory, and in a store."""

    def __init__(self, storage_size: int | None, rows: Rows) -> None:
        super().__init__(storage_size)
        self.rows = rows
        self.infos: dict[int, Info] = {}
        """Of the rows of the next put."""
        self._fill()

    def put_data(self, field_data: dict[str, Any], global_indexes: list[int]) -> None:
        """Store rows. An error leaves memory and disk as they were."""
        columns = {name: list(values) for name, values in field_data.items()}
        change, rows = self.rows.plan_put(self.infos, global_indexes, columns)
        new = set(global_indexes) - self._active_keys
        super().put_data({}, global_indexes if columns else [])  # raises beyond the capacity
        try:
            self.rows.write(change, rows)
        except BaseException:
            self._active_keys -= new
            raise
        super().put_data(columns, global_indexes if columns else [])

    def clear(self, keys: list[int]) -> None:
        """Remove rows."""
        self.rows.clear(keys)
        super().clear(keys)

    def save_checkpoint(self, path: str | Path, storage_unit_id: str) -> None:
        """Copy all rows to a directory."""
        del storage_unit_id  # of a process; the rows belong to the unit's place in the list
        self.rows.save(path)

    def load_checkpoint(self, path: str | Path) -> int | None:
        """Replace all rows by those of a directory."""
        self.rows.load(path)
        self.field_data: dict[str, dict[int, Any]] = {}
        self._active_keys: set[int] = set()
        self._fill()
        size: int | None = self.storage_size
        return size

    def close(self) -> None:
        """Close the store."""
        self.rows.close()

    def _fill(self) -> None:
        for index, values in self.rows.values():
            if values:
                super().put_data({name: [value] for name, value in values.items()}, [index])

    def inventory(self) -> list[tuple[int, Info, dict[str, Any]]]:
        """Return number, info and schema of every row."""
        schemas: dict[int, dict[str, Any]] = {index: {} for index in self.rows.indexes()}
        for name, column in self.field_data.items():
            for index, value in column.items():
                is_tensor = hasattr(value, "dtype") and hasattr(value, "is_nested")
                schemas[index][name] = (value.dtype, tuple(value.shape) or (1,)) if is_tensor else None
        return [(index, self.rows.info(index), schema) for index, schema in schemas.items()]


class StorageUnit(_SimpleUnit):
    """TransferQueue's storage unit over `DurableData`; an actor."""

    zmq_server_info: ZMQServerInfo

    def __init__(self, config: dict[str, Any], directory: str) -> None:
        wait_for_predecessor(Path(directory) / LOCK_NAME)
        self._rows = Rows(directory, config["sync"])
        self._run = config["run"]
        super().__init__(config)

    def inventory(self) -> list[tuple[int, Info, dict[str, Any]]]:
        """Return number, info and schema of every row."""
        return self.storage_data.inventory()

    def _init_zmq_socket(self) -> None:
        self.storage_data = DurableData(self.storage_unit_size, self._rows)
        super()._init_zmq_socket()
        info, ports = self.zmq_server_info, self._rows.recall(_PORTS)
        if ports.get("run") == self._run:  # clients know the address of the process that was killed
            info.ports[_PORT] = ports[_PORT]
            self.put_get_socket.bind(format_zmq_address(self._node_ip, ports[_PORT]))
        self._rows.remember(_PORTS, {"run": self._run, _PORT: info.ports[_PORT]})
        self.zmq_server_info = UnitInfo(info.role, info.id, info.ip, info.ports)

    def _handle_put(self, data_parts: ZMQMessage) -> ZMQMessage:
        fields = data_parts.body["data"]
        self.storage_data.infos = {index: Info(*info) for index, info in fields.pop(INFOS)}
        if fields:
            return super()._handle_put(data_parts)
        try:
            self.storage_data.put_data({}, data_parts.body["global_indexes"])  # tags only
        except Exception as error:  # noqa: BLE001  (the client raises it)
            return self._answer(ZMQRequestType.PUT_ERROR, {"message": f"{type(error).__name__}: {error}"})
        return self._answer(ZMQRequestType.PUT_DATA_RESPONSE, {})

    def _answer(self, kind: ZMQRequestType, body: dict[str, Any]) -> ZMQMessage:
        return ZMQMessage.create(request_type=kind, sender_id=self.storage_unit_id, body=body)


def wait_for_predecessor(lock: Path) -> None:
    """Wait for the end of the process that a lock file names: until then it may have the unit's files and port.

    Ray starts a unit again before the operating system has ended the killed process, and a new driver starts its units before Ray has
    ended those of a killed one. An orderly end removes the file. A process that is much younger than the file has reused the number.
    """
    with suppress(OSError, ValueError, psutil.Error):
        holder = psutil.Process(int(lock.read_text()))
        if holder.create_time() < lock.stat().st_mtime + _TAKE_OVER_S:
            holder.wait(_TAKE_OVER_S)  # the operating system wakes it
