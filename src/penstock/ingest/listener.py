"""Accepts connections up to a limit, in all and from one address, and logs when it refuses some.

The event loop's own servers have no limits, count a connection with TLS only after its handshake, and silently close
new connections when there are no more file descriptors.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger(__name__)

RESERVE = 64
"""File descriptors for everything else: Kafka's brokers, the spool, the log."""
AT_ONCE = 16
"""Connections that are accepted before the event loop runs other tasks."""
PAUSE = 0.5
"""Seconds in which no connection is accepted after one could not be."""
QUIET = 10.0
"""Seconds between two lines in the log about refused connections."""
GONE = (BlockingIOError, InterruptedError, ConnectionAbortedError)
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connection(asyncio.Protocol):
    """A connection that can be asked to end."""

    def shutdown(self) -> None:
        """End after the answers to the requests that have begun to come."""
        raise NotImplementedError


class Listener:
    """Hands the connections at a bound socket to protocols, at most `most` at a time, and `per_address` per address."""

    def __init__(
        self,
        bound: socket.socket,
        make: Callable[[Callable[[], None]], Connection],
        *,
        most: int,
        per_address: int,
        tls: ssl.SSLContext | None,
        handshake: float,
    ) -> None:
        """`make` gets a function to call when the connection is gone; `handshake` is the timeout of TLS in seconds."""
        self.most, self.open, self.refused = most, 0, 0
        self._bound, self._make, self._per_address = bound, make, per_address
        self._tls, self._handshake = tls, handshake
        self._by_address: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._said_at: dict[str, float] = {}
        """When the last line of each kind was logged."""
        self._listening = False

    def start(self) -> None:
        """Accept connections."""
        self._loop = asyncio.get_running_loop()
        self._bound.setblocking(False)
        self._listening = True
        self._loop.add_reader(self._bound.fileno(), self._accept)

    def stop(self) -> None:
        """Accept no more connections; open connections continue."""
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._bound.fileno())
        self._bound.close()

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                made, address = self._bound.accept()
            except GONE:
                return
            except OSError as error:
                self._wait(error)
                return
            self._take(made, _block(address[0]))

    def _wait(self, error: OSError) -> None:
        """Leave callers in the kernel's queue for a while: the next accept would fail in the same way, at once."""
        hint = "; raise the limit of open files (ulimit -n)" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
        self._say("wait", f"no connection can be accepted: {error.strerror}{hint}")
        self._loop.remove_reader(self._bound.fileno())
        self._loop.call_later(PAUSE, self._look_again)

    def _look_again(self) -> None:
        if self._listening:
            self._loop.add_reader(self._bound.fileno(), self._accept)

    def _take(self, made: socket.socket, address: str) -> None:
        if self.open >= self.most:
            self._refuse(made, f"{self.open} are open, which is connections of [limits]")
        elif self._by_address[address] >= self._per_address:
            count = self._by_address[address]
            self._refuse(made, f"{address} has {count} open, which is connections_per_address of [limits]")
        else:
            self.open += 1
            self._by_address[address] += 1
            task = self._loop.create_task(self._serve(made, address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _refuse(self, made: socket.socket, why: str) -> None:
        self.refused += 1
        with made:
            made.setblocking(False)
            if self._tls is None:
                with suppress(OSError):  # gone already
                    made.send(REFUSAL)
        self._say("refuse", f"connections are refused: {why}; {self.refused} so far")

    def _say(self, kind: str, what: str) -> None:
        now = self._loop.time()
        if now >= self._said_at.get(kind, -QUIET) + QUIET:
            self._said_at[kind] = now
            log.warning("%s", what)

    async def _serve(self, made: socket.socket, address: str) -> None:
        left = False

        def leave() -> None:
            nonlocal left
            if not left:
                left = True
                self.open -= 1
                self._by_address[address] -= 1
                if not self._by_address[address]:
                    del self._by_address[address]

        caller = self._make(leave)
        handshake = self._handshake if self._tls else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: caller, made, ssl=self._tls, ssl_handshake_timeout=handshake
            )
            if not self._listening:
                # The server is stopping, and has closed its connections: this one would keep it from ending.
                caller.shutdown()
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            log.debug("no connection with %s: %s", address, error)
            leave()
        except BaseException:
            leave()
            raise


def _block(address: str) -> str:
    """The address, or the first half of an IPv6 address: who has one of these has all that begin with it."""
    if ":" not in address or "." in address:
        return address
    return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))


def room(wanted: int) -> int:
    """How many connections may be open: `wanted`, or fewer if the limit of open files is lower.

    Raises the soft limit of open files if the hard one allows it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted + RESERVE:
        soft = wanted + RESERVE if hard == resource.RLIM_INFINITY else min(wanted + RESERVE, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = max(1, min(wanted, soft - RESERVE))
    if most < wanted:
        log.warning(
            "at most %d connections are accepted, not %d as in [limits]: the limit of open files (ulimit -n) is %d",
            most,
            wanted,
            soft,
        )
    return most
