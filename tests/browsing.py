"""A real browser for tests of pages: it notes what goes wrong, and everything that is asked of the network."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

PATIENCE_S = 90
"""Machines are slow, and busy."""
MUST = "REROLL_MUST_BROWSE"
"""With this in the environment, a test that finds no browser fails."""


@dataclass
class Visit:
    """A page, and what was seen while it was open."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def visiting(path: Path, **options: Any) -> Iterator[Visit]:
    """Open a file; the machine's network cannot be reached from it. Skips where there is no browser."""
    with browsing() as browser, visit(browser, path.as_uri(), offline=True, **options) as found:
        yield found


@contextmanager
def visit(
    browser: Any, address: str, *, width: int = 1160, height: int = 900, **options: Any
) -> Iterator[Visit]:
    """Open an address, in a browser that runs, as somebody who has never been there."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(PATIENCE_S * 1000)
    found = Visit(context.new_page())
    found.page.on("console", lambda said: said.type == "error" and found.problems.append(said.text))
    found.page.on("pageerror", lambda error: found.problems.append(str(error)))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(address)
    try:
        yield found
    finally:
        context.close()


def until(page: Any, expression: str) -> None:
    """Wait until an expression is true in a page; `page.wait_for_function` is not allowed where scripts may not be made."""
    deadline = time.monotonic() + PATIENCE_S
    while not page.evaluate(expression):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE_S} s: {expression}")
        page.wait_for_timeout(50)


@contextmanager
def browsing() -> Iterator[Any]:
    """Run a browser. Skips where there is none, unless there must be one."""
    try:
        from playwright.sync_api import Error, sync_playwright  # noqa: PLC0415
    except ImportError:
        _miss("needs playwright: make test installs it")
    with sync_playwright() as playwright:
        try:
            browser = launched(playwright.chromium)
        except Error as problem:
            _miss(f"there is no browser; `make browser` installs one ({str(problem).splitlines()[0]})")
        yield browser
        browser.close()


def launched(chromium: Any) -> Any:
    """Return a browser: the system's, else playwright's own."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    return chromium.launch(executable_path=found, args=["--no-sandbox"])


def _miss(why: str) -> NoReturn:
    if os.environ.get(MUST):
        pytest.fail(why)
    pytest.skip(why)
