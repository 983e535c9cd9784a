"""One process for the servers of a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.hosting import Host, hosted


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted() as made:
        yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave these to `make test-slow`: they wait for other processes, for a minute."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
