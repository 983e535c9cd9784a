"""Drivers of TransferQueue that are killed, one after another, in the cluster of the tests."""

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import ray
import transfer_queue as tq
from omegaconf import OmegaConf


def run_driver(script, *arguments, timeout=600):
    """Run a script of this folder in a process of its own; return its exit code and the end of its output."""
    command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    return done.returncode, done.stdout[-3000:] + done.stderr[-4000:]


def start_queue(address, path, units):
    """Join the cluster, wait until Ray has ended the controller of a killed driver, and start TransferQueue over reroll."""
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    with suppress(ValueError, ray.exceptions.RayActorError):  # there is none, or it ends during the call
        before = ray.get_actor("TransferQueueController", namespace="transfer_queue")
        ray.get(before.__ray_call__.remote(lambda _: threading.Event().wait(120)))
    backend = {"storage_backend": "Reroll", "Reroll": {"path": str(path), "num_data_storage_units": units}}
    tq.init(OmegaConf.create({"backend": backend}))
