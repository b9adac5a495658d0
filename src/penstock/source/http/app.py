"""The server as an ASGI application: one hot route by hand, and pages that are made once or when they are asked for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from penstock.source.http.access import Access
from penstock.source.http.answers import Problem, Refused, Send, listed, refuse, reply
from penstock.source.http.body import Disconnected, InFlight, Receive, Share, read, too_large, unpack
from penstock.source.http.events import JSON, LINES, Events, Reading
from penstock.source.http.measures import Counts
from penstock.source.http.settings import Limits
from penstock.source.http.store import Store

log = logging.getLogger(__name__)

EVENTS = "/events/"
GONE = 499
"""In the metrics, as nginx has it: the caller did not wait for the answer, or was too slow with the request."""
FAULT = Refused(500, "a fault of the server; its log tells more. Events may be stored")
MOST_KEY = 10_000
"""Bytes of a key that a request names."""

Page = Callable[[], tuple[int, bytes, bytes]]
"""Status, type and body."""


class Asked(NamedTuple):
    """What a request wants: how its body is cut, a key for all its events, and whether good ones go without bad."""

    lines: bool
    key: bytes | None
    partial: bool


class App:
    """Answers `POST /events/{topic}` and GET of `pages`."""

    def __init__(
        self,
        readings: Mapping[str, Reading],
        store: Store,
        access: Access,
        limits: Limits,
        counts: Counts,
        in_flight: InFlight,
        pages: Mapping[str, Page],
    ) -> None:
        self.readings, self.store, self._access, self.limits = readings, store, access, limits
        self.routes = {f"{EVENTS}{topic}".encode(): topic for topic in readings}
        """By the path, in a request without a query."""
        self.counts, self.in_flight, self._pages = counts, in_flight, pages

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        began, path, topic, status = time.perf_counter(), scope["path"], "", 0
        try:
            if path.startswith(EVENTS):
                topic, status = path[len(EVENTS) :], self.store.status
                if topic not in self.readings:
                    topic, wanted = "", topic
                    known = ", ".join(self.readings)
                    raise Refused(404, f"there is no topic {wanted!r} here; there are {known}")
                if scope["method"] != "POST":
                    raise Refused(405, "events are sent with POST")
                with Share(self.in_flight) as share:
                    await reply(send, status, await self._take(topic, scope, receive, share))
            else:
                status = await self._page(path, scope["method"], send)
        except Refused as why:
            status = why.status
            self.refused(topic, why)
            await refuse(send, why)
        except Disconnected:
            status = GONE
        except Exception:
            log.exception("%s %s", scope["method"], path)
            status = 500
            await refuse(send, FAULT)
        finally:
            self.counts.answered(topic, status, time.perf_counter() - began)

    async def _take(self, topic: str, scope: dict[str, Any], receive: Receive, share: Share) -> bytes:
        """Everything between the head of a request and its answer."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        asked = self.admit(topic, headers, scope["query_string"])
        body = await read(receive, share, most=self.limits.body)
        if coding := headers.get(b"content-encoding"):
            body = unpack(body, coding, share, most=self.limits.body)
        events, problems = self.read(topic, asked, body)
        if events.count:
            await self.store.put(topic, events)
        return self.accepted(topic, events, problems)

    def admit(self, topic: str, headers: Mapping[bytes, bytes], query_string: bytes) -> Asked:
        """What the head of a request asks for, if it may come in now."""
        self._access.require(topic, headers.get(b"authorization"), headers.get(b"x-api-key"))
        lines = _is_lines(headers.get(b"content-type"))
        query = _query(query_string) if query_string else {}
        key = _key(query, headers)
        if int(headers.get(b"content-length", 0)) > self.limits.body:
            raise too_large(self.limits.body)
        self.in_flight.require_room()
        self.store.require_ready()
        return Asked(lines, key, query.get("partial") == "true")

    def read(self, topic: str, asked: Asked, body: bytes) -> tuple[Events, list[Problem]]:
        """The events to store, and those that are left out."""
        events, problems = self.readings[topic].read(body, lines=asked.lines, key=asked.key)
        if problems and not asked.partial:
            bad, count = len({one.index for one in problems}), events.count
            raise Refused(
                400, f"{bad} of {bad + count} events are bad; nothing was stored", problems=problems, accepted=0
            )
        return events, problems

    def accepted(self, topic: str, events: Events, problems: Sequence[Problem]) -> bytes:
        """The answer when the events are safe; counts them."""
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
            raise Refused(404, f"there is no {path}; send events to {EVENTS}TOPIC, or look at /docs")
        if method not in ("GET", "HEAD"):
            raise Refused(405, f"{path} is read with GET")
        status, kind, body = page()
        await reply(send, status, body, kind)
        return status


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
    """`key` and `partial`, the last of each."""
    found = dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True))
    if unknown := set(found) - {"key", "partial"}:
        raise Refused(400, f"the query has {', '.join(sorted(unknown))}; it may have key and partial")
    if found.get("partial", "true") not in ("true", "false"):
        raise Refused(400, "partial is true or false")
    return found


def _key(query: Mapping[str, str], headers: Mapping[bytes, bytes]) -> bytes | None:
    """The key that all events of a request have."""
    key = query["key"].encode() if "key" in query else headers.get(b"x-event-key")
    if key is not None and len(key) > MOST_KEY:
        raise Refused(400, f"the key has {len(key)} bytes; it may have {MOST_KEY}")
    return key
