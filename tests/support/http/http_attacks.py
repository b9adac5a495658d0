"""Callers that try to stop or to fill a server, and one that asks for its health meanwhile."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from waiting import PATIENCE

EMPTY_MEMBER = gzip.compress(b"")


@contextmanager
def connected(url: str, source: str | None = None) -> Iterator[socket.socket]:
    """A connection to the server, from another address of this machine if one is given."""
    parts = urlsplit(url)
    assert parts.hostname and parts.port
    there, here = (parts.hostname, parts.port), (source, 0) if source else None
    with socket.create_connection(there, timeout=PATIENCE, source_address=here) as made:
        yield made


@contextmanager
def crowd(url: str, count: int, sent: bytes, source: str | None = None) -> Iterator[list[socket.socket]]:
    """`count` connections, with these bytes sent on each."""
    with ExitStack() as stack:
        made = [stack.enter_context(connected(url, source)) for _ in range(count)]
        for one in made:
            one.sendall(sent)
        yield made


def head(topic: str, length: int, *lines: str, kind: str = "application/json") -> bytes:
    """The head of a request with events."""
    return _head(f"POST /events/{topic}", length, *lines, kind=kind)


def request(topic: str, body: bytes, *lines: str, kind: str = "application/json") -> bytes:
    return head(topic, len(body), *lines, kind=kind) + body


def put(path: str, body: bytes) -> bytes:
    return _head(f"PUT {path}", len(body)) + body


def _head(to: str, length: int, *lines: str, kind: str = "application/json") -> bytes:
    start = [f"{to} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}", f"Content-Length: {length}"]
    return "\r\n".join([*start, *lines, "", ""]).encode()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def answer(made: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next answer; 0 if the connection ends first."""
    with made.makefile("rb") as file:
        lines = b""
        while (line := file.readline()) not in (b"\r\n", b""):
            lines += line
        size = int(lines.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        return (int(lines[9:12]), file.read(size)) if lines else (0, b"")


def asked(url: str, sent: bytes) -> tuple[int, bytes]:
    """The answer to one request on a connection of its own."""
    with connected(url) as made:
        made.sendall(sent)
        return answer(made)


def is_open(made: socket.socket) -> bool:
    """Whether the server has not closed it; reads what came."""
    made.setblocking(False)
    try:
        while made.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def flood(url: str, start: bytes, piece: bytes, *, seconds: float, most: int) -> tuple[int, bytes]:
    """Send `start` and then the piece again and again; returns the bytes that were taken, and the server's answer."""
    sent, until = 0, time.monotonic() + seconds
    with connected(url) as made:
        made.settimeout(seconds)
        try:
            made.sendall(start)
            while sent < most and time.monotonic() < until:
                sent += made.send(piece)
        except OSError:
            pass  # closed by the server, which may have said why
        try:
            return sent, made.recv(1 << 16)
        except OSError:
            return sent, b""


def wrong_items(events: int, items: int, field: str = "a") -> bytes:
    """Events with an array of numbers, where a schema wants strings."""
    one = b'{"%b":[%b]}' % (field.encode(), b",".join([b"1"] * items))
    return b"[" + b",".join([one] * events) + b"]"


class Pulse:
    """Asks /health again and again, each time on a new connection, as long as the block lasts."""

    def __init__(self, url: str) -> None:
        self._url, self._ended = url, threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.seconds: list[float] = []
        """Seconds until each answer."""
        self.bad: list[tuple[int, bytes]] = []
        """Answers other than 200."""

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def slowest(self) -> float:
        """The most seconds; fails if an answer was not 200."""
        assert not self.bad, self.bad
        return max(self.seconds)

    def _ask(self) -> None:
        while True:
            began = time.monotonic()
            try:
                status, body = asked(self._url, get("/health"))
            except OSError as error:
                status, body = 0, repr(error).encode()
            self.seconds.append(time.monotonic() - began)
            if status != 200:
                self.bad.append((status, body))
            if self._ended.wait(0.01):
                return


def cpu(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def resident(pid: int, line: str = "VmRSS") -> int:
    """Bytes of memory of a process; `VmHWM` for its maximum."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(found.split()[1]) for found in text.splitlines() if found.startswith(line)) * 1024


def statuses(made: Sequence[socket.socket]) -> list[int]:
    return [answer(one)[0] for one in made]
