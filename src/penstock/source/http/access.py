"""Who may write which topic: callers show a key, of which the configuration has the SHA-256 only.

A plain digest is enough because `new_key` makes keys of 256 random bits; a password would need a slow one.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

from penstock.source.http.answers import Refused
from penstock.source.http.settings import ApiKey


class Access:
    """Without keys everybody may write."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._by_digest = {one.digest: one for one in keys}

    def require(self, topic: str, bearer: bytes | None, key: bytes | None) -> None:
        """`bearer` is the header Authorization, `key` X-API-Key."""
        if not self._by_digest:
            return
        if key is None and bearer is not None and bearer[:7].lower() == b"bearer ":
            key = bearer[7:].strip()
        if key is None:
            raise Refused(401, "no API key; send it as Authorization: Bearer KEY or as X-API-Key")
        known = self._by_digest.get(hashlib.sha256(key).digest())
        if known is None:
            raise Refused(401, "this API key is not known")
        if known.topics is not None and topic not in known.topics:
            raise Refused(403, f"the key {known.name!r} may not write {topic}")


def new_key() -> tuple[str, str]:
    """A key, and its SHA-256 as it stands in the configuration."""
    key = secrets.token_urlsafe(32)
    return key, hashlib.sha256(key.encode()).hexdigest()
