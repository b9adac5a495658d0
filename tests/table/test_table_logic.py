"""Tables batch by batch: totals with added and subtracted rows, and joins, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from bucket_runs import Run
from drawn import drawn, same
from pyspark.sql import types as st

from penstock.join.joins import MOVED, SIDE, Linked, Links, Pairs, StreamTableLogic
from penstock.keyed_state.aggregates import Aggregate, PartialColumn
from penstock.table.revisions import ROW_DELETED, ROW_VERSION, SIGN, Fold, Revisions, Totals

TYPES = {
    "id": pa.int64(),
    "fk": pa.string(),
    "region": pa.string(),
    "name": pa.string(),
    "v": pa.int64(),
    "_of_n": pa.bool_(),
    "_of_total": pa.int64(),
    SIGN: pa.int64(),
    SIDE: pa.int32(),
    ROW_VERSION: pa.int64(),
    ROW_DELETED: pa.bool_(),
    MOVED: pa.bool_(),
}


def table(text: str) -> pa.Table:
    """A drawn table with the types of its columns."""
    rows = drawn(text)
    return pa.table({name: pa.array([row[name] for row in rows], TYPES[name]) for name in rows[0]})


def schema(*names: str) -> pa.Schema:
    return pa.schema([pa.field(name, TYPES[name]) for name in names])


def test_a_new_row_is_added_and_the_one_before_subtracted_whatever_the_order_of_arrival() -> None:
    run = Run(Revisions(schema("id", "region", "v"), ("id",), ("region", "v")))
    head = "| id | region | v | _version | _deleted |\n"
    same(
        run.batch(table(head + "| 1 | eu | 5 | 1 | false |\n| 1 | eu | 6 | 2 | false |\n| 2 | us | 1 | 3 | false |")),
        "| region | v | _sign |\n| eu | 6 | 1 |\n| us | 1 | 1 |",
    )
    same(
        run.batch(table(head + "| 1 | us | 7 | 4 | false |\n| 2 | us | 9 | 2 | false |\n| 3 | us | 9 | 9 | true |")),
        "| region | v | _sign |\n| eu | 6 | -1 |\n| us | 7 | 1 |",
    )
    same(run.batch(table(head + "| 2 | - | - | 5 | true |")), "| region | v | _sign |\n| us | 1 | -1 |")
    assert run.state.to_pylist() == [{"id": 1, "region": "us", "v": 7, "_version": 4}]


def test_totals_of_groups_and_a_group_without_rows_is_deleted() -> None:
    count = Aggregate("n", (PartialColumn("n_count", "_of_n", "count", pa.int64()),), st.LongType())
    total = Aggregate("total", (PartialColumn("total_sum", "_of_total", "sum", pa.int64()),), st.LongType())
    run = Run(Totals(schema("region"), (count, total)))
    head = "| region | _of_n | _of_total | _sign |\n"
    same(
        run.batch(table(head + "| eu | true | 6 | 1 |\n| eu | true | 1 | 1 |\n| - | true | - | 1 |")),
        "| region | n | total | version | deleted |\n| eu | 2 | 7 | 1 | false |\n| - | 1 | 0 | 1 | false |",
    )
    same(
        run.batch(table(head + "| eu | true | 6 | -1 |\n| - | true | - | -1 |\n| us | true | 2 | 1 |")),
        """
        | region | n | total | version | deleted |
        | eu     | 1 | 1     | 2       | false   |
        | us     | 1 | 2     | 2       | false   |
        | -      | 0 | 0     | 2       | true    |
        """,
    )
    assert len(run.state) == 2


def test_totals_of_ones_own_functions() -> None:
    def add(total: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        return {"names": sorted([*total["names"], row["name"]])}

    def subtract(total: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        return {"names": [name for name in total["names"] if name != row["name"]]}

    returns = pa.schema([pa.field("names", pa.list_(pa.string()))])
    run = Run(Fold(schema("region"), returns, {"names": []}, add, subtract))
    run.batch(table("| region | name | _sign |\n| eu | bob | 1 |\n| eu | ann | 1 |"))
    found = run.batch(table("| region | name | _sign |\n| eu | bob | -1 |\n| us | cid | -1 |\n| us | cid | 1 |"))
    same(
        found,
        """
        | region | names   | version | deleted |
        | eu     | ["ann"] | 2       | false   |
        | us     | ["cid"] | 2       | true    |
        """,
    )


def test_functions_that_change_the_total_in_its_place_change_that_of_one_group() -> None:
    def add(total: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        total["names"].append(row["name"])
        return total

    returns = pa.schema([pa.field("names", pa.list_(pa.string()))])
    run = Run(Fold(schema("region"), returns, {"names": []}, add, add))
    for found in run.batch(table("| region | name | _sign |\n| eu | bob | 1 |\n| us | ann | 1 |")):
        assert found["names"] == ["bob" if found["region"] == "eu" else "ann"]
    assert run.batch(table("| region | name | _sign |\n| as | cid | 1 |"))[0]["names"] == ["cid"]


def pairs(how: str) -> list[list[dict[str, Any]]]:
    run = Run(Pairs(schema("id", "name", "v"), ("id",), ("name",), ("v",), how))
    head = "| id | _side | name | v | _version | _deleted |\n"
    return [
        run.batch(table(head + "| 1 | 0 | ann | - | 1 | false |\n| 2 | 1 | - | 20 | 1 | false |")),
        run.batch(table(head + "| 1 | 1 | - | 10 | 2 | false |\n| 2 | 0 | bob | - | 2 | false |")),
        run.batch(table(head + "| 1 | 0 | - | - | 3 | true |\n| 2 | 0 | bo | - | 3 | false |")),
    ]


def test_two_tables_side_by_side() -> None:
    first, second, third = pairs("inner")
    assert first == []
    same(second, "| id | name | v | version | deleted |\n| 1 | ann | 10 | 2 | false |\n| 2 | bob | 20 | 2 | false |")
    same(third, "| id | name | v | version | deleted |\n| 1 | - | 10 | 3 | true |\n| 2 | bo | 20 | 3 | false |")
    first, second, third = pairs("left")
    same(first, "| id | name | v | version | deleted |\n| 1 | ann | - | 1 | false |")
    same(third, "| id | name | v | version | deleted |\n| 1 | - | 10 | 3 | true |\n| 2 | bo | 20 | 3 | false |")
    first, second, third = pairs("full")
    same(first, "| id | name | v | deleted |\n| 1 | ann | - | false |\n| 2 | - | 20 | false |")
    same(third, "| id | name | v | deleted |\n| 1 | - | 10 | false |\n| 2 | bo | 20 | false |")


def test_a_row_that_points_elsewhere_is_taken_away_from_where_it_was() -> None:
    run = Run(Links(schema("id", "fk", "name"), ("id",), "fk"))
    head = "| id | fk | name | _version | _deleted |\n"
    run.batch(table(head + "| 1 | a | ann | 1 | false |\n| 2 | a | bob | 1 | false |\n| 3 | b | cid | 1 | false |"))
    same(
        run.batch(table(head + "| 1 | b | ann | 2 | false |\n| 2 | a | bo | 2 | false |\n| 3 | - | - | 2 | true |")),
        """
        | id | fk | name | _version | _deleted | _moved |
        | 1  | a  | ann  | 2        | true     | true   |
        | 1  | b  | ann  | 2        | false    | false  |
        | 2  | a  | bo   | 2        | false    | false  |
        | 3  | b  | cid  | 2        | true     | false  |
        """,
    )


def test_a_change_on_the_right_changes_all_rows_that_point_to_it() -> None:
    run = Run(Linked(schema("id", "fk", "name", "v"), ("id",), "fk", ("fk", "name"), ("v",), "inner"))
    head = "| id | fk | name | v | _side | _version | _deleted | _moved |\n"
    ann, bob = "| 1 | a | ann | - | 0 | 1 | false | false |\n", "| 2 | a | bob | - | 0 | 1 | false | false |\n"
    same(
        run.batch(table(head + ann + bob)),
        "| id | fk | v | deleted |\n| 1 | a | - | true |\n| 2 | a | - | true |",
    )
    same(
        run.batch(table(head + "| - | a | - | 7 | 1 | 1 | false | - |")),
        "| id | fk | name | v | deleted |\n| 1 | a | ann | 7 | false |\n| 2 | a | bob | 7 | false |",
    )
    same(
        run.batch(
            table(head + "| 1 | a | ann | - | 0 | 2 | true | true |\n| 2 | a | bob | - | 0 | 2 | true | false |")
        ),
        "| id | fk | name | v | deleted |\n| 2 | a | bob | - | true |",
    )
    assert len(run.state) == 1


def test_results_of_the_place_that_a_row_points_to_now_are_the_newest() -> None:
    logic = Linked(schema("id", "fk", "name", "v"), ("id",), "fk", ("fk", "name"), ("v",), "left")
    old, new = Run(logic), Run(logic)
    head = "| id | fk | name | v | _side | _version | _deleted | _moved |\n"
    versions = []
    for number in range(1, 4):
        old.batch(table(head + f"| - | a | - | {number} | 1 | {number} | false | - |"))
    versions += [row["version"] for row in old.batch(table(head + "| 1 | a | ann | - | 0 | 1 | false | false |"))]
    assert old.batch(table(head + "| 1 | a | ann | - | 0 | 2 | true | true |")) == []
    versions += [row["version"] for row in new.batch(table(head + "| 1 | b | ann | - | 0 | 2 | false | false |"))]
    versions += [row["version"] for row in new.batch(table(head + "| - | b | - | 9 | 1 | 1 | false | - |"))]
    assert len(versions) == 3 and versions == sorted(set(versions))


def test_a_stream_meets_the_table_as_it_is_after_the_rows_of_the_batch() -> None:
    head = "| id | name | v | _side | _version | _deleted |\n"
    rows = (
        "| 1 | x | - | 0 | - | - |\n| 1 | - | 5 | 1 | 1 | false |\n| 2 | y | - | 0 | - | - |\n| - | z | - | 0 | - | - |"
    )
    inner, left = (
        Run(StreamTableLogic(schema("id", "v"), ("id",), ("id", "name"), ("v",), how)) for how in ("inner", "left")
    )
    same(inner.batch(table(head + rows)), "| id | name | v |\n| 1 | x | 5 |")
    same(left.batch(table(head + rows)), "| id | name | v |\n| 1 | x | 5 |\n| 2 | y | - |\n| - | z | - |")
    gone = "| 1 | - | - | 1 | 2 | true |\n| 1 | x | - | 0 | - | - |\n| 1 | y | - | 0 | - | - |"
    same(left.batch(table(head + gone)), "| id | name | v |\n| 1 | x | - |\n| 1 | y | - |")


def test_null_finds_no_row_though_the_table_has_one_under_it() -> None:
    rows = "| id | name | v | _side | _version | _deleted |\n| - | x | - | 0 | - | - |\n| - | - | 5 | 1 | 1 | false |"
    inner, left = (
        Run(StreamTableLogic(schema("id", "v"), ("id",), ("id", "name"), ("v",), how)) for how in ("inner", "left")
    )
    same(inner.batch(table(rows)), "| id | name | v |")
    same(left.batch(table(rows)), "| id | name | v |\n| - | x | - |")


def test_null_equals_nothing_when_tables_are_joined() -> None:
    head = "| id | _side | name | v | _version | _deleted |\n"
    ours, theirs = "| - | 0 | ann | - | 1 | false |\n", "| - | 1 | - | 10 | 1 | false |\n"
    runs = {how: Run(Pairs(schema("id", "name", "v"), ("id",), ("name",), ("v",), how)) for how in ("inner", "full")}
    same(runs["inner"].batch(table(head + ours + theirs)), "| id | name | v |")
    same(runs["full"].batch(table(head + theirs)), "| id | name | v | deleted |\n| - | - | 10 | false |")
    same(runs["full"].batch(table(head + ours)), "| id | name | v | deleted |\n| - | ann | - | false |")
    head = "| id | fk | name | v | _side | _version | _deleted | _moved |\n"
    both = "| 1 | - | ann | - | 0 | 1 | false | false |\n| - | - | - | 7 | 1 | 1 | false | - |"
    run = Run(Linked(schema("id", "fk", "name", "v"), ("id",), "fk", ("fk", "name"), ("v",), "left"))
    same(run.batch(table(head + both)), "| id | fk | name | v | deleted |\n| 1 | - | ann | - | false |")
