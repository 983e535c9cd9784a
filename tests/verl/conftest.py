"""One Ray cluster for all tests against TransferQueue and verl; its processes import reroll from this repository."""

import os
from pathlib import Path

os.environ.update(
    HF_HUB_OFFLINE="1",
    RAY_AUTH_MODE="disabled",
    RAY_DEDUP_LOGS="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    TOKENIZERS_PARALLELISM="false",
    TQ_LOGGING_LEVEL="ERROR",
    TQ_NUM_THREADS="1",
    VERL_LOGGING_LEVEL="WARNING",
    OMP_NUM_THREADS="1",
)
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
)

import pytest
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf

import reroll.integrations.transfer_queue  # noqa: F401  (registers the backend)

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cluster():
    ray.init(
        address="local",  # never that of another run
        num_cpus=8,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=300_000_000,
        logging_level="ERROR",
    )
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture
def queue(cluster):
    """Start TransferQueue: `queue()` with its default backend, `queue(path)` with reroll's."""

    def start(path=None, units=1, **options):
        section = {"num_data_storage_units": units, **options}
        if path is None:
            backend = {"storage_backend": "SimpleStorage", "SimpleStorage": section}
        else:
            backend = {"storage_backend": "Reroll", "Reroll": {"path": str(path), **section}}
        tq.init(OmegaConf.create({"backend": backend}))

    yield start
    tq.close()
