"""A real browser for tests of pages: it notes what goes wrong, and everything that is asked of the network."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Visit:
    """A page, and what was seen while it was open."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def visiting(path: Path, *, width: int = 1160, height: int = 900) -> Iterator[Visit]:
    """Open a file; the machine's network cannot be reached from it. Skips where there is no browser."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test installs it")
    with api.sync_playwright() as playwright:
        browser = _launched(playwright.chromium, api.Error)
        context = browser.new_context(viewport={"width": width, "height": height}, offline=True)
        visit = Visit(context.new_page())
        visit.page.on("console", lambda said: said.type == "error" and visit.problems.append(said.text))
        visit.page.on("pageerror", lambda error: visit.problems.append(str(error)))
        visit.page.on("request", lambda request: visit.requests.append(request.url))
        visit.page.goto(path.as_uri())
        yield visit
        browser.close()


def _launched(chromium: Any, error: type[Exception]) -> Any:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        return chromium.launch(executable_path=found, args=["--no-sandbox"])
    except error as problem:
        pytest.skip(f"there is no browser; `make browser` installs one ({str(problem).splitlines()[0]})")
