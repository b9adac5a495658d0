"""Events with deleted ranges, applied to a second table as docs/events.md says: it has the same rows as the first."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cdc_queries import Sink, run

from penstock import cdc

Row = dict[str, Any]
ORDERS = {
    "ascending": ("a int, PRIMARY KEY (id, a)", "a ASC"),
    "descending": ("a int, PRIMARY KEY (id, a)", "a DESC"),
    "both ascending": ("a int, b text, PRIMARY KEY (id, a, b)", "a ASC, b ASC"),
    "both descending": ("a int, b text, PRIMARY KEY (id, a, b)", "a DESC, b DESC"),
    "mixed": ("a int, b text, PRIMARY KEY (id, a, b)", "a DESC, b ASC"),
    "mixed the other way": ("a int, b text, PRIMARY KEY (id, a, b)", "a ASC, b DESC"),
}


def is_deleted(range: Mapping[str, Any], row: Row) -> bool:
    """Whether a row is between both bounds, in the order that the range names."""
    for side, inclusive, outside in ("start", "start_inclusive", -1), ("end", "end_inclusive", 1):
        if (bound := range[side]) is not None:
            place = compared(row, bound, range.get("order") or [f"{name} ASC" for name in bound])
            if place == outside or (place == 0 and not range[inclusive]):
                return False
    return True


def compared(row: Row, bound: Row, order: list[str]) -> int:
    """-1 for a row before the bound, 1 for a row after it; columns that are null in the bound do not count."""
    for name, direction in (column.rsplit(" ", 1) for column in order):
        if bound[name] is not None and row[name] != bound[name]:
            return (-1 if row[name] < bound[name] else 1) * (-1 if direction == "DESC" else 1)
    return 0


def statements(drawn: random.Random, table: str, columns: list[str]) -> Iterator[str]:
    """Inserts of rows, and deletes of ranges of them."""
    for _ in range(250):
        values = [drawn.randrange(6), drawn.choice("pqrst")][: len(columns)]
        if drawn.random() < 0.75:
            listed = ", ".join(map(repr, values))
            yield f"INSERT INTO {table} (id, {', '.join(columns)}, v) VALUES (1, {listed}, {drawn.randrange(100)})"
        else:
            yield f"DELETE FROM {table} WHERE id = 1 AND {condition(drawn, columns, values)}"


def condition(drawn: random.Random, columns: list[str], values: list[Any]) -> str:
    lower, upper = drawn.choice([">", ">="]), drawn.choice(["<", "<="])
    last = len(columns) - 1 if drawn.random() < 0.7 else 0
    equal = "".join(f"{name} = {value!r} AND " for name, value in zip(columns[:last], values, strict=False))
    low, high = sorted([values[last], drawn.randrange(6) if last == 0 else drawn.choice("pqrst")])
    sides = f"{columns[last]} {lower} {low!r}", f"{columns[last]} {upper} {high!r}"
    return equal + drawn.choice([sides[0], sides[1], " AND ".join(sides)])


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(("columns", "order"), ORDERS.values(), ids=ORDERS)
def test_a_second_table_is_equal(cql: Any, keyspace: str, read: Any, columns: str, order: str, tmp_path: Path) -> None:
    number = list(ORDERS.values()).index((columns, order))
    table = f"{keyspace}.ranges_{number}"
    images = "{'enabled': true, 'preimage': true, 'postimage': true}"
    cql.execute(
        f"CREATE TABLE {table} (id int, v int, {columns}) WITH CLUSTERING ORDER BY ({order}) AND cdc = {images}"
    )
    clustering = [name for name in ("a", "b") if f"{name} " in columns]
    for statement in statements(random.Random(number), table, clustering):
        cql.execute(statement)
    sink = Sink()
    run(cdc.events(read(table, images="full"), prefix="s"), sink, tmp_path)
    copy: dict[tuple[Any, ...], int] = {}
    ranges = 0
    for row in sink.rows:
        event, key = json.loads(row.value or "null"), json.loads(row.key)
        place = tuple(key[name] for name in clustering)
        if event is None:
            continue  # a tombstone
        if event.get("range"):
            ranges += 1
            gone = [key for key in copy if is_deleted(event["range"], dict(zip(clustering, key, strict=True)))]
            for place in gone:
                del copy[place]
        elif event["op"] == "d":
            copy.pop(place, None)
        else:
            copy[place] = event["after"]["v"]
    assert ranges > 30
    rows = cql.execute(f"SELECT {', '.join(clustering)}, v FROM {table}")
    assert copy == {tuple(row[:-1]): row[-1] for row in rows}
    assert copy


def test_one_descending_column_has_its_bounds_in_the_order_of_values(
    cql: Any, keyspace: str, read: Any, tmp_path: Path
) -> None:
    name = f"{keyspace}.days"
    cql.execute(
        f"CREATE TABLE {name} (pk int, a date, PRIMARY KEY (pk, a)) WITH CLUSTERING ORDER BY (a DESC) "
        "AND cdc = {'enabled': true}"
    )
    for condition in "a > '2026-01-01'", "a >= '2026-01-01' AND a < '2026-02-01'", "a < '2026-02-01'":
        cql.execute(f"DELETE FROM {name} WHERE pk = 1 AND {condition}")
    sink = Sink()
    run(read(name), sink, tmp_path)
    found = [row.range.asDict(recursive=True) for row in sink.rows]
    january, february = ({"a": day} for day in (sink.rows[1].range.start.a, sink.rows[1].range.end.a))
    assert [str(one["a"]) for one in (january, february)] == ["2026-01-01", "2026-02-01"]
    assert found == [
        {"start": january, "start_inclusive": False, "end": None, "end_inclusive": True},
        {"start": january, "start_inclusive": True, "end": february, "end_inclusive": False},
        {"start": None, "start_inclusive": True, "end": february, "end_inclusive": False},
    ]
