"""Where batches begin and end: generations, shares, token ranges and the sizes of batches, without a database."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.util import uuid_from_time
from hypothesis import HealthCheck, given, settings, strategies as st
from log_pages import table
from ring_cluster import Cluster
from waiting import PATIENCE

from penstock.cdc import batch_sizing, log_pages, planner as planning
from penstock.cdc.batch_sizing import Probe
from penstock.cdc.cdc_options import settings as options
from penstock.cdc.generations import (
    FIRST_TOKEN,
    LAST_TOKEN,
    RING,
    Generations,
    Position,
    Span,
    first_micros,
    micros,
    published,
    tablets,
    token_of,
    upper_bound,
)
from penstock.cdc.log_pages import STREAMS_PER_QUERY, span_queries
from penstock.cdc.planner import FOREVER, Planner, Snapshot, covering
from penstock.cdc.sent_groups import micros_of
from penstock.database.cql_types import CqlTable
from penstock.database.token_ring import ring
from penstock.errors import PenstockError
from penstock.native import Array

SECOND = 1_000_000
TIMES = st.integers(1, 4_000_000_000 * SECOND)
GIVEN = {"table": "ks.t", "hosts": "db"}


def stream(token: int, number: int = 0) -> bytes:
    return token.to_bytes(8, "big", signed=True) + number.to_bytes(8, "big")


# Times.


@given(TIMES, st.integers(0, 9), st.binary(min_size=8, max_size=8))
def test_a_microsecond_ends_after_all_its_timeuuids_and_before_those_of_the_next(
    time: int, tick: int, rest: bytes
) -> None:
    def order(id: uuid.UUID) -> tuple[int, list[int]]:
        """Both databases compare the times, then each of the last eight bytes as a signed number."""
        return id.time, [byte - 256 if byte > 127 else byte for byte in id.bytes[8:]]

    ticks = time * 10 + tick + 0x01B21DD213814000
    head = (ticks & 0xFFFFFFFF).to_bytes(4, "big") + (ticks >> 32 & 0xFFFF).to_bytes(2, "big")
    written = uuid.UUID(bytes=head + (0x1000 | ticks >> 48).to_bytes(2, "big") + rest)
    assert order(upper_bound(time - 1)) < order(written) <= order(upper_bound(time))
    assert upper_bound(time).bytes[6] >> 4 == 1  # the version


@given(st.lists(st.integers(0, 2**40), min_size=1))
def test_times_of_many_timeuuids_are_those_of_the_driver(seconds: list[int]) -> None:
    ids = [uuid_from_time(second % 4_000_000_000) for second in seconds]
    high = np.array([int.from_bytes(each.bytes[:8], "big") for each in ids], np.uint64)
    assert micros_of(high).tolist() == [(each.time - 0x01B21DD213814000) // 10 for each in ids]


@given(st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)))  # noqa: DTZ001
def test_a_time_without_a_zone_is_utc(at: datetime) -> None:
    assert micros(at) == micros(at.replace(tzinfo=UTC)) == (at - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001


# Generations.


class Session:
    """The tables of published generations: for each start its ranges, by their last token, with their streams."""

    def __init__(self, of: dict[int, dict[int, list[bytes]]], nodes: int = 1) -> None:
        self.of, self.hosts, self.asked = of, [None] * nodes, list[tuple[str, int]]()

    def execute(self, statement: Any) -> list[tuple[Any, ...]]:
        text, _, generation = statement.query_string.rpartition(" ")
        self.asked.append((statement.query_string, statement.consistency_level))
        if "range_end" in text:
            return list(self.of.get(int(generation), {}).items())
        if "min(time)" in text:
            later = [start for start in self.of if start > int(generation)]
            return [(self._time(min(later)) if later else None,)]
        return [(self._time(start),) for start in reversed(self.of)]

    def _time(self, millis: int) -> datetime:
        return datetime(1970, 1, 1) + timedelta(milliseconds=millis)  # noqa: DTZ001 (the driver's are naive)


ENDS = st.lists(st.integers(FIRST_TOKEN + 1, LAST_TOKEN), min_size=1, max_size=8, unique=True)


@given(ENDS, st.integers(1, 3))
def test_shares_of_streams_are_those_of_the_ring(ends: list[int], each: int) -> None:
    ranges = {end: [stream(end, number) for number in range(each)] for end in ends}
    made = Generations(Session({5: ranges}))
    shares = made.shares(5)
    assert set(shares) == set(made.streams(5)) and abs(sum(shares.values()) - 1) < 1e-9
    assert list(made.streams(5)) == sorted(made.streams(5), key=token_of)
    for end in ends:
        assert len({shares[one] for one in ranges[end]}) == 1


@given(ENDS, st.integers(FIRST_TOKEN, LAST_TOKEN - 1), st.integers(1, 2**63))
def test_a_token_range_has_the_streams_of_all_its_tokens(ends: list[int], after: int, size: int) -> None:
    order = sorted(ends)
    made = Generations(Session({5: {end: [stream(end)] for end in ends}}))
    until = min(after + size, LAST_TOKEN)
    found = made.streams_within(0, after, until)
    for token in {after + 1, until, *(t for end in order for t in (end, end + 1) if after < t <= until)}:
        owner = next((end for end in order if end >= token), order[0])
        assert stream(owner) in found
    assert len(found) == len(set(found))


def test_a_token_range_has_the_streams_of_each_generation_since_then() -> None:
    made = Generations(Session({n: {LAST_TOKEN: [stream(LAST_TOKEN, n)]} for n in (1000, 2000, 3000)}))

    def numbers(since: int) -> list[int]:
        return [one[-2] * 256 + one[-1] for one in made.streams_within(since, FIRST_TOKEN, LAST_TOKEN)]

    assert numbers(0) == numbers(1_999_999) == [1000, 2000, 3000]
    assert numbers(2_000_000) == numbers(2_999_999) == [2000, 3000]
    assert numbers(10_000_000) == [3000]


def test_streams_are_asked_for_once_and_by_a_quorum_of_several_nodes() -> None:
    session = Session({5: {0: [stream(0)]}}, nodes=3)
    made = Generations(session)
    assert made.streams(5) == made.streams(5) == (stream(0),)
    made.starts()
    assert len(session.asked) == 2 and {level for _, level in session.asked} == {ConsistencyLevel.QUORUM}
    alone = Session({5: {0: [stream(0)]}})
    Generations(alone).starts()
    assert alone.asked[0][1] == ConsistencyLevel.ONE


def test_generations_follow_each_other() -> None:
    made = Generations(Session({9: {}, 5: {}, 7: {}}))
    assert made.starts() == [5, 7, 9]
    assert [made.after(each) for each in (0, 5, 8, 9)] == [5, 7, 9, None]
    assert [covering([5, 7, 9], time) for time in (0, 5_000, 6_999, 7_000, 99_000)] == [5, 5, 5, 7, 9]


def test_a_log_without_generations_or_streams_is_told() -> None:
    with pytest.raises(
        PenstockError, match=r"no generation .*\(system_distributed.cdc_generation.*checkAndRepairCdcStr"
    ):
        Generations(Session({})).starts()
    nothing: list[dict[int, list[bytes]]] = [{}, {0: []}]
    for ranges in nothing:
        with pytest.raises(PenstockError, match="the generation of 5 ms has no streams in this cluster"):
            Generations(Session({5: ranges})).streams(5)


def test_tablets_publish_streams_of_one_table() -> None:
    where = tablets(CqlTable("it's", "o'clock", ()), "sys")
    assert "sys.cdc_streams WHERE keyspace_name = 'it''s' AND table_name = 'o''clock'" in where.streams

    def answer(*rows: Any) -> Any:
        return SimpleNamespace(execute=lambda *_: SimpleNamespace(one=lambda: rows[0] if rows else None))

    of = CqlTable("ks", "t", ())
    assert published(answer((8,)), of) == tablets(of)
    assert published(answer((None,)), of) == published(answer(), of) == RING

    def refuse(*_: object) -> None:
        raise InvalidRequest("no such table")

    assert published(SimpleNamespace(execute=refuse), of) == RING


# Positions.


@pytest.mark.parametrize(
    "offset", [{}, {"generation": 1, "time": 2}, {"generation": "x", "time": 2, "planned": 3}, {"clicks": {"0": 1}}]
)
def test_an_offset_of_another_source_is_refused(offset: dict[str, Any]) -> None:
    with pytest.raises(PenstockError, match=r"is not a position in a change log \(the checkpoint\)"):
        Position.of(offset)


class Log(Planner):
    """A planner of three generations, whose log has rows at these times."""

    def __init__(self, rows: Iterable[int] = (), ttl: int = 0, **given: str) -> None:
        self.settings = options(GIVEN | given)
        cdc = (("ttl", str(ttl)),)
        self.table = CqlTable("ks", "t", table("id int", "", "", "v int").columns, cdc)
        starts = (1_000, 2_000_000, 3_000_000)
        self.generations = Generations(Session({start: {0: [stream(0)]} for start in starts}))
        self.rows = sorted(rows)

    def check_schema(self) -> None:
        """The table never changes."""

    @property
    def probe(self) -> Any:
        def last(span: Span, shares: dict[bytes, float], most: int) -> int:
            within = [time for time in self.rows if span.after < time <= span.until]
            return within[most - 1] if len(within) > most else span.until

        return SimpleNamespace(last_time_within=last)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4_000 * SECOND), max_size=30, unique=True), st.integers(1, 9), st.integers(1, 3_900))
def test_batches_follow_each_other_without_a_gap(rows: list[int], most: int, start: int) -> None:
    log, target = Log(rows), 4_000 * SECOND
    at, found = log.begin(start * SECOND), list[int]()
    begin = at
    for _ in range(100):
        until = log.next(at, target, most)
        if until == at:
            break
        assert until.time >= at.time
        if until.time > at.time:
            spans = log.spans(Position(until.generation, at.time), until)
            assert {(span.after, span.until) for span in spans} == {(at.time, until.time)}
            batch = [time for time in sorted(rows) if at.time < time <= until.time]
            # A batch is of one generation, and longer only if it is short in time.
            assert covering([1_000, 2_000_000, 3_000_000], at.time + 1) == until.generation
            assert len(batch) <= most or until.time - at.time <= planning.COUNT_FROM / timedelta(microseconds=1)
            found += batch
        at = until
    assert at.time == target and found == [time for time in sorted(rows) if time > begin.time]


def test_a_query_begins_within_what_the_log_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5_000 * SECOND
    monkeypatch.setattr(planning, "now_micros", lambda: now)
    assert Log().begin(None) == Position(1_000, -1)
    assert Log().begin(2_500 * SECOND) == Position(2_000_000, 2_500 * SECOND - 1)
    # The log holds 2200 s: rows that expire within a minute are left out.
    log = Log(ttl=2200)
    assert log.held_from() == 2_800 * SECOND
    assert log.begin(None) == log.begin(1) == Position(2_000_000, 2_860 * SECOND - 1)
    # A short ttl gives a tenth of itself.
    assert Log(ttl=100).begin(None).time == 4_910 * SECOND - 1
    assert log.begin(2_801 * SECOND).time == 2_801 * SECOND - 1
    assert Log(start="snapshot", confidence="10 seconds").held_from() == 0


def test_the_first_position_of_a_snapshot_is_before_all_tokens() -> None:
    assert Log(start="snapshot").first().snapshot == FIRST_TOKEN
    assert Log().first().snapshot is None


def test_the_generation_to_read_next_is_known_with_its_last_microsecond() -> None:
    log = Log()
    assert log.generation(Position(1_000, 5 * SECOND)) == (1_000, first_micros(2_000_000))
    assert log.generation(Position(1_000, first_micros(2_000_000))) == (2_000_000, first_micros(3_000_000))
    assert log.generation(Position(1_000, 3_500 * SECOND)) == (3_000_000, FOREVER)


def test_a_batch_that_would_skip_the_rest_of_a_generation_is_refused() -> None:
    begin, until = Position(1_000, 5 * SECOND), Position(2_000_000, 2_100 * SECOND)
    with pytest.raises(PenstockError, match=r"would skip the rest of a generation \(ks.t\).*its own checkpoint"):
        Log().spans(begin, until)


@pytest.mark.parametrize(("ttl", "confidence", "after"), [(0, 30, 10), (86_400, 30, 10), (40, 30, 5), (12, 10, 1)])
def test_an_idle_query_moves_before_it_looks_as_if_rows_had_expired(ttl: int, confidence: int, after: int) -> None:
    log = Log(ttl=ttl, confidence=f"{confidence} seconds")
    at = Position(1_000, 0, planned=7 * SECOND)
    assert log.moves(at, (7 + after) * SECOND) and not log.moves(at, (7 + after) * SECOND - 1)


# Snapshots.


def test_a_snapshot_goes_through_all_tokens_in_batches_of_about_so_many_rows() -> None:
    tokens = sorted(np.random.default_rng(1).integers(FIRST_TOKEN + 1, LAST_TOKEN, 5000).tolist())
    log = Log(start="snapshot", partitions="3")

    def execute(text: str, values: tuple[int, int]) -> list[tuple[int]]:
        assert text == 'SELECT token("id") FROM "ks"."t" WHERE token("id") > %s LIMIT %s'
        return [(token,) for token in tokens if token > values[0]][: values[1]]

    log.generations.session = cast(Any, SimpleNamespace(execute=execute))
    log.generations.streams_within = lambda *_: ()  # type: ignore[method-assign]
    snapshot, at, ends, counts = Snapshot(log), Position(1_000, 50, 1, snapshot=FIRST_TOKEN), [FIRST_TOKEN], []
    while at.snapshot is not None:
        until = snapshot.next(at, 1500)
        ranges = snapshot.ranges(at, until)
        assert len(ranges) <= 3 and {(part.low, part.planned) for part in ranges} == {(50, until.planned)}
        assert [part.after for part in ranges] == [ends[-1], *(part.until for part in ranges[:-1])]
        ends.append(ranges[-1].until)
        counts.append(sum(ends[-2] < token <= ends[-1] for token in tokens))
        at = until
    assert ends[-1] == LAST_TOKEN and sum(counts) == 5000
    assert all(1300 < count < 1700 for count in counts[:-1])


# Sizes of batches.


class Sized(Probe):
    """A probe of streams whose rows are the test's."""

    def __init__(self, rows: dict[bytes, list[int]], **given: str) -> None:
        super().__init__(options(GIVEN | given), table("id int"))
        self.rows = rows

    def first_times(
        self, chosen: object, of: object, span: Span, streams: Iterable[bytes], limit: int
    ) -> dict[bytes, Array]:
        found = {one: np.array([t for t in self.rows[one] if span.after < t <= span.until][:limit]) for one in streams}
        return {one: times for one, times in found.items() if len(times)}


ROWS = st.lists(st.lists(st.integers(1, 99), max_size=25).map(sorted), min_size=2, max_size=4)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, st.integers(1, 50))
def test_a_batch_has_about_so_many_rows_and_at_least_half_of_them(
    monkeypatch: pytest.MonkeyPatch, rows: list[list[int]], most: int
) -> None:
    streams = [stream(number) for number in range(len(rows))]
    probe = Sized(dict(zip(streams, rows, strict=True)))
    monkeypatch.setattr(batch_sizing, "_first_times", probe.first_times)
    until = probe.last_time_within(Span(tuple(streams), 0, 300), dict.fromkeys(streams, 1 / len(streams)), most)
    everything = [time for times in rows for time in times]
    # Rows of one time stay together: there may be more of the last one.
    assert sum(time < until for time in everything) <= most
    assert until == 300 or sum(time <= until for time in everything) >= most // 2


def test_a_batch_is_no_longer_than_it_may_be_after_its_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {stream(0): [900 * SECOND], stream(1): [500 * SECOND, 1000 * SECOND]}
    probe = Sized(rows, max_time="100 seconds")
    monkeypatch.setattr(batch_sizing, "_first_times", probe.first_times)
    span = Span(tuple(rows), 0, 5000 * SECOND)
    assert probe.last_time_within(span, dict.fromkeys(rows, 0.5), 100) == 600 * SECOND
    # Time without rows may be longer.
    empty = Span(tuple(rows), 2000 * SECOND, 5000 * SECOND)
    assert probe.last_time_within(empty, dict.fromkeys(rows, 0.5), 100) == 5000 * SECOND


# Requests for spans.


@pytest.fixture
def cluster_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, str | None], Cluster]]:
    """Makes the cluster that spans are read from: its number of nodes, and the partitioner of ScyllaDB's logs."""

    def make(nodes: int, partitioner: str | None) -> Cluster:
        made: Any = Cluster(nodes=nodes)

        def execute(text: str, values: tuple[str, ...]) -> Any:
            assert "system_schema.scylla_tables" in text and values == ("ks", "t_scylla_cdc_log")
            if partitioner is None:
                raise InvalidRequest("unconfigured table scylla_tables")
            return SimpleNamespace(one=lambda: (partitioner,))

        known = ring(made, "ks")
        made.rows.execute = execute
        monkeypatch.setattr(log_pages, "connection", lambda access: made)
        monkeypatch.setattr(log_pages, "known_ring", lambda *_: known)
        log_pages._token_of.cache_clear()
        return cast(Cluster, made)

    yield make
    log_pages._token_of.cache_clear()


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_span_is_read_in_requests_of_few_streams_of_one_owner(
    cluster_of: Callable[[int, str | None], Cluster], nodes: int
) -> None:
    cluster = cluster_of(nodes, None)
    streams = tuple(uuid.uuid5(uuid.NAMESPACE_OID, str(n)).bytes for n in range(200))
    queries = span_queries(options(GIVEN), Span(streams, 5, 9))
    assert sorted(one for some, _, _ in queries for one in some) == sorted(streams)
    for some, after, until in queries:
        assert 0 < len(some) <= STREAMS_PER_QUERY and (after, until) == (upper_bound(5), upper_bound(9))
        assert len(set(cluster.owners(*some))) == 1


def test_scylladb_has_a_stream_where_the_id_says(cluster_of: Callable[[int, str | None], Cluster]) -> None:
    cluster_of(3, log_pages.CDC_PARTITIONER)
    # The nodes of TOKENS own what is up to their tokens.
    tokens = {-9_000_000_000_000_000_001: "a", -3_000_000_000_000_000_000: "b", -1: "c", 100: "a", 101: "b"}
    tokens |= {5_000_000_000_000_000_001: "c", 9_000_000_000_000_000_001: "a"}
    streams = {token.to_bytes(8, "big", signed=True) + bytes(8): owner for token, owner in tokens.items()}
    queries = span_queries(options(GIVEN), Span(tuple(streams), 5, 9))
    assert sorted(sorted({streams[one] for one in some}) for some, _, _ in queries) == [["a"], ["b"], ["c"]]
    assert log_pages.stream_token(bytes.fromhex("c000000000000001048d159e24000051")) == -4611686018427387903


# What processes load.


def test_a_plan_loads_no_compiled_loops_and_decoding_no_driver() -> None:
    """Spark starts a process for each plan; and `penstock compile` works without the database's driver."""
    plan = "import sys, penstock.cdc.cdc_source; assert not {'numba', 'pandas'} & set(sys.modules)"
    decode = "import sys; sys.modules['cassandra'] = None; import penstock.cdc.change_decoder"
    running = [subprocess.Popen([sys.executable, "-c", code]) for code in (plan, decode)]
    assert [process.wait(PATIENCE) for process in running] == [0, 0]
