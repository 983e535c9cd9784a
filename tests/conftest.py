"""Settings of the whole suite: Hypothesis profiles, chosen by HYPOTHESIS_PROFILE (dev by default)."""

import os

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
