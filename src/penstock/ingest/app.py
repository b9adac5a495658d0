"""What the server answers: events, mostly without a task for each request, and pages made once or at each request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TypeAlias, TypeVar

import msgspec

from penstock.ingest import pixel
from penstock.ingest.events import JSON, LINES, KeyedEvents, TopicFormat
from penstock.ingest.exchange import (
    PROBLEM,
    Answer,
    Asked,
    EventProblem,
    HttpRequest,
    InFlight,
    RefusedRequest,
    listed,
    refusal,
    refusal_headers,
    too_large,
    unpack,
)
from penstock.ingest.ingest_metrics import IngestCounts
from penstock.ingest.ingest_settings import IngestSettings
from penstock.ingest.kafka_store import EventStore
from penstock.ingest.pixel import parameters
from penstock.serve.access.callers import ApiKeys, Pages, RefusedCaller
from penstock.serve.access.hosts import LONGEST, MISDIRECTED, Hosts, is_loopback
from penstock.serve.listener import MONITORED

log = logging.getLogger(__name__)

EVENTS = "/events/"
GONE = 499
"""A status in the metrics only, as in nginx: the caller did not wait for the answer, or sent too slowly."""
FAULT = RefusedRequest(500, "an error of the server; see its log. Events may be stored")
MOST_KEY = 10_000
"""Most bytes of the key that a request gives."""
QUERY = frozenset({"key", "partial", "api_key"})

SCANNED = 256 << 10
"""Most bytes of a body that is decoded as its type on the event loop, which takes about a millisecond."""
EXAMINED = 32 << 10
"""Most bytes of a body that is validated on the event loop; a larger one may take a second, and goes to a thread."""
UNPACKED = 4 << 10
"""Most bytes of gzip that are unpacked on the event loop; they may grow a thousandfold."""

Result = TypeVar("Result")

CheckedEvents: TypeAlias = tuple[KeyedEvents, Sequence[EventProblem]]
"""The events to store, and the problems of the others."""
Say = Callable[[Answer], None]
Page = Callable[[], tuple[int, bytes, bytes]]
"""Status, body and type."""


class App:
    """Answers `POST /events/{topic}`, `GET /pixel/{topic}` and GET of `pages`."""

    def __init__(
        self,
        readings: Mapping[str, TopicFormat],
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
        self._tasks: set[asyncio.Future[CheckedEvents]] = set()
        """Bodies that are read aside; the event loop itself keeps no reference."""
        self._access = ApiKeys(settings.keys)
        self.callers = {name: Pages.of(name, topic.origins, settings.keys) for name, topic in settings.topics.items()}
        """The web pages that may call, by topic."""
        self._pixels = {name for name, topic in settings.topics.items() if topic.pixel}
        self._known = Pages(settings.origins, settings.origins)
        self._hosts = _hosts(settings)
        self._tls, self._preflight = settings.tls is not None, int(settings.preflight.total_seconds())

    def begin(self, request: HttpRequest) -> Answer | None:
        """The answer that a head alone gets; None if the body is needed."""
        try:
            self.require_host(request.headers)
            topic = self.routes.get(request.url)
            if topic is None and (request.path.startswith((EVENTS, pixel.PATH))):
                request.image = request.path.startswith(pixel.PATH)
                request.shared = self._known.headers(request.headers.get(b"origin"))
                topic = self._topic(request.path[len(pixel.PATH if request.image else EVENTS) :], request.image)
            if topic is None:
                request.release()
                self._known.require_page(request.headers, tls=self._tls)
                return self._page(request.path, request.method)
            request.topic = topic
            request.shared = self.callers[topic].headers(request.headers.get(b"origin"))
            return self._admit(topic, request)
        except Exception as error:
            return self._refusal(request, error)

    def begin_spare(self, request: HttpRequest) -> Answer | None:
        """As `begin`, on a connection that may only ask for the pages of `MONITORED`."""
        if request.url.partition(b"?")[0].decode("latin-1") in MONITORED:
            return self.begin(request)
        return self._refusal(
            request, RefusedRequest(503, "all connections wait for their answers; send again later", retry_after=1)
        )

    def _admit(self, topic: str, request: HttpRequest) -> Answer | None:
        """Admit a request with events, or answer a browser's preflight; raises RefusedRequest."""
        method, wanted = request.method, "GET" if request.image else "POST"
        if method == "OPTIONS":
            more = self.callers[topic].preflight(request.headers, wanted.encode(), self._preflight)
            return Answer(204, headers=request.shared + more)
        if method != wanted:
            raise RefusedRequest(405, f"events are sent with {wanted}")
        if not request.image:
            request.asked = self.admit(topic, request.headers, request.query if b"?" in request.url else b"")
        return None

    def _topic(self, name: str, image: bool) -> str:
        if name not in self.readings:
            raise RefusedRequest(404, f"there is no topic {name[:300]!r} here; use {', '.join(self.readings)}")
        if image and name not in self._pixels:
            raise RefusedRequest(
                404, f"{name} takes no events as images; the server's operator allows it with pixel = true"
            )
        return name

    def take(self, request: HttpRequest, say: Say) -> None:
        """Store the events of a complete request, then call `say` with the answer; mostly without a task."""
        try:
            body = request.body()
            checked = self._read_image(request) if request.image else self._read_at_once(request, body)
        except Exception as error:
            say(self._refusal(request, error))
            return
        if checked:
            self._store(request, say, *checked)
            return
        reading = asyncio.ensure_future(self._read(request, body))
        self._tasks.add(reading)
        reading.add_done_callback(partial(self._read_aside, request, say))

    def _read_aside(self, request: HttpRequest, say: Say, reading: asyncio.Future[CheckedEvents]) -> None:
        self._tasks.discard(reading)
        if error := reading.exception():
            say(self._refusal(request, error))
        else:
            self._store(request, say, *reading.result())

    def _store(self, request: HttpRequest, say: Say, events: KeyedEvents, problems: Sequence[EventProblem]) -> None:
        def stored(done: asyncio.Future[None]) -> None:
            error = done.exception()
            say(self._refusal(request, error) if error else self._accepted(request, events, problems))

        if events.count:
            try:
                self.store.put(request.topic, events).add_done_callback(stored)
            except Exception as error:
                say(self._refusal(request, error))
        else:
            say(self._accepted(request, events, problems))

    def _accepted(self, request: HttpRequest, events: KeyedEvents, problems: Sequence[EventProblem]) -> Answer:
        """Counts events that are safe."""
        counts, topic = self.counts, request.topic
        counts.events[topic] += events.count
        counts.bytes[topic] += events.size
        if request.image:
            return Answer(self.store.status, pixel.GIF, pixel.KIND, pixel.HEADERS + request.shared)
        if not problems:
            return Answer(self.store.status, b'{"accepted":%d}' % events.count, headers=request.shared)
        counts.bad[topic] += len({problem.index for problem in problems})
        body = msgspec.json.encode({"accepted": events.count, **listed(problems)})
        return Answer(self.store.status, body, headers=request.shared)

    def _refusal(self, request: HttpRequest, error: BaseException) -> Answer:
        """The answer to a request that is refused; counts its bad events."""
        if isinstance(error, RefusedRequest):
            why = error
        elif isinstance(error, RefusedCaller):
            why = RefusedRequest(error.status, error.detail, retry_after=error.retry_after)
        else:
            log.error("%s %s", request.method, request.url[:LONGEST].decode("latin-1"), exc_info=error)
            why = FAULT
        if why.problems:
            self.counts.bad[request.topic] += len({problem.index for problem in why.problems})
        more = refusal_headers(why) + request.shared
        if request.image:
            return Answer(why.status, pixel.GIF, pixel.KIND, [*pixel.HEADERS, *more, *pixel.problem(why)])
        return Answer(why.status, refusal(why), PROBLEM, more)

    def answered(self, request: HttpRequest, status: int) -> None:
        """Count a request that has its answer, or gets none (`GONE`)."""
        request.end()
        self.counts.answered(request.topic, status, time.perf_counter() - request.began)

    def _read_image(self, request: HttpRequest) -> CheckedEvents:
        topic, headers = request.topic, request.headers
        fields = parameters(request.query, pixel.MOST)
        self._require_caller(topic, headers, fields.pop("api_key", None), image=True)
        key = _key(fields, headers)
        fields.pop("key", None)
        self.store.require_ready()
        schema = self.readings[topic].schema
        body = pixel.body(fields, schema.document if schema else None)
        return self.read(topic, Asked(lines=False, key=key, partial=False), body)

    def _read_at_once(self, request: HttpRequest, body: bytes) -> CheckedEvents | None:
        """The events of a body that is read quickly; None if it is not."""
        if b"content-encoding" in request.headers:
            return None
        return self._read_quickly(request.topic, request.asked, body)

    def _read_quickly(self, topic: str, asked: Asked, body: bytes) -> CheckedEvents | None:
        if len(body) <= SCANNED and (events := self.readings[topic].scan(body, lines=asked.lines, key=asked.key)):
            return events, ()
        return self.examine(topic, asked, body) if len(body) <= EXAMINED else None

    async def _read(self, request: HttpRequest, body: bytes) -> CheckedEvents:
        """The events of a body that is unpacked first, or read in the thread."""
        topic, asked, most = request.topic, request.asked, self.limits.body
        if coding := request.headers.get(b"content-encoding"):
            packed = body
            if len(packed) <= UNPACKED:
                body = unpack(packed, coding, most=most)
            else:
                body = await self.aside(lambda: unpack(packed, coding, most=most))
            request.take(len(body))
            if checked := self._read_quickly(topic, asked, body):
                return checked
        work = self.examine if len(body) <= SCANNED else self.read
        return await self.aside(lambda: work(topic, asked, body))

    def admit(self, topic: str, headers: Mapping[bytes, bytes], query_string: bytes) -> Asked:
        """What the head of a request asks for; raises RefusedRequest if it is not admitted."""
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
        """Raises RefusedRequest if Host is not a name of this server: a page may have pointed its own name here."""
        host = headers.get(b"host")
        if self._hosts and host is not None and (len(host) > LONGEST or not self._hosts(host)):
            name = host[:LONGEST].decode("latin-1")
            raise RefusedRequest(
                MISDIRECTED, f"this server is not {name!r}; its operator allows the name with allowed_hosts"
            )

    def _require_caller(self, topic: str, headers: Mapping[bytes, bytes], in_url: str | None, *, image: bool) -> None:
        """Raises RefusedRequest for callers without a valid key, and for web pages that may not call."""
        bearer, key = headers.get(b"authorization"), headers.get(b"x-api-key")
        known = self._access.require(topic, bearer, key, in_url.encode() if in_url is not None else None)
        self.callers[topic].require(headers, known, image=image, tls=self._tls)

    def aside(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """Run long work in the thread for it, while other requests are answered."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def examine(self, topic: str, asked: Asked, body: bytes) -> CheckedEvents:
        """As `read`, of a body that is not surely good."""
        return _checked(asked, *self.readings[topic].examine(body, lines=asked.lines, key=asked.key))

    def read(self, topic: str, asked: Asked, body: bytes) -> CheckedEvents:
        """The events to store, and problems of the others; raises RefusedRequest for them unless `asked.partial`."""
        return _checked(asked, *self.readings[topic].read(body, lines=asked.lines, key=asked.key))

    def _page(self, path: str, method: str) -> Answer:
        page = self._pages.get(path)
        if page is None:
            raise RefusedRequest(404, f"there is no {path}; send events to {EVENTS}TOPIC, or see /docs")
        if method not in ("GET", "HEAD"):
            raise RefusedRequest(405, f"{path} is read with GET")
        return Answer(*page())


def _checked(asked: Asked, events: KeyedEvents, problems: Sequence[EventProblem]) -> CheckedEvents:
    if problems and not asked.partial:
        bad, count = len({problem.index for problem in problems}), events.count
        raise RefusedRequest(
            400, f"{bad} of {bad + count} events are bad; nothing was stored", problems=problems, accepted=0
        )
    return events, problems


def _hosts(settings: IngestSettings) -> Callable[[bytes], bool] | None:
    """Whether a Host is this server's. None allows all: a server beyond loopback does not know its names."""
    if not is_loopback(settings.host) and not settings.hosts:
        return None
    hosts = Hosts((settings.host, *settings.hosts))
    return lru_cache(1000)(lambda host: hosts.allows(host.decode("latin-1")))


def _is_lines(kind: bytes | None) -> bool:
    # Without its parameters, which may be long: what is cached stays.
    return _is_lines_type((kind or b"").partition(b";")[0][:LONGEST])


@lru_cache(1000)
def _is_lines_type(kind: bytes) -> bool:
    name = kind.strip().lower().decode("latin-1")
    if name in LINES:
        return True
    if name in JSON:
        return False
    hint = "application/json for an event or an array of events, application/x-ndjson for an event on each line"
    raise RefusedRequest(415, f"the content type is {name or 'missing'}; send {hint}")


def _query(text: bytes) -> dict[str, str]:
    """`key`, `partial` and `api_key`."""
    query = parameters(text, 10)
    if unknown := set(query) - QUERY:
        raise RefusedRequest(400, f"the query has {', '.join(sorted(unknown))}; use only key, partial and api_key")
    if query.get("partial", "true") not in ("true", "false"):
        raise RefusedRequest(400, "partial must be true or false")
    return query


def _key(query: Mapping[str, str], headers: Mapping[bytes, bytes]) -> bytes | None:
    """The key that all events of a request have."""
    key = query["key"].encode() if "key" in query else headers.get(b"x-event-key")
    if key is not None and len(key) > MOST_KEY:
        raise RefusedRequest(400, f"the key has {len(key)} bytes; it may have at most {MOST_KEY}")
    return key
