"""The report in a real browser: no errors, no network, every chart drawn, wide and narrow."""

import pytest

from browsing import visiting

pytestmark = pytest.mark.timeout(400)  # the whole demo is in a fixture, and machines are slow


@pytest.mark.parametrize("width", [1160, 390])
def test_the_report_opens(quick, width):
    path = quick[1] / "report.html"
    with visiting(path, width=width) as visit:
        visit.page.wait_for_function("document.querySelectorAll('.plotly-graph-div .main-svg').length >= 6")
        charts = visit.page.locator(".plotly-graph-div")
        assert charts.count() == 6
        assert visit.page.locator(".scatterlayer .trace").count() == 10  # five modes, twice
        assert visit.page.locator(".sankey").count() == 5
        assert visit.page.locator("h1").inner_text() == "reroll demo"
        for chart in charts.all():
            assert chart.bounding_box()["width"] <= width
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        assert visit.problems == []
        assert visit.requests == [path.as_uri()]
