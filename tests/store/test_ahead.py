"""Parts that are made in another thread, one ahead."""

import threading
from collections.abc import Iterator

import pytest

from reroll.store.ahead import ahead


def test_the_parts_are_the_same_and_made_elsewhere() -> None:
    makers = set()

    def parts() -> Iterator[int]:
        for part in range(100):
            makers.add(threading.current_thread().name)
            yield part

    with ahead(parts(), "maker") as made:
        assert list(made) == list(range(100))
    assert makers == {"maker"}


def test_one_part_is_made_while_the_one_before_is_used() -> None:
    is_made = [threading.Event() for _ in range(4)]

    def parts() -> Iterator[int]:
        for part, event in enumerate(is_made):
            event.set()
            yield part

    with ahead(parts(), "maker") as made:
        for part in made:
            if part < 3:
                assert is_made[part + 1].wait(10)
            assert not any(event.is_set() for event in is_made[part + 2 :])


def test_what_goes_wrong_is_raised_to_whoever_reads() -> None:
    def parts() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    with ahead(parts(), "maker") as made:
        assert next(made) == 1
        with pytest.raises(OSError, match="the disk is gone"):
            next(made)


@pytest.mark.parametrize("used", [0, 1, 3])
def test_whoever_stops_early_stops_the_maker(used: int) -> None:
    seen: list[int] = []
    is_closed = threading.Event()

    def parts() -> Iterator[int]:
        try:
            for part in range(1000):
                seen.append(part)
                yield part
        finally:
            is_closed.set()

    making = parts()
    with ahead(making, "maker") as made:
        for _ in range(used):
            next(made)
    assert len(seen) <= used + 2
    assert all(thread.name != "maker" for thread in threading.enumerate())
    making.close()  # nobody else runs it
    assert is_closed.is_set()
