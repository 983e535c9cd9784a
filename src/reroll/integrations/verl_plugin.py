"""verl's plug-in: verl imports this module by its entry point, in every process, and knows the backend `Reroll` afterwards."""

import logging
from importlib.util import find_spec

if find_spec("transfer_queue") is not None:
    try:
        import reroll.integrations.transfer_queue  # noqa: F401
    except ImportError as error:  # verl would hide it
        logging.getLogger(__name__).warning("TransferQueue has no backend Reroll here: %s", error)
