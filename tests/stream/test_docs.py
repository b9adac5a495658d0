"""Runs every line of the page for users of Kafka Streams and checks its result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest
import streams_page
from drawn import same
from pyspark.sql import DataFrame, SparkSession, functions as F
from streams_page import LINES

from penstock.table import Table

GROUPED = "`groupByKey`, `groupBy`"
"""Returns rows that can be counted, not a frame."""
EXPECTED = {
    GROUPED: "| page | count |\n| a | 2 |\n| b | 1 |",
    "`map`, `selectKey`": "| key | page |\n| ann | A |\n| ann | B |\n| bob | A |",
    "`mapValues`": "| id | price |\n| 1 | 2 |\n| 2 | 4 |\n| 3 | 6 |",
    "`filter`": "| id |\n| 2 |\n| 3 |",
    "`filterNot`": "| id |\n| 1 |",
    "`flatMap`, `flatMapValues`": "| id | tag |\n| 1 | x |\n| 1 | y |\n| 3 | x |",
    "`peek`": "| id |\n| 1 |\n| 2 |\n| 3 |",
    "`merge`": "| id |\n| 1 |\n| 1 |\n| 2 |\n| 2 |\n| 3 |\n| 3 |",
    "`split`, `branch`": "| id | topic |\n| 1 | cheap |\n| 2 | dear |\n| 3 | dear |",
    "`repartition`": "| id |\n| 1 |\n| 2 |\n| 3 |",
    "`count`": "| page | count |\n| a | 2 |\n| b | 1 |",
    "`reduce`": "| page | dearest |\n| a | 3 |\n| b | 2 |",
    "`aggregate`": "| page | total |\n| a | 4 |\n| b | 2 |",
    "`windowedBy(TimeWindows)`, `count`": "| page | n | final |\n| a | 1 | true |\n| a | 1 | true |\n| b | 1 | true |",
    "`TimeWindows.advanceBy`": """
        | page | n |
        | a    | 1 |
        | a    | 2 |
        | a    | 1 |
        | b    | 1 |
        | b    | 1 |
    """,
    "`SessionWindows`": "| user | n |\n| ann | 2 |\n| bob | 1 |",
    "`EmitStrategy.onWindowUpdate`": """
        | page | n | final |
        | a    | 1 | false |
        | a    | 1 | false |
        | b    | 1 | false |
        | a    | 1 | true  |
        | a    | 1 | true  |
        | b    | 1 | true  |
    """,
    "`suppress(untilWindowCloses)`": "| page | n |\n| a | 1 |\n| a | 1 |\n| b | 1 |",
    "late records": "| page | n |",
    "`toTable`": "| user | page |\n| ann | a |\n| ann | b |\n| bob | a |",
    "`KTable.toStream`": "| user | v |\n| ann | 1 |\n| bob | 1 |\n| cid | 2 |",
    "`KTable.groupBy().count`": "| city | count | deleted |\n| rome | 2 | false |\n| oslo | 1 | false |",
    "`KGroupedTable.aggregate`": "| city | n | total |\n| rome | 2 | 30 |\n| oslo | 1 | 5 |",
    "`KGroupedTable.aggregate(adder, subtractor)`": "| city | total |\n| rome | 30 |\n| oslo | 5 |",
    "`KTable.join`": "| user | balance | phone |\n| ann | 10 | 111 |",
    "`KTable.leftJoin`": "| user | phone |\n| ann | 111 |\n| bob | - |\n| cid | - |",
    "`KTable.outerJoin`": "| user | phone |\n| ann | 111 |\n| bob | - |\n| cid | - |\n| dan | 444 |",
    "`KTable.join` by a foreign key": """
        | user | country | deleted |
        | ann  | it      | false   |
        | bob  | it      | false   |
        | cid  | -       | true    |
    """,
    "`KStream.join(KTable)`": "| id | user | balance |\n| 1 | ann | 10 |\n| 2 | ann | 10 |\n| 3 | bob | 20 |",
    "`KStream.leftJoin(KTable)`": "| id | user | balance |\n| 1 | ann | 10 |\n| 2 | ann | 10 |\n| 3 | bob | 20 |",
    "`KStream.join(KStream)`": "| id | user | order |\n| 1 | ann | 7 |\n| 2 | ann | 7 |",
}


@pytest.fixture(scope="module")
def names(spark: SparkSession) -> Iterator[dict[str, Any]]:
    """The names used in the lines of the page."""
    clicks = spark.sql("""
        SELECT * FROM VALUES (1, 'ann', 'a', 1, timestamp_seconds(1709208000), array('x', 'y')),
            (2, 'ann', 'b', 2, timestamp_seconds(1709208010), NULL),
            (3, 'bob', 'a', 3, timestamp_seconds(1709208070), array('x'))
        AS (id, user, page, price, ts, tags)""")
    people = spark.sql("""
        SELECT * FROM VALUES ('ann', 'rome', 10, 1L), ('bob', 'rome', 20, 1L), ('cid', 'oslo', 5, 2L)
        AS (user, city, balance, v)""")
    phones = spark.sql("SELECT * FROM VALUES ('ann', 111, 1L), ('dan', 444, 1L) AS (user, phone, pv)")
    places = spark.sql("SELECT 'rome' AS name, 'it' AS country, 1L AS cv")
    orders = spark.sql("SELECT 'ann' AS user, 7 AS order, timestamp_seconds(1709208030) AS ordered")

    yield streams_page.names(clicks, people, phones, places, orders)


@pytest.fixture(scope="module")
def results(names: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The rows of every line, by its name: all lines are one query, which takes a tenth of the time."""
    frames = []
    for name, line in LINES:
        made = eval(line, names)
        frame: DataFrame = made.count() if name == GROUPED else made.df if isinstance(made, Table) else made
        text = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
        frames.append(frame.select(F.lit(name).alias("name"), text.alias("row")))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, _ in LINES}
    for name, row in reduce(DataFrame.unionAll, frames).collect():
        found[name].append(json.loads(row))
    return found


def test_every_line_of_the_page_has_a_result_that_is_checked() -> None:
    assert {name for name, _ in LINES} == set(EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_a_line_gives_what_it_should(name: str, results: dict[str, list[dict[str, Any]]]) -> None:
    same(results[name], EXPECTED[name])
