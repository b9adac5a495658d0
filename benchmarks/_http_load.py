"""Callers of an HTTP server, in a process of their own: as fast as they are answered, or at a steady rate.

    python benchmarks/_http_load.py '{"host": "127.0.0.1", "port": 8080, "path": "/events/clicks", ...}'

Each connection sends a batch as NDJSON and waits for its answer. Prints one JSON object. The client is a few lines on
the event loop because libraries for HTTP would take most of the two cores that server and broker need. `cpu` in its
result, the share of a core that it used, tells whether it was the callers that were slow.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any, cast

import uvloop

EVENT = (
    b'{"id":%d,"user":"u-%06d","event":"click","at":"2026-05-31T12:00:00Z","page":"/products/%05d?ref=mail",'
    b'"price":19.99,"session":"a8f5f167f44f4964e6c998dee827110c","device":{"os":"ios","version":"17.1"}}'
)
"""About 200 bytes."""


@dataclass(frozen=True)
class Load:
    """What to send: `rate` is events a second, 0 as many as are taken; `first` numbers the events."""

    host: str
    port: int
    path: str
    seconds: float
    connections: int = 64
    batch: int = 100
    rate: int = 0


@dataclass
class Result:
    """`acknowledged` has the numbers of batches answered with 2xx; times are seconds."""

    sent: int = 0
    acknowledged: list[int] = field(default_factory=list)
    other: dict[int, int] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu: float = 0.0


def events(batch: int, size: int) -> bytes:
    """The events of the batch with this number."""
    return b"\n".join(EVENT % (n, n * 7919 % 1_000_000, n % 99_991) for n in range(batch * size, batch * size + size))


class Caller(asyncio.Protocol):
    """One connection; sends the next batch when the last one is answered and its time has come."""

    def __init__(self, load: Load, result: Result, made: list[bytes], began: float) -> None:
        self._load, self._result, self._made, self._began = load, result, made, began
        self._buffer = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(rest) < size:
            return
        self._buffer = rest[size:]
        status, result = int(head[9:12]), self._result
        result.times.append(time.perf_counter() - self._sent_at)
        if status in (200, 202):
            result.acknowledged.append(self._number)
        else:
            result.other[status] = result.other.get(status, 0) + 1
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _next(self) -> None:
        load, now = self._load, time.perf_counter()
        due = self._began + self._result.sent * load.batch / load.rate if load.rate else now
        if max(now, due) > self._began + load.seconds:
            self._transport.close()
            return
        self._number, self._result.sent = self._result.sent, self._result.sent + 1
        if due > now:
            asyncio.get_running_loop().call_later(due - now, self._send)
        else:
            self._send()

    def _send(self) -> None:
        if self._transport.is_closing():
            return  # the server was killed while this caller had to wait
        load, made = self._load, self._made
        text = made[self._number % len(made)] if made else request(load, events(self._number, load.batch))
        self._sent_at = time.perf_counter()
        self._transport.write(text)


def request(load: Load, body: bytes) -> bytes:
    head = f"POST {load.path} HTTP/1.1\r\nHost: {load.host}\r\nContent-Type: application/x-ndjson\r\nContent-Length: "
    return head.encode() + b"%d\r\n\r\n" % len(body) + body


async def send(load: Load) -> Result:
    """Until the time is over, or the server is gone."""
    result, loop, began = Result(), asyncio.get_running_loop(), time.perf_counter()
    # Numbered events only where somebody counts them: making them costs more than sending them.
    made = [] if load.rate else [request(load, events(n, load.batch)) for n in range(64)]
    cpu = time.process_time()
    callers = [Caller(load, result, made, began) for _ in range(load.connections)]
    for caller in callers:
        await loop.create_connection(lambda caller=caller: caller, load.host, load.port)  # type: ignore[misc]
    await asyncio.wait([caller.ended for caller in callers])
    result.seconds = time.perf_counter() - began
    result.cpu = (time.process_time() - cpu) / result.seconds
    return result


def told(result: Result) -> dict[str, Any]:
    times = sorted(result.times) or [0.0]
    return {
        "requests": len(result.times),
        "seconds": result.seconds,
        "cpu": result.cpu,
        "other": result.other,
        "p50": times[len(times) // 2],
        "p99": times[int(len(times) * 0.99)],
        "acknowledged": result.acknowledged,
    }


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(told(runner.run(send(Load(**json.loads(sys.argv[1])))))))
