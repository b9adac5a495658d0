"""Distinct members over time: expressions, the rows that cover a time range, the database's answers and their speed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cassandra.cluster import NoHostAvailable
from datasketches import update_theta_sketch
from pyspark.sql import SparkSession

from penstock import segment
from penstock.cli.main import main
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.segment.member_tables.member_counts import (
    LENGTHS,
    SIZE,
    SPANS,
    Counts,
    Sketch,
    begin,
    counts,
    parse,
    parts,
)

DAY = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def sketch(members: Any) -> Sketch:
    made = update_theta_sketch(SIZE)
    for member in members:
        made.update(member)
    return made.compact()


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("a", "1234"),
        ("a & b", "34"),
        ("a | b & c", "12345"),
        ("(a | b) & c", "5"),
        ("a - b", "12"),
        ("a - b | c", "1257"),
        ("a & b - c", "34"),
        ("seg-with-dash | a", "12349"),
    ],
)
def test_an_expression_is_that_of_sets(text: str, members: str) -> None:
    sets = {"a": "1234", "b": "345", "c": "57", "seg-with-dash": "9"}
    names, value = parse(text)
    assert value({name: sketch(sets[name]) for name in names}).get_estimate() == len(members)


@pytest.mark.parametrize("text", ["", "a &", "a b", "(a", "a)", "| a", "a $ b"])
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(PenstockError, match=r"invalid segment expression: .*write it as"):
        parse(text)


@pytest.mark.parametrize(
    ("since", "until", "most"),
    [
        (DAY, DAY + timedelta(days=1), 1),
        (DAY + 61 * MINUTE, DAY + timedelta(days=1, minutes=61), 23),
        (DAY + 5 * MINUTE, DAY + 7 * MINUTE, 2),
        (datetime(2025, 12, 30, 23, 59, tzinfo=UTC), datetime(2026, 2, 2, 1, 1, tzinfo=UTC), 1 + 33 + 1 + 1),
    ],
)
def test_few_rows_cover_a_time_exactly(since: datetime, until: datetime, most: int) -> None:
    rows, at = 0, since
    for level, span, first, stop in parts(since, until):
        assert first == at and begin(first, level) == first
        inside = [first + i * LENGTHS[level] for i in range((stop - first) // LENGTHS[level])]
        assert {moment.strftime(SPANS[level]) for moment in inside} == {span}
        rows, at = rows + len(inside), stop
    assert at == until and rows <= most


def test_counts_of_a_stream_are_exact_where_small_and_near_where_large(
    spark: SparkSession, services: Services, keyspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = segment.counts(keyspace, hosts=services.cql)
    changes = spark.range(60_000).selectExpr(
        "concat('p', id) AS person",
        "IF(id < 50000, 'large', 'small') AS segment",
        "IF(id % 10 = 9, 'leave', 'enter') AS event",
        "timestamp_seconds(unix_timestamp(TIMESTAMP '2026-03-01 10:00:00') + IF(id < 50000, id % 7200, id % 60)) AS at",
    )
    for _ in range(2):  # a batch that is written again counts nobody twice
        counts.add(changes.where("id < 51000"))
    counts.add(changes.selectExpr("'p49000' AS person", "'small' AS segment", "'enter' AS event", "at").limit(1))
    until = DAY + timedelta(hours=12)
    small = counts.count("small", DAY, until)
    assert (small.members, small.exact) == (901, True) and small.low == small.high == 901
    assert counts.count("small & large", DAY, until).members == pytest.approx(1, abs=1)
    large = counts.count("large | small", DAY, until)
    assert not large.exact and large.low < 45_900 < large.high
    assert large.high - large.low < 0.08 * 45_900
    assert counts.count("small", DAY, DAY + timedelta(hours=10)).members == 0
    assert counts.count("none", DAY, until).members == 0
    where = ["--keyspace", keyspace, "--hosts", services.cql]
    assert main(["segment", "count", "small - large", *where, "--since", "2026-03-01", "--until", "2026-03-02"]) == 0
    only = json.loads(capsys.readouterr().out)
    assert only["low"] < 900 < only["high"] and not only["exact"]


@pytest.mark.parametrize(
    ("ago", "long", "complete"),
    [
        (timedelta(days=7), timedelta(minutes=5), True),
        (timedelta(days=9), timedelta(minutes=5), False),
        (timedelta(days=99), timedelta(hours=1), True),
        (timedelta(days=101), timedelta(hours=1), False),
        (timedelta(days=101), timedelta(days=1), True),
    ],
)
def test_a_count_tells_whether_its_time_is_still_kept(
    services: Services, keyspace: str, ago: timedelta, long: timedelta, complete: bool
) -> None:
    midnight = begin(datetime.now(UTC), "day")
    found = segment.counts(keyspace, hosts=services.cql).count("any", midnight - ago, midnight - ago + long)
    assert found.complete is complete


@pytest.mark.slow
def test_a_day_of_minutes_takes_few_rows(services: Services, keyspace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = Counts._read

    def counting(self: Counts, asked: list[tuple[Any, ...]]) -> list[list[Any]]:
        answers = real(self, asked)
        read.extend(map(len, answers))
        return answers

    monkeypatch.setattr(Counts, "_read", counting)
    counts = segment.counts(keyspace, hosts=services.cql)
    full = sketch(range(20_000))
    keys = [("minute", DAY + i * MINUTE) for i in range(1440 + 61)]
    keys += [("ten", DAY + 10 * i * MINUTE) for i in range(150)]
    keys += [("hour", DAY + timedelta(hours=i)) for i in range(26)]
    keys += [("quarter", DAY + timedelta(hours=6 * i)) for i in range(5)]
    for first in range(0, len(keys), 500):
        counts.unite({("one", level, at): full for level, at in keys[first : first + 500]})
    since = DAY + 61 * MINUTE
    found = counts.count("one", since, since + timedelta(days=1))
    assert found.low < 20_000 < found.high
    assert sum(read) <= 23
    assert len(read) <= 9


def test_a_node_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def away_at_first(self: Counts, sketches: object) -> None:
        tries.append(sketches)
        if len(tries) == 1:
            raise NoHostAvailable("away", {})

    monkeypatch.setattr(Counts, "_unite", away_at_first)
    counts("nowhere", hosts="127.0.0.1:9").unite({})
    assert tries == [{}, {}]
