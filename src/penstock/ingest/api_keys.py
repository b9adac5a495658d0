"""Who may write which topic: callers send a key, of which the configuration has only the SHA-256.

A publishable key is in web pages, where everybody can read it: it is for named topics and for pages of named origins,
and is the only kind that may be in a URL, which servers, proxies and browsers keep in logs.

A plain digest is enough because `new_key` makes keys of 256 random bits; a password would need a slow digest.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable

from penstock.ingest.origins import ApiKey
from penstock.ingest.responses import Refused


class ApiKeys:
    """The configured keys; without any, everybody may write."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._by_digest = {one.digest: one for one in keys}
        self._rates = {one.digest: Rate(one.rate) for one in self._by_digest.values() if one.rate}

    def require(
        self, topic: str, bearer: bytes | None, key: bytes | None, in_url: bytes | None = None
    ) -> ApiKey | None:
        """The key of a caller that may write `topic`; None if there are no keys. Raises Refused if the caller may not.

        `bearer` is the header Authorization, `key` X-API-Key, `in_url` the query's `api_key`.
        """
        if not self._by_digest:
            return None
        if key is None and bearer is not None and bearer[:7].lower() == b"bearer ":
            key = bearer[7:].strip()
        shown = key if key is not None else in_url
        if shown is None:
            raise Refused(401, "no API key; send it as Authorization: Bearer KEY or as X-API-Key")
        digest = hashlib.sha256(shown).digest()
        known = self._by_digest.get(digest)
        if known is None:
            raise Refused(401, "this API key is not known")
        if key is None and known.origins is None:
            raise Refused(
                403,
                f"the key {known.name!r} is secret, and URLs are kept in logs; make a new key, and send it as a header",
            )
        if known.topics is not None and topic not in known.topics:
            raise Refused(403, f"the key {known.name!r} may not write {topic}")
        if (rate := self._rates.get(digest)) and not rate.take(time.monotonic()):
            raise Refused(429, f"the key {known.name!r} has sent more requests than its rate allows", retry_after=1)
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
