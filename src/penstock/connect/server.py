"""An HTTP server in a thread, for the REST APIs of commands."""

from __future__ import annotations

import logging
import socket
import threading

import uvicorn
from starlette.applications import Starlette

from penstock.errors import PenstockError


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any that is free."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise PenstockError(
            f"cannot listen at {host}:{port}: {error.strerror}",
            next="stop what listens there, or choose another address",
        ) from error


def address_of(bound: socket.socket) -> str:
    """Host and port, as they stand in a URL."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Server:
    """Answers requests, in a thread, until `close`."""

    def __init__(self, app: Starlette, bound: socket.socket) -> None:
        self.url = f"http://{address_of(bound)}"
        verbose = logging.getLogger().isEnabledFor(logging.INFO)
        config = uvicorn.Config(app, log_level="info" if verbose else "warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([bound],), name="rest", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Requests under way are answered first."""
        self._server.should_exit = True
        self._thread.join()
