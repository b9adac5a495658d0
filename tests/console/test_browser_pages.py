"""The console in a real Chromium: each page by the real server, with real topics, states and events."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
import requests
from chromium import browser as chromium
from confluent_kafka import Producer
from console_process import run_at
from console_server import MESSAGES, PARTITIONS, Console, Shop, console, order, shop
from fake_status import HOSTILE
from kafka_topics import stored
from waiting import PATIENCE, patience, until

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make setup")
from playwright.sync_api import Browser, Route, expect
from watched_page import Watched, watched

from penstock.local.services import Services

pytestmark = pytest.mark.services
DRAWN = 3.0
"""The most seconds to read and draw 500 more messages; alone on a machine, it takes a tenth of that."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def there(browser: Browser, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("shop"), services.kafka) as made:
        yield made


@pytest.fixture(scope="module")
def server(there: Shop) -> Iterator[Console]:
    with console(there.folder, *there.options) as running:
        # The first look at records starts a process, which takes seconds on a busy machine.
        records = f"{running.url}/api/topics/{there.orders}/records"
        until(lambda: requests.get(records, timeout=PATIENCE).ok, "answer with records")
        yield running


@pytest.fixture(scope="module")
def acting(there: Shop) -> Iterator[Console]:
    """A console that may act."""
    with console(there.folder, *there.options, "--allow-actions") as running:
        yield running


@pytest.fixture
def seen(browser: Browser, server: Console) -> Iterator[Watched]:
    with watched(browser, server.url) as page:
        yield page
        page.require_text_only()
        page.require_good()


PAGES = {
    "#/": "orders_by_city_0 is 42.0 s behind",
    "#/?node=topic%3Ashop.orders&near=1": "Neighbours only",
    "#/pipelines/orders": "The slowest batches as a table",
    "#/pipelines/payments": "step_51",
    "#/topics": "{orders}",
    "#/topics/{orders}?shown=0%2F499": "Partition 0, offset 499",
    "#/dead-letters": "{dead}",
    "#/dead-letters/{dead}?shown=0%2F1": "price is not a number",
    "#/connectors": "task failed",
    "#/connectors/0/returns": "step_51",
    "#/state": "tables/checkpoint/groups",
    "#/state/tables%2Fcheckpoint%2Fgroups": "2 rows",
    "#/ingest": "Refused events",
    "#/nowhere": "No such page",
}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_accessible_in_light_and_dark_wide_and_narrow(
    page: str, seen: Watched, server: Console, there: Shop
) -> None:
    names = {"orders": there.orders, "dead": there.dead}
    seen.page.goto(f"{server.url}/{page.format(**names)}")
    expect(seen.page.get_by_text(PAGES[page].format(**names)).first).to_be_visible()
    expect(seen.page.get_by_text("Read only", exact=True)).to_be_visible()
    expect(seen.page.locator(".connection")).to_have_text("live")
    seen.require_good_in_each_form()


def test_what_is_wrong_comes_first_and_a_mark_filters(seen: Watched, server: Console) -> None:
    seen.page.goto(server.url)
    seen.page.get_by_text("more problem").click()
    problems = [
        "payments_by_city_0 failed",
        "task 0 of connector returns failed: ValueError: price is not a number",
        "orders_by_city_0 is 42.0 s",
        "orders_by_city_1 is 42.0 s",
        "returns_by_city_0",
    ]
    expect(seen.page.locator(".problem strong")).to_contain_text(problems)
    link = seen.page.get_by_role("link", name="Open returns", exact=True)
    expect(link).to_have_attribute("href", "#/connectors/0/returns")
    expect(seen.page.locator(".problem .state")).to_have_text(["failed", "failed", "behind", "behind", "waiting"])
    queries = seen.page.locator("section:has(> .heading > #queries) tbody tr")
    expect(queries.first).to_contain_text("payments_by_city_0")
    seen.page.get_by_role("button", name="2 behind").click()
    expect(queries).to_have_count(2)
    expect(seen.page).to_have_url(f"{server.url}/#/overview?state=behind")
    seen.page.get_by_role("searchbox").fill("city_1")
    expect(queries).to_have_count(1)
    seen.page.reload()
    expect(queries).to_have_count(1)
    expect(seen.page.get_by_role("button", name="2 behind")).to_have_attribute("aria-pressed", "true")


def test_the_graph_tells_rates_and_lag_as_its_table_does(seen: Watched, server: Console) -> None:
    seen.page.goto(f"{server.url}/#/?q=orders_by")
    box = seen.page.locator("[data-id='query:orders_by_city_1']")
    expect(box).to_contain_text("lag 42 s")
    expect(seen.page.locator(".edge text").first).to_contain_text("/s")
    seen.page.get_by_text("The same as a table").click()
    name = seen.page.get_by_role("link", name="orders_by_city_1", exact=True)
    row = seen.page.locator(".same tbody tr").filter(has=name)
    expect(row).to_contain_text("behind")
    expect(row).to_contain_text("42 s")
    expect(row).to_contain_text("orders.by_city.1")


@pytest.mark.slow
def test_the_keyboard_alone_reaches_a_pipeline(seen: Watched, server: Console) -> None:
    page = seen.page
    page.goto(server.url)
    first = page.locator(".box").first
    expect(first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.box')"):
            break
    start = page.evaluate("document.activeElement.dataset.id")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.id") != start
    while not page.evaluate("document.activeElement.dataset.id").startswith("query:"):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("getComputedStyle(document.activeElement.querySelector('.back')).strokeWidth") == "3px"
    page.keyboard.press("Enter")
    open_link = page.locator(".chosen-node").get_by_role("link", name="Open")
    expect(open_link).to_be_visible()
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Open":
            break
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{server.url}/#/pipelines/orders?query=orders_changes")
    expect(page.locator("main")).to_be_focused()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")


def test_a_pipeline_shows_its_batches_and_the_whole_error(seen: Watched, server: Console) -> None:
    page = seen.page
    page.goto(f"{server.url}/#/pipelines/payments")
    expect(page.locator(".plot canvas")).to_have_count(4)
    expect(page.locator(".errors")).to_contain_text(f"price is not a number: {HOSTILE}")
    expect(page.locator(".errors pre")).to_contain_text("Traceback (most recent call last):")
    page.get_by_role("button", name="15 min").click()
    expect(page).to_have_url(f"{server.url}/#/pipelines/payments?range=900")
    page.get_by_role("combobox", name="Query").select_option("payments_changes")
    expect(page.locator(".page-head .state")).to_have_text("idle")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("combobox", name="Query").select_option("payments_by_city_0")
    page.get_by_role("button", name="Copy the error's text").click()
    expect(page.get_by_text("Copied")).to_be_visible()
    assert "step_51" in page.evaluate("navigator.clipboard.readText()")


@pytest.mark.slow
def test_a_chart_says_what_it_shows_under_the_pointer(seen: Watched, server: Console) -> None:
    seen.page.goto(f"{server.url}/#/pipelines/orders")
    plot = seen.page.locator(".plot").nth(3)
    expect(plot.locator("canvas")).to_be_visible()
    plot.scroll_into_view_if_needed()
    plot.hover()
    # All charts have the same time, and the parts of a stack are told one by one.
    told = seen.page.locator(".pointed")
    expect(told.nth(0)).to_have_text(re.compile(r"^\d\d:\d\d:\d\d: lag \d+"))
    expect(told.nth(3)).to_have_text(re.compile(r": committing \d+ ms, .*, reading and writing \d+ ms$"))
    seen.page.mouse.move(0, 0)
    expect(told.nth(3)).to_have_text("")


@pytest.mark.slow
def test_messages_are_found_by_text_key_offset_and_partition(
    seen: Watched, server: Console, there: Shop, services: Services
) -> None:
    page, rows = seen.page, seen.page.locator(".messages tbody tr:not([aria-hidden])")
    page.goto(f"{server.url}/#/topics/{there.orders}")
    expect(page.get_by_text("2,000 records in 4 partitions")).to_be_visible()
    expect(page.get_by_text(f"Kafka at {services.kafka}")).to_be_visible()
    expect(page.get_by_text("50 messages")).to_be_visible()
    # The newest is first.
    expect(rows.first).to_contain_text(order(MESSAGES - 1)[1][:30])
    page.get_by_label("Contains").fill('"order": 1234,')
    page.get_by_role("button", name="Search", exact=True).click()
    expect(rows).to_have_count(1)
    rows.first.get_by_role("button").click()
    expect(page.get_by_label("Message", exact=True)).to_contain_text('"order": 1234')
    expect(page.get_by_label("Message", exact=True)).to_contain_text("json")
    page.reload()
    expect(page.get_by_label("Message", exact=True)).to_contain_text('"order": 1234')
    page.get_by_label("Contains").fill("")
    page.get_by_role("textbox", name="Key").fill("person-7")
    page.get_by_role("combobox", name="Partition").select_option("3")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(rows).to_have_count(len([n for n in range(MESSAGES) if n % 311 == 7 and n % PARTITIONS == 3]))
    page.get_by_role("textbox", name="Key").fill("")
    page.get_by_role("combobox", name="From").select_option("offset")
    page.get_by_role("spinbutton", name="Offset").fill("100")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(rows.first).to_contain_text(order(403)[1][:30])


@pytest.mark.slow
def test_two_thousand_messages_keep_the_page_small_and_fast(seen: Watched, server: Console, there: Shop) -> None:
    page = seen.page
    page.goto(f"{server.url}/#/topics/{there.orders}?limit=500")
    expect(page.get_by_text("500 messages")).to_be_visible()
    more = page.get_by_role("button", name="Show more")
    for number in (1000, 1500):
        more.click()
        expect(page.get_by_text(f"{number:,} messages")).to_be_visible()
    started = time.perf_counter()
    more.click()
    expect(page.get_by_text("2,000 messages")).to_be_visible()
    seconds = time.perf_counter() - started
    rows = page.locator(".messages tbody tr").count()
    print(f"2000 messages: the last 500 read and drawn in {seconds * 1000:.0f} ms, {rows} rows in the page")
    assert seconds < patience(DRAWN)
    assert rows < 100
    # The last one is reached by scrolling, and the keyboard walks the rows.
    page.locator(".messages").evaluate("list => list.scrollTo(0, list.scrollHeight)")
    last = page.locator(".messages [data-row='0/0']")
    expect(last).to_be_visible()
    last.focus()
    page.keyboard.press("ArrowUp")
    expect(page.locator(".messages tr.chosen [data-row]")).to_be_focused()


@pytest.mark.slow
def test_a_tail_shows_new_messages_and_can_be_paused(
    seen: Watched, server: Console, there: Shop, services: Services
) -> None:
    page, producer = seen.page, Producer({"bootstrap.servers": services.kafka})
    page.goto(f"{server.url}/#/topics/{there.orders}?filter=tail-test")
    expect(page.get_by_text("0 messages")).to_be_visible()
    expect(page.get_by_text("No message fits the search.")).to_be_visible()
    with page.expect_response(lambda answer: "/tail" in answer.url):
        page.get_by_role("button", name="Live tail").click()
    expect(page.get_by_text("No message yet: those that come from now on appear here.")).to_be_visible()
    rows = page.locator(".messages tbody tr:not([aria-hidden])")

    def write(number: int) -> None:
        producer.produce(there.orders, json.dumps({"tail-test": number}), HOSTILE, partition=0)
        producer.flush()

    # The first may come before the tail has asked for the ends.
    for attempt in range(50):
        write(attempt)
        page.wait_for_timeout(200)
        if rows.count():
            break
    # Those before it in its partition have come then, too.
    write(1000)
    expect(rows.first).to_contain_text('"tail-test": 1000')
    page.get_by_role("button", name="Pause").click()
    before = rows.count()
    write(1001)
    expect(page.get_by_text("paused, ")).to_contain_text("new message")
    expect(page.locator(".filters .quiet")).to_contain_text("1 new message")
    assert rows.count() == before
    page.get_by_role("button", name="Resume").click()
    expect(rows.first).to_contain_text('"tail-test": 1001')


def test_a_topic_is_opened_in_the_kafka_of_its_node(
    browser: Browser, there: Shop, services: Services, tmp_path: Path
) -> None:
    own, above = psutil.Process(), psutil.Process(os.getppid())
    with ExitStack() as stack:
        stack.enter_context(run_at(tmp_path, above, "away", "127.0.0.1:1", there.orders))
        stack.enter_context(run_at(tmp_path, own, "here", services.kafka, there.orders))
        acting = stack.enter_context(console(tmp_path))
        seen = stack.enter_context(watched(browser, acting.url))
        page = seen.page
        node = f"topic:{there.orders}@{services.kafka}"
        page.goto(f"{acting.url}/#/?node={quote(node)}")
        page.locator(".chosen-node").get_by_role("link", name="Open").click()
        expect(page.get_by_role("combobox", name="Kafka")).to_have_value(services.kafka)
        expect(page.get_by_text("records in 4 partitions")).to_be_visible()
        page.get_by_role("link", name="Topics", exact=True).click()
        expect(page.get_by_text("choose one above")).to_be_visible()
        page.get_by_role("combobox", name="Kafka").select_option(services.kafka)
        expect(page.get_by_role("link", name=there.orders, exact=True)).to_be_visible()
        seen.require_good()


def test_topics_that_are_not_listed_are_told(seen: Watched, server: Console, there: Shop) -> None:
    topic: dict[str, Any] = {
        "partitions": 1,
        "records": 5,
        "rate": None,
        "writers": [],
        "readers": [],
        "internal": False,
    }
    answer = [{"name": there.orders, **topic}, {"name": None, "listed": 2000, "topics": 2345}]
    seen.page.route("**/api/topics*", lambda route: route.fulfill(json=answer))
    seen.page.goto(f"{server.url}/#/topics")
    expect(seen.page.get_by_text("2,000 of 2,345 topics listed")).to_be_visible()
    expect(seen.page.get_by_text("1 topic", exact=True)).to_be_visible()
    seen.page.get_by_role("link", name=there.orders).click()
    options = seen.page.get_by_role("combobox", name="Topic").locator("option")
    expect(options).to_have_text([there.orders, "2,000 of 2,345 topics listed"])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["NDJSON", "CSV"])
def test_what_was_found_is_downloaded(form: str, seen: Watched, server: Console, there: Shop, tmp_path: Path) -> None:
    seen.page.goto(f"{server.url}/#/topics/{there.orders}?start=earliest&limit=50&filter=Lisbon")
    expect(seen.page.get_by_text("50 messages")).to_be_visible()
    with seen.page.expect_download() as download:
        seen.page.get_by_role("link", name=form).click()
    download.value.save_as(tmp_path / "file")
    assert download.value.suggested_filename == f"{there.orders}.{form.lower()}"
    lines = [line for line in (tmp_path / "file").read_text().splitlines() if "Lisbon" in line]
    assert len(lines) == 50


def test_dead_letters_are_sent_again_after_a_question(
    browser: Browser, acting: Console, there: Shop, services: Services
) -> None:
    before = sum(len(part) for part in stored(services.kafka, there.orders, PARTITIONS))
    with watched(browser, acting.url) as seen:
        page = seen.page
        page.goto(f"{acting.url}/#token={acting.token}")
        expect(page.get_by_text("Actions allowed")).to_be_visible()
        assert acting.token not in page.url
        page.get_by_role("link", name="Dead letters", exact=True).click()
        page.get_by_role("link", name=there.dead).click()
        page.get_by_role("link", name="it has N bytes").click()
        expect(page.locator(".messages tbody tr:not([aria-hidden])")).to_have_count(8)
        boxes = page.get_by_role("checkbox")
        boxes.nth(0).check()
        boxes.nth(1).check()
        page.get_by_role("button", name="Send chosen again (2)").click()
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Send chosen again (2)").click()
        seen.require_accessible()
        page.get_by_role("button", name="Send again", exact=True).click()
        expect(page.get_by_text("2 records sent again.")).to_be_visible()
        page.get_by_role("button", name="Send all of this reason again").click()
        page.get_by_role("button", name="Send again", exact=True).click()
        expect(page.get_by_text("8 records sent again.")).to_be_visible()
        seen.require_good()
    assert sum(len(part) for part in stored(services.kafka, there.orders, PARTITIONS)) == before + 10


def test_all_letters_are_sent_by_requests_that_go_on_where_one_has_ended(
    browser: Browser, acting: Console, there: Shop
) -> None:
    def answer(sent: int, left: int, error: str | None = None) -> dict[str, Any]:
        rest = {"all": True, "from": f"0:{25_000 - left}", "until": "0:25000"} if left else None
        return {"sent": sent, "topics": {}, "failed": [], "left": left, "next": rest, "error": error}

    answers = [answer(10_000, 15_000), answer(4000, 11_000, "Kafka is away"), answer(10_000, 1000), answer(1000, 0)]
    bodies: list[Any] = []

    def send(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        route.fulfill(json=answers[len(bodies) - 1])

    with watched(browser, acting.url) as seen:
        page = seen.page
        page.route(re.compile(r"/send\?kafka="), send)
        page.goto(f"{acting.url}/#token={acting.token}")
        expect(page.get_by_text("Actions allowed")).to_be_visible()
        page.goto(f"{acting.url}/#/dead-letters/{there.dead}")
        page.get_by_role("button", name="Send all again").click()
        page.get_by_role("button", name="Send again", exact=True).click()
        expect(page.get_by_text("14,000 records sent again before this failure.")).to_be_visible()
        expect(page.get_by_text("Kafka is away")).to_be_visible()
        page.get_by_role("button", name="Send the rest again").click()
        page.get_by_role("button", name="Send again", exact=True).click()
        expect(page.get_by_text("11,000 records sent again.")).to_be_visible()
        expect(page.get_by_role("button", name="Send the rest again")).to_have_count(0)
        seen.require_good()
    assert bodies == [{"all": True}, answers[0]["next"], answers[1]["next"], answers[2]["next"]]


@pytest.mark.slow
def test_a_connector_is_paused_and_restarted_and_the_page_says_so(browser: Browser, acting: Console) -> None:
    with watched(browser, acting.url) as seen:
        page = seen.page
        page.goto(f"{acting.url}/#token={acting.token}")
        page.get_by_role("link", name="Connectors", exact=True).click()
        page.get_by_role("link", name="returns", exact=True).click()
        expect(page.get_by_text("Task 0 failed", exact=True)).to_be_visible()
        expect(page.locator(".filters .state")).to_have_text(["running", "1 task failed"])
        expect(page.locator("main")).not_to_contain_text("secret-of-the-test")
        for button, state in (("Pause", "paused"), ("Restart", "running")):
            page.get_by_role("button", name=button, exact=True).click()
            page.get_by_role("dialog").get_by_role("button", name=button).click()
            expect(page.get_by_text(f"it is {state}.")).to_be_visible()
            expect(page.locator(".filters .state")).to_have_text([state])
        expect(page.get_by_text("Task 0 failed")).to_have_count(0)
        seen.require_good()


@pytest.mark.slow
def test_a_wrong_token_is_refused_and_asked_for_again(browser: Browser, acting: Console) -> None:
    with watched(browser, acting.url) as seen:
        page = seen.page
        page.goto(f"{acting.url}/#/connectors/0/orders-source")
        page.get_by_role("button", name="Stop", exact=True).click()
        page.get_by_label("Token of actions").fill("guessed")
        seen.quiet = False  # the browser says that the answer was 403
        page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        expect(page.get_by_text("does not have the console's token")).to_be_visible()
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(page.get_by_label("Token of actions")).to_be_visible()
        seen.require_good()


@pytest.mark.slow
def test_a_state_is_looked_up_by_key(seen: Watched, server: Console) -> None:
    page = seen.page
    page.goto(f"{server.url}/#/state")
    page.get_by_role("link", name="tables/checkpoint/groups", exact=True).click()
    rows = page.locator("section tbody tr")
    expect(rows.first).to_be_visible()
    page.get_by_role("textbox", name="Key").fill("a")
    page.get_by_role("button", name="Look up").click()
    expect(page.get_by_text("1 row", exact=True)).to_be_visible()
    expect(rows.first).to_contain_text("a")


@pytest.mark.slow
def test_colours_are_those_of_the_system_or_chosen(seen: Watched, server: Console) -> None:
    page = seen.page
    ground = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    page.goto(f"{server.url}/#/pipelines/orders")
    expect(page.locator(".plot canvas").first).to_be_visible()
    dark = page.evaluate(ground)
    page.get_by_label("Colours").select_option("light")
    light = page.evaluate(ground)
    assert (dark, light) == ("rgb(14, 18, 23)", "rgb(244, 246, 249)")
    page.reload()
    expect(page.locator(".plot canvas").first).to_be_visible()
    assert page.evaluate(ground) == light
