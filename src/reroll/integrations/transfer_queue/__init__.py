"""A storage backend for TransferQueue that survives crashes. `docs/transfer-queue.md` shows it.

rows     rows of one storage unit in a reroll store
unit     a storage unit that writes each row to disk before it acknowledges it
backend  the backend `Reroll`: how TransferQueue starts it, and what a client sends beside the data

Importing this package registers the backend. verl imports it by itself (`reroll.integrations.verl_plugin`).
"""

from reroll.integrations.pins import require

TESTED_VERSION = "0.1.11"
"""The release of TransferQueue that the backend is tested with; it overrides private names of that release."""
require("TransferQueue", TESTED_VERSION, "reroll.integrations.transfer_queue")

from reroll.integrations.transfer_queue.backend import BACKEND, RerollStorageManager  # noqa: E402

__all__ = ["BACKEND", "TESTED_VERSION", "RerollStorageManager"]
