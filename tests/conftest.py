"""Settings of the whole suite: Hypothesis profiles, chosen by HYPOTHESIS_PROFILE (dev by default), and what runs together."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Derandomised: a run is repeatable, and a failure on CI is the failure at home.
settings.register_profile("dev", max_examples=50, stateful_step_count=40, deadline=None, derandomize=True)
settings.register_profile(
    "ci",
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.hookimpl(tryfirst=True)  # before the names of groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let all tests that need Ray run in one process of those that share the suite: a cluster takes seconds to start."""
    for item in items:
        if any(part.startswith("ray") for part in item.path.relative_to(item.config.rootpath).parts):
            item.add_marker(pytest.mark.xdist_group("ray"))
