"""Batches in bursts: their bytes are the driver's, a node takes them, and each fault of a connection is told."""

from __future__ import annotations

import io
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import InvalidRequest
from cassandra.protocol import BatchMessage, _ProtocolHandler
from cassandra.query import UNSET_VALUE, BatchType
from cassandra.segment import Segment, SegmentCodec
from hypothesis import given, strategies as st
from sharded_proxy import CUT, SILENCE, ShardedProxy, sharded
from waiting import patience

from penstock.database import bursts
from penstock.database.access import Access
from penstock.database.bursts import Bursts, PreparedBatch
from penstock.database.cql_connection import close, connection
from penstock.database.requests import CqlRequest, RefusedValue, RequestLimits, send_all
from penstock.database.retrying import DatabaseUnavailable
from penstock.local.services import Services

LEVEL, NOW = 6, 1_700_000_000_000_000
UNSET = UNSET_VALUE
VALUES = st.lists(st.none() | st.just(UNSET) | st.binary(max_size=300), max_size=6)
STATEMENTS = st.lists(st.tuples(st.binary(min_size=1, max_size=20), VALUES), min_size=1, max_size=5)
STREAM, NUMBERS = 77, count()
CREATE = "CREATE TABLE {table} (id int PRIMARY KEY, v blob)"


def link(version: int) -> Any:
    profile = SimpleNamespace(consistency_level=LEVEL)
    cluster = SimpleNamespace(
        profile_manager=SimpleNamespace(default=profile), protocol_version=version, timestamp_generator=lambda: NOW
    )
    return SimpleNamespace(cluster=cluster)


@given(st.sampled_from([3, 4, 5]), STATEMENTS)
def test_an_envelope_is_the_one_that_the_driver_makes(version: int, statements: list[tuple[bytes, list[Any]]]) -> None:
    prepared = [(SimpleNamespace(query_id=id), values) for id, values in statements]
    made = bursts._Batch(bursts._body(link(version), PreparedBatch(0, b"", prepared)))
    open_ = SimpleNamespace(protocol_version=version, compressor=None, allow_beta_protocol_version=False)
    message = BatchMessage(BatchType.UNLOGGED, [(True, *one) for one in statements], LEVEL, None, NOW)
    expected = _ProtocolHandler.encode_message(message, STREAM, version, None, False)
    assert bursts._envelope(open_, STREAM, made) == expected


@given(st.lists(st.integers(1, 100_000) | st.integers(Segment.MAX_PAYLOAD_LENGTH, 300_000), min_size=1, max_size=8))
def test_segments_hold_the_envelopes_in_their_order(sizes: list[int]) -> None:
    envelopes = [bytes([number]) * size for number, size in enumerate(sizes)]
    codec = SegmentCodec()
    sent = io.BytesIO(bursts._segments(SimpleNamespace(_is_checksumming_enabled=True, _segment_codec=codec), envelopes))
    found, whole = b"", []
    while sent.tell() < len(sent.getbuffer()):
        header = codec.decode_header(sent)
        payload = codec.decode(sent, header).payload
        found += payload
        whole += [payload] if header.is_self_contained else []
    assert found == b"".join(envelopes)
    # A segment that is whole has whole envelopes; larger ones are cut over several segments.
    ends = {sum(sizes[:count]) for count in range(len(sizes) + 1)}
    assert all(found.index(payload) + len(payload) in ends for payload in whole)


@pytest.fixture
def table(cql: Any, keyspace: str) -> str:
    name = f"{keyspace}.bursts{next(NUMBERS)}"
    cql.execute(CREATE.format(table=name))
    return name


def writes(table: str, many: int, size: int = 8) -> list[CqlRequest]:
    """Requests of three rows, and one of the last row."""
    text = f"INSERT INTO {table} (id, v) VALUES (?, ?)"
    rows = [(text, [struct.pack(">i", id), bytes(size)]) for id in range(many)]
    return [
        CqlRequest(tuple(rows[first : first + 3]), rows[first][1][0]) for first in (*range(0, many - 1, 3), many - 1)
    ]


def send(access: Access, table: str, requests: Sequence[CqlRequest], **limits: Any) -> int:
    """Send them; returns how many were sent again."""
    again: list[int] = []
    keyspace = table.split(".")[0]
    send_all(access, keyspace, requests, RequestLimits(**limits), what="writing", where=table, repeated=again.append)
    return sum(again)


def ids(cql: Any, table: str) -> list[int]:
    return sorted(id for (id,) in cql.execute(f"SELECT id FROM {table}"))


@pytest.mark.parametrize("in_flight", [1, 2, 64])
def test_a_node_takes_them(cql: Any, services: Services, table: str, in_flight: int) -> None:
    began = time.time()
    assert send(Access(services.cql), table, writes(table, 1000), in_flight=in_flight) == 0
    assert ids(cql, table) == [*range(1000)]
    (at,) = cql.execute(f"SELECT WRITETIME(v) FROM {table} WHERE id = 0").one()
    assert began * 1e6 <= at <= time.time() * 1e6


def test_a_burst_may_be_larger_than_a_segment(cql: Any, services: Services, table: str) -> None:
    """The node warns of such batches, so its answers are not the usual ones."""
    assert send(Access(services.cql), table, writes(table, 100, 10_000)) == 0
    assert ids(cql, table) == [*range(100)]


def test_statements_that_the_node_has_forgotten_are_prepared_again(cql: Any, services: Services, table: str) -> None:
    access = Access(services.cql)
    send(access, table, writes(table, 10))
    cql.execute(f"DROP TABLE {table}")
    cql.execute(CREATE.format(table=table))
    # Only those of the first bursts are sent again.
    assert 1 <= send(access, table, writes(table, 1000), in_flight=4) <= 20
    assert ids(cql, table) == [*range(1000)]


def text(said: str) -> bytes:
    return struct.pack(">H", len(said)) + said.encode()


UNAVAILABLE = struct.pack(">i", 0x1000) + text("no replica") + struct.pack(">Hii", 1, 1, 0)
OVERLOADED = struct.pack(">i", 0x1001) + text("too much")
WRITE_TIMEOUT = struct.pack(">i", 0x1100) + text("slow") + struct.pack(">Hii", 1, 0, 1) + text("UNLOGGED_BATCH")
BOOTSTRAPPING = struct.pack(">i", 0x1002) + text("not yet")
INVALID = struct.pack(">i", 0x2200) + text("no such value")


@pytest.fixture
def proxy(services: Services) -> Iterator[ShardedProxy]:
    with sharded(services.cql) as made:
        yield made


@pytest.fixture
def proxied(proxy: ShardedProxy) -> Iterator[Access]:
    access = Access(f"127.0.0.1:{proxy.port}")
    yield access
    close(access)


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [(UNAVAILABLE, 10), (OVERLOADED, 10), (WRITE_TIMEOUT, 10), (CUT, 10), (SILENCE, 0.5)],
    ids=["unavailable", "overloaded", "write timeout", "cut", "silence"],
)
def test_what_failed_is_sent_again(
    cql: Any, proxy: ShardedProxy, proxied: Access, table: str, fault: bytes, seconds: float
) -> None:
    proxy.faults = [fault]
    again = send(proxied, table, writes(table, 40), timeout=timedelta(seconds=seconds))
    assert again >= 1 and not proxy.faults
    assert fault == CUT or again <= 14  # it connects again meanwhile
    assert ids(cql, table) == [*range(40)]
    # Nothing is left of them, but the stream whose answer may still come.
    left = int(fault == SILENCE)
    open_ = [pool._connection for pool in connection(proxied).pages.get_pools()]
    assert [(one.in_flight, len(one.orphaned_request_ids)) for one in open_] == [(left, left)]


def test_a_fault_that_stays_is_told(proxy: ShardedProxy, proxied: Access, table: str) -> None:
    proxy.faults = [OVERLOADED] * 100
    with pytest.raises(DatabaseUnavailable, match=r"writing failed for 0 s: .*too much"):
        send(proxied, table, writes(table, 40), patience=timedelta(0))


def test_a_refused_value_is_told(proxy: ShardedProxy, proxied: Access, table: str) -> None:
    proxy.faults = [INVALID] * 2
    with pytest.raises(RefusedValue, match="no such value") as raised:
        send(proxied, table, writes(table, 40))
    assert isinstance(raised.value.__cause__, InvalidRequest)


def test_the_driver_sends_again_what_only_it_understands(
    cql: Any, proxy: ShardedProxy, proxied: Access, table: str
) -> None:
    """A node has forgotten a statement, or is starting."""
    prepared = connection(proxied).prepare(f"INSERT INTO {table} (id, v) VALUES (?, ?)").query_id
    forgotten = struct.pack(">i", 0x2500) + text("unknown") + struct.pack(">H", len(prepared)) + prepared
    proxy.faults = [forgotten, forgotten, BOOTSTRAPPING]
    assert send(proxied, table, writes(table, 40), patience=timedelta(0)) == 3
    assert ids(cql, table) == [*range(40)]


def test_waiting_ends_with_the_last_answer_or_with_the_time(proxy: ShardedProxy, proxied: Access, table: str) -> None:
    made = connection(proxied)
    statement = made.prepare(f"INSERT INTO {table} (id, v) VALUES (?, ?)"), [struct.pack(">i", 1), b""]
    outcomes: dict[int, Any] = {}
    sent = Bursts(0.3, outcomes.__setitem__)
    pool = bursts.pools(made)[next(iter(bursts.pools(made)))]
    proxy.faults = [SILENCE]
    assert sent.send(made, pool, [PreparedBatch(number, b"", [statement]) for number in range(5)]) == []
    waiting = threading.Thread(target=sent.wait, args=(0,))
    waiting.start()
    waiting.join(patience(20))
    assert not waiting.is_alive() and sent.in_flight() == 0
    assert [outcomes[number] for number in range(1, 5)] == [bursts.DONE] * 4
    assert "no answer within 0.3 seconds" in str(outcomes[0])
    # A pool that is shut down takes none.
    pool.shutdown()
    assert sent.send(made, pool, [PreparedBatch(9, b"", [statement])]) == [9] and 9 not in outcomes
