"""Who may call a server: the name in each request's `Host`, the `Origin` of web pages, and JSON for what changes it.

An attacker can make the name of a web page resolve to 127.0.0.1 (DNS rebinding). To a browser, the page then has the
same origin as a server that listens there, and can read and write everything that the server offers. Its requests
still carry the page's name in `Host`. An IP address is always accepted there, because rebinding needs a name.

A page can also send requests to this server's own address, though it cannot read the answers. Its browser says so in
`Origin`, whose host must be the one in `Host`, loopback, or an accepted name; images and scripts have no origin, but
browsers say in `Sec-Fetch-Site` that another site asks. And a page asks the server before it sends JSON, which no
server here allows; so a body that is not JSON is refused.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MISDIRECTED, FORBIDDEN, UNSUPPORTED = 421, 403, 415
READING = ("GET", "HEAD", "OPTIONS")
ONCE = (b"host", b"origin", b"content-type", b"sec-fetch-site")
"""Headers that come once: servers and proxies differ in which of several lines counts."""
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

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether a page with this `Origin` may call at this `Host`; `null` may not.

        Its host must be an accepted name, loopback, or that of `Host`: a page of any other address is one of others.
        """
        if self._any:
            return True
        try:
            parts = urlsplit(origin) if len(origin) <= LONGEST + 10 else None
        except ValueError:
            return False
        if parts is None or not parts.scheme or not parts.netloc or not self.allows(parts.netloc):
            return False
        name = _without_port(parts.netloc).lower()
        return not _is_address(name) or is_loopback(name) or name == _without_port(host.strip()).lower()


def guarded(app: Asgi, hosts: Hosts, *, allow_with: str) -> Asgi:
    """Wraps the application: refuses requests sent to another name or by a page of another origin, and other bodies
    than JSON.

    The refusal says how to allow the name: `allow_with`, such as an option of a command.
    """

    async def checked(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        http = scope["type"] in ("http", "websocket")
        refused = refusal(scope["headers"], hosts, scope.get("method", "GET")) if http else None
        if refused is None:
            await app(scope, receive, send)
            return
        status, what, next = refused
        said = {"error_code": status, "message": what, "error": what, "next": next or f"to allow it: {allow_with}"}
        body = json.dumps(said).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        # The request's body is not read: on a connection that stays open it would be parsed as the next request.
        headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return checked


def refusal(headers: Iterable[tuple[bytes, bytes]], hosts: Hosts, method: str) -> tuple[int, str, str] | None:
    """Status, reason and next step ("": allow it) for refusing a request, or None. Names are in lower case.

    A caller without `Host` is not a browser.
    """
    lines: dict[bytes, list[str]] = {}
    for name, value in headers:
        lines.setdefault(name, []).append(value.decode("latin-1"))
    for name in ONCE:
        if len(lines.get(name, ())) > 1:
            return 400, f"the request has {len(lines[name])} lines {name.decode()}", "send one"
    host, origin = ("".join(lines.get(name, ())) for name in (b"host", b"origin"))
    if b"host" in lines and not hosts.allows(host):
        return MISDIRECTED, f"this server does not accept the name in the request's Host, {_quoted(host)}", ""
    if b"origin" in lines and not hosts.allows_origin(origin, host):
        return FORBIDDEN, f"web pages of another origin are refused: {_quoted(origin)}", ""
    site, mode = ("".join(lines.get(name, ())) for name in (b"sec-fetch-site", b"sec-fetch-mode"))
    if b"origin" not in lines and is_aside(site, mode):
        return (
            FORBIDDEN,
            "web pages of another site are refused (Sec-Fetch-Site: cross-site)",
            "open the address itself",
        )
    if method not in READING and _has_body(lines) and not _is_json(lines):
        what = "HTTP 415 Unsupported Media Type: this request must be JSON"
        return UNSUPPORTED, what, 'send the header "Content-Type: application/json"'
    return None


def is_aside(site: str, mode: str) -> bool:
    """Whether a page of another site asks for a part of it, an image or a script; a link of any site may lead here.

    These are `Sec-Fetch-Site` and `Sec-Fetch-Mode` of a request without an origin.
    """
    return site == "cross-site" and mode != "navigate"


def _has_body(lines: Mapping[bytes, Sequence[str]]) -> bool:
    return b"transfer-encoding" in lines or any(text.strip() != "0" for text in lines.get(b"content-length", ()))


def _is_json(lines: Mapping[bytes, Sequence[str]]) -> bool:
    kind = "".join(lines.get(b"content-type", ())).partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


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
