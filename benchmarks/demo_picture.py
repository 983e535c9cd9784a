"""Makes the picture of the demo's report that the documentation shows: `python benchmarks/demo_picture.py REPORT`."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parents[1] / "docs/pictures/demo_report.png"


def main() -> None:
    report = Path(sys.argv[1]).resolve()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1160, "height": 1690})
        page.goto(report.as_uri())
        page.wait_for_function("document.querySelectorAll('.plotly-graph-div .main-svg').length >= 6")
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
