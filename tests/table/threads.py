"""Threads that wait in a table, and how a test knows that they do."""

import threading
import time

import pytest

LIMIT_S = 30  # far beyond anything expected: ends a test that hangs, measures nothing


class Call:
    """A call in a thread of its own; `result` joins it and returns or raises what the call did."""

    def __init__(self, function, *args, **kwargs):
        self._work = (function, args, kwargs)
        self._value = self._error = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        function, args, kwargs = self._work
        try:
            self._value = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  (raised again by `result`)
            self._error = error

    @property
    def is_over(self):
        return not self._thread.is_alive()

    def result(self):
        self._thread.join(LIMIT_S)
        assert self.is_over, "the call still waits"
        if self._error is not None:
            raise self._error
        return self._value


def until(reached):
    """Yield to other threads until a state is reached that they are bound to reach."""
    end = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < end, "never reached"
        time.sleep(0)


def waiting_insert(table, key, data=None, **kwargs):
    """Start an insert and return when it waits."""
    before = table.info.waiting_inserts
    call = Call(table.insert, key, data, **kwargs)
    until(lambda: table.info.waiting_inserts == before + 1 or call.is_over)
    return _still_waiting(call)


def waiting_sample(table, n, **kwargs):
    """Start a sample and return when it waits."""
    before = table.info.waiting_samples
    call = Call(table.sample, n, **kwargs)
    until(lambda: table.info.waiting_samples == before + 1 or call.is_over)
    return _still_waiting(call)


def _still_waiting(call):
    if call.is_over:
        pytest.fail(f"does not wait, but returned {call.result()!r}")
    return call


def ledger_closes(table):
    """Check that what was put equals the sum of where it is and how it left."""
    books = dict(table.info.ledger)
    put = books.pop("put")
    assert [sum(column) for column in zip(*books.values(), strict=True)] == list(put)
    assert all(part >= 0 for amount in books.values() for part in amount)
    return True
