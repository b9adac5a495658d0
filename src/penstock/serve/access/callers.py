"""Who may send events: callers with an API key, and web pages of known origins.

A browser lets every page send simple requests everywhere, so the server itself refuses those of unknown pages. CORS
(the Fetch Standard, section 3.2) only decides which answers a page may read, and for which requests the browser sends
a preflight. Credentials are allowed for listed origins, because `sendBeacon` always sends them, and never for all: the
standard forbids `*` then, and the server uses no cookies.

Callers send a key, of which the configuration has only the SHA-256. A plain digest is enough because `new_key` makes
keys of 256 random bits; a password would need a slow digest. A publishable key is in web pages, where everybody can
read it: it is for named topics and for pages of named origins, and is the only kind that may be in a URL, which
servers, proxies and browsers keep in logs.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.serve.access.hosts import ONCE, is_aside

Head = Mapping[bytes, bytes]
Headers = list[tuple[bytes, bytes]]

MOST_DETAIL = 1000
"""Most characters of a refusal's reason."""
OPAQUE = b"null"
"""What a browser sends for a page without an origin of its own: a file, a sandboxed frame."""
SINGLE = frozenset({*ONCE, b"authorization", b"x-api-key"})
"""Headers that come once: else it would depend on the order which of them is checked."""
HEADERS = b"authorization, content-encoding, content-type, x-api-key, x-event-key"
EXPOSED = (b"access-control-expose-headers", b"retry-after, x-penstock-problem")
VARY = (b"vary", b"origin")
_SERIALIZED = re.compile(rb"[a-z][a-z0-9+.-]*://[^\s/?#@*]{1,260}")
_OF_URL = re.compile(_SERIALIZED.pattern + rb"(?=[/?#]|\Z)")
_PORTS = {"http": ":80", "https": ":443"}


class RefusedCaller(Exception):
    """A caller may not do this: HTTP's status, and why; `retry_after` is in seconds, for an error that may pass."""

    def __init__(self, status: int, detail: str, *, retry_after: int | None = None) -> None:
        # It may quote what the caller sent.
        detail = detail[:MOST_DETAIL]
        super().__init__(detail)
        self.status, self.detail, self.retry_after = status, detail, retry_after


@dataclass(frozen=True)
class Origins:
    """Origins as browsers write them, or `all`, which includes requests that come from no page."""

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
        return Origins(frozenset().union(*(origins.listed for origins in parts)), any(origins.all for origins in parts))

    def __contains__(self, origin: bytes | None) -> bool:
        return self.all or origin in self.listed

    def __str__(self) -> str:
        return "*" if self.all else ", ".join(sorted(origin.decode() for origin in self.listed))


NOWHERE = Origins()


@dataclass(frozen=True)
class ApiKey:
    """A caller's key: its SHA-256, and the topics it may write; None means all.

    `origins` are those of the web pages with a publishable key, None for a secret key; `rate` is requests per second.
    """

    name: str
    digest: bytes
    topics: frozenset[str] | None
    origins: Origins | None = None
    rate: float | None = None


@dataclass(frozen=True)
class Pages:
    """Pages that may call for one topic: `allowed` with a secret key or without keys, others with a publishable key."""

    allowed: Origins
    known: Origins
    """All of them: the answer says which page may read it before the page's key is known."""

    @staticmethod
    def of(topic: str, allowed: Origins, keys: Iterable[ApiKey]) -> Pages:
        bound = [key.origins for key in keys if key.origins and key.topics and topic in key.topics]
        return Pages(allowed, Origins.union([allowed, *bound]))

    def headers(self, origin: bytes | None) -> Headers:
        """The headers of every answer to a request from this origin."""
        if self.known.all:
            return [(b"access-control-allow-origin", b"*"), EXPOSED]
        if not self.known.listed:
            return []
        if origin not in self.known.listed:
            return [VARY]
        named = (b"access-control-allow-origin", origin)
        return [VARY, named, (b"access-control-allow-credentials", b"true"), EXPOSED]

    def preflight(self, head: Head, method: bytes, age: int) -> Headers:
        """The headers of the answer to a preflight; raises RefusedCaller if the page may not send the request."""
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

    def require_page(self, head: Head, *, tls: bool) -> None:
        """Raises RefusedCaller if a page of an unknown origin asks for what is not an event."""
        if (origin := head.get(b"origin")) is not None:
            unknown = origin not in self.known and not _is_own(head, origin, tls=tls)
        else:
            names = (b"sec-fetch-site", b"sec-fetch-mode")
            unknown = is_aside(*(head.get(name, b"").decode("latin-1") for name in names))
        if unknown:
            raise RefusedCaller(403, f"web pages of another origin are refused: {_named(origin)}")

    def require(self, head: Head, key: ApiKey | None, *, image: bool, tls: bool) -> None:
        """Raises RefusedCaller if the page may not send the request; `image`: a request that carries no Origin."""
        origin = head.get(b"origin")
        if origin is None and b"sec-fetch-site" not in head and not image and (key is None or key.origins is None):
            return  # not a browser, as most callers
        page = _page_of(head, origin, image=image)
        if key and key.origins is not None:
            if page not in key.origins:
                raise RefusedCaller(403, f"the key {key.name!r} is not for {_named(page)}; it is for {key.origins}")
        elif page is not None and page not in self.allowed and not _is_own(head, page, tls=tls):
            raise foreign(page)


def _page_of(head: Head, origin: bytes | None, *, image: bool) -> bytes | None:
    """The origin of the page that sends a request; None if it comes from no page, or from one of this server."""
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
    """Whether a page is of the origin that it sends to, by its browser's header or by `Host`.

    A proxy in front of the server may terminate TLS, so https is accepted, too.
    """
    host = head.get(b"host", b"")
    return (
        head.get(b"sec-fetch-site") == b"same-origin"
        or origin == b"https://" + host
        or (not tls and origin == b"http://" + host)
    )


def foreign(origin: bytes) -> RefusedCaller:
    return RefusedCaller(
        403, f"{_named(origin)} may not send events here; the server's operator allows it with origins"
    )


def _named(origin: bytes | None) -> str:
    return "a page of " + origin[:200].decode("latin-1") if origin else "a request that names no page"


class ApiKeys:
    """The configured keys; without any, everybody may write."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._by_digest = {key.digest: key for key in keys}
        self._rates = {key.digest: Rate(key.rate) for key in self._by_digest.values() if key.rate}

    def require(
        self, topic: str, bearer: bytes | None, key: bytes | None, in_url: bytes | None = None
    ) -> ApiKey | None:
        """The key of a caller that may write `topic`; None if there are no keys. Raises RefusedCaller for others.

        `bearer` is the header Authorization, `key` X-API-Key, `in_url` the query's `api_key`.
        """
        if not self._by_digest:
            return None
        if key is None and bearer is not None and bearer[:7].lower() == b"bearer ":
            key = bearer[7:].strip()
        shown = key if key is not None else in_url
        if shown is None:
            raise RefusedCaller(401, "no API key; send it as Authorization: Bearer KEY or as X-API-Key")
        digest = hashlib.sha256(shown).digest()
        known = self._by_digest.get(digest)
        if known is None:
            raise RefusedCaller(401, "this API key is not known")
        if key is None and known.origins is None:
            raise RefusedCaller(
                403,
                f"the key {known.name!r} is secret, and URLs are kept in logs; make a new key, and send it as a header",
            )
        if known.topics is not None and topic not in known.topics:
            raise RefusedCaller(403, f"the key {known.name!r} may not write {topic}")
        if (rate := self._rates.get(digest)) and not rate.take(time.monotonic()):
            raise RefusedCaller(
                429, f"the key {known.name!r} has sent more requests than its rate allows", retry_after=1
            )
        return known


class Rate:
    """A limit of requests per second; after a quiet second, as many may come at once."""

    def __init__(self, most: float) -> None:
        self._most, self._left, self._at = most, max(1.0, most), 0.0

    def take(self, now: float) -> bool:
        self._left = min(max(1.0, self._most), self._left + (now - self._at) * self._most)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def new_key(prefix: str = "") -> tuple[str, str]:
    """A key, and its SHA-256 for the configuration."""
    key = prefix + secrets.token_urlsafe(32)
    return key, hashlib.sha256(key.encode()).hexdigest()
