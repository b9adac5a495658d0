"""A TCP proxy that makes a Cassandra node look like a ScyllaDB node with shards to its clients.

It speaks version 4 of the native protocol without compression, tells each connection its shard as ScyllaDB does (the
options SCYLLA_* of SUPPORTED; docs/dev/protocol-extensions.md of ScyllaDB), and notes on which shard's connection a
request for a partition came. `faults` are answered in place of the next batches; `late` in place of the node's answers
to the next single statements, which it executes.
"""

from __future__ import annotations

import asyncio
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SHARDS, IGNORED_BITS = 4, 12
ERROR, SUPPORTED, QUERY, EXECUTE, BATCH = 0x00, 0x06, 0x07, 0x0A, 0x0D
TIMEOUT = re.compile(rb" USING TIMEOUT \d+ms")
"""What drivers add to queries of the schema; only ScyllaDB has it."""
NEWEST = 4
REFUSED = b"Invalid or unsupported protocol version (5); supported versions are (3/v3, 4/v4)"
HEAD = struct.Struct(">BBhBi")

CUT, SILENCE = b"", b"no answer"
"""Faults that are no answers: the connection is cut, or the request gets no answer."""


class ShardedProxy:
    """Listens at `port`; `asked` has the shard and the first bound values of each request's statements.

    `faults` and `late` have the bodies of ERROR answers.
    """

    def __init__(self, node: str) -> None:
        self._host, _, port = node.rpartition(":")
        self._port, self._connected = int(port), 0
        self.asked: list[tuple[int, list[bytes]]] = []
        self.faults: list[bytes] = []
        self.late: list[bytes] = []
        self.port = 0

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        shard, self._connected = self._connected % SHARDS, self._connected + 1
        node, to_node = await asyncio.open_connection(self._host, self._port)
        late: dict[int, bytes] = {}
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._requests(client, to_client, to_node, shard, late))
                both.create_task(self._answers(node, to_client, shard, late))
        except* (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            to_node.close()
            to_client.close()

    async def _requests(
        self,
        client: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        node: asyncio.StreamWriter,
        shard: int,
        late: dict[int, bytes],
    ) -> None:
        """Pass requests on; `late` gets the answers to some, by stream."""
        while True:
            head, (version, _, stream, opcode, _), body = await _frame(client)
            if version > NEWEST:
                said = struct.pack(">iH", 0x000A, len(REFUSED)) + REFUSED
                back.write(HEAD.pack(0x80 | NEWEST, 0, stream, ERROR, len(said)) + said)
                continue
            if opcode in (EXECUTE, BATCH):
                self.asked.append((shard, _first_values(opcode, body)))
            if opcode == BATCH and self.faults:
                fault = self.faults.pop(0)
                if fault == CUT:
                    raise ConnectionError
                if fault != SILENCE:
                    back.write(HEAD.pack(0x80 | NEWEST, 0, stream, ERROR, len(fault)) + fault)
                continue
            if opcode == EXECUTE and self.late:
                late[stream] = self.late.pop(0)
            if opcode == QUERY:
                body = _without_timeout(body)
            node.write(HEAD.pack(version, head[1], stream, opcode, len(body)) + body)

    async def _answers(
        self, node: asyncio.StreamReader, client: asyncio.StreamWriter, shard: int, late: dict[int, bytes]
    ) -> None:
        while True:
            head, (version, flags, stream, opcode, _), body = await _frame(node)
            if opcode == SUPPORTED:
                body = _supported(shard)
            if stream in late:
                body, opcode, flags = late.pop(stream), ERROR, 0
            head = HEAD.pack(version, flags, stream, opcode, len(body))
            client.write(head + body)


async def _frame(reader: asyncio.StreamReader) -> tuple[bytes, tuple[int, ...], bytes]:
    head = await reader.readexactly(HEAD.size)
    fields = HEAD.unpack(head)
    return head, fields, await reader.readexactly(fields[-1])


def _supported(shard: int) -> bytes:
    options = {
        "CQL_VERSION": "3.4.5",
        "SCYLLA_SHARD": str(shard),
        "SCYLLA_NR_SHARDS": str(SHARDS),
        "SCYLLA_PARTITIONER": "org.apache.cassandra.dht.Murmur3Partitioner",
        "SCYLLA_SHARDING_ALGORITHM": "biased-token-round-robin",
        "SCYLLA_SHARDING_IGNORE_MSB": str(IGNORED_BITS),
    }
    made = [_text(name) + struct.pack(">H", 1) + _text(value) for name, value in options.items()]
    made.append(_text("COMPRESSION") + struct.pack(">H", 0))
    return struct.pack(">H", len(made)) + b"".join(made)


def _without_timeout(body: bytes) -> bytes:
    size = struct.unpack_from(">i", body)[0]
    text = TIMEOUT.sub(b"", body[4 : 4 + size])
    return struct.pack(">i", len(text)) + text + body[4 + size :]


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _first_values(opcode: int, body: bytes) -> list[bytes]:
    """The first value of each statement."""
    if opcode == EXECUTE:
        # Before the values are the statement's id, its consistency, flags, and their number.
        at = 2 + _short(body, 0) + 5
        return [_values(body, at, 1)[0][0]]
    # A type and a number; each statement has a kind, its id and the number of its values before these.
    found, at = [], 3
    for _ in range(_short(body, 1)):
        at += 1
        at += 2 + _short(body, at)
        values, at = _values(body, at + 2, _short(body, at))
        found.append(values[0])
    return found


def _short(body: bytes, at: int) -> int:
    return int(struct.unpack_from(">H", body, at)[0])


def _values(body: bytes, at: int, number: int) -> tuple[list[bytes], int]:
    """So many values from a position on, and where they end; null has the length -1."""
    found = []
    for _ in range(number):
        size = max(0, struct.unpack_from(">i", body, at)[0])
        found.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    return found, at


@contextmanager
def sharded(node: str) -> Iterator[ShardedProxy]:
    """A proxy of the node at host:port, which ends afterwards."""
    proxy, loop = ShardedProxy(node), asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(proxy.serve, "127.0.0.1", 0))
    proxy.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # until the transports are closed, too


def shard_of(token: int) -> int:
    """The shard that has a token: of its bits without the first ones, the part that the shards divide."""
    return (((token + (1 << 63)) << IGNORED_BITS) % (1 << 64)) * SHARDS >> 64
