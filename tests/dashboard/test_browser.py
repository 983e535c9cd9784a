"""The page in a real browser, on a real buffer: it is live, it narrows, it opens, and text stays text."""

import json

import pytest

from browsing import browsing, until, visit
from dashboard.hosting import TOKEN, hosting
from reroll import ReplayBufferConfig
from reroll.testing.buffer.builders import FAILED, group

SCRIPT = "<script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"
CHARTS = ("occupancy", "rates", "staleness", "uses", "priorities", "lengths", "memory")


pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def browser():
    with browsing() as found:
        yield found


@pytest.fixture(scope="module")
def hosted():
    """A buffer with two tasks, of which something was trained; tests add to it, and rely on what they add."""
    with hosting(ReplayBufferConfig(sampler="fifo", capacity=200)) as found:
        found.put([group(f"m{n}", 4, tokens=9 + n, versions=1, reward=n / 20) for n in range(20)])
        found.put([group(f"c{n}", 2, tokens=40, versions=1, reward=1.0) for n in range(5)], "code")
        found.do(found.buffer.take_batch({"math": 4, "code": 1}, train_step=3))
        yield found


def value_of(page, tile):
    return page.locator(".tile", has_text=tile).locator(".value").inner_text()


def wait_for_rows(page, count):
    until(page, f"document.querySelectorAll('#table tbody tr').length === {count}")


def apply(page, where):
    page.fill("#where", where if isinstance(where, str) else json.dumps(where))
    page.press("#where", "Enter")


def draw_all(page):
    """Bring every chart into view once: charts out of view are not drawn again."""
    for chart in CHARTS:
        page.locator(f"#{chart}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#{chart} .main-svg")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_everything_is_drawn_without_a_problem_and_without_the_internet(browser, hosted, width, scheme):
    with visit(browser, hosted.address, width=width, color_scheme=scheme) as seen:
        page = seen.page
        page.wait_for_selector("#life[data-is=live]")
        draw_all(page)
        assert page.locator("#ledger path").count() >= 4
        assert page.locator(".limit").count() == 2
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for chart in CHARTS:
            assert page.locator(f"#{chart}").bounding_box()["width"] <= width
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0]")
        assert (int(shade) < 80) == (scheme == "dark")
        assert seen.problems == []
        assert {request.startswith(hosted.address) for request in seen.requests} == {True}


def test_charts_below_the_fold_are_drawn(browser, hosted):
    with visit(browser, hosted.address, height=300) as seen:
        for chart in CHARTS:
            seen.page.wait_for_selector(f"#{chart} .main-svg", state="attached")
        assert seen.page.evaluate("scrollY") == 0
        assert float(value_of(seen.page, "reward, trained")) > 0
        assert seen.problems == []


def test_failed_groups_do_not_hide_the_others(browser):
    with hosting(ReplayBufferConfig(sampler="fifo")) as hosted, visit(browser, hosted.address) as seen:
        hosted.put([group(n, 2, tokens=8, versions=0) for n in range(3)])
        hosted.put([group(f"f{n}", 2, status=FAILED) for n in range(30)])
        until(seen.page, "document.querySelector('#occupancy').data?.length === 2")
        ready, failed = seen.page.evaluate(
            "document.querySelector('#occupancy').data.map(one => [one.name, one.stackgroup ?? null, one.yaxis ?? 'y', one.y.at(-1)])"
        )
        assert ready == ["completed", "all", "y", 3]
        assert failed == ["failed (right)", None, "y2", 30]
        assert "untrained tokens" in seen.page.locator("#tiles").inner_text()
        assert "lost" not in seen.page.locator("#tiles").inner_text()
        assert seen.problems == []


def test_charts_receive_what_happens(browser):
    with hosting(ReplayBufferConfig(sampler="fifo")) as hosted, visit(browser, hosted.address) as seen:
        page = seen.page
        page.wait_for_selector("#occupancy[data-empty]")
        hosted.put([group(n, 2, tokens=8, versions=0) for n in range(12)])
        page.wait_for_selector("#occupancy .main-svg")
        newest = "document.querySelector('#occupancy').data?.[0].y.at(-1)"
        until(page, f"{newest} === 12")
        until(page, "document.querySelector('.tile .value')?.textContent === '12'")

        hosted.do(hosted.buffer.take_batch({"math": 5}, train_step=2))
        until(page, f"{newest} === 7")
        until(page, "document.querySelector('#ledger').textContent.includes('consumed110')")
        page.locator("#staleness").scroll_into_view_if_needed()
        until(page, "document.querySelector('#staleness').data?.length === 2")
        trained = page.evaluate("document.querySelector('#staleness').data[1]")
        assert (trained["x"], trained["y"]) == ([1], [1])  # step 2 on version 0
        page.locator("#rates").scroll_into_view_if_needed()
        until(page, "document.querySelector('#rates').data?.[2].y.some(rate => rate > 0)")
        assert seen.problems == []


def test_who_waits_and_what_is_leased_is_seen(browser):
    config = ReplayBufferConfig(sampler="fifo", capacity=3)
    with hosting(config) as hosted, visit(browser, hosted.address) as seen:
        hosted.put([group(n) for n in range(3)])
        lent = hosted.do(hosted.buffer.lease({"math": 2}, ttl_s=3600))

        waiting = hosted.begin(hosted.buffer.put(group("late"), "math"))
        page = seen.page
        page.wait_for_selector(".limit:has-text('full: puts wait')")
        page.wait_for_selector("#waiting tr:has-text('put')")
        page.wait_for_selector("#leases tr:has-text('math')")
        hosted.do(lent.ack())
        waiting.result(60)
        page.wait_for_selector(".limit:has-text('1 more before puts wait')")
        page.wait_for_selector("#leases:has-text('No lease is open')")


def test_the_filter_narrows_the_table(browser, hosted):
    with visit(browser, hosted.address) as seen:
        page = seen.page
        wait_for_rows(page, 20)
        apply(page, {"reward_mean": {"$gte": 0.9}})
        wait_for_rows(page, 6)
        page.select_option("#task", "code")
        wait_for_rows(page, 4)
        assert set(page.locator("#table tbody tr td:nth-child(2)").all_inner_texts()) == {"code"}
        assert seen.problems == []

        apply(page, {"rewrad": 1})
        page.wait_for_selector("#wrong:visible")
        assert "rewrad" in page.locator("#wrong").inner_text()
        apply(page, "")
        page.wait_for_selector("#wrong", state="hidden")


def test_headings_sort(browser, hosted):
    with visit(browser, hosted.address) as seen:
        page = seen.page
        wait_for_rows(page, 20)
        page.locator("#table th button", has_text="reward").first.click()
        page.wait_for_selector("th[aria-sort=descending]:has-text('reward')")
        column = page.locator("#table tbody tr td:nth-child(10)")
        rewards = list(map(float, column.all_inner_texts()))
        assert rewards == sorted(rewards, reverse=True)
        page.locator("#table th button", has_text="reward").first.click()
        page.wait_for_selector("th[aria-sort=ascending]:has-text('reward')")
        rewards = list(map(float, column.all_inner_texts()))
        assert rewards == sorted(rewards)


def test_a_group_opens_with_its_tokens_by_version_and_mask(browser, hosted):
    items = group(
        "mixed",
        2,
        versions=[3, 3, 4, 4, 4],
        tokens=5,
        response_mask=[1, 1, 1, 0, 1],
        message="2 + 2?",
        reward=0.5,
    )
    (uid,) = hosted.put([items])
    with visit(browser, hosted.address) as seen:
        page = seen.page
        page.locator(f"tr[data-uid='{uid}']").click()
        page.wait_for_selector("dialog[open] .response")
        assert page.locator("[data-part=prompt]").inner_text() == "2 + 2?"
        assert page.locator(".response").count() == 2
        runs = page.locator(".response").first.locator(".tokens .run")
        assert runs.all_inner_texts() == ["0 1 ", "2 ", "3 ", "4 "]
        colours = runs.evaluate_all("runs => runs.map(run => run.style.background)")
        assert colours[0] != colours[1] == colours[2] == colours[3]
        assert runs.evaluate_all("runs => runs.map(run => run.classList.contains('masked'))") == [
            *(False, False, True, False)
        ]
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="hidden")
        assert seen.problems == []


def test_a_group_that_left_is_told(browser, hosted):
    (uid,) = hosted.put([group("leaves")])
    with visit(browser, hosted.address) as seen:
        row = seen.page.locator(f"tr[data-uid='{uid}']")
        row.wait_for()
        hosted.do(hosted.buffer.delete([uid]))
        row.click()
        seen.page.wait_for_selector("dialog .wrong:has-text('it may have left the buffer meanwhile')")


def test_script_from_outside_is_shown_as_text(browser):
    with hosting() as hosted:
        evil = group(SCRIPT, message=SCRIPT, response=SCRIPT, status=FAILED, error_msg=SCRIPT)
        uid, _ = hosted.put([evil, group(tokens=4, versions=0)], SCRIPT)
        with visit(browser, hosted.address) as seen:
            page = seen.page
            page.locator(f"tr[data-uid='{uid}']").click()
            page.wait_for_selector(".response")
            for part in ("[data-part=prompt]", "[data-part=response]", ".response .wrong"):
                assert page.locator(part).inner_text() == SCRIPT
            page.keyboard.press("Escape")
            assert page.locator(f"tr[data-uid='{uid}'] td").nth(1).inner_text() == SCRIPT
            page.locator("#occupancy-by button", has_text="task").click()  # names of tasks in a chart
            page.wait_for_selector("#occupancy .main-svg")
            assert page.evaluate("document.querySelectorAll('main script, main img, dialog img').length") == 0
            assert page.title().startswith("reroll")
            assert seen.problems == []


def test_fifty_thousand_groups_are_looked_at_by_page(browser):
    with hosting(ReplayBufferConfig(sampler="fifo"), interval_s=1.0) as hosted:
        hosted.put([group(tokens=4, versions=0) for _ in range(50_000)])
        with visit(browser, hosted.address) as seen:
            page = seen.page
            wait_for_rows(page, 25)
            until(page, "document.querySelector('.tile .value')?.textContent === '50,000'")
            for _ in range(3):
                page.click("#later")
            until(page, "document.querySelector('#range').textContent.startsWith('76\u2013100 of 50,000')")
            page.locator("#table th button", has_text="tokens").click()
            until(page, "document.querySelector('#range').textContent.startsWith('1\u201325 of 50,000')")
            apply(page, {"uid": {"$gt": 49_990}})
            wait_for_rows(page, 10)
            # However many there are, the page holds one screen of them.
            assert page.evaluate("document.querySelectorAll('*').length") < 2500
            assert len(hosted.ask("/groups?limit=1000000").json["rows"]) == 500
            assert seen.problems == []


def test_light_and_dark_can_be_chosen(browser, hosted):
    with visit(browser, hosted.address, color_scheme="light") as seen:
        page = seen.page
        shade = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(shade)
        page.click("#theme")
        assert page.evaluate(shade) != light
        page.reload()
        assert page.evaluate(shade) != light  # remembered
        page.click("#theme")
        assert page.evaluate(shade) == light


def test_warnings_say_what_to_change(browser):
    with hosting() as hosted:
        hosted.put([group(n, status=FAILED if n % 2 else "completed") for n in range(40)])
        with visit(browser, hosted.address) as seen:
            seen.page.wait_for_selector(".warning")
            assert "on_failed='drop_member'" in seen.page.locator(".warning").inner_text()


def test_a_buffer_that_is_gone_is_told(browser):
    with hosting() as hosted, visit(browser, hosted.address) as seen:
        seen.page.wait_for_selector("#life[data-is=live]")
        hosted.do(hosted.buffer.close())
        seen.page.wait_for_selector("#life[data-is=lost]:has-text('closed')")


def test_the_token_is_asked_for_once(browser):
    with hosting(token=TOKEN) as hosted, visit(browser, hosted.address) as seen:
        page = seen.page
        page.fill("#token", "wrong")
        page.press("#token", "Enter")
        page.wait_for_selector("#wrong:visible")
        page.fill("#token", TOKEN)
        page.press("#token", "Enter")
        page.wait_for_selector("#life[data-is=live]")
        page.reload()
        page.wait_for_selector("#life[data-is=live]")
        assert not any(TOKEN in request for request in seen.requests)
        assert page.evaluate("document.cookie") == ""  # scripts cannot read it
