"""Basic authentication (RFC 7617): only who knows a name and its password may call a server."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, MutableMapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from penstock.serve.access.hosts import Asgi, Receive, Send

UNAUTHORIZED = 401
LONGEST = 4096
"""Most characters of a header that is read."""


class Passwords:
    """Names and their passwords; a name has no colon."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = [_digest(f"{name}:{password}".encode()) for name, password in known.items()]

    def allows(self, header: str) -> bool:
        """Whether the header `Authorization` has one of the names, with its password."""
        scheme, _, text = header.strip().partition(" ")
        if len(header) > LONGEST or scheme.lower() != "basic":
            return False
        try:
            digest = _digest(base64.b64decode(text.strip(), validate=True))
        except (binascii.Error, ValueError):
            return False
        # All are compared, so that the time of an answer says nothing of what is known.
        return sum(compare_digest(digest, known) for known in self._known) > 0


def _digest(login: bytes) -> bytes:
    return sha256(login).digest()


def protected(app: Asgi, passwords: Passwords) -> Asgi:
    """The application, for callers that `passwords` allows."""

    async def checked(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or passwords.allows(_authorization(scope["headers"])):
            await app(scope, receive, send)
            return
        said = {"error_code": UNAUTHORIZED, "message": "User cannot access the resource."}
        body = json.dumps(said).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"www-authenticate", b'Basic realm="penstock", charset="UTF-8"'),
            # The request's body is not read: on a connection that stays open it would be parsed as the next request.
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": UNAUTHORIZED, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return checked


def _authorization(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The only header `Authorization`; "" if there is none, or several."""
    values = [value for name, value in headers if name == b"authorization"]
    return values[0].decode("latin-1") if len(values) == 1 else ""
