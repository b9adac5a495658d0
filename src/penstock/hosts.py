"""The names under which a server answers: it checks the `Host` of each request, and the `Origin` of web pages.

An attacker can make the name of a web page resolve to 127.0.0.1 (DNS rebinding). To a browser, the page then has the
same origin as a server that listens there, and can read and write everything that the server offers. Its requests
still carry the page's name in `Host`. An IP address is always accepted, because rebinding needs a name.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MISDIRECTED, FORBIDDEN = 421, 403
LONGEST = 260
"""Most bytes of a `Host` that is checked: a name has at most 253, a port 5."""


class Hosts:
    """The accepted names: loopback, this machine's, and `allowed`; `*.name` means all names below it, `*` any name."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        own = ("localhost", "*.localhost", socket.gethostname(), *allowed)
        names = {name.strip().lower().rstrip(".") for name in own}
        self._any = "*" in names
        self._names = frozenset(name for name in names if name)
        self._below = tuple(name[1:] for name in names if name.startswith("*."))

    def allows(self, host: str) -> bool:
        """Whether a request with this `Host`, a name or an address with or without a port, is meant for this server."""
        if self._any:
            return True
        if len(host) > LONGEST:
            return False
        name = _without_port(host.strip()).lower().rstrip(".")
        return name in self._names or name.endswith(self._below) or _is_address(name)

    def allows_origin(self, origin: str) -> bool:
        """Whether the host of this `Origin` is an accepted name; `null` is not."""
        if self._any:
            return True
        try:
            parts = urlsplit(origin) if len(origin) <= LONGEST + 10 else None
        except ValueError:
            return False
        return parts is not None and bool(parts.scheme and parts.netloc) and self.allows(parts.netloc)


def guarded(app: Asgi, hosts: Hosts, *, allow_with: str) -> Asgi:
    """Wraps the application: refuses requests that were sent to another name or by a page of another origin.

    The refusal says how to allow the name: `allow_with`, such as an option of a command.
    """

    async def checked(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        refusal = _refusal(scope, hosts) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await app(scope, receive, send)
            return
        status, what = refusal
        said = {"error_code": status, "message": what, "error": what, "next": f"to allow this name: {allow_with}"}
        body = json.dumps(said).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        # The request's body is not read: on a connection that stays open it would be parsed as the next request.
        headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return checked


def _refusal(scope: MutableMapping[str, Any], hosts: Hosts) -> tuple[int, str] | None:
    """The status and the reason for refusing a request, or None; a caller without `Host` is not a browser."""
    for name, value in scope["headers"]:
        text = value.decode("latin-1")
        if name == b"host" and not hosts.allows(text):
            return MISDIRECTED, f"this server does not accept the name in the request's Host, {_quoted(text)}"
        if name == b"origin" and not hosts.allows_origin(text):
            return FORBIDDEN, f"web pages of another origin are refused: {_quoted(text)}"
    return None


def _quoted(text: str) -> str:
    return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")


def _without_port(host: str) -> str:
    """The name or address without its port; an IPv6 address is in brackets."""
    if host.startswith("["):
        address, closed, port = host[1:].partition("]")
        return address if closed and (not port or _is_port(port)) else ""
    name, colon, port = host.partition(":")
    return name if not colon or _is_port(f":{port}") else ""


def _is_port(text: str) -> bool:
    return text.startswith(":") and text.isascii() and (text == ":" or text[1:].isdecimal())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens at this address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def warn_if_open(host: str, what: str) -> None:
    """Warn on stderr if other machines can reach a server without passwords; `what` is what they can do."""
    if not is_loopback(host):
        print(
            f"warning: the server listens at {host} without authentication: whoever reaches it can {what}. "
            "Next: listen at 127.0.0.1, or keep it on a trusted network",
            file=sys.stderr,
            flush=True,
        )
