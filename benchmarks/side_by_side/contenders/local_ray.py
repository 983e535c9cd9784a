"""A Ray of one's own, for contenders whose server is an actor; clients are drivers that join it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMESPACE = "side_by_side"
OPTIONS: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "configure_logging": False}


@contextmanager
def local_ray() -> Iterator[str]:
    """Start Ray, and yield its address."""
    import ray  # noqa: PLC0415  (takes seconds)

    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    context = ray.init(
        "local", num_cpus=16, include_dashboard=False, object_store_memory=1_500_000_000, **OPTIONS
    )
    try:
        yield context.address_info["gcs_address"]
    finally:
        ray.shutdown()


def join_ray(address: str) -> None:
    """Be a driver of a Ray that runs."""
    import ray  # noqa: PLC0415

    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(address, **OPTIONS)
