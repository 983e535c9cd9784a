"""Fixtures of the engine's tests."""

from importlib.util import find_spec

import pytest

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="needs reroll[fast]")


@pytest.fixture(params=[pytest.param("numba", marks=needs_numba), "numpy"])
def trees(request, monkeypatch):
    """Run a test twice: with compiled trees, and with those of numpy alone."""
    monkeypatch.setenv("REROLL_NO_NUMBA", "1" if request.param == "numpy" else "0")
