"""A real browser for tests of pages: it notes what goes wrong, and everything that is asked of the network."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

MUST = "REROLL_MUST_BROWSE"
"""With this in the environment, a test that finds no browser fails."""


@dataclass
class Visit:
    """A page, and what was seen while it was open."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def visiting(
    place: Path | str, *, width: int = 1160, height: int = 900, **options: Any
) -> Iterator[Visit]:
    """Open a file, from which no network can be reached, or an address. Skips where there is no browser."""
    with browsing() as browser:
        is_file = isinstance(place, Path)
        context = browser.new_context(
            viewport={"width": width, "height": height}, offline=is_file, **options
        )
        visit = Visit(context.new_page())
        visit.page.on("console", lambda said: said.type == "error" and visit.problems.append(said.text))
        visit.page.on("pageerror", lambda error: visit.problems.append(str(error)))
        visit.page.on("request", lambda request: visit.requests.append(request.url))
        visit.page.goto(place.as_uri() if isinstance(place, Path) else place)
        yield visit


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
