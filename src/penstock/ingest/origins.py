"""Which web pages may send events: where a request comes from, and what the answer tells the page's browser.

A browser lets every page send simple requests everywhere, so the server itself refuses those of pages that it does not
know; CORS (the Fetch Standard, section 3.2) only decides which answers a page may read, and which requests the browser
asks about first. Credentials are allowed to listed origins, since `sendBeacon` always sends with them, and never to
all: the standard does not take `*` then, and the server uses no cookies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.ingest.responses import Headers, Refused

Head = Mapping[bytes, bytes]

OPAQUE = b"null"
"""What a browser says for a page without an origin that could be named: a file, a sandboxed frame."""
HEADERS = b"authorization, content-encoding, content-type, x-api-key, x-event-key"
EXPOSED = (b"access-control-expose-headers", b"retry-after, x-penstock-problem")
VARY = (b"vary", b"origin")
_SERIALIZED = re.compile(rb"[a-z][a-z0-9+.-]*://[^\s/?#@*]{1,260}")
_OF_URL = re.compile(_SERIALIZED.pattern + rb"(?=[/?#]|\Z)")
_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True)
class Origins:
    """Origins as browsers write them, or `all`, to which requests of no page belong, too."""

    listed: frozenset[bytes] = frozenset()
    all: bool = False

    @staticmethod
    def of(texts: Iterable[str], where: str) -> Origins:
        listed = []
        for text in texts:
            lower = text.lower() if text.isascii() else ""
            origin = lower.removesuffix(_PORTS.get(lower.partition("://")[0], "")).encode()
            if text != "*" and not _SERIALIZED.fullmatch(origin):
                raise PenstockError(
                    f"{text!r} is not an origin of web pages",
                    where=where,
                    next='write scheme and host as browsers do, "https://shop.example", or "*" for all',
                )
            listed.append(origin)
        return Origins(frozenset(listed) - {b"*"}, b"*" in listed)

    @staticmethod
    def union(parts: Iterable[Origins]) -> Origins:
        parts = list(parts)
        return Origins(frozenset().union(*(one.listed for one in parts)), any(one.all for one in parts))

    def __contains__(self, origin: bytes | None) -> bool:
        return self.all or origin in self.listed

    def __str__(self) -> str:
        return "*" if self.all else ", ".join(sorted(one.decode() for one in self.listed))


NOWHERE = Origins()


@dataclass(frozen=True)
class ApiKey:
    """One caller: the SHA-256 of the key, and the topics it may write; None stands for all.

    `origins` are of web pages in which a publishable key stands, None for a secret one; `rate` is requests per second.
    """

    name: str
    digest: bytes
    topics: frozenset[str] | None
    origins: Origins | None = None
    rate: float | None = None


@dataclass(frozen=True)
class Pages:
    """Those that may call for one topic: with a secret key or without keys `allowed`, others with a publishable key."""

    allowed: Origins
    known: Origins
    """All of them: which answers they may read is said before it is known with which key they call."""

    @staticmethod
    def of(topic: str, allowed: Origins, keys: Iterable[ApiKey]) -> Pages:
        bound = [key.origins for key in keys if key.origins and key.topics and topic in key.topics]
        return Pages(allowed, Origins.union([allowed, *bound]))

    def headers(self, origin: bytes | None) -> Headers:
        """Of every answer to a request of this origin."""
        if self.known.all:
            return [(b"access-control-allow-origin", b"*"), EXPOSED]
        if not self.known.listed:
            return []
        if origin not in self.known.listed:
            return [VARY]
        named = (b"access-control-allow-origin", origin)
        return [VARY, named, (b"access-control-allow-credentials", b"true"), EXPOSED]

    def preflight(self, head: Head, method: bytes, age: int) -> Headers:
        """What is added for the question before a request; raises Refused if the page may not send it."""
        allow = (b"allow", method + b", OPTIONS")
        if b"access-control-request-method" not in head:
            return [allow]
        if (origin := head.get(b"origin")) not in self.known:
            raise foreign(origin or OPAQUE)
        return [
            allow,
            (b"access-control-allow-methods", method),
            (b"access-control-allow-headers", HEADERS),
            (b"access-control-max-age", b"%d" % age),
        ]

    def require(self, head: Head, key: ApiKey | None, *, image: bool, tls: bool) -> None:
        """Refuse a request of a page that may not send it; `image`: one that carries no Origin."""
        origin = head.get(b"origin")
        if origin is None and b"sec-fetch-site" not in head and not image and (key is None or key.origins is None):
            return  # no browser, as most callers
        page = _page(head, origin, image=image)
        if key and key.origins is not None:
            if page not in key.origins:
                raise Refused(403, f"the key {key.name!r} is not for {_named(page)}; it is for {key.origins}")
        elif page is not None and page not in self.allowed and not _is_own(head, page, tls=tls):
            raise foreign(page)


def _page(head: Head, origin: bytes | None, *, image: bool) -> bytes | None:
    """The origin of the page that sends a request; None if no page does, or one of this server's own."""
    if origin is not None:
        return origin
    site = head.get(b"sec-fetch-site")
    if site in (b"same-origin", b"none"):
        return None
    if image and (referer := head.get(b"referer")):
        match = _OF_URL.match(referer.lower())
        return match[0] if match else OPAQUE
    return None if site is None else OPAQUE


def _is_own(head: Head, origin: bytes, *, tls: bool) -> bool:
    """Whether a page is of the origin that it sends to, as its browser says or as `Host` shows.

    A proxy in front of the server may speak TLS for it, so that https is right, too.
    """
    host = head.get(b"host", b"")
    return (
        head.get(b"sec-fetch-site") == b"same-origin"
        or origin == b"https://" + host
        or (not tls and origin == b"http://" + host)
    )


def foreign(origin: bytes) -> Refused:
    return Refused(403, f"{_named(origin)} may not send events here; who runs the server allows it with origins")


def _named(origin: bytes | None) -> str:
    return "a page of " + origin[:200].decode("latin-1") if origin else "a request that names no page"
