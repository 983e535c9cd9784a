"""Left out where there is no Ray for this Python."""

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def local_ray(ray_cluster):
    pass
