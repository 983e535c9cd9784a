"""One process for the servers of a module."""

from collections.abc import Iterator

import pytest

from server.hosting import Host, hosted


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted() as made:
        yield made
