"""A proxy for a real schema registry that counts requests, fails on demand, and can require TLS and a login."""

from __future__ import annotations

import base64
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from waiting import PATIENCE


@dataclass
class Proxy:
    """The requests so far; the next `failures` requests are answered with 503, or cut if `cut` is set."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    failures: int = 0
    cut: bool = False


@contextmanager
def registry_proxy(registry: str, *, keystore: Path | None = None, login: str | None = None) -> Iterator[Proxy]:
    """Serve the registry at another address; `keystore` is a PEM file of key and certificate, `login` "user:word"."""
    proxy = Proxy()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            proxy.asked.append(f"{self.command} {self.path}")
            if proxy.failures:
                proxy.failures -= 1
                if not proxy.cut:
                    self.send_error(503, "busy")
                return
            if login and self.headers["Authorization"] != "Basic " + base64.b64encode(login.encode()).decode():
                self.send_error(401, "who are you")
                return
            self._answer(*_forward(registry + self.path, self.command, body, self.headers["Content-Type"]))

        do_POST = do_PUT = do_GET

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if keystore:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(keystore)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        proxy.url = f"{'https' if keystore else 'http'}://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()


def _forward(url: str, method: str, body: bytes, kind: str | None) -> tuple[int, bytes]:
    request = Request(url, method=method, data=body or None, headers={"Content-Type": kind} if kind else {})
    try:
        with urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read()
