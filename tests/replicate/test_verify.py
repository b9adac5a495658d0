"""`replicate.verify` finds whatever differs between two tables on a real node, and nothing else; a repair writes it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from cassandra.concurrent import execute_concurrent
from keyspaces import new_keyspace
from pyspark.sql import SparkSession

from penstock import replicate
from penstock.cli import verify as verify_command
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.replicate import fragment_reader, verification

ROWS = 200
TYPES = "CREATE TYPE {ks}.address (street text, zip int)"
TABLE = (
    "CREATE TABLE {ks}.t (pk int, ck int, s int static, v int, w text, m map<text, int>, e set<int>, l list<int>, "
    "u address, f frozen<map<text, int>>, PRIMARY KEY (pk, ck))"
)


@dataclass(frozen=True)
class Pair:
    """Two tables with the same rows, written at the same times."""

    cql: Any
    hosts: str
    source: str
    target: str
    time: int

    def both(self, statement: str) -> None:
        for keyspace in (self.source, self.target):
            self.cql.execute(statement.replace("{ks}", keyspace).replace("{T}", str(self.time)))

    def change(self, statement: str) -> None:
        """Change the target alone."""
        self.cql.execute(statement.replace("{ks}", self.target).replace("{T}", str(self.time)))

    def sides(self, table: str = "t") -> tuple[replicate.Side, replicate.Side]:
        source, target = (replicate.side(f"{name}.{table}", hosts=self.hosts) for name in (self.source, self.target))
        return source, target


@pytest.fixture
def pair(cql: Any, services: Services) -> Iterator[Pair]:
    with filled_pair(cql, services) as made:
        yield made


@pytest.fixture(scope="module")
def unchanged(cql: Any, services: Services) -> Iterator[Pair]:
    """For tests that change neither side."""
    with filled_pair(cql, services) as made:
        yield made


@contextmanager
def filled_pair(cql: Any, services: Services) -> Iterator[Pair]:
    with new_keyspace(cql, "source") as source, new_keyspace(cql, "target") as target:
        made = Pair(cql, services.cql, source, target, time.time_ns() // 1000 - 60_000_000)
        made.both(TYPES)
        made.both(TABLE)
        # A time to live counts from the write: both of a row are written together.
        texts = (one.replace("{ks}", keyspace) for one in _rows() for keyspace in (source, target))
        execute_concurrent(cql, [(text.replace("{T}", str(made.time)), ()) for text in texts], concurrency=32)
        yield made


def _rows() -> Iterator[str]:
    for row in range(ROWS):
        ttl = " AND TTL 86400" if row % 10 == 0 else ""
        yield (
            f"INSERT INTO {{ks}}.t (pk, ck, v, w, m, e, u, f) VALUES ({row // 4}, {row % 4}, {row}, 'w{row}', "
            f"{{'a': {row}, 'b': 2}}, {{{row}, 7}}, {{street: 's', zip: {row}}}, {{'x': {row}}}) "
            f"USING TIMESTAMP {{T}}{ttl}"
        )
        if row % 4 == 0:
            yield f"UPDATE {{ks}}.t USING TIMESTAMP {{T}} SET s = {row} WHERE pk = {row // 4}"
            yield f"UPDATE {{ks}}.t USING TIMESTAMP {{T}} SET l = [1, 2, {row}] WHERE pk = {row // 4} AND ck = 0"


def verify(pair: Pair, spark: SparkSession, **options: Any) -> replicate.Report:
    return replicate.verify(spark, *pair.sides(), settle=0, **options)


def test_equal_tables_are_equal(unchanged: Pair, spark: SparkSession) -> None:
    report = verify(unchanged, spark)
    assert (report.result, report.rows, report.described) == ("equal", (ROWS, ROWS), ())
    assert any("lists (l)" in part for part in report.unseen)


DIFFERENCES: tuple[tuple[str, list[int | None], str | list[str]], ...] = (
    # A value, its write time, its time to live, and one where the source has none.
    ("UPDATE {ks}.t USING TIMESTAMP {T} SET v = 999 WHERE pk = 5 AND ck = 1", [5, 1], ["v"]),
    ("UPDATE {ks}.t USING TIMESTAMP {later} SET v = 23 WHERE pk = 5 AND ck = 3", [5, 3], ["writetime(v)"]),
    ("UPDATE {ks}.t USING TIMESTAMP {T} AND TTL 90000 SET v = 20 WHERE pk = 5 AND ck = 0", [5, 0], ["ttl(v)"]),
    ("UPDATE {ks}.t USING TIMESTAMP {T} AND TTL 90000 SET v = 25 WHERE pk = 6 AND ck = 1", [6, 1], ["ttl(v)"]),
    # A row that is missing, and two that should not be there: one has only its marker, one only a static column.
    ("DELETE FROM {ks}.t USING TIMESTAMP {T} WHERE pk = 7 AND ck = 2", [7, 2], "target"),
    ("INSERT INTO {ks}.t (pk, ck) VALUES (7, 9) USING TIMESTAMP {T}", [7, 9], "source"),
    ("UPDATE {ks}.t USING TIMESTAMP {T} SET s = 1 WHERE pk = 8000", [8000, None], "source"),
    # Elements and fields.
    ("UPDATE {ks}.t USING TIMESTAMP {T} SET m = m + {'b': 3} WHERE pk = 8 AND ck = 1", [8, 1], ["m"]),
    ("UPDATE {ks}.t USING TIMESTAMP {T} SET m = m - {'b'} WHERE pk = 8 AND ck = 2", [8, 2], ["m", "writetime(m)"]),
    ("UPDATE {ks}.t USING TIMESTAMP {later} SET e = e + {7} WHERE pk = 8 AND ck = 3", [8, 3], ["writetime(e)"]),
    ("UPDATE {ks}.t SET l = [2, 1, 36] WHERE pk = 9 AND ck = 0", [9, 0], ["l"]),
    ("UPDATE {ks}.t USING TIMESTAMP {later} SET u.zip = null WHERE pk = 9 AND ck = 2", [9, 2], ["u", "writetime(u)"]),
    ("UPDATE {ks}.t USING TIMESTAMP {later} SET f = {'y': 1} WHERE pk = 9 AND ck = 1", [9, 1], ["f", "writetime(f)"]),
)


def test_each_difference_is_found(pair: Pair, spark: SparkSession) -> None:
    for statement, _, _ in DIFFERENCES:
        pair.change(statement.replace("{later}", str(pair.time + 5)))
    # A static column is in each row of its partition.
    pair.change("UPDATE {ks}.t USING TIMESTAMP {T} SET s = 999 WHERE pk = 12")
    report = verify(pair, spark)
    found = {row.key: row.missing or list(row.columns) for row in report.described}
    wanted = {json.dumps(dict(zip(("pk", "ck"), key, strict=True))): what for _, key, what in DIFFERENCES}
    wanted |= {json.dumps({"pk": 12, "ck": ck}): ["s"] for ck in range(4)}
    assert found == wanted
    assert (report.result, report.different) == ("different", len(wanted))


def test_what_expires_while_it_is_compared_is_no_difference(pair: Pair, spark: SparkSession) -> None:
    pair.change("INSERT INTO {ks}.t (pk, ck, v) VALUES (7, 9, 1) USING TTL 2")
    pair.change("UPDATE {ks}.t USING TTL 2 SET m = m + {'c': 3} WHERE pk = 3 AND ck = 1")
    report = verify(pair, spark)
    assert (report.result, report.described) == ("equal", ())
    # A row that stays is one, though some of its values expire.
    pair.change("INSERT INTO {ks}.t (pk, ck, v) VALUES (7, 9, 1) USING TTL 2")
    pair.change("UPDATE {ks}.t SET w = 'stays' WHERE pk = 7 AND ck = 9")
    assert verify(pair, spark).described[0].missing == "source"


def test_swapped_values_are_found(pair: Pair, spark: SparkSession) -> None:
    later = str(pair.time + 1)
    for value, ck in ((12, 1), (13, 0)):
        pair.both(f"UPDATE {{ks}}.t USING TIMESTAMP {later} SET v = {value} WHERE pk = 3 AND ck = {ck}")
    for value, ck in ((13, 1), (12, 0)):
        pair.change(f"DELETE v FROM {{ks}}.t USING TIMESTAMP {later} WHERE pk = 3 AND ck = {ck}")
        pair.change(f"UPDATE {{ks}}.t USING TIMESTAMP {pair.time + 2} SET v = {value} WHERE pk = 3 AND ck = {ck}")
    report = verify(pair, spark, level=1)
    assert report.different == 2 and all(list(row.columns) == ["v"] for row in report.described)


def test_columns_of_one_side_are_told_and_the_others_compared(pair: Pair, spark: SparkSession) -> None:
    pair.change("ALTER TABLE {ks}.t DROP w")
    pair.change("ALTER TABLE {ks}.t ADD z bigint")
    report = verify(pair, spark)
    assert report.result == "different" and report.different == 0
    assert report.unlike == ("column w text is only in the source", "column z bigint is only in the target")


def test_level_1_compares_values_alone(pair: Pair, spark: SparkSession) -> None:
    pair.change(f"UPDATE {{ks}}.t USING TIMESTAMP {pair.time + 5} SET v = 21 WHERE pk = 5 AND ck = 1")
    assert verify(pair, spark, level=1).result == "equal"
    assert "write times and times to live" in verify(pair, spark, level=1).unseen


def test_a_repair_writes_the_source_s_rows_with_their_times(pair: Pair, spark: SparkSession) -> None:
    pair.change("TRUNCATE {ks}.t")
    pair.change("INSERT INTO {ks}.t (pk, ck, v) VALUES (9000, 1, 1)")
    pair.change("UPDATE {ks}.t SET m = m + {'only here': 1} WHERE pk = 3 AND ck = 1")
    report = verify(pair, spark, repair=True)
    assert (report.result, report.different) == ("equal", 0) and report.repaired == ROWS + 1
    report = verify(pair, spark)
    assert (report.result, report.rows) == ("equal", (ROWS, ROWS))


def test_what_the_target_got_later_is_left_and_told(pair: Pair, spark: SparkSession) -> None:
    pair.change("UPDATE {ks}.t SET v = -1 WHERE pk = 3 AND ck = 1")
    report = verify(pair, spark, repair=True)
    assert (report.result, report.repaired) == ("different", 0)
    assert report.described[0].columns["v"] == ("13", "-1")


LATER = "written later in the target"
GREATER = "written at the same time, and CQL keeps the greater value"
EXPIRES = "written at the same time, and CQL keeps the target's, which expires"
EXPIRES_LATER = "written at the same time, and CQL keeps the one that expires later"
DELETED = "deleted or expired in the target, at the same write time or later"
KEPT: tuple[tuple[str, list[int | None], dict[str, str]], ...] = (
    # What is done to the target alone, the row, and what a repair says of it.
    ("UPDATE {ks}.t USING TIMESTAMP {later} SET v = -1 WHERE pk = 3 AND ck = 1", [3, 1], {"v": LATER}),
    ("UPDATE {ks}.t USING TIMESTAMP {later} SET v = 14 WHERE pk = 3 AND ck = 2", [3, 2], {"v": LATER}),
    ("UPDATE {ks}.t USING TIMESTAMP {T} SET v = 99, w = 'a' WHERE pk = 4 AND ck = 1", [4, 1], {"v": GREATER}),
    ("UPDATE {ks}.t USING TIMESTAMP {T} AND TTL 999 SET v = 1 WHERE pk = 4 AND ck = 2", [4, 2], {"v": EXPIRES}),
    ("UPDATE {ks}.t USING TIMESTAMP {T} AND TTL 90000 SET v = 0 WHERE pk = 5 AND ck = 0", [5, 0], {"v": EXPIRES_LATER}),
    ("DELETE v FROM {ks}.t USING TIMESTAMP {T} WHERE pk = 5 AND ck = 1", [5, 1], {"v": DELETED}),
    (
        "UPDATE {ks}.t USING TIMESTAMP {T} SET m = m + {'a': 99}, u.zip = 99 WHERE pk = 5 AND ck = 2",
        [5, 2],
        {"m": f'element "a" {GREATER}', "u": f"field zip {GREATER}"},
    ),
    (
        "UPDATE {ks}.t USING TIMESTAMP {T} SET e = e - {7} WHERE pk = 5 AND ck = 3",
        [5, 3],
        {"e": f"element 7 {DELETED}"},
    ),
    ("DELETE FROM {ks}.t USING TIMESTAMP {later} WHERE pk = 6 AND ck = 1", [6, 1], {"row": DELETED}),
    ("DELETE FROM {ks}.t USING TIMESTAMP {T} WHERE pk = 7", [7, 0], {"row": DELETED}),
    ("UPDATE {ks}.t USING TIMESTAMP {later} SET l = [3] WHERE pk = 8 AND ck = 0", [8, 0], {"l": LATER}),
    ("UPDATE {ks}.t USING TIMESTAMP {T} SET s = 99 WHERE pk = 9", [9, 0], {"s": GREATER}),
)


def kept_in_the_target(pair: Pair) -> None:
    """Of these differences, a write with the source's time changes none; of two more, it does."""
    for statement, _, _ in KEPT:
        pair.change(at(pair, statement))
    pair.change("UPDATE {ks}.t USING TIMESTAMP {T} SET m = m + {'z': 1} WHERE pk = 10 AND ck = 1")
    pair.change("INSERT INTO {ks}.t (pk, ck, v) VALUES (10, 9, 1) USING TIMESTAMP {T}")


def test_each_difference_that_a_repair_leaves_says_why(pair: Pair, spark: SparkSession) -> None:
    kept_in_the_target(pair)
    assert not any(row.left for row in verify(pair, spark).described)
    report = verify(pair, spark, repair=True)
    left = {row.key: row.left for row in report.described}
    wanted = {json.dumps(dict(zip(("pk", "ck"), key, strict=True))): reasons for _, key, reasons in KEPT}
    # A static column is in each row of its partition.
    wanted |= {json.dumps({"pk": 9, "ck": ck}): {"s": GREATER} for ck in range(4)}
    wanted |= {json.dumps({"pk": 7, "ck": ck}): {"row": DELETED} for ck in range(4)}
    assert left == wanted
    assert (report.repaired, report.taken) == (2, 0)
    assert "write in the source again what is left, or repair with take_source" in report.next
    lines = list(verify_command._lines(report, repaired=True))
    assert f'{{"pk": 4, "ck": 1}}: v is 17 in the source, 99 in the target ({GREATER})' in lines
    assert f'{{"pk": 6, "ck": 1}}: not in the target ({DELETED})' in lines and report.next in lines


@pytest.mark.parametrize("level", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_repair_that_takes_the_source_leaves_only_write_times(pair: Pair, spark: SparkSession, level: int) -> None:
    kept_in_the_target(pair)
    # This row has only a marker, whose time reads do not show.
    pair.change("INSERT INTO {ks}.t (pk, ck) VALUES (11, 9) USING TIMESTAMP {T}")
    report = verify(pair, spark, level=level, repair=True, take_source=True)
    assert all(name.startswith("writetime(") for row in report.described for name in row.columns)
    assert not any(row.missing for row in report.described)
    assert all(reason.endswith(LATER) for row in report.described for reason in row.left.values())
    assert (report.result, report.taken) == ("different", report.different)
    assert report.next.startswith("the target has the source's values with later write times")
    assert verify(pair, spark, level=1).result == "equal"
    # A row that was inserted in the source is there without values, too.
    pair.both(
        f"DELETE v, w, m, e, l, u, f FROM {{ks}}.t USING TIMESTAMP {time.time_ns() // 1000} WHERE pk = 6 AND ck = 1"
    )
    left = verify(pair, spark).described
    assert len(left) == report.different - 1
    # Nothing is written twice.
    again = verify(pair, spark, level=level, repair=True, take_source=True)
    assert [row.columns for row in again.described] == [row.columns for row in left]


def test_a_repair_keeps_static_columns_of_rows_that_one_side_lacks(pair: Pair, spark: SparkSession) -> None:
    """A deletion at the time of the source's value would win over it."""
    pair.change("INSERT INTO {ks}.t (pk, ck, v) VALUES (3, 9, 1) USING TIMESTAMP {T}")
    source = Pair(pair.cql, pair.hosts, pair.target, pair.source, pair.time)
    for key in (20, 21):
        pair.both(f"UPDATE {{ks}}.t USING TIMESTAMP {{T}} SET s = {key} WHERE pk = 3{key}")
    pair.change("INSERT INTO {ks}.t (pk, ck, v) VALUES (320, 1, 1) USING TIMESTAMP {T}")
    source.change("INSERT INTO {ks}.t (pk, ck, v) VALUES (321, 1, 1) USING TIMESTAMP {T}")
    report = verify(pair, spark, repair=True)
    assert (report.result, report.described) == ("equal", ())


BAD: dict[str, tuple[Callable[[Pair], dict[str, Any]], str]] = {
    "level": (lambda pair: {"level": 4}, "use 1 .values., 2"),
    "tries": (lambda pair: {"tries": 1}, "use 2 or more"),
    "take_source": (lambda pair: {"take_source": True}, "give repair=True .--repair. with it"),
    "repair": (lambda pair: {"level": 1, "repair": True}, "a repair needs the times of writes"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_arguments_are_told(unchanged: Pair, spark: SparkSession, name: str) -> None:
    options, said = BAD[name]
    with pytest.raises(PenstockError, match=said):
        verify(unchanged, spark, **options(unchanged))


def test_counters_are_compared_by_their_values(pair: Pair, spark: SparkSession) -> None:
    pair.both("CREATE TABLE {ks}.c (pk int PRIMARY KEY, n counter)")
    pair.both("UPDATE {ks}.c SET n = n + 5 WHERE pk = 1")
    report = replicate.verify(spark, *pair.sides("c"), settle=0)
    assert report.result == "equal" and any("write times of n" in part for part in report.unseen)
    pair.change("UPDATE {ks}.c SET n = n + 1 WHERE pk = 1")
    report = replicate.verify(spark, *pair.sides("c"), settle=0)
    assert report.described[0].columns == {"n": ("5", "6")}


def test_tables_with_other_keys_are_refused(pair: Pair, spark: SparkSession) -> None:
    pair.both("CREATE TABLE {ks}.o (pk int, ck int, v int, PRIMARY KEY (pk, ck))")
    pair.change("DROP TABLE {ks}.o")
    pair.change("CREATE TABLE {ks}.o (pk int, ck text, v int, PRIMARY KEY (pk, ck))")
    with pytest.raises(PenstockError, match="the tables have different keys: pk int, ck int; and pk int, ck text"):
        replicate.verify(spark, *pair.sides("o"))


def test_a_repair_goes_on_until_no_row_is_left(
    pair: Pair, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows differ than are kept at once."""
    monkeypatch.setattr(verification, "MOST_ROWS", 1)
    monkeypatch.setattr(verification, "LEAST_ROWS", 7)
    pair.change("TRUNCATE {ks}.t")
    report = verify(pair, spark)
    assert (report.result, report.different) == ("different", ROWS)
    report = verify(pair, spark, repair=True)
    assert (report.result, report.repaired) == ("equal", ROWS)


HIDDEN: tuple[tuple[str, str, str], ...] = (
    # What is done to the target alone, where it is found, and what.
    ("DELETE FROM {ks}.t USING TIMESTAMP {older} WHERE pk = 1", '{"pk": 1}', "deletion of the partition"),
    (
        "DELETE FROM {ks}.t USING TIMESTAMP {older} WHERE pk = 2 AND ck >= 1 AND ck < 3",
        '{"pk": 2}',
        'deletion of the rows [{"ck": 1}, {"ck": 3})',
    ),
    (
        "DELETE FROM {ks}.t USING TIMESTAMP {older} WHERE pk = 2 AND ck > 3",
        '{"pk": 2}',
        'deletion of the rows ({"ck": 3}, )',
    ),
    ("DELETE FROM {ks}.t USING TIMESTAMP {older} WHERE pk = 3 AND ck = 1", '{"pk": 3, "ck": 1}', "deletion of the row"),
    ("INSERT INTO {ks}.t (pk, ck) VALUES (4, 2) USING TIMESTAMP {later}", '{"pk": 4, "ck": 2}', "row marker"),
    ("DELETE l FROM {ks}.t USING TIMESTAMP {T} WHERE pk = 4 AND ck = 3", "", ""),
    ("DELETE z FROM {ks}.t USING TIMESTAMP {T} WHERE pk = 5 AND ck = 1", '{"pk": 5, "ck": 1}', "value of z"),
    ("DELETE z FROM {ks}.t USING TIMESTAMP {T} WHERE pk = 5 AND ck = 9", '{"pk": 5, "ck": 9}', "value of z"),
    ("DELETE m FROM {ks}.t USING TIMESTAMP {older} WHERE pk = 6 AND ck = 0", "", ""),
    (
        "DELETE e FROM {ks}.t USING TIMESTAMP {T} WHERE pk = 6 AND ck = 9",
        '{"pk": 6, "ck": 9}',
        "deletion of all elements of e",
    ),
    ("DELETE m['q'] FROM {ks}.t USING TIMESTAMP {T} WHERE pk = 6 AND ck = 1", '{"pk": 6, "ck": 1}', 'element "q" of m'),
    ("DELETE sm['q'] FROM {ks}.t USING TIMESTAMP {T} WHERE pk = 7", '{"pk": 7, "ck": null}', 'element "q" of sm'),
    ("DELETE FROM {ks}.t USING TIMESTAMP {T} WHERE pk = 900", '{"pk": 900}', "deletion of the partition"),
)


@pytest.fixture
def hidden(pair: Pair) -> Pair:
    """The tables with two more columns, and what differs in the target."""
    pair.both("ALTER TABLE {ks}.t ADD z int")
    pair.both("ALTER TABLE {ks}.t ADD sm map<text, int> static")
    return pair


def at(pair: Pair, statement: str) -> str:
    return statement.replace("{older}", str(pair.time - 5)).replace("{later}", str(pair.time + 5))


def test_level_3_finds_what_reads_do_not_show(hidden: Pair, spark: SparkSession) -> None:
    for statement, _, _ in HIDDEN:
        hidden.change(at(hidden, statement))
    # Writes of the same time that a deletion covers are no difference.
    hidden.change(at(hidden, "DELETE FROM {ks}.t USING TIMESTAMP {older} WHERE pk = 1 AND ck = 2"))
    hidden.change("DELETE v FROM {ks}.t USING TIMESTAMP 5 WHERE pk = 8 AND ck = 2")
    assert verify(hidden, spark).result == "equal"
    report = verify(hidden, spark, level=3)
    assert report.hidden is not None
    found = sorted((one.key, one.what) for one in report.hidden.described)
    assert found == sorted((key, what) for _, key, what in HIDDEN if what)
    assert (report.result, report.different) == ("different", 0)
    assert any("which nodes may have forgotten" in part for part in report.unseen)


def test_a_repair_at_level_3_writes_what_cql_can_say(hidden: Pair, spark: SparkSession) -> None:
    source = Pair(hidden.cql, hidden.hosts, hidden.target, hidden.source, hidden.time)
    for statement, _, _ in HIDDEN:
        source.change(at(hidden, statement))
    # Rows that are missing: one was inserted, one only updated. Both get what they had.
    for row in ("(3, 2)", "(30, 30)"):
        source.change(at(hidden, f"INSERT INTO {{ks}}.t (pk, ck) VALUES {row} USING TIMESTAMP {{later}}"))
    source.change(at(hidden, "UPDATE {ks}.t USING TIMESTAMP {later} SET v = 1 WHERE pk = 31 AND ck = 31"))
    # What only the target has stays.
    hidden.change(at(hidden, "DELETE FROM {ks}.t USING TIMESTAMP {older} WHERE pk = 9 AND ck = 1"))
    report = verify(hidden, spark, level=3, repair=True)
    assert report.hidden is not None
    assert [(one.key, one.what, one.left) for one in report.hidden.described] == [
        ('{"pk": 9, "ck": 1}', "deletion of the row", "CQL cannot take it back")
    ]
    assert (report.different, report.hidden.different, report.hidden.repaired) == (0, 1, 9)
    # While writes may be on their way, a difference counts if it is the same in two comparisons.
    report = replicate.verify(spark, *hidden.sides(), level=3, settle="100 milliseconds")
    assert report.hidden is not None
    assert (report.hidden.undecided, report.hidden.different) == (0, 1)
    assert [one.key for one in report.hidden.described] == ['{"pk": 9, "ck": 1}']


def test_level_3_needs_nodes_that_show_what_they_have_stored(
    unchanged: Pair, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragment_reader, "FRAGMENTS", "NO_SUCH_STATEMENT")
    with pytest.raises(PenstockError, match=r"this cluster does not show it .*or compare with level 2"):
        verify(unchanged, spark, level=3)
