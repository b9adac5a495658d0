"""The bounds of every HTTP server here: connections, the time until a request is whole, and the time of silence.

The event loop's own servers have no limits, count a connection with TLS only after its handshake, and silently close
new connections when there are no more file descriptors. Here a newcomer that finds all places taken gets the place of
the connection that has been silent for longest: one without a whole request, or one that is idle after an answer. If
all of them are being answered, a few more are taken, which may ask only for the pages of `MONITORED`: so a probe of
liveness has its answer while callers hold everything else.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import ipaddress
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

log = logging.getLogger(__name__)

MONITORED = ("/health", "/ready")
"""The pages that are answered while all other connections wait for their answers."""
SPARE = 16
"""Connections for these pages, in addition to all others."""
RESERVE = 64
"""File descriptors for everything else: the spare connections, Kafka's brokers, the spool, the log."""
AT_ONCE = 16
"""Connections that are accepted before the event loop runs other tasks."""
AT_ONCE_IF_FULL = 4
"""The same when each takes the place of another: a newcomer must be read before newer ones take its place."""
PAUSE = 0.5
"""Seconds in which no connection is accepted after one could not be."""
QUIET = 10.0
"""Seconds between two lines in the log about connections that are refused for the same bound."""
LOOK = 0.5
"""Seconds between two looks at all connections."""
AT_LEAST = 100
"""Of so many connections, one is closed to make room for the next; of more, a hundredth: finding them takes a while."""
GONE = (BlockingIOError, InterruptedError, ConnectionAbortedError)
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True)
class Bounds:
    """What the callers of a server may take; times are seconds."""

    connections: int
    """Open at a time."""
    per_address: int
    """Of these, from one address."""
    request: float
    """Until a request is whole: its head, and its body. The handshake of TLS has the same limit."""
    idle: float
    """Between an answer and the next request, and in which a caller reads nothing of its answers."""
    unread: int
    """Bytes of answers that all callers together have not read."""
    names: tuple[str, str] = ("the most", "the most for an address")
    """What the log calls the limits of connections, in all and for an address."""


CONNECTIONS = 200


def usual_bounds() -> Bounds:
    """The bounds of all servers that users do not configure."""
    most = room(CONNECTIONS)
    return Bounds(connections=most, per_address=most, request=10.0, idle=10.0, unread=64 << 20)


class Connection(asyncio.Protocol):
    """A connection that can be asked to end, and knows how long it has been silent."""

    transport: asyncio.Transport
    is_made = False
    """Whether it is connected; with TLS only after the handshake."""
    waits_since: float | None = None
    """The loop's time since which a request has been coming."""
    idle_since: float | None = None
    """The loop's time since which nothing has come after an answer."""
    unread, unread_since = 0, 0.0
    """Bytes of answers that the caller has not read, and since when that number is the same."""
    spare = False
    """Whether it may only ask for the pages of `MONITORED`."""

    def begin(self, transport: asyncio.Transport) -> None:
        """Note that the connection is made, and waits for its first request."""
        self.transport, self.is_made = transport, True
        self.waits_since = asyncio.get_running_loop().time()

    def silent_since(self) -> float | None:
        """The loop's time since which it has no whole request; None if it waits for an answer."""
        return self.idle_since if self.waits_since is None else self.waits_since

    def give_up(self) -> None:
        """End at once, for another connection."""
        if self.waits_since is None:
            self.close()
        else:
            self.leave()
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def shutdown(self) -> None:
        """End after the answers to the requests that have begun to come."""
        raise NotImplementedError

    def leave(self) -> None:
        """Disconnect a caller whose request does not complete in time."""
        raise NotImplementedError

    def close(self) -> None:
        """Disconnect a caller that waits for nothing."""
        self.transport.close()


@dataclass(eq=False)
class _Place:
    """A place of a connection; `handshake` is what connects it with TLS, which takes as long as the caller wants."""

    address: str
    since: float
    connection: Connection
    handshake: asyncio.Task[None] | None = None

    def silent_since(self) -> float | None:
        return self.connection.silent_since() if self.connection.is_made or not self.handshake else self.since

    def give_up(self) -> None:
        # The event loop tells no connection that is made that its handshake was cancelled.
        if self.connection.is_made:
            self.connection.give_up()
        elif self.handshake:
            self.handshake.cancel()


class _Full(NamedTuple):
    """The bound that leaves no place, by its name in the log, and the words about it."""

    bound: str
    text: str


class Listener:
    """Hands the connections at a bound socket to protocols, within the bounds of their number."""

    def __init__(
        self,
        bound: socket.socket,
        make: Callable[[Callable[[], None]], Connection],
        bounds: Bounds,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`make` gets a function to call when the connection is gone."""
        self.open, self.refused = 0, 0
        self._bound, self._make, self._bounds, self._tls = bound, make, bounds, tls
        self._by_address: Counter[str] = Counter()
        self._places: set[_Place] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._said_at: dict[tuple[str, str], float] = {}
        """When the last line was logged of each kind, about each bound."""
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
        for _ in range(AT_ONCE if self.open < self._bounds.connections else AT_ONCE_IF_FULL):
            try:
                sock, address = self._bound.accept()
            except GONE:
                return
            except OSError as error:
                self._wait(error)
                return
            self._take(sock, _block(address[0]))

    def _wait(self, error: OSError) -> None:
        """Leave callers in the kernel's queue for a while: the next accept would fail in the same way, at once."""
        hint = "; raise the limit of open files (ulimit -n)" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
        self._say(("wait", ""), f"no connection can be accepted: {error.strerror}{hint}")
        self._loop.remove_reader(self._bound.fileno())
        self._loop.call_later(PAUSE, self._look_again)

    def _look_again(self) -> None:
        if self._listening:
            self._loop.add_reader(self._bound.fileno(), self._accept)

    def _take(self, sock: socket.socket, address: str) -> None:
        spare = False
        if full := self._full(address):
            longest = self._longest_silent(address)
            spare = not longest or longest[0].connection.spare
            if not longest and not self._has_spare(address):
                self._refuse(sock, full)
                return
            self._close(longest, full)
        place = _Place(address, self._loop.time(), self._make(lambda: self._leave(place)))
        place.connection.spare = spare
        self._places.add(place)
        self.open += 1
        self._by_address[address] += 1
        task = self._loop.create_task(self._serve(sock, place))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _full(self, address: str) -> _Full | None:
        """Why there is no place for this address; None if there is one."""
        most, (in_all, for_address) = self._bounds, self._bounds.names
        if self.open >= most.connections:
            return _Full(in_all, f"{self.open} are open, which is {in_all}")
        if self._by_address[address] >= most.per_address:
            return _Full(for_address, f"{address} has {self._by_address[address]} open, which is {for_address}")
        return None

    def _has_spare(self, address: str) -> bool:
        """Whether one of the spare connections is free, when all others are being answered."""
        most = self._bounds
        return self.open < most.connections + SPARE and self._by_address[address] < most.per_address + SPARE

    def _longest_silent(self, address: str) -> list[_Place]:
        """The connections that make room for one of this address, the longest silent first."""
        own = self._by_address[address] >= self._bounds.per_address
        places = (place for place in self._places if not own or place.address == address)
        silent = [(since, id(place), place) for place in places if (since := place.silent_since()) is not None]
        return [place for _, _, place in heapq.nsmallest(max(1, len(silent) // AT_LEAST), silent)]

    def _close(self, places: Iterable[_Place], why: _Full) -> None:
        """Close connections for a newcomer; they leave at once, so that the next newcomer does not close others."""
        for place in places:
            self.refused += 1
            self._leave(place)
            place.give_up()
            said = f"the connections that are silent for longest are closed: {why.text}; {self.refused} so far"
            self._say(("close", why.bound), said)

    def _refuse(self, sock: socket.socket, why: _Full) -> None:
        self.refused += 1
        with sock:
            sock.setblocking(False)
            if self._tls is None:
                with suppress(OSError):  # gone already
                    sock.send(REFUSAL)
        self._say(("refuse", why.bound), f"connections are refused: {why.text}; {self.refused} so far")

    def _say(self, kind: tuple[str, str], what: str) -> None:
        now = self._loop.time()
        if now >= self._said_at.get(kind, -QUIET) + QUIET:
            self._said_at[kind] = now
            log.warning("%s", what)

    def _leave(self, place: _Place) -> None:
        if place in self._places:
            self._places.remove(place)
            self.open -= 1
            self._by_address[place.address] -= 1
            if not self._by_address[place.address]:
                del self._by_address[place.address]

    async def _serve(self, sock: socket.socket, place: _Place) -> None:
        connection, timeout = place.connection, self._bounds.request if self._tls else None
        place.handshake = asyncio.current_task() if self._tls else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, sock, ssl=self._tls, ssl_handshake_timeout=timeout
            )
            if not self._listening:
                # The server is stopping, and has closed its connections: this one would keep it from ending.
                connection.shutdown()
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            log.debug("no connection with %s: %s", place.address, error)
            self._leave(place)
        except BaseException:
            self._leave(place)
            raise
        finally:
            place.handshake = None


async def watch(connections: Collection[Connection], bounds: Bounds) -> None:
    """Disconnect callers that take too long or too much; runs until cancelled.

    A timer for each request would cost more than a look at all connections once in a while.
    """
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(LOOK)
        now, unread = loop.time(), 0
        living = list(connections)
        for connection in living:
            if connection.waits_since is not None and connection.waits_since < now - bounds.request:
                connection.leave()
            elif connection.idle_since is not None and connection.idle_since < now - bounds.idle:
                connection.close()
            waiting = connection.transport.get_write_buffer_size()
            unread += waiting
            if waiting != connection.unread:
                connection.unread, connection.unread_since = waiting, now
            elif waiting and connection.unread_since < now - bounds.idle:
                connection.transport.abort()
        if unread > bounds.unread:
            _end_largest(living, unread - bounds.unread)


def _end_largest(living: Iterable[Connection], size: int) -> None:
    """Abort the connections with the most unread bytes until `size` bytes are freed."""
    for connection in sorted(living, key=lambda connection: -connection.unread):
        if size <= 0:
            return
        size -= connection.unread
        connection.transport.abort()


def _block(address: str) -> str:
    """The address, or the first half of an IPv6 address: who has one of these has all that begin with it."""
    if ":" not in address or "." in address:
        return address
    return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))


def room(wanted: int, setting: str = "") -> int:
    """How many connections may be open: `wanted`, or fewer if the limit of open files is lower.

    Raises the soft limit of open files if the hard one allows it. `setting` says in the log where `wanted` is from.
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
            "at most %d connections are accepted, not %d%s: the limit of open files (ulimit -n) is %d",
            most,
            wanted,
            setting,
            soft,
        )
    return most
