"""Makes the pictures of the dashboard that the documentation shows, from real traffic.

    python scripts/screenshots.py [SECONDS]

A server with a dashboard, engines and a trainer run as processes of their own, as a user would start them; after so many
seconds (60) a browser visits the page.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright
from traffic import CONFIG

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs/pictures"
REROLL = [sys.executable, "-c", "from reroll.cli import main; main()"]

sys.path.insert(0, str(ROOT / "tests"))
from browsing import launched, until  # noqa: E402  (the browser of the tests)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    traffic = str(Path(__file__).with_name("traffic.py"))
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder)) as (address, page),
        running(sys.executable, traffic, address) as work,
    ):
        if _ends_within(work, seconds):
            sys.exit("the traffic ended too early; see above")
        with sync_playwright() as playwright:
            browser = launched(playwright.chromium)
            picture(browser, page, "dashboard", top)
            picture(browser, page, "dashboard_dark", top, color_scheme="dark")
            picture(browser, page, "dashboard_charts", charts)
            picture(browser, page, "dashboard_groups", groups)
            picture(browser, page, "dashboard_group", one_group)
            picture(browser, page, "dashboard_phone", top, viewport={"width": 390, "height": 844})
            browser.close()


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, str]]:
    """Run a server; yield its address, and that of its dashboard."""
    config = folder / "buffer.json"
    config.write_text(json.dumps(CONFIG.model_dump(mode="json", exclude_unset=True)))
    store = str(folder / "buffer")
    command = ["serve", "--config", str(config), "--store", store, "--bind", "tcp://127.0.0.1:0"]
    with running(*REROLL, *command, "--dashboard", "0") as server:
        page, address = (server.stdout.readline().split(" at ")[1].strip() for _ in range(2))
        yield address, page


@contextmanager
def running(*command: str) -> Iterator[Any]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def _ends_within(process: Any, seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def picture(browser: Any, address: str, name: str, show: Any, **options: Any) -> None:
    """Visit the page, let `show` bring something into view, and keep what is seen."""
    options = {"viewport": {"width": 1280, "height": 860}, **options}
    page = browser.new_context(**options).new_page()
    page.goto(address)
    page.wait_for_selector("#occupancy .main-svg")
    page.wait_for_selector("#table tbody tr")
    show(page)
    page.wait_for_timeout(1500)  # until hovering and fading are over
    page.screenshot(path=PICTURES / f"{name}.png")
    page.context.close()


def top(page: Page) -> None:
    page.wait_for_selector("#rates .main-svg")


def charts(page: Page) -> None:
    _scroll_to(page, "#staleness")
    for chart in ("staleness", "uses", "priorities", "lengths", "memory"):
        page.wait_for_selector(f"#{chart} .main-svg")


def groups(page: Page) -> None:
    page.locator("#examples button", has_text="rewards that differ").click()
    _scroll_to(page, "#limits")


def one_group(page: Page) -> None:
    page.fill("#where", '{"task_name": "chat", "attempts": {"$gt": 1}}')
    page.press("#where", "Enter")
    until(page, "document.querySelector('#matches').textContent.includes('match')")
    page.locator("#table tbody tr").first.click()
    page.wait_for_selector(".response")


def _scroll_to(page: Page, selector: str) -> None:
    page.evaluate(
        "selector => scrollBy(0, document.querySelector(selector).closest('.card').getBoundingClientRect().top - 66)",
        selector,
    )


if __name__ == "__main__":
    main()
