"""The console's page with hundreds of boxes, over a restart of its server, and without a server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from chromium import browser as chromium
from console_process import http_server
from console_server import console
from fake_status import HOSTILE, Json, Made, pipeline, served, trace

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make setup")
from playwright.sync_api import Browser, expect
from waiting import patience
from watched_page import watched

pytestmark = pytest.mark.slow

DRAWN = 4.0
"""The most seconds to draw 200 boxes; alone on a machine, they take a tenth of that."""
PIPELINES, WIDTH = 11, 5
BOXES = PIPELINES * (4 + 3 * WIDTH)
"""A table, its query, the state of it and the topic; then a query, a state and a sink each."""
DRAW = """async (boxes) => {
    const started = performance.now();
    location.hash = "#/overview?idle=show";
    while (document.querySelectorAll(".box").length < boxes) await new Promise(requestAnimationFrame);
    const drawn = performance.now();
    const { layoutOf } = await import("./static/js/layout.js");
    const { graph } = await (await fetch("api/overview")).json();
    const before = performance.now();
    layoutOf(graph.nodes, graph.edges);
    return [(drawn - started) / 1000, (performance.now() - before) / 1000];
}"""
"""Seconds until the overview stands, and those of the layout alone."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def test_two_hundred_boxes_are_drawn_within_a_second_and_stay_when_numbers_change(
    browser: Browser, tmp_path: Path
) -> None:
    makes = [partial(pipeline, f"shop{n}", Made(rate=10.0 + n, batches=20), width=WIDTH) for n in range(PIPELINES)]
    with ExitStack() as stack:
        urls = [stack.enter_context(served(make)) for make in makes]
        server = stack.enter_context(console(tmp_path, *(part for url in urls for part in ("--target", url))))
        seen = stack.enter_context(watched(browser, server.url))
        page = seen.page
        page.goto(f"{server.url}/#/ingest")
        expect(page.locator(".connection")).to_have_text("live")
        seconds, layout = page.evaluate(DRAW, BOXES)
        print(f"{BOXES} boxes: drawn in {seconds * 1000:.0f} ms, of which the layout {layout * 1000:.0f} ms")
        assert seconds < patience(DRAWN)
        first = page.locator(".box").first
        place, clock = first.get_attribute("transform"), page.locator("footer").inner_text()
        expect(page.locator(".edge text").first).to_contain_text("/s")
        expect(page.locator("footer")).not_to_have_text(clock)
        assert first.get_attribute("transform") == place
        page.get_by_role("button", name="Fold idle").click()
        page.get_by_role("searchbox").fill("shop10_by_city_3")
        expect(page.locator(".box")).to_have_count(4)
        page.locator("[data-id='query:shop10_by_city_3']").click()
        page.get_by_role("searchbox").fill("")
        page.get_by_role("button", name="Neighbours only").click()
        expect(page.locator(".box")).to_have_count(4)
        seen.require_text_only()
        seen.require_good()


def test_the_page_says_that_its_server_is_gone_and_goes_on_when_it_is_back(browser: Browser, tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(served(partial(pipeline, "orders", Made(batches=20))))
        server = stack.enter_context(console(tmp_path, "--target", url))
        seen = stack.enter_context(watched(browser, server.url))
        page = seen.page
        page.goto(f"{server.url}/#/overview?q=orders")
        expect(page.locator(".connection")).to_have_text("live")
        seen.require_good()
        seen.quiet = False  # the browser says that it cannot connect
        server.kill()
        expect(page.locator(".connection")).to_contain_text("connection lost at")
        expect(page.locator(".box").first).to_be_visible()
        stack.enter_context(console(tmp_path, "--target", url, listen=server.address))
        started = time.perf_counter()
        expect(page.locator(".connection")).to_have_text("live")
        print(f"connected again {time.perf_counter() - started:.1f} s after the start")
        before = page.locator("footer").inner_text()
        expect(page.locator("footer")).not_to_have_text(before)
        expect(page.get_by_role("searchbox")).to_have_value("orders")
        seen.require_text_only()
        assert not seen.strangers


def range_answer() -> Json:
    """What Prometheus answers to a range query: an hour of seconds of lag."""
    now = time.time()
    return {"status": "success", "data": {"result": [{"values": [[now - 15 * n, str(n)] for n in range(240, 0, -1)]}]}}


def test_hours_and_days_come_from_prometheus(browser: Browser, tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(served(partial(pipeline, "orders", Made(batches=20))))
        prometheus = stack.enter_context(served(range_answer))
        server = stack.enter_context(console(tmp_path, "--target", url, "--prometheus", prometheus))
        seen = stack.enter_context(watched(browser, server.url))
        seen.page.goto(f"{server.url}/#/pipelines/orders")
        seen.page.get_by_role("button", name="1 h", exact=True).click()
        expect(seen.page).to_have_url(f"{server.url}/#/pipelines/orders?range=1h")
        expect(seen.page.get_by_text("from Prometheus")).to_be_visible()
        expect(seen.page.locator(".plot canvas")).to_have_count(4)
        expect(seen.page.locator(".chart figcaption").first).to_contain_text("now 1.0 s")
        seen.require_accessible()
        seen.require_good()


def test_names_of_pipelines_are_text_and_fit_however_long_they_are(browser: Browser, tmp_path: Path) -> None:
    name = HOSTILE + "x" * 120
    with served(partial(pipeline, name, Made(state="failed", batches=20))) as url, ExitStack() as stack:
        server = stack.enter_context(console(tmp_path, "--target", url))
        seen = stack.enter_context(watched(browser, server.url))
        seen.page.goto(server.url)
        expect(seen.page.locator(".problem")).to_contain_text(HOSTILE)
        seen.require_good_in_each_form()
        seen.page.get_by_role("link", name="Open").first.click()
        expect(seen.page.get_by_role("heading", level=1)).to_have_text(name)
        expect(seen.page.locator(".plot canvas")).to_have_count(4)
        seen.require_good_in_each_form()


EMPTY = {
    "connectors": "No connector is known: start the console with --connect URL",
    "state": "No state is known: no pipeline that was seen keeps one. Start the console with --checkpoints DIR",
    "ingest": "No server takes events: penstock ingest of this user is found by itself",
}
"""What pages say that have nothing to show."""


def connect_worker() -> Json:
    """What a worker of `penstock connect` says whose task failed."""
    task = {"id": 0, "state": "FAILED", "trace": trace(HOSTILE)}
    worker = {"kind": "connect", "name": "worker", "state": "running", "queries": [], "errors": []}
    return {**worker, "connectors": [{"name": "cdc", "state": "RUNNING", "tasks": [task]}]}


def test_a_worker_of_connect_shows_why_its_tasks_failed(browser: Browser, tmp_path: Path) -> None:
    with served(connect_worker) as url, ExitStack() as stack:
        server = stack.enter_context(console(tmp_path, "--target", url))
        seen = stack.enter_context(watched(browser, server.url))
        seen.page.goto(server.url)
        seen.page.get_by_role("link", name="Open cdc", exact=True).click()
        expect(seen.page.get_by_role("heading", level=1)).to_have_text("worker")
        expect(seen.page.locator(".failure")).to_contain_text("Task 0 failed")
        expect(seen.page.locator(".failure pre")).to_contain_text("step_51")
        seen.require_good_in_each_form()


ROWS = [{"key": name, "value": {"total": total}} for name, total in (("a", 7), ("b", None), ("c", 30), ("d", -2))]
"""Rows of a state, of which one has no total."""


def test_rows_without_a_value_are_the_last_in_both_orders(browser: Browser, tmp_path: Path) -> None:
    state = {"name": "sums", "batch": 3, "committed": "2026-01-01T00:00:00Z", "rows": ROWS, "more": False}
    with http_server({"GET /state/sums": state}) as states, ExitStack() as stack:
        server = stack.enter_context(console(tmp_path, "--state", states.url))
        seen = stack.enter_context(watched(browser, server.url))
        seen.page.goto(f"{server.url}/#/state/sums")
        totals = seen.page.locator("tbody td.number")
        sort = seen.page.get_by_role("button", name="total")
        sort.click()
        expect(totals).to_have_text(["30", "7", "-2", "\N{EN DASH}"])
        sort.click()
        expect(totals).to_have_text(["-2", "7", "30", "\N{EN DASH}"])
        seen.require_good()


STEADY = """async () => {
    const { render } = await import("preact");
    const { html } = await import("./static/js/html.js");
    const { MessageList } = await import("./static/js/messages.js");
    const record = (offset) => ({ partition: 0, offset, key: "k", value: `v${offset}`, timestamp: null, size: 1 });
    const upTo = (end) => Array.from({ length: end }, (_, at) => record(end - 1 - at));
    const place = document.createElement("div");
    document.querySelector("main").replaceChildren(place);
    const listed = (end) => html`<${MessageList} records=${upTo(end)} caption="All" onChoose=${() => {}} />`;
    const draw = (end) => render(listed(end), place);
    const list = () => place.querySelector(".messages");
    const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    draw(100);
    list().scrollTop = 640;
    await frame();
    draw(105);
    const kept = list().scrollTop;
    list().scrollTop = 0;
    await frame();
    draw(110);
    return [kept, list().scrollTop];
}"""
"""Where a list is scrolled to after five new messages of 32 pixels: one in its middle, and one at its top."""


def test_a_list_keeps_its_place_when_new_messages_come(browser: Browser, tmp_path: Path) -> None:
    with console(tmp_path) as server, watched(browser, server.url) as seen:
        seen.page.goto(f"{server.url}/#/nowhere")
        expect(seen.page.get_by_text("No such page")).to_be_visible()
        assert seen.page.evaluate(STEADY) == [640 + 5 * 32, 0]


def test_a_console_without_runs_says_what_to_do(browser: Browser, tmp_path: Path) -> None:
    with console(tmp_path, "--no-messages") as server, watched(browser, server.url) as seen:
        page = seen.page
        page.goto(server.url)
        expect(page.get_by_text("No pipeline is running")).to_be_visible()
        expect(page.get_by_text("Nothing is wrong.")).to_have_count(0)
        seen.require_accessible()
        for name, sentence in EMPTY.items():
            page.goto(f"{server.url}/#/{name}")
            expect(page.locator(".empty")).to_contain_text(sentence)
            seen.require_good_in_each_form()
        seen.quiet = False  # the browser says that the answer was 404
        page.goto(f"{server.url}/#/topics/orders")
        expect(page.get_by_text("Messages are not shown")).to_be_visible()
        page.goto(f"{server.url}/#/topics")
        expect(page.get_by_role("alert")).to_contain_text("no Kafka is known")
        expect(page.get_by_role("alert")).to_contain_text("Next: give --servers HOST:PORT")
        page.goto(f"{server.url}/#/pipelines/nothing")
        expect(page.get_by_role("alert")).to_contain_text("there is no pipeline nothing")
        seen.require_good()


def test_texts_of_numbers_and_paths(browser: Browser, tmp_path: Path) -> None:
    with console(tmp_path) as server, watched(browser, server.url) as seen:
        seen.page.goto(server.url)
        found = seen.page.evaluate(
            """async () => {
                const format = await import("./static/js/format.js");
                const route = await import("./static/js/route.js");
                const layout = await import("./static/js/layout.js");
                const { factsOf } = await import("./static/js/facts.js");
                const wide = (text) => text.length <= 8;
                const python = "Traceback (most recent call last):\\n  File x\\nValueError: no";
                const java = "A: b\\n\\tat x\\nCaused by: C: d\\n\\tat y";
                const now = "2026-11-25T12:00:00Z";
                const ago = (seconds) => format.ago(new Date(Date.parse(now) - 1000 * seconds), now);
                const offset = (minutes) => ({ getTimezoneOffset: () => -minutes });
                const states = [["pages.minutes", "pages"], ["orders", "orders"]].map(([name, pipeline]) => {
                    const query = { name, pipeline, node: `query:${name}`, states: [{ operator: "n", rows: 3 }] };
                    const node = { id: `state:${name}/n`, kind: "state", name: "n" };
                    const edges = [{ source: query.node, target: node.id }];
                    const facts = factsOf({ graph: { nodes: [node], edges } }, [{ query }]).get(node.id);
                    return [facts.listed, facts.rows];
                });
                return [
                    [0, 0.004, 0.9999, 1.25, 59.9, 200, 7500, 183600, -3, null].map(format.duration),
                    [0, 0.25, 9.5, 340.4, 12345, null].map(format.rate),
                    [999999, 12345678, 3e9, NaN].map(format.count),
                    [0, 999, 1500, 52428800].map(format.bytes),
                    format.shortened("orders_by_city", wide),
                    [0.4, 59, 61, 3599, 7260, 200_000].map(ago),
                    [0, 60, 330, -210].map((minutes) => format.zone(offset(minutes))),
                    [python, java, "A: b\\n\\tat x", "", undefined].map(format.cause),
                    states,
                    route.parse("#/topics/a%2Fb/%?x=1&y=a%20b"),
                    route.href("topics", ["a/b"], { x: "", y: null, z: "1 2" }),
                    layout.components(["a", "b", "c"].map((id) => ({ id })), [["a", "c"], ["a", "?"]]
                        .map(([source, target]) => ({ source, target }))).map((part) => part.nodes.map(({ id }) => id)),
                ];
            }"""
        )
    assert found == [
        ["0 s", "4 ms", "1.0 s", "1.3 s", "1 min", "3 min 20 s", "2 h 5 min", "2 d 3 h", "\u22123.0 s", "\u2013"],
        ["0", "0.25", "9.5", "340", "12.3 k", "\u2013"],
        ["999,999", "12.3 M", "3 G", "\u2013"],
        ["0 B", "999 B", "1.5 kB", "52 MB"],
        "orde…ity",
        ["now", "59 s ago", "1 min ago", "59 min ago", "2 h ago", "2 d ago"],
        ["UTC", "UTC+1", "UTC+5:30", "UTC\u22123:30"],
        ["ValueError: no", "C: d", "A: b", "", ""],
        [["pages/minutes/n", 3], ["orders/n", 3]],
        {"page": "topics", "args": ["a/b", "%"], "query": {"x": "1", "y": "a b"}},
        "#/topics/a%2Fb?z=1+2",
        [["a", "c"], ["b"]],
    ]
