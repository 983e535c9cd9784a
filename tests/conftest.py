"""Settings of the whole suite: Hypothesis profiles, chosen by HYPOTHESIS_PROFILE (dev by default), one Ray for all, a small disk."""

import os
import signal
import subprocess
import tempfile
import warnings

import pytest
from hypothesis import HealthCheck, settings

# Derandomised: a run is repeatable, and a failure on CI is the failure at home.
settings.register_profile("dev", max_examples=50, stateful_step_count=40, deadline=None, derandomize=True)
settings.register_profile(
    "ci",
    max_examples=75,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# A shell ignores SIGINT for what it runs in the background, and processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
collect_ignore = ["trl", "verl"]  # against TRL and verl themselves: make test-trl, make test-verl
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadfile`, let one process run all tests that need Ray: two clusters at once are heavy."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415

    class OneCluster(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return (
                "ray"
                if nodeid.startswith(("tests/ray_buffer/", "tests/ray_refs/"))
                else super()._split_scope(nodeid)
            )

    return OneCluster(config, log)


@pytest.fixture(scope="session")
def ray_cluster():
    """Three nodes of Ray on this machine, for all tests that need Ray; it is started once, and leaves nothing behind.

    The extra `dev` installs Ray where there is one for this Python.
    """
    import ray  # noqa: PLC0415
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    # Without authentication, which would leave a token in the home directory.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    # Actors are classes of the tests.
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.path.dirname(__file__), *known]))  # noqa: PTH120
    # A node that is gone is missed soon.
    missed = {
        "health_check_initial_delay_ms": 1000,
        "health_check_period_ms": 1000,
        "health_check_failure_threshold": 3,
    }
    node = {"object_store_memory": 100_000_000, "include_dashboard": False}
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as where,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # Ray's own
        cluster = Cluster()
        cluster.add_node(num_cpus=4, _system_config=missed, temp_dir=where, **node)
        for place in ("one", "two"):
            cluster.add_node(num_cpus=1, resources={place: 1000}, temp_dir=where, **node)
        ray.init(cluster.address, log_to_driver=False, configure_logging=False, namespace="tests")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def small_disk(tmp_path):
    """Yield a directory on a disk of 4 MB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(directory)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount a small disk")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)  # noqa: S607
