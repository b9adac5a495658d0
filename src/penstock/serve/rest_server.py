"""An HTTP server in a thread, for the REST APIs of commands."""

from __future__ import annotations

import logging
import socket
import threading

import uvicorn

from penstock.errors import PenstockError
from penstock.serve.hosts import Asgi, Hosts, guarded

ALLOW = "--allow-host NAME"
"""The option of commands with a server."""
HEAD = 64 << 10
"""The largest head of a request in bytes: a longer head gets 400 and the connection is closed."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 is any free port. Raises PenstockError if it cannot listen there."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise PenstockError(
            f"cannot listen at {host}:{port}: {error.strerror}",
            next="stop what listens there, or choose another address",
        ) from error


def address_of(bound: socket.socket) -> str:
    """Host and port as in a URL."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class RestServer:
    """Answers requests to one of its `hosts`, in a thread, until `close`."""

    def __init__(self, app: Asgi, bound: socket.socket, hosts: Hosts | None = None) -> None:
        self.url = f"http://{address_of(bound)}"
        verbose = logging.getLogger().isEnabledFor(logging.INFO)
        config = uvicorn.Config(
            guarded(app, hosts or Hosts(), allow_with=ALLOW),
            # httptools, which uvicorn prefers if it is installed, has no limit for heads.
            http="h11",
            h11_max_incomplete_event_size=HEAD,
            # Its log lines go to the root logger, with that logger's format.
            log_config=None,
            log_level="info" if verbose else "warning",
            lifespan="off",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([bound],), name="rest", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; answers open requests first."""
        self._server.should_exit = True
        self._thread.join()
