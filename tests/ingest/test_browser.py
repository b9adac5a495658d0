"""What a real Chromium does: pages of an allowed and of another origin that fetch, send beacons and load pixels."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from chromium import browser
from ingest_app import Running, running
from waiting import until

CONFIG = """
[cors]
origins = ["http://127.0.0.1:{shop}"]
[topics.fetched]
[topics.fetched-key]
[topics.beacon-text]
[topics.beacon-json]
[topics.picture]
pixel = true
"""
PAGE = """<!doctype html><meta charset=utf-8><script>
const server = location.hash.slice(1);
const json = {"Content-Type": "application/json"};
const send = (topic, headers, body) => fetch(`${server}/events/${topic}`, {method: "POST", headers, body})
  .then(async answer => [answer.status, await answer.json()], error => [0, String(error)]);
const load = url => new Promise(done => {
  const image = new Image();
  image.onload = () => done([image.width, image.height]);
  image.onerror = () => done("error");
  image.src = url;
});
(async () => {
  const results = {
    good: await send("fetched", json, '{"a":1}'),
    key: await send("fetched-key", {...json, "X-Event-Key": "k"}, '{"a":1}'),
    bad: await send("fetched", json, "{"),
    plain: await send("fetched", {"Content-Type": "text/plain"}, '{"a":2}'),
    text: navigator.sendBeacon(`${server}/events/beacon-text`, '{"a":3}'),
    blob: navigator.sendBeacon(`${server}/events/beacon-json`, new Blob(['{"a":4}'], {type: "application/json"})),
    picture: await load(`${server}/pixel/picture?a=5`),
  };
  await fetch("/results", {method: "POST", body: JSON.stringify(results)});
})();
</script>"""


@contextmanager
def site() -> Iterator[tuple[int, list[Any]]]:
    """A web server with the page; its port, and the results that the page sends back."""
    results: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(PAGE.encode())

        def do_POST(self) -> None:
            results.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(b"")

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1], results
        finally:
            server.shutdown()
            thread.join()


def answered(server: Running, topic: str, *statuses: int) -> bool:
    return all(server.counts.requests[topic, status] for status in statuses)


def test_a_page_of_an_allowed_origin_sends_and_reads_answers_and_another_does_not(tmp_path: Path) -> None:
    with (
        site() as (shop, of_shop),
        site() as (evil, of_evil),
        running(tmp_path, CONFIG.format(shop=shop)) as server,
        browser() as chromium,
    ):
        with chromium.new_page() as page:
            page.goto(f"http://127.0.0.1:{shop}/#{server.url}")
            [results] = until(lambda: of_shop, "the page's results")
            until(lambda: answered(server, "beacon-json", 204, 200) and answered(server, "beacon-text", 200), "beacons")
        assert results["good"] == results["key"] == results["plain"] == [200, {"accepted": 1}]
        assert (results["bad"][0], results["bad"][1]["bad"]) == (400, 1), "a page sees what is wrong"
        assert (results["text"], results["blob"], results["picture"]) == (True, True, [1, 1])
        assert server.counts.requests["fetched", 204] == 1, "the browser asks once, and remembers"
        taken = {topic: [(one.key, one.value) for one in events] for topic, events in server.taken().items()}
        assert taken == {
            "fetched": [(None, b'{"a":1}'), (None, b'{"a":2}')],
            "fetched-key": [(b"k", b'{"a":1}')],
            "beacon-text": [(None, b'{"a":3}')],
            "beacon-json": [(None, b'{"a":4}')],
            "picture": [(None, b'{"a":"5"}')],
        }

        with chromium.new_page() as page:
            page.goto(f"http://127.0.0.1:{evil}/#{server.url}")
            [results] = until(lambda: of_evil, "the other page's results")
            until(lambda: answered(server, "beacon-json", 403) and answered(server, "beacon-text", 403), "beacons")
        assert [results[name][0] for name in ("good", "key", "bad", "plain")] == [0, 0, 0, 0], "it reads nothing"
        assert server.counts.requests["picture", 403] == 1
        assert server.taken() == {}
