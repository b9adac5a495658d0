"""The server as an ASGI application: one fast route without a framework, and pages made once or at each request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.hosts import LONGEST, MISDIRECTED, Hosts, is_loopback
from penstock.ingest import pixel
from penstock.ingest.api_keys import ApiKeys
from penstock.ingest.body import Disconnected, InFlight, Receive, Share, read, too_large, unpack
from penstock.ingest.events import JSON, LINES, EventFormat, Events
from penstock.ingest.ingest_metrics import IngestCounts
from penstock.ingest.ingest_settings import IngestSettings
from penstock.ingest.kafka_store import EventStore
from penstock.ingest.origins import Pages
from penstock.ingest.pixel import parameters
from penstock.ingest.responses import Headers, Problem, Refused, Send, listed, refusal_headers, refuse, reply

log = logging.getLogger(__name__)

EVENTS = "/events/"
GONE = 499
"""A status in the metrics only, as in nginx: the caller did not wait for the answer, or sent too slowly."""
FAULT = Refused(500, "an error of the server; see its log. Events may be stored")
MOST_KEY = 10_000
"""Most bytes of the key that a request gives."""
QUERY = frozenset({"key", "partial", "api_key"})

SCANNED = 256 << 10
"""Most bytes of a body that the compiled loop scans on the event loop, which takes less than a millisecond."""
EXAMINED = 32 << 10
"""Most bytes of a body that is decoded on the event loop; a larger one may take a second, and goes to a thread."""
UNPACKED = 4 << 10
"""Most bytes of gzip that are unpacked on the event loop; they may grow a thousandfold."""

Result = TypeVar("Result")

Page = Callable[[], tuple[int, bytes, bytes]]
"""Status, type and body."""


class Asked(NamedTuple):
    """What a request asks for: how its body is cut, a key for all events, and whether bad events may be left out."""

    lines: bool
    key: bytes | None
    partial: bool


class App:
    """Answers `POST /events/{topic}`, `GET /pixel/{topic}` and GET of `pages`."""

    def __init__(
        self,
        readings: Mapping[str, EventFormat],
        store: EventStore,
        settings: IngestSettings,
        counts: IngestCounts,
        in_flight: InFlight,
        pages: Mapping[str, Page],
    ) -> None:
        self.readings, self.store, self.limits = readings, store, settings.limits
        self.routes = {f"{EVENTS}{topic}".encode(): topic for topic in readings}
        """Topics by path, for requests without a query."""
        self.counts, self.in_flight, self._pages = counts, in_flight, pages
        # One thread: most of the work holds Python's lock, so more would not be faster, and would take more memory.
        self._thread = ThreadPoolExecutor(1, "bodies")
        self._access = ApiKeys(settings.keys)
        self.callers = {name: Pages.of(name, one.origins, settings.keys) for name, one in settings.topics.items()}
        """The web pages that may call, by topic."""
        self._pixels = {name for name, one in settings.topics.items() if one.pixel}
        self._known = Pages(settings.origins, settings.origins)
        self._hosts = _hosts(settings)
        self._tls, self._preflight = settings.tls is not None, int(settings.preflight.total_seconds())

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        began, path, topic, status = time.perf_counter(), scope["path"], "", 0
        headers: dict[bytes, bytes] = dict(scope["headers"])
        image = path.startswith(pixel.PATH)
        shared: Headers = []
        try:
            self.require_host(headers)
            if image or path.startswith(EVENTS):
                shared = self._known.headers(headers.get(b"origin"))
                topic = self._topic(path[len(pixel.PATH if image else EVENTS) :], image)
                shared = self.callers[topic].headers(headers.get(b"origin"))
                status = await self._send(topic, scope, headers, receive, send, shared, image=image)
            else:
                status = await self._page(path, scope["method"], send)
        except Refused as why:
            status = why.status
            self.refused(topic, why)
            await self._say(send, why, shared, image=image)
        except Disconnected:
            status = GONE
        except Exception:
            log.exception("%s %s", scope["method"], path)
            status = 500
            await self._say(send, FAULT, shared, image=image)
        finally:
            self.counts.answered(topic, status, time.perf_counter() - began)

    def _topic(self, name: str, image: bool) -> str:
        if name not in self.readings:
            raise Refused(404, f"there is no topic {name[:300]!r} here; use {', '.join(self.readings)}")
        if image and name not in self._pixels:
            raise Refused(404, f"{name} takes no events as images; the server's operator allows it with pixel = true")
        return name

    async def _send(
        self,
        topic: str,
        scope: dict[str, Any],
        headers: Mapping[bytes, bytes],
        receive: Receive,
        send: Send,
        shared: Headers,
        *,
        image: bool,
    ) -> int:
        """Take events, or answer a browser's preflight; returns the status."""
        method, wanted = scope["method"], "GET" if image else "POST"
        if method == "OPTIONS":
            more = self.callers[topic].preflight(headers, wanted.encode(), self._preflight)
            await send({"type": "http.response.start", "status": 204, "headers": shared + more})
            await send({"type": "http.response.body"})
            return 204
        if method != wanted:
            raise Refused(405, f"events are sent with {wanted}")
        status = self.store.status
        if image:
            await self._take_image(topic, headers, scope["query_string"])
            await reply(send, status, pixel.GIF, pixel.KIND, pixel.HEADERS + shared)
        else:
            with Share(self.in_flight) as share:
                answer = await self._take(topic, headers, scope["query_string"], receive, share)
            await reply(send, status, answer, more=shared)
        return status

    async def _say(self, send: Send, why: Refused, shared: Headers, *, image: bool) -> None:
        if image:
            headers = pixel.HEADERS + shared + refusal_headers(why) + pixel.problem(why)
            await reply(send, why.status, pixel.GIF, pixel.KIND, headers)
        else:
            await refuse(send, why, shared)

    async def _take(
        self, topic: str, headers: Mapping[bytes, bytes], query: bytes, receive: Receive, share: Share
    ) -> bytes:
        """Take the events of a request; returns the body of the answer."""
        asked = self.admit(topic, headers, query)
        body = await read(receive, share, most=self.limits.body)
        if coding := headers.get(b"content-encoding"):
            packed, most = body, self.limits.body
            if len(packed) <= UNPACKED:
                body = unpack(packed, coding, most=most)
            else:
                body = await self.aside(lambda: unpack(packed, coding, most=most))
            share.take(len(body))
        events, problems = await self._read(topic, asked, body)
        if events.count:
            await self.store.put(topic, events)
        return self.accepted(topic, events, problems)

    async def _take_image(self, topic: str, headers: Mapping[bytes, bytes], query: bytes) -> None:
        fields = parameters(query, pixel.MOST)
        self._require_caller(topic, headers, fields.pop("api_key", None), image=True)
        key = _key(fields, headers)
        fields.pop("key", None)
        self.store.require_ready()
        schema = self.readings[topic].schema
        body = pixel.body(fields, schema.document if schema else None)
        events, problems = self.read(topic, Asked(lines=False, key=key, partial=False), body)
        await self.store.put(topic, events)
        self.accepted(topic, events, problems)

    def admit(self, topic: str, headers: Mapping[bytes, bytes], query_string: bytes) -> Asked:
        """What the head of a request asks for; raises Refused if it is not admitted."""
        query = _query(query_string) if query_string else {}
        self._require_caller(topic, headers, query.get("api_key"), image=False)
        lines = _is_lines(headers.get(b"content-type"))
        key = _key(query, headers)
        if int(headers.get(b"content-length", 0)) > self.limits.body:
            raise too_large(self.limits.body)
        self.in_flight.require_room()
        self.store.require_ready()
        return Asked(lines, key, query.get("partial") == "true")

    def require_host(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises Refused if Host is not a name of this server: a page may have pointed its own name here."""
        host = headers.get(b"host")
        if self._hosts and host is not None and (len(host) > LONGEST or not self._hosts(host)):
            name = host[:LONGEST].decode("latin-1")
            raise Refused(MISDIRECTED, f"this server is not {name!r}; its operator allows the name with allowed_hosts")

    def _require_caller(self, topic: str, headers: Mapping[bytes, bytes], in_url: str | None, *, image: bool) -> None:
        """Raises Refused for callers without a valid key, and for web pages that may not call."""
        bearer, key = headers.get(b"authorization"), headers.get(b"x-api-key")
        known = self._access.require(topic, bearer, key, in_url.encode() if in_url is not None else None)
        self.callers[topic].require(headers, known, image=image, tls=self._tls)

    def aside(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """Run long work in the thread for it, while other requests are answered."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def scan(self, topic: str, asked: Asked, body: bytes) -> Events | None:
        """The events to store, if the compiled loop is sure that all are good; else None."""
        return self.readings[topic].scan(body, lines=asked.lines, key=asked.key)

    def examine(self, topic: str, asked: Asked, body: bytes) -> tuple[Events, Sequence[Problem]]:
        """The events to store, and the problems of the others; raises Refused for problems, unless `asked.partial`."""
        events, problems = self.readings[topic].examine(body, lines=asked.lines, key=asked.key)
        if problems and not asked.partial:
            bad, count = len({one.index for one in problems}), events.count
            raise Refused(
                400, f"{bad} of {bad + count} events are bad; nothing was stored", problems=problems, accepted=0
            )
        return events, problems

    async def _read(self, topic: str, asked: Asked, body: bytes) -> tuple[Events, Sequence[Problem]]:
        """As `read`, on the event loop if that is quick, else in the thread."""
        if len(body) <= SCANNED and (events := self.scan(topic, asked, body)):
            return events, ()
        if len(body) <= EXAMINED:
            return self.examine(topic, asked, body)
        return await self.aside(lambda: self.read(topic, asked, body))

    def read(self, topic: str, asked: Asked, body: bytes) -> tuple[Events, Sequence[Problem]]:
        """As `examine`, but tries the compiled loop first."""
        events = self.scan(topic, asked, body)
        return (events, ()) if events else self.examine(topic, asked, body)

    def accepted(self, topic: str, events: Events, problems: Sequence[Problem]) -> bytes:
        """Count events that are safe; returns the body of the answer."""
        counts = self.counts
        counts.events[topic] += events.count
        counts.bytes[topic] += events.size
        if not problems:
            return b'{"accepted":%d}' % events.count
        counts.bad[topic] += len({one.index for one in problems})
        return msgspec.json.encode({"accepted": events.count, **listed(problems)})

    def refused(self, topic: str, why: Refused) -> None:
        """Count the bad events of a request that is refused for them."""
        if why.problems:
            self.counts.bad[topic] += len({one.index for one in why.problems})

    async def _page(self, path: str, method: str, send: Send) -> int:
        page = self._pages.get(path)
        if page is None:
            raise Refused(404, f"there is no {path}; send events to {EVENTS}TOPIC, or see /docs")
        if method not in ("GET", "HEAD"):
            raise Refused(405, f"{path} is read with GET")
        status, kind, body = page()
        await reply(send, status, body, kind)
        return status


def _hosts(settings: IngestSettings) -> Callable[[bytes], bool] | None:
    """Whether a Host is this server's. None allows all: a server beyond loopback does not know its names."""
    if not is_loopback(settings.host) and not settings.hosts:
        return None
    hosts = Hosts((settings.host, *settings.hosts))
    return lru_cache(1000)(lambda host: hosts.allows(host.decode("latin-1")))


@lru_cache(1000)
def _is_lines(kind: bytes | None) -> bool:
    name = (kind or b"").partition(b";")[0].strip().lower().decode("latin-1")
    if name in LINES:
        return True
    if name in JSON:
        return False
    hint = "application/json for an event or an array of events, application/x-ndjson for an event on each line"
    raise Refused(415, f"the content type is {name or 'missing'}; send {hint}")


def _query(text: bytes) -> dict[str, str]:
    """`key`, `partial` and `api_key`."""
    found = parameters(text, 10)
    if unknown := set(found) - QUERY:
        raise Refused(400, f"the query has {', '.join(sorted(unknown))}; use only key, partial and api_key")
    if found.get("partial", "true") not in ("true", "false"):
        raise Refused(400, "partial must be true or false")
    return found


def _key(query: Mapping[str, str], headers: Mapping[bytes, bytes]) -> bytes | None:
    """The key that all events of a request have."""
    key = query["key"].encode() if "key" in query else headers.get(b"x-event-key")
    if key is not None and len(key) > MOST_KEY:
        raise Refused(400, f"the key has {len(key)} bytes; it may have at most {MOST_KEY}")
    return key
