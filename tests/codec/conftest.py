"""Whatever a test registers is forgotten after it."""

import pytest

from reroll.codec import registry


@pytest.fixture(autouse=True)
def clean_registry():
    by_type, by_name = dict(registry.BY_TYPE), dict(registry.BY_NAME)
    yield
    for kept, now in ((by_type, registry.BY_TYPE), (by_name, registry.BY_NAME)):
        now.clear()
        now.update(kept)
