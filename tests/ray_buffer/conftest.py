"""A Ray of one node on this machine, for all tests here that do not start nodes of their own; it leaves nothing behind.

The extra `dev` installs Ray where there is one for this Python; else these tests are left out.
"""

import os
import tempfile
import warnings
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]


@pytest.fixture(scope="session")
def local_ray():
    import ray  # noqa: PLC0415

    # Without authentication, which would leave a token in the home directory.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as where:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's own
            ray.init(
                num_cpus=4,
                include_dashboard=False,
                object_store_memory=200_000_000,
                log_to_driver=False,
                configure_logging=False,
                namespace="tests",
                _temp_dir=where,
            )
        yield
        ray.shutdown()
